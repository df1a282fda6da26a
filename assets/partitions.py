"""Partitions: hardware x software, the two sides of a stack.

What belongs here: the partitions of everything that is measured, and finding the worker that one
stands for. What does not: registering them (`resilience_pipelines.dagster_io.stack_partitions`).

Both dimensions are dynamic: a machine, or a release on it, appears when it is first seen. A
partition names a stack by its two labels; results carry the key over every dimension as well.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

import dagster as dg

from resilience_pipelines.context import WORKERS
from resilience_pipelines.dagster_io.stack_partitions import HARDWARE, SOFTWARE, partition_of
from resilience_pipelines.errors import InputError, UnsupportedError
from resilience_pipelines.stack import Stack

HARDWARES: Final = dg.DynamicPartitionsDefinition(name=HARDWARE)
SOFTWARES: Final = dg.DynamicPartitionsDefinition(name=SOFTWARE)
STACKS: Final = dg.MultiPartitionsDefinition({HARDWARE: HARDWARES, SOFTWARE: SOFTWARES})


def missing_partitions(
    instance: dg.DagsterInstance, stacks: Collection[Stack]
) -> list[dg.AddDynamicPartitionsRequest]:
    """What a sensor requests so that each stack has its partition; nothing where all have."""
    wanted = (
        (HARDWARES, {stack.hardware_label for stack in stacks}),
        (SOFTWARES, {stack.software_label for stack in stacks}),
    )
    return [
        definition.build_add_request(sorted(new))
        for definition, labels in wanted
        if (new := labels - set(instance.get_dynamic_partitions(str(definition.name))))
    ]


def worker_of(partition: str, stacks: Mapping[str, Stack], asked: str | None = None) -> str:
    """The worker whose stack on this machine is a partition's.

    Args:
        partition: the key of the partition that a run is for.
        stacks: this machine's stack by worker.
        asked: the worker that has to be it, if one was asked for.

    Raises:
        InputError: no worker is called what was asked for.
        UnsupportedError: there is none, naming what differs: the local launcher measures the
            machine that it runs on and no other.
    """
    if asked is not None and asked not in stacks:
        raise InputError(
            "worker", asked, "no such worker", mend=f"Choose from {', '.join(sorted(stacks))}."
        )
    wanted = STACKS.get_partition_key_from_str(partition).keys_by_dimension
    differing: list[str] = []
    for name, stack in stacks.items():
        if asked not in (None, name):
            continue
        own = partition_of(stack).keys_by_dimension
        different = [
            f"{dimension} is {own[dimension]!r} here and {wanted[dimension]!r} in the partition"
            for dimension in sorted(own)
            if wanted[dimension] != own[dimension]
        ]
        if not different:
            return name
        differing.append(f"with worker {name!r}, {' and '.join(different)}")
    own_keys = ", ".join(repr(str(partition_of(stack))) for stack in stacks.values())
    raise UnsupportedError(
        f"Partition {partition!r} is no stack of this machine: {'; '.join(differing)}.",
        mend=f"Materialize {own_keys} here, and {partition!r} on the machine that it names.",
    )


def worker_named_by(partition: str, asked: str | None = None) -> str:
    """The worker that a partition's software begins with, whatever machine it is on.

    Args:
        partition: the key of the partition that a run is for.
        asked: the worker that has to be it, if one was asked for.

    Raises:
        InputError: it names no worker, or another one than was asked for.
    """
    software = STACKS.get_partition_key_from_str(partition).keys_by_dimension[SOFTWARE]
    for name in WORKERS:
        if software.startswith(f"{name}-") and asked in (None, name):
            return name
    raise InputError(
        "partition", partition, "its software is not that of "
        + (f"the worker {asked!r}" if asked else "any worker"),
        mend=f"Choose a partition whose software begins with one of {', '.join(WORKERS)}.",
    )  # fmt: skip
