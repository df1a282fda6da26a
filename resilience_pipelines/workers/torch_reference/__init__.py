"""The torch worker's own process: a small decoder on one GPU behind the worker contract.

It has what makes a GPU worker hard to bring back: a CUDA context, weights and a KV cache in device
memory at addresses that a captured CUDA graph holds, and compiled kernels with a cache on disk.
Nothing here imports the platform: the time this process takes to start is measured.
"""

VERSION = "1.0"
"""The worker as an engine: changes with anything that can change an answer or a measurement."""

MODEL_NAME = "torch-decoder"
