"""What vLLM's worker process does before a snapshot so that the image gets small.

vLLM mixes this class into its worker (`--worker-extension-cls`); `vllm_middleware` calls it.

What belongs here: giving back host memory that a sleeping worker does not need. What does not:
device memory, which sleep and the CUDA driver take care of. torch and vLLM are imported where they
are used: this module is also read by processes that have neither.
"""

from __future__ import annotations

import ctypes
import gc
from typing import Any


def trim_heap() -> None:
    """Collect garbage and give free heap pages back to the kernel."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:  # a C library other than glibc has none
        trim(0)


class SnapshotExtension:
    """Methods that become callable in every worker through `collective_rpc`."""

    def release_host_memory(self) -> int:
        """Move what sleep saved out of pinned memory and free all pinned memory that is cached.

        PyTorch rounds each pinned block up to a power of two and keeps it when it is freed, and the
        driver pins it again page by page in a restore. Ordinary memory of the exact size takes less
        of the image; the wake then copies from there, some tenths of a second for each gigabyte.

        Returns:
            Bytes of saved device memory that were moved.
        """
        import torch
        from vllm.device_allocator.cumem import CuMemAllocator

        moved = 0
        for data in CuMemAllocator.get_instance().pointer_to_data.values():
            pinned: Any = data.cpu_backup_tensor
            if pinned is not None:
                ordinary = torch.empty(pinned.numel(), dtype=pinned.dtype)
                data.cpu_backup_tensor = ordinary.copy_(pinned)
                moved += pinned.numel() * pinned.element_size()
                del pinned
        torch._C._host_emptyCache()
        trim_heap()
        return moved
