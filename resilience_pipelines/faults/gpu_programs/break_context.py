"""Breaks its own CUDA context: a neighbour on the worker's GPU that makes a mistake.

Reports: `on_gpu` once it has a context, `broken` (error) with CUDA's own words. It exits with 1.
"""

from __future__ import annotations

import argparse
import sys

from resilience_pipelines.faults.gpu_programs.protocol import hold_signal, report, wait_for_go


def main() -> int:
    """Wait for the signal, then make the mistake."""
    hold_signal()
    parser = argparse.ArgumentParser()
    parser.add_argument("--mistake", required=True)
    options = parser.parse_args()
    import torch

    from resilience_pipelines.workers.torch_reference.broken_context import MISTAKES

    wait_for_go()
    torch.zeros(1, device="cuda")
    torch.cuda.synchronize()
    report("on_gpu")
    try:
        MISTAKES[options.mistake]()
    except RuntimeError as error:
        report("broken", error=str(error).splitlines()[0])
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
