"""Ways to break a process's own CUDA context for good, at no harm to the GPU or to others on it.

What belongs here: the two mistakes of a program that the driver reports as an XID. What does not:
who asks for them (the worker's `server`, `faults.gpu_programs`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from resilience_pipelines.workers.torch_reference.memory import DeviceRegion

_BYTES = 1 << 21


def illegal_address() -> None:
    """Let a kernel write to an address that was mapped and is not any more.

    Raises:
        RuntimeError: always, CUDA's own: no later call in this process works either.
    """
    region = DeviceRegion(_BYTES)
    region.release()
    region.tensor.fill_(1)
    torch.cuda.synchronize()


def device_assert() -> None:
    """Let a kernel's own assertion fail: an index far out of its tensor.

    Raises:
        RuntimeError: always, CUDA's own: no later call in this process works either.
    """
    place = torch.full((1,), 1 << 20, dtype=torch.long, device="cuda")
    torch.zeros(1, device="cuda")[place].sum().item()
    torch.cuda.synchronize()


MISTAKES: Mapping[str, Callable[[], None]] = {
    "illegal_address": illegal_address,
    "device_assert": device_assert,
}
