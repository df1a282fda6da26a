"""Faults of a checkpoint: weights in safetensors files, damaged since they were saved.

What belongs here: the strategy `weights`: damaging a private copy, seeing whether a manifest of
hashes notices, and what a worker does that is started from it. What does not: snapshots' images
(`snapshot_image`), and how an engine loads weights.

safetensors has no checksum: a worker may load damaged weights and serve. Whether it does is no
verdict here but a finding, `at_load` of the record: `refused`, `wrong_answer` or `same_answer`. The
verdict asks whether the hashes notice in time and the undamaged weights bring service back.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from resilience_pipelines.detectors.base import Detector
from resilience_pipelines.detectors.weights_verifier import WeightsVerifier, file_sha256
from resilience_pipelines.errors import ResilienceError
from resilience_pipelines.faults.fault import FaultContext, Guard, Injection, ObstacleError
from resilience_pipelines.faults.guards import FreeDisk
from resilience_pipelines.faults.recovery import Recovery
from resilience_pipelines.faults.snapshot_image import flip_bit, same_content
from resilience_pipelines.faults.verdict import FaultReason
from resilience_pipelines.records import Layer, OracleVerdict, Proof
from resilience_pipelines.startup.arms import start_process
from resilience_pipelines.workers.oracle import check_answer
from resilience_pipelines.workers.process import WorkerFailedError

STRATEGY = "weights"
FAMILY = "weights_corrupted"
_SPARE_BYTES = 256 * 2**20
_LENGTH_BYTES = 8
_ZEROED_BYTES = 4096


class WeightsDamage(StrEnum):
    """What is done to a weight file."""

    HEADER_BIT_FLIP = "header_bit_flip"
    TENSOR_BIT_FLIP = "tensor_bit_flip"
    ZEROED_PAGE = "zeroed_page"
    TRUNCATION = "truncation"
    MISSING_FILE = "missing_file"


_DESCRIPTIONS = {
    WeightsDamage.HEADER_BIT_FLIP: "one bit flipped in the header of a copy of the weights",
    WeightsDamage.TENSOR_BIT_FLIP: "the top bit of one weight's exponent flipped in a copy",
    WeightsDamage.ZEROED_PAGE: "a page of a copy of the weights zeroed, as by a lost write",
    WeightsDamage.TRUNCATION: "a copy of the weights cut in half",
    WeightsDamage.MISSING_FILE: "a file of a copy of the weights removed",
}


class AtLoad(StrEnum):
    """What a worker does that is started from damaged weights."""

    REFUSED = "refused"
    WRONG_ANSWER = "wrong_answer"
    """It served, and answered otherwise: silent corruption that a client would see."""
    SAME_ANSWER = "same_answer"
    """It served, and the oracle's answer did not change: silent, for now."""
    NO_ANSWER = "no_answer"


@dataclass(frozen=True)
class WeightsCorrupted:
    """A worker is to be started, and its weights have been damaged since they were saved."""

    damage: WeightsDamage
    strategy: str = STRATEGY
    layer: Layer = Layer.USERSPACE
    expected: Mapping[str, float] = field(default_factory=lambda: {"weights_verifier": 15.0})
    recoveries: tuple[str, ...] = (Recovery.WARM_CACHE,)

    @property
    def name(self) -> str:
        """See `Fault.name`."""
        return f"{FAMILY}_{self.damage}"

    @property
    def description(self) -> str:
        """See `Fault.description`."""
        return f"{_DESCRIPTIONS[self.damage]}; hashes have to notice, and a start is tried from it"

    @property
    def parameters(self) -> Mapping[str, Any]:
        """See `Fault.parameters`."""
        return {"damage": self.damage.value}

    def guards(self, context: FaultContext) -> Sequence[Guard]:
        """See `Fault.guards`."""
        copied = sum(path.stat().st_size for path in context.worker.weight_files()[:1])
        return (FreeDisk(context.scratch, copied + _SPARE_BYTES),)

    def prepare(self, context: FaultContext) -> Injection:
        """See `Fault.prepare`."""
        files = context.worker.weight_files()
        if not files or not all(path.suffix == ".safetensors" for path in files):
            raise ObstacleError(
                FaultReason.NO_WEIGHTS,
                f"The worker {context.worker.name} has no weights in safetensors files.",
            )
        tensors_of(files[0])
        return WeightsInjection(context, files[0], self.damage)


