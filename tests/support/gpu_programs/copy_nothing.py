"""Speaks the protocol of the program that measures copies; its figures are of no GPU."""

import os
import sys

from resilience_pipelines.faults.gpu_programs.protocol import hold_signal, report, wait_for_go

hold_signal()
os.sched_setaffinity(0, {int(number) for number in sys.argv[2].split(",")})
wait_for_go()
report("copied", host_to_device_bytes_per_s=1.0, device_to_host_bytes_per_s=2.0)
