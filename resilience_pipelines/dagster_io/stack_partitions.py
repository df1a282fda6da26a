"""Stacks as partitions: the partition that a stack's results belong to, and registering it.

What belongs here: from this machine to a partition in a Dagster instance. What does not: the
definitions of the partitions (`assets.partitions`), and how a stack is read (`context`).
"""

from __future__ import annotations

from typing import Final

import dagster as dg
from dagster import DagsterInstance

from resilience_pipelines.stack import Stack

HARDWARE: Final = "hardware"
SOFTWARE: Final = "software"


def partition_of(stack: Stack) -> dg.MultiPartitionKey:
    """The partition that a stack's results belong to: its two labels."""
    return dg.MultiPartitionKey({HARDWARE: stack.hardware_label, SOFTWARE: stack.software_label})


def register(instance: DagsterInstance, stack: Stack) -> dg.MultiPartitionKey:
    """Make sure that a stack's partition exists; returns it."""
    instance.add_dynamic_partitions(HARDWARE, [stack.hardware_label])
    instance.add_dynamic_partitions(SOFTWARE, [stack.software_label])
    return partition_of(stack)
