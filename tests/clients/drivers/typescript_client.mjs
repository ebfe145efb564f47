// The second line of the TypeScript SDK: `@modelcontextprotocol/client`.

import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";
import { StdioClientTransport } from "@modelcontextprotocol/client/stdio";
import { answer } from "./answering.mjs";

const target = JSON.parse(process.argv[2]);
// its default is the handshake of revision 2025-11-25; this mode asks for 2026-07-28 first
const client = new Client({ name: "driver", version: "1.0.0" }, { versionNegotiation: { mode: "auto" } });
await client.connect(
  target.url ? new StreamableHTTPClientTransport(new URL(target.url)) : new StdioClientTransport(target),
);
await answer(
  () => client.listTools(),
  (params, options) => client.callTool(params, options),
);
