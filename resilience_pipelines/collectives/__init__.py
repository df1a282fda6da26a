"""Collectives: what several processes do together over a network, with torch.distributed.

What belongs here: a data-parallel training job, its checkpoints, the network that joins its ranks,
and the measurement of collectives. What does not: faults of these (`faults.training`,
`faults.distributed_checkpoint`) and who notices them (`detectors`).

Only the programs of the ranks (`rank`, `rank_recorder`, `load_checkpoint`, `model`,
`bandwidth_rank`) import torch: the host side works, and says why it can't, where torch is missing.
"""
