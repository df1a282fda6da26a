"""Speaks the protocol of the program that takes device memory, and takes none."""

import time

from resilience_pipelines.faults.gpu_programs.protocol import hold_signal, report, wait_for_go

hold_signal()
wait_for_go()
report("taken", bytes=123, free_bytes=0)
time.sleep(120)
