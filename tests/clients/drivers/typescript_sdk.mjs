// The first line of the TypeScript SDK: `@modelcontextprotocol/sdk`.

import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import { answer } from "./answering.mjs";

const target = JSON.parse(process.argv[2]);
const client = new Client({ name: "driver", version: "1.0.0" });
await client.connect(
  target.url ? new StreamableHTTPClientTransport(new URL(target.url)) : new StdioClientTransport(target),
);
await answer(
  () => client.listTools(),
  (params, options) => client.callTool(params, undefined, options),
);
