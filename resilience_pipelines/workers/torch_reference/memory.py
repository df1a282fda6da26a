"""Device memory that can be given back and taken again at the same addresses.

What belongs here: one region of device memory for as long as the process lives, as `sleep` needs
it: a CUDA graph holds addresses, so what comes back has to come back in place. What does not: what
the region holds (`model`).
"""

from __future__ import annotations

from typing import Any, Protocol

import torch


class Region(Protocol):
    """Bytes on a device that tensors are views of."""

    tensor: torch.Tensor
    """All of it, as uint8."""

    def release(self) -> None:
        """Give the memory back. Its tensors must not be used until `take`."""

    def take(self) -> None:
        """Have memory at the same addresses again; what it holds is undefined."""


class HostRegion:
    """Ordinary memory, for a worker without a GPU. It is kept while released."""

    def __init__(self, size: int) -> None:
        self.tensor = torch.empty(size, dtype=torch.uint8)

    def release(self) -> None:
        """See `Region.release`. What is released is undefined, so that nobody relies on it."""
        self.tensor.fill_(0xFF)

    def take(self) -> None:
        """See `Region.take`."""


class DeviceRegion:
    """Memory of the current CUDA device, mapped by the driver at a reserved address range.

    Raises:
        RuntimeError: the driver refuses, with its own name of the error.
    """

    def __init__(self, size: int) -> None:
        from cuda.bindings import driver

        self._cuda: Any = driver
        self._properties = driver.CUmemAllocationProp()
        self._properties.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        self._properties.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        self._properties.location.id = torch.cuda.current_device()
        granularity = self._call(
            driver.cuMemGetAllocationGranularity(
                self._properties,
                driver.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM,
            )
        )
        self._size = -(-size // granularity) * granularity
        self._address = int(self._call(driver.cuMemAddressReserve(self._size, 0, 0, 0)))
        self._handle: Any = None
        self.take()
        self.tensor = torch.as_tensor(_DeviceBytes(self._address, size), device="cuda")

    def take(self) -> None:
        """See `Region.take`."""
        cuda = self._cuda
        self._handle = self._call(cuda.cuMemCreate(self._size, self._properties, 0))
        self._call(cuda.cuMemMap(self._address, self._size, 0, self._handle, 0))
        access = cuda.CUmemAccessDesc()
        access.location.type = self._properties.location.type
        access.location.id = self._properties.location.id
        access.flags = cuda.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        self._call(cuda.cuMemSetAccess(self._address, self._size, [access], 1))

    def release(self) -> None:
        """See `Region.release`."""
        torch.cuda.synchronize()
        self._call(self._cuda.cuMemUnmap(self._address, self._size))
        self._call(self._cuda.cuMemRelease(self._handle))
        self._handle = None

    def _call(self, answer: tuple[Any, ...]) -> Any:
        result, *values = answer
        if result != self._cuda.CUresult.CUDA_SUCCESS:
            raise RuntimeError(result.name)
        return values[0] if values else None


class _DeviceBytes:
    """What torch needs in order to see device memory that it did not allocate."""

    def __init__(self, address: int, size: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (size,), "typestr": "|u1", "data": (address, False), "version": 3,
        }  # fmt: skip
