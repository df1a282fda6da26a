"""The catalogue: every fault that can be injected, by name.

What belongs here: the list, and choosing from it. What does not: what a fault does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from resilience_pipelines.errors import InputError
from resilience_pipelines.faults.chaos_mesh import ChaosMeshFault, Disturbance
from resilience_pipelines.faults.dcgm_injection import DcgmValueInjected, Symptom
from resilience_pipelines.faults.distributed_checkpoint import (
    CheckpointCorrupted,
    CheckpointDamage,
    SaveKilled,
    SavePoint,
)
from resilience_pipelines.faults.fault import Fault
from resilience_pipelines.faults.gpu_load import Burner, GpuBurned
from resilience_pipelines.faults.gpu_memory import DeviceMemoryTaken, Moment
from resilience_pipelines.faults.gpu_power import GpuPowerLimited
from resilience_pipelines.faults.gpu_xid import Mistake, RealXid, Where
from resilience_pipelines.faults.limits import AddressSpaceExhausted, FileDescriptorsExhausted
from resilience_pipelines.faults.litmus import LitmusExperiment, LitmusFault
from resilience_pipelines.faults.memory import MemoryExhausted
from resilience_pipelines.faults.numa_placement import WorkerMisplaced
from resilience_pipelines.faults.process import WorkerHung, WorkerKilled
from resilience_pipelines.faults.snapshot_device import Mistake as DeviceMistake
from resilience_pipelines.faults.snapshot_device import SnapshotDeviceFault
from resilience_pipelines.faults.snapshot_image import Damage, SnapshotImageCorrupted
from resilience_pipelines.faults.snapshot_path import Cut, SnapshotCutShort
from resilience_pipelines.faults.snapshot_store import Exhausted, SnapshotStoreFull
from resilience_pipelines.faults.training import RankFault, Trouble
from resilience_pipelines.faults.weights import WeightsCorrupted, WeightsDamage

_ALL: Sequence[Fault] = (
    WorkerKilled(),
    WorkerHung(),
    MemoryExhausted(),
    AddressSpaceExhausted(),
    FileDescriptorsExhausted(),
    *(SnapshotImageCorrupted(damage) for damage in Damage),
    *(SnapshotCutShort(cut) for cut in Cut),
    *(SnapshotDeviceFault(mistake) for mistake in DeviceMistake),
    *(SnapshotStoreFull(exhausted) for exhausted in Exhausted),
    *(WeightsCorrupted(damage) for damage in WeightsDamage),
    *(GpuBurned(burner) for burner in Burner),
    *(DeviceMemoryTaken(moment) for moment in Moment),
    *(RealXid(mistake, where) for mistake in Mistake for where in Where),
    *(DcgmValueInjected(symptom) for symptom in Symptom),
    GpuPowerLimited(),
    WorkerMisplaced(),
    *(RankFault(trouble) for trouble in Trouble),
    *(CheckpointCorrupted(damage) for damage in CheckpointDamage),
    *(SaveKilled(point) for point in SavePoint),
    *(ChaosMeshFault(disturbance) for disturbance in Disturbance),
    *(LitmusFault(experiment) for experiment in LitmusExperiment),
)

CATALOGUE: Mapping[str, Fault] = {fault.name: fault for fault in _ALL}


def choose(names: Sequence[str], catalogue: Mapping[str, Fault] = CATALOGUE) -> tuple[Fault, ...]:
    """The faults of these names, in the catalogue's order, each once; all when none is named.

    A name that several begin with, such as `snapshot_image_corrupted`, stands for all of them.

    Raises:
        InputError: there is no such fault.
    """
    chosen = set(catalogue) if not names else set()
    for name in names:
        found = {key for key in catalogue if key == name or key.startswith(f"{name}_")}
        if not found:
            raise InputError(
                "faults", name, "no such fault is in the catalogue",
                mend=f"Choose from {', '.join(catalogue)}.",
            )  # fmt: skip
        chosen |= found
    return tuple(fault for name, fault in catalogue.items() if name in chosen)
