// Plays requests from stdin on a connected client: one JSON object a line, and one for its reply.

import { createInterface } from "node:readline";

async function reply(request, list, call, signal) {
  if (request.do === "list") return { tools: (await list()).tools.map((tool) => tool.name) };
  try {
    const result = await call({ name: request.name, arguments: request.arguments }, { signal });
    return { text: result.content.map((block) => block.text).join("\n"), is_error: result.isError ?? false };
  } catch (error) {
    return signal.aborted ? { cancelled: true } : { raised: String(error) };
  }
}

// `list()` returns the tools, and `call(params, options)` a result.
export async function answer(list, call) {
  const calls = new Map();
  for await (const line of createInterface({ input: process.stdin })) {
    const request = JSON.parse(line);
    if (request.do === "cancel") {
      calls.get(request.id).abort();
      continue;
    }
    const controller = new AbortController();
    calls.set(request.id, controller);
    reply(request, list, call, controller.signal).then((replied) =>
      console.log(JSON.stringify({ id: request.id, ...replied })),
    );
  }
  process.exit(0);
}
