"""Whether collectives can be run here, and over which backend.

What belongs here: looking for torch and for GPUs, without importing torch in this process. What
does not: running anything.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

GLOO = "gloo"
NCCL = "nccl"
MIN_CPU_RANKS = 2


def unavailable() -> str | None:
    """Why no collective can be run here; None when it can."""
    if find_spec("torch") is None:
        return "PyTorch is not installed; install the extra `collectives` or `gpu`."
    return None


def torch_version() -> str | None:
    """The version of PyTorch, if it is installed."""
    try:
        return version("torch")
    except PackageNotFoundError:
        return None


def gpu_count() -> int:
    """How many NVIDIA devices this machine shows to its processes."""
    return len(list(Path("/dev").glob("nvidia[0-9]*")))


def choose_backend() -> str:
    """NCCL where there are GPUs, else gloo."""
    return NCCL if gpu_count() else GLOO
