"""The reference worker's own process: a small decoder on the CPU behind the worker contract.

Nothing here imports the rest of the platform: the time this process takes to start is measured.
"""
