"""Programs of faults that run on a GPU, each in a process of its own.

They speak one protocol: a line of JSON for each thing that they report, the first of them
`{"event": "ready"}` once everything is imported and nothing is on the GPU yet; then they wait for
SIGUSR1 and act. Whoever starts one ends it (`faults.gpu_program`). `restore_power` alone speaks
none: a watchdog runs it.
"""
