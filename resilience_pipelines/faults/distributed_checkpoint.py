"""Faults of a training job's checkpoints: damaged since they were saved, or never saved whole.

What belongs here: the strategy `distributed_checkpoint`: damaging the newest checkpoint, killing a
rank in the middle of a save, and what a load does that checks no hash. What does not: saving and
committing (`collectives`), and weights that a worker serves from (`weights`).

torch's distributed checkpoint has no checksum. Whether its load refuses a damaged checkpoint, or
gives another state without a word, is no verdict here but a finding, `at_load` of the record. The
verdict asks whether the manifest's hashes notice in time (or, for a save that was killed, whoever
watches the ranks), and whether the job comes back from the last good checkpoint.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from resilience_pipelines import strict_json
from resilience_pipelines.collectives.checkpoints import (
    Checkpoint,
    problem,
    read_manifest,
)
from resilience_pipelines.collectives.protocol import Halt
from resilience_pipelines.collectives.training import Rank, TrainingPlan, rank_environment
from resilience_pipelines.detectors.base import Detector
from resilience_pipelines.detectors.checkpoint_verifier import CheckpointVerifier
from resilience_pipelines.faults.fault import FaultContext, Guard, Injection, ObstacleError
from resilience_pipelines.faults.process import task_states
from resilience_pipelines.faults.recovery import Recovery
from resilience_pipelines.faults.snapshot_image import flip_bit, same_content
from resilience_pipelines.faults.training import JobInjection, job_guards, plan_job
from resilience_pipelines.faults.verdict import FaultReason
from resilience_pipelines.records import Layer, Proof
from resilience_pipelines.workers.space import wait_until

STRATEGY = "distributed_checkpoint"
LOAD_DEADLINE_S = 90.0
HALT_DEADLINE_S = 15.0
_METADATA = ".metadata"
_A_TENSOR = b"head.weight"
_ZEROED_BYTES = 4096
_STEP_S = 0.01
_LAST_STEP = 25
"""Two checkpoints and half of the way to a third: what is lost is more than a checkpoint's age."""


class CheckpointDamage(StrEnum):
    """What is done to the newest checkpoint."""

    TENSOR_BIT_FLIP = "tensor_bit_flip"
    METADATA_BIT_FLIP = "metadata_bit_flip"
    ZEROED_PAGE = "zeroed_page"
    TRUNCATION = "truncation"
    MISSING_SHARD = "missing_shard"
    SWAPPED_SHARDS = "swapped_shards"
    STALE_SHARD = "stale_shard"
    STALE_METADATA = "stale_metadata"


_DESCRIPTIONS = {
    CheckpointDamage.TENSOR_BIT_FLIP: "a bit of a tensor flipped in a shard of a checkpoint",
    CheckpointDamage.METADATA_BIT_FLIP: "a bit of a tensor's name flipped in the metadata",
    CheckpointDamage.ZEROED_PAGE: "a page of a shard of a checkpoint zeroed, as by a lost write",
    CheckpointDamage.TRUNCATION: "a shard of a checkpoint cut in half",
    CheckpointDamage.MISSING_SHARD: "a shard of a checkpoint removed",
    CheckpointDamage.SWAPPED_SHARDS: "two shards of a checkpoint exchanged",
    CheckpointDamage.STALE_SHARD: "a shard of a checkpoint replaced by an earlier step's",
    CheckpointDamage.STALE_METADATA: "the metadata of a checkpoint replaced by an earlier step's",
}


class SavePoint(StrEnum):
    """Where a save is when its rank is killed."""

    AT_10_PERCENT = "at_10_percent"
    AT_50_PERCENT = "at_50_percent"
    AT_90_PERCENT = "at_90_percent"
    AFTER_METADATA = "after_metadata"

    @property
    def fraction(self) -> float | None:
        """The share of the rank's shard that is written; None: all, and the metadata too."""
        return _FRACTIONS[self]


