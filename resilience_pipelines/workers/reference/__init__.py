"""The reference worker's own process: a small decoder on the CPU behind the worker contract.

Nothing here imports the rest of the platform: the time this process takes to start is measured.
"""

VERSION = "1.0"
"""The worker as an engine: changes with anything that can change an answer or a measurement."""

MODEL_NAME = "reference-decoder"

WEIGHTS_FORMAT = "reference-decoder-1"
"""Of the weight file: changes with anything that can change its bytes for a seed and a shape."""
