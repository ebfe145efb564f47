"""Agents: does an agent search for tools, at what price in tokens, and are its tasks done?

An agent gets each task three times: with the tools of all of the demo's servers in the prompt; with a search of the
client's own, which loads the definitions that BM25 finds by names and descriptions, as published clients do; and with
the tools of Toolscale. The servers, `toolscale serve` and their calls are real. A program checks each task by the state
that it leaves, or by a word of the answer that only a tool returns. Tokens are those of all requests to the model:
messages and offered tools (cl100k_base), whatever an endpoint says or caches.

Without a model, a script plays the agent: it knows which tool it wants, calls it only where it was shown it, and gives
up after one search. Its success and its searches say that the harness runs, and nothing about models. With one:

    export AGENT_URL=http://127.0.0.1:11434/v1 AGENT_MODEL=qwen3 AGENT_KEY=...
    make bench BENCH=agents
    make bench BENCH=agents BENCH_ARGS="--score .demo/agents-qwen3.jsonl"

The endpoint must have OpenAI's chat completions with tools. Every run is appended to a JSONL file with all messages;
`--score` counts and checks these again, without a model. Run it several times: models differ from run to run.

- The tasks are ours and few, and each needs a tool; agents also have tasks that need none.
- A client shows more than this prompt: tools of its own, files, and other advice on when to search.
"""
