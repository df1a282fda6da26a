"""Burns a GPU with matrix products and checks each of them: `python burn.py --uuid GPU-...`.

A product of the same matrices on the same GPU is the same to the last bit, so each one is compared
with the first, and some rows of the first with a product that the CPU computes in float64. One that
differs is a wrong result of this GPU.

It ends by itself at its deadline, and at once when the GPU gets too hot or does not tell how hot it
is. Reports: `round` (gflops, products, mismatches, temperature_c), then `finished` or `aborted`.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any, Protocol

from resilience_pipelines.faults.gpu_programs.protocol import hold_signal, report, wait_for_go

ROUND_S = 0.5
CHECKED_ROWS = 4
TOLERANCE = 0.02
"""Of the standard deviation of a product's entries: bfloat16 keeps 8 bits."""
EXIT_ABORTED = 3


class Matrices(Protocol):
    """Two matrices on a device, and their product."""

    def multiply(self, times: int) -> None:
        """Multiply them again and wait until it is done."""

    def mismatches(self) -> int:
        """Entries of the last product that are not those of the first."""

    def rows(self) -> tuple[Any, Any]:
        """Some rows of the first product, and the same computed by the CPU in float64."""


class TorchMatrices:
    """On the current CUDA device, in bfloat16."""

    def __init__(self, torch: Any, size: int) -> None:
        self._torch = torch
        generator = torch.Generator("cuda").manual_seed(1)
        shape = {"device": "cuda", "dtype": torch.bfloat16, "generator": generator}
        self._left = torch.randn(size, size, **shape)
        self._right = torch.randn(size, size, **shape)
        self._product = torch.empty_like(self._left)
        self.multiply(1)
        self._reference = self._product.clone()

    def multiply(self, times: int) -> None:
        """See `Matrices.multiply`."""
        for _ in range(times):
            self._torch.mm(self._left, self._right, out=self._product)
        self._torch.cuda.synchronize()

    def mismatches(self) -> int:
        """See `Matrices.mismatches`. NaN is unlike anything, itself included."""
        return int((self._product != self._reference).sum().item())

    def rows(self) -> tuple[Any, Any]:
        """See `Matrices.rows`."""
        left = self._left[:CHECKED_ROWS].double().cpu().numpy()
        right = self._right.double().cpu().numpy()
        return self._reference[:CHECKED_ROWS].double().cpu().numpy(), left @ right


class NumpyMatrices:
    """On the CPU, in float32: the same program where there is no GPU, for its tests."""

    def __init__(self, numpy: Any, size: int) -> None:
        self._numpy = numpy
        random = numpy.random.default_rng(1)
        self._left = random.standard_normal((size, size), dtype=numpy.float32)
        self._right = random.standard_normal((size, size), dtype=numpy.float32)
        self.product = numpy.empty_like(self._left)
        self.multiply(1)
        self._reference = self.product.copy()

    def multiply(self, times: int) -> None:
        """See `Matrices.multiply`."""
        for _ in range(times):
            self._numpy.matmul(self._left, self._right, out=self.product)

    def mismatches(self) -> int:
        """See `Matrices.mismatches`."""
        return int((self.product != self._reference).sum())

    def rows(self) -> tuple[Any, Any]:
        """See `Matrices.rows`."""
        left = self._left[:CHECKED_ROWS].astype(self._numpy.float64)
        return self._reference[:CHECKED_ROWS], left @ self._right.astype(self._numpy.float64)


class Thermometer:
    """The temperature of one GPU by NVML."""

    def __init__(self, uuid: str) -> None:
        import pynvml

        self._nvml = pynvml
        pynvml.nvmlInit()
        self._handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)

    def read_c(self) -> int:
        """Degrees Celsius. Raises `NVMLError` where there is no such value."""
        return int(
            self._nvml.nvmlDeviceGetTemperature(self._handle, self._nvml.NVML_TEMPERATURE_GPU)
        )


def burn(
    matrices: Matrices, thermometer: Any, *, size: int, seconds: float, max_temperature_c: int
) -> int:
    """Multiply and check until the time is over or it gets too hot; returns the exit code."""
    found, wanted = matrices.rows()
    off = int((abs(found - wanted) > TOLERANCE * size**0.5).sum())
    report("reference", rows=CHECKED_ROWS, mismatches=off)
    end = time.monotonic() + seconds
    times = 1
    while time.monotonic() < end:
        temperature_c = thermometer.read_c()
        if temperature_c >= max_temperature_c:
            report("aborted", temperature_c=temperature_c, max_temperature_c=max_temperature_c)
            return EXIT_ABORTED
        begin = time.monotonic()
        matrices.multiply(times)
        took_s = time.monotonic() - begin
        report(
            "round",
            gflops=2.0 * size**3 * times / took_s / 1e9,
            products=times,
            mismatches=matrices.mismatches(),
            temperature_c=temperature_c,
        )
        times = max(1, round(times * min(ROUND_S / took_s, 10.0)))
    report("finished")
    return 0


def main() -> int:
    """Wait for the signal, then burn."""
    hold_signal()
    parser = argparse.ArgumentParser()
    parser.add_argument("--uuid", required=True, help="the GPU, also in CUDA_VISIBLE_DEVICES")
    parser.add_argument("--size", type=int, default=8192, help="rows of a matrix")
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--max-temperature-c", type=int, required=True)
    options = parser.parse_args()
    import torch

    wait_for_go()
    return burn(
        TorchMatrices(torch, options.size), Thermometer(options.uuid), size=options.size,
        seconds=options.seconds, max_temperature_c=options.max_temperature_c,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
