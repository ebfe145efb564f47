"""`python -m benchmarks.quantisation WEIGHTS.safetensors MODEL.onnx`: write the bundled model from its weights.

It needs the packages of `requirements.lock` beside this file, in a separate environment.
The same machine writes the same bytes; elsewhere the last bits of a scale may differ.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.quantisation.graph import write_model
from benchmarks.quantisation.network import WORDS, positions, random_texts, ranges, read_weights


def main() -> None:
    """Write the model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("weights", type=Path)
    parser.add_argument("model", type=Path)
    arguments = parser.parse_args()
    weights = read_weights(arguments.weights)
    texts = random_texts(len(weights[WORDS]), len(positions(weights)))
    write_model(weights, ranges(weights, texts), arguments.model)


if __name__ == "__main__":
    main()