_FRACTIONS: Mapping[SavePoint, float | None] = {
    SavePoint.AT_10_PERCENT: 0.1,
    SavePoint.AT_50_PERCENT: 0.5,
    SavePoint.AT_90_PERCENT: 0.9,
    SavePoint.AFTER_METADATA: None,
}


class AtLoad(StrEnum):
    """What a load does that checks no hash."""

    REFUSED = "refused"
    WRONG_STATE = "wrong_state"
    """It gave another state than was saved, without a word: silent corruption."""
    SAME_STATE = "same_state"
    NO_ANSWER = "no_answer"


@dataclass(frozen=True)
class CheckpointCorrupted:
    """A job is to be started again, and its newest checkpoint was damaged since it was saved."""

    damage: CheckpointDamage
    strategy: str = STRATEGY
    layer: Layer = Layer.USERSPACE
    expected: Mapping[str, float] = field(default_factory=lambda: {"checkpoint_verifier": 5.0})
    recoveries: tuple[str, ...] = (Recovery.CHECKPOINT,)

    @property
    def name(self) -> str:
        """See `Fault.name`."""
        return f"checkpoint_corrupted_{self.damage}"

    @property
    def description(self) -> str:
        """See `Fault.description`."""
        return f"{_DESCRIPTIONS[self.damage]}; hashes have to notice, and a load is tried"

    @property
    def parameters(self) -> Mapping[str, Any]:
        """See `Fault.parameters`."""
        return {"damage": self.damage.value}

    def guards(self, context: FaultContext) -> Sequence[Guard]:  # noqa: ARG002
        """See `Fault.guards`."""
        return job_guards()

    def prepare(self, context: FaultContext) -> Injection:
        """See `Fault.prepare`."""
        plan = replace(plan_job(context.backend), last_step=_LAST_STEP, pace_s=0.0)
        if plan.ranks < 2 and self.damage is CheckpointDamage.SWAPPED_SHARDS:
            raise ObstacleError(FaultReason.NO_PEER, "a checkpoint of one rank has one shard")
        return CheckpointInjection(context, plan, self.damage)


class _LoadTried(JobInjection):
    """An injection that tries to load a checkpoint without its manifest before the job comes back.

    The verdict does not depend on what comes of it.
    """

    @abstractmethod
    def suspect(self) -> tuple[Path, str | None]:
        """The folder that a loader would take which checks nothing, and the right state's hash."""

    def broken_expectation(self) -> str | None:
        """Load it. Whatever comes of it is a finding, none of it is expected."""
        folder, saved = self.suspect()
        outcome, detail = try_load(folder, saved)
        self._found |= {"at_load": outcome.value, "at_load_detail": detail}
        return None


class CheckpointInjection(_LoadTried):
    """One damaged checkpoint of a job that has ended, with a copy of what it was."""

    def __init__(self, context: FaultContext, plan: TrainingPlan, damage: CheckpointDamage) -> None:
        super().__init__(context, plan)
        self._damage = damage
        self._newest: Checkpoint | None = None
        self._pristine = self._folder / "pristine"

    @property
    def hidden_by_recovery(self) -> bool:
        """No rank runs while the checkpoint is damaged."""
        return False

    @property
    def newest(self) -> Checkpoint:
        """The checkpoint to damage."""
        assert self._newest is not None, "attach comes first"
        return self._newest

    def attach(self, target: Any) -> None:
        """Wait until the job has ended with two checkpoints, and copy the newest."""
        Injection.attach(self, target)
        self.job.wait_step(_LAST_STEP)
        self.job.wait_end()
        saved = self.job.checkpoints.committed()
        if len(saved) < 2:
            raise ObstacleError(
                FaultReason.NO_CHECKPOINT, f"{len(saved)} checkpoints were saved, two are needed.",
                applicable=True,
            )  # fmt: skip
        self._newest = saved[0]
        shutil.copytree(self.newest.folder, self._pristine)

    def detectors(self) -> Sequence[Detector]:
        """A scrubber on the checkpoint."""
        return (CheckpointVerifier(self.newest),)

    def inject(self) -> None:
        """See `Injection.inject`."""
        earlier = self.job.checkpoints.committed()[1]
        damage_checkpoint(self.newest.folder, self._damage, earlier.folder)

    def prove_effect(self) -> Proof:
        """Compare the checkpoint with its copy, byte by byte."""
        differing = [
            path.name
            for path in sorted(self._pristine.iterdir())
            if not same_content(path, self.newest.folder / path.name)
        ]
        return Proof(
            proved=bool(differing),
            source="comparison with a copy",
            detail=f"differing: {', '.join(differing) or 'no file'}",
        )

    def suspect(self) -> tuple[Path, str | None]:
        """See `_LoadTried.suspect`."""
        return self.newest.folder, read_manifest(self.newest).state_sha256

    def roll_back(self) -> None:
        """Put back what was there; the jobs end."""
        self.stop_jobs()
        if self._pristine.exists():
            shutil.rmtree(self.newest.folder, ignore_errors=True)
            shutil.copytree(self._pristine, self.newest.folder)

    def prove_rollback(self) -> Proof:
        """The checkpoint is what its manifest says, and no rank lives."""
        wrong = problem(self.newest)
        left = [str(rank.process.pid) for rank in self.living()]
        detail = wrong or (f"ranks {', '.join(left)} live" if left else "as its manifest says")
        return Proof(proved=not wrong and not left, source="SHA-256 of each file", detail=detail)


