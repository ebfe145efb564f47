"""The bundled model: its training, its file of 8 bits, and its recall through `find_tool`.

**Question.** Does a model that is trained on requests for tools find more of them, at the same size?

**Repeat.** `make model` trains two seeds in an environment of its own in `.training`, mixes them, and measures the
mixture beside the bundled model. `make model RUN=lasting MODEL_ARGS="--epochs 5"` makes another one.
JAX uses an accelerator where its plugin is installed in that environment.

**Method.** The published weights are trained on `requests.jsonl`, which a language model wrote for this product.
The tools are those of the haystack beside the project, which are only read. All layers learn by InfoNCE over the
product's closeness, with hard negatives; the embeddings stay. docs/model.md has the recipe and the rule of choice.

- `texts`: requests and tools as the tokens of the product, in `data.npz`; it runs in the project's environment
- `data`, `sampling`, `training`: the batches, the loss, and the steps; they need the packages of `requirements.lock`
- `network`, `quantisation`: the network in numpy for the ranges of its activations, and the ONNX graph in 8 bits
- `evaluation`: recall of `find_tool` with each model, in the project's environment
"""
