"""Code that the workers, the query service and the command line share."""

import os

# ONNX Runtime and the client of the model hub report their use to their makers, unless these variables are set before
# they are imported; the texts that Toolscale embeds are private. Every import of either comes after this one.
os.environ |= {"ORT_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "DO_NOT_TRACK": "1"}