@dataclass(frozen=True)
class SaveKilled:
    """A rank is killed while it saves a checkpoint."""

    point: SavePoint
    strategy: str = STRATEGY
    layer: Layer = Layer.USERSPACE
    # From the order to halt at the point: the next save is up to as many steps away.
    expected: Mapping[str, float] = field(
        default_factory=lambda: {
            "rank_watch": 10.0,
            "collective_watchdog": 15.0,
            "flight_recorder": 15.0,
        }
    )
    recoveries: tuple[str, ...] = (Recovery.CHECKPOINT,)

    @property
    def name(self) -> str:
        """See `Fault.name`."""
        return f"checkpoint_save_killed_{self.point}"

    @property
    def description(self) -> str:
        """See `Fault.description`."""
        fraction = self.point.fraction
        where = "after its metadata, before it is committed"
        if fraction is not None:
            where = f"with {fraction:.0%} of its shard written"
        return f"SIGKILL to a rank that saves a checkpoint, {where}; a load is tried"

    @property
    def parameters(self) -> Mapping[str, Any]:
        """See `Fault.parameters`."""
        return {"point": self.point.value, "signal": "SIGKILL"}

    def guards(self, context: FaultContext) -> Sequence[Guard]:  # noqa: ARG002
        """See `Fault.guards`."""
        return job_guards()

    def prepare(self, context: FaultContext) -> Injection:
        """See `Fault.prepare`."""
        return SaveInjection(context, plan_job(context.backend), self.point)


class SaveInjection(_LoadTried):
    """One kill in the middle of a save. The rank halts at the point, so that the kill is exact."""

    def __init__(self, context: FaultContext, plan: TrainingPlan, point: SavePoint) -> None:
        super().__init__(context, plan)
        self._point = point

    @property
    def victim(self) -> Rank:
        """The first rank: the one that writes the metadata and commits."""
        return self.job.ranks[0]

    def inject(self) -> None:
        """Have the rank halt at the point in its next save, and kill it there."""
        size = shard_of(self.job.checkpoints.committed()[0].folder, 0).stat().st_size
        fraction = self._point.fraction
        at = None if fraction is None else round(fraction * size)
        Halt(at).write(self.job.control, self.victim.number)
        pid = self.victim.process.pid

        def halted() -> bool:
            return set(task_states(pid)) == {"T"}

        try:
            wait_until(halted, HALT_DEADLINE_S, "The rank halts in its save", _STEP_S)
            self.victim.process.send(signal.SIGKILL)
        finally:
            Halt.take_back(self.job.control, self.victim.number)

    def prove_effect(self) -> Proof:
        """The rank has ended, and its save has written what it should have and is not committed."""
        source = "pidfd and sizes of files"
        if not self.victim.process.wait_gone(1.0):
            return Proof(proved=False, source=source, detail="the rank lives")
        partials = self.job.checkpoints.partials()
        if not partials:
            return Proof(proved=False, source=source, detail="no save was cut short")
        written = {path.name: path.stat().st_size for path in sorted(partials[-1].iterdir())}
        self._found["written_bytes"] = written
        whole = (partials[-1] / _METADATA).exists()
        proved = whole == (self._point.fraction is None)
        return Proof(proved=proved, source=source, detail=f"{partials[-1].name}: {written}")

    def suspect(self) -> tuple[Path, str | None]:
        """What was written of the checkpoint, as if its name said that it is whole."""
        folder = self.job.checkpoints.partials()[-1]
        step = int(folder.name.removesuffix(".partial").rpartition("-")[2])
        return folder, self.job.hashes().get(step)