class WeightsInjection(Injection):
    """One damaged copy: the first weight file copied, all else in its folder linked to."""

    hits_worker = True
    """It is the restart that finds the damage, and two workers may not fit on one GPU: the one that
    serves is stopped before a start is tried."""

    def __init__(self, context: FaultContext, original: Path, damage: WeightsDamage) -> None:
        super().__init__(context)
        self._original = original
        self._damage = damage
        self._at_load: AtLoad | None = None
        self._detail = ""
        self._folder = Path(tempfile.mkdtemp(dir=context.scratch, prefix="weights-"))
        self.copy = self._folder / original.name
        try:
            for path in original.parent.iterdir():
                if path.is_file() and path != original:
                    (self._folder / path.name).symlink_to(path.resolve())
            shutil.copyfile(original, self.copy)
            self._sha256 = file_sha256(original)
        except BaseException:
            self.close()
            raise

    def detectors(self) -> Sequence[Detector]:
        """A scrubber on the copy, with the hash that a manifest would hold."""
        return (WeightsVerifier({self.copy: self._sha256}),)

    def parameters(self) -> Mapping[str, Any]:
        """See `Injection.parameters`."""
        return {
            "file": self._original.name,
            "at_load": self._at_load.value if self._at_load else None,
            "at_load_detail": self._detail[-500:],
        }

    def inject(self) -> None:
        """See `Injection.inject`."""
        damage_weights(self.copy, self._damage)

    def prove_effect(self) -> Proof:
        """Compare the copy with the original, byte by byte."""
        differs = not same_content(self.copy, self._original)
        return Proof(
            proved=differs,
            source="comparison with the original",
            detail=f"{self.copy.name} {'differs' if differs else 'is the same'}",
        )

    def broken_expectation(self) -> str | None:
        """Start a worker from the copy. Whatever it does is a finding, none of it is expected."""
        worker = self.context.worker.with_weights_in(self._folder)
        limit_s = worker.request_deadline_s
        try:
            started = start_process(worker, self.context.support, self.context.warm_cache, None)
        except ResilienceError as error:
            refused = isinstance(error, WorkerFailedError)
            self._at_load = AtLoad.REFUSED if refused else AtLoad.NO_ANSWER
            self._detail = str(error)
            return None
        try:
            oracle = check_answer(
                started.running.client, self.context.answer,
                tolerance=worker.logprob_tolerance, timeout_s=limit_s,
            )  # fmt: skip
        except ResilienceError as error:
            self._at_load, self._detail = AtLoad.NO_ANSWER, str(error)
        else:
            same = oracle.verdict is OracleVerdict.EQUAL
            self._at_load = AtLoad.SAME_ANSWER if same else AtLoad.WRONG_ANSWER
            self._detail = oracle.detail
        finally:
            started.running.stop()
        return None

    def roll_back(self) -> None:
        """Remove the copy."""
        shutil.rmtree(self._folder)

    def prove_rollback(self) -> Proof:
        """The copy is gone, and the original has the hash from before."""
        source = "SHA-256 of the original"
        if self._folder.exists():
            return Proof(proved=False, source=source, detail="the damaged copy is still there")
        intact = file_sha256(self._original) == self._sha256
        detail = "is intact, the copy is removed" if intact else "was damaged"
        return Proof(proved=intact, source=source, detail=f"{self._original.name} {detail}")

    def close(self) -> None:
        """Remove the copy if it is still there."""
        if self._folder.exists():
            shutil.rmtree(self._folder)


def damage_weights(path: Path, damage: WeightsDamage) -> None:
    """Damage a safetensors file: 8 bytes of header length, a header in JSON, the tensors.

    Raises:
        OSError: it can't be done.
        ObstacleError: the file holds no tensors of at least one page.
    """
    if damage is WeightsDamage.MISSING_FILE:
        path.unlink()
        return
    size = path.stat().st_size
    if damage is WeightsDamage.TRUNCATION:
        os.truncate(path, size // 2)
        return
    body = tensors_of(path)
    middle = body + (size - body) // 2
    match damage:
        case WeightsDamage.HEADER_BIT_FLIP:
            flip_bit(path, (_LENGTH_BYTES + body) // 2, 7)
        case WeightsDamage.TENSOR_BIT_FLIP:
            # The highest byte of a float32, and of a bfloat16 too: bit 6 is its exponent's top.
            flip_bit(path, middle - (middle - body) % 4 + 3, 6)
        case WeightsDamage.ZEROED_PAGE:
            with path.open("r+b") as stream:
                stream.seek(min(middle, size - _ZEROED_BYTES))
                stream.write(bytes(_ZEROED_BYTES))


def tensors_of(path: Path) -> int:
    """Where the tensors of a safetensors file begin, in bytes.

    Raises:
        OSError: it can't be read.
        ObstacleError: it holds no tensors of at least one page.
    """
    with path.open("rb") as stream:
        begin = _LENGTH_BYTES + int.from_bytes(stream.read(_LENGTH_BYTES), "little")
    if not _LENGTH_BYTES < begin <= path.stat().st_size - _ZEROED_BYTES:
        raise ObstacleError(
            FaultReason.NO_WEIGHTS, f"{path} holds no tensors of at least {_ZEROED_BYTES} bytes."
        )
    return begin
