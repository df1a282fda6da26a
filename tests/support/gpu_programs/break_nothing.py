"""Speaks the protocol of the program that breaks its context, and breaks none."""

import sys

from resilience_pipelines.faults.gpu_programs.protocol import hold_signal, report, wait_for_go

hold_signal()
wait_for_go()
report("on_gpu")
report("broken", error="CUDA error: an illegal memory access was encountered")
sys.exit(1)