def damage_checkpoint(folder: Path, damage: CheckpointDamage, earlier: Path) -> None:
    """Damage a checkpoint; of two shards or more, where they are to be exchanged.

    Args:
        earlier: a checkpoint of an earlier step.

    Raises:
        OSError: it can't be done.
    """
    first = shard_of(folder, 0)
    match damage:
        case CheckpointDamage.TENSOR_BIT_FLIP:
            # The highest byte of a float32: bit 6 is its exponent's top. The middle of a shard
            # lies in its largest tensor, which is stored as it is, at a multiple of 64 bytes.
            middle = first.stat().st_size // 2
            flip_bit(first, middle - middle % 4 + 3, 6)
        case CheckpointDamage.METADATA_BIT_FLIP:
            # In the name of a tensor: what else a bit hits there differs from save to save.
            metadata = folder / _METADATA
            flip_bit(metadata, metadata.read_bytes().index(_A_TENSOR), 3)
        case CheckpointDamage.ZEROED_PAGE:
            with first.open("r+b") as stream:
                stream.seek(first.stat().st_size // 2)
                stream.write(bytes(_ZEROED_BYTES))
        case CheckpointDamage.TRUNCATION:
            os.truncate(first, first.stat().st_size // 2)
        case CheckpointDamage.MISSING_SHARD:
            first.unlink()
        case CheckpointDamage.SWAPPED_SHARDS:
            aside, second = folder / "aside", shard_of(folder, 1)
            first.rename(aside)
            second.rename(first)
            aside.rename(second)
        case CheckpointDamage.STALE_SHARD:
            shutil.copyfile(shard_of(earlier, 0), first)
        case CheckpointDamage.STALE_METADATA:
            shutil.copyfile(earlier / _METADATA, folder / _METADATA)


def shard_of(folder: Path, rank: int) -> Path:
    """The file that a rank wrote of a checkpoint."""
    return folder / f"__{rank}_0.distcp"


def try_load(folder: Path, saved_sha256: str | None) -> tuple[AtLoad, str]:
    """Load a checkpoint in a process of its own, with no check but the loader's.

    Args:
        saved_sha256: hash of the state that was saved.

    Returns:
        What came of it, and the loader's words.
    """
    argv = [sys.executable, "-m", "resilience_pipelines.collectives.load_checkpoint", str(folder)]
    try:
        done = subprocess.run(
            argv, env=rank_environment("lo"), capture_output=True, text=True, cwd="/",
            timeout=LOAD_DEADLINE_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return AtLoad.NO_ANSWER, f"no end within {LOAD_DEADLINE_S:g} s"
    try:
        found = strict_json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        last = done.stderr.strip().splitlines()[-1:]
        return AtLoad.REFUSED, f"status {done.returncode}: {' '.join(last)[-400:]}"
    if "error" in found:
        # A traceback, whose last line says it; the others name folders of this machine.
        return AtLoad.REFUSED, str(found["error"]).strip().splitlines()[-1][-500:]
    same = saved_sha256 is not None and found["sha256"] == saved_sha256
    return (AtLoad.SAME_STATE, "") if same else (AtLoad.WRONG_STATE, "the state differs")
