"""The burn program's own loop over NumPy's products, with a thermometer that a test sets."""

import argparse
import sys

import numpy

from resilience_pipelines.faults.gpu_programs.burn import NumpyMatrices, burn
from resilience_pipelines.faults.gpu_programs.protocol import hold_signal, wait_for_go


class Thermometer:
    def read_c(self) -> int:
        return 50


hold_signal()
parser = argparse.ArgumentParser()
for name in ("--uuid", "--size", "--seconds", "--max-temperature-c"):
    parser.add_argument(name)
options = parser.parse_args()
wait_for_go()
size = 128
sys.exit(
    burn(
        NumpyMatrices(numpy, size), Thermometer(), size=size, seconds=float(options.seconds),
        max_temperature_c=int(options.max_temperature_c),
    )
)  # fmt: skip
