"""Faults in DCGM's cache: values that monitors read, and that no hardware ever had.

What belongs here: the strategy `dcgm_injection`. What does not: DCGM's tools (`dcgm`), and faults
that hardware does have (`gpu_xid`). The layer is `cache`: such a result says that a monitor works,
and nothing of how the machine fails.

The value that is there is injected first, since health watches look at differences; then the bad
one, again and again, since a sample is the newest only until its time has come. The engine is this
experiment's own, so that nobody else reads the values and ending it takes them back.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from resilience_pipelines.dcgm import Dcgm, find_tools
from resilience_pipelines.detectors.base import Detector
from resilience_pipelines.detectors.dcgm import DcgmHealth, DcgmPolicy
from resilience_pipelines.detectors.xids import describe
from resilience_pipelines.errors import UnsupportedError
from resilience_pipelines.faults import gpu_guards
from resilience_pipelines.faults.fault import FaultContext, Guard, Injection, ObstacleError, Target
from resilience_pipelines.faults.gpu_device import GpuInjection, need_gpu
from resilience_pipelines.faults.process import prove_no_remains
from resilience_pipelines.faults.recovery import Recovery
from resilience_pipelines.faults.remediation import NoAutomaticRemediation
from resilience_pipelines.faults.verdict import FaultReason
from resilience_pipelines.records import Layer, Proof
from resilience_pipelines.workers.space import holds_within

STRATEGY = "dcgm_injection"
OFFSET_S = 30
AGAIN_S = 10.0
EFFECT_DEADLINE_S = 20.0
MAX_TEMPERATURE_C = 95
"""What the policy reports; no GPU of a steady state is as warm."""
HEALTH_S = 30.0
POLICY_S = 15.0
UNCONTAINED_XID = 95
_STEP_S = 0.2


class Symptom(StrEnum):
    """What DCGM is told."""

    XID = "xid"
    ECC_DOUBLE_BIT = "ecc_double_bit"
    ROW_REMAP_FAILURE = "row_remap_failure"
    PCIE_REPLAY = "pcie_replay"
    POWER_VIOLATION = "power_violation"
    THERMAL_VIOLATION = "thermal_violation"
    TEMPERATURE = "temperature"
    NVLINK_RECOVERY = "nvlink_recovery"


@dataclass(frozen=True)
class Field:
    """How a symptom is told.

    Attributes:
        number: DCGM's field; names change between releases, numbers do not.
        healthy: injected first where the GPU has not told a value yet.
        worse_by: how far above the healthy value the bad one is, in the field's own unit.
        seen_by_policy: whether a policy reports it.
        seen_by_health: whether a health watch looks at it.
    """

    number: int
    words: str
    healthy: int
    worse_by: int
    seen_by_policy: bool
    seen_by_health: bool


FIELDS: Mapping[Symptom, Field] = {
    Symptom.XID: Field(230, f"XID {UNCONTAINED_XID}", 0, UNCONTAINED_XID, True, True),
    Symptom.ECC_DOUBLE_BIT: Field(311, "a volatile double-bit ECC error", 0, 1, True, True),
    Symptom.ROW_REMAP_FAILURE: Field(395, "a row that could not be remapped", 0, 1, False, True),
    Symptom.PCIE_REPLAY: Field(202, "PCIe replays", 0, 100_000, True, True),
    Symptom.POWER_VIOLATION: Field(
        240, "a second of throttling for power", 0, 1_000_000_000, False, True
    ),
    Symptom.THERMAL_VIOLATION: Field(
        241, "a second of throttling for heat", 0, 1_000_000_000, False, True
    ),
    Symptom.TEMPERATURE: Field(150, "a temperature above the policy's", 40, 80, True, False),
    Symptom.NVLINK_RECOVERY: Field(439, "NVLink recovery errors", 0, 10, True, True),
}


@dataclass(frozen=True)
class DcgmValueInjected:
    """DCGM reads a value that tells of a failure."""

    symptom: Symptom
    strategy: str = STRATEGY
    layer: Layer = Layer.CACHE
    recoveries: tuple[str, ...] = (Recovery.RESUME,)

    @property
    def name(self) -> str:
        """See `Fault.name`."""
        return f"dcgm_{self.symptom}"

    @property
    def description(self) -> str:
        """See `Fault.description`."""
        field = FIELDS[self.symptom]
        return (
            f"{field.words} in DCGM's cache alone (field {field.number}); monitors have to see it"
        )

    @property
    def expected(self) -> Mapping[str, float]:
        """See `Fault.expected`."""
        field = FIELDS[self.symptom]
        health = {"dcgm_health": HEALTH_S} if field.seen_by_health else {}
        return health | ({"dcgm_policy": POLICY_S} if field.seen_by_policy else {})

    @property
    def parameters(self) -> Mapping[str, Any]:
        """See `Fault.parameters`."""
        return {"symptom": self.symptom.value, "field": FIELDS[self.symptom].number}

    def guards(self, context: FaultContext) -> Sequence[Guard]:  # noqa: ARG002
        """See `Fault.guards`. The hardware is not touched: only who might believe it matters."""
        interlock = (NoAutomaticRemediation(),) if self.symptom is Symptom.XID else ()
        return (*interlock, gpu_guards.NoRepairDue(), gpu_guards.MostGpus())

    def prepare(self, context: FaultContext) -> Injection:
        """See `Fault.prepare`."""
        need_gpu()
        try:
            find_tools()
        except UnsupportedError as error:
            raise ObstacleError(FaultReason.NO_DCGM, error.reason) from error
        return DcgmInjection(context, self.symptom)


class DcgmInjection(GpuInjection):
    """One host engine, and one field of one GPU in its cache."""

    hits_worker = False

    def __init__(self, context: FaultContext, symptom: Symptom) -> None:
        super().__init__(context)
        self._symptom = symptom
        self._field = FIELDS[symptom]
        self._healthy = self._field.healthy
        self._gpu_id = 0
        self._version = ""
        self._stopping = threading.Event()
        self._pool: ThreadPoolExecutor | None = None
        self._again: Future[None] | None = None
        self._folder = Path(tempfile.mkdtemp(dir=context.scratch, prefix="dcgm-"))
        try:
            self._dcgm = Dcgm(self._folder)
        except BaseException:
            shutil.rmtree(self._folder)
            raise

    @property
    def bad(self) -> int:
        """The value that tells of a failure."""
        return self._healthy + self._field.worse_by

    def attach(self, target: Target) -> None:
        """Find the GPU in DCGM, and inject what it says now, so that there is no difference.

        Raises:
            ObstacleError: the GPU has no such counter.
        """
        super().attach(target)
        self._version = self._dcgm.version()
        self._gpu_id = self._dcgm.gpu_id(self.gpu.uuid)
        self._dcgm.watch_health()
        found = self._dcgm.value(self._gpu_id, self._field.number)
        # The XID field is empty until there was one, and that is no lack of it.
        if found is None and self._symptom is not Symptom.XID:
            raise ObstacleError(
                FaultReason.NO_DCGM_FIELD, f"This GPU has no field {self._field.number} in DCGM."
            )
        self._healthy = self._field.healthy if found is None else int(float(found))
        if self._symptom is not Symptom.XID:  # XID 0 would be an XID
            self._dcgm.inject(self._gpu_id, self._field.number, self._healthy, 0)

    def detectors(self) -> Sequence[Detector]:
        """DCGM's health watches and policies."""
        return (DcgmHealth(self._dcgm), DcgmPolicy(self._dcgm, MAX_TEMPERATURE_C))

    def parameters(self) -> Mapping[str, Any]:
        """See `Injection.parameters`."""
        xid = {"xid": describe(self.bad)} if self._symptom is Symptom.XID else {}
        return {
            "dcgm_version": self._version, "healthy_value": self._healthy, "bad_value": self.bad,
            "offset_s": OFFSET_S, "again_s": AGAIN_S, **xid,
        }  # fmt: skip

    def inject(self) -> None:
        """Inject the bad value, and again before it expires."""
        self._inject_bad()
        self._pool = ThreadPoolExecutor(1, "dcgm-injection")
        self._again = self._pool.submit(self._keep)

    def prove_effect(self) -> Proof:
        """A monitor that asks DCGM for the field reads the bad value."""
        source = "dcgmi dmon"
        read: list[str | None] = []

        def is_bad() -> bool:
            read.append(self._dcgm.value(self._gpu_id, self._field.number))
            return read[-1] is not None and int(float(str(read[-1]))) == self.bad

        if not holds_within(is_bad, EFFECT_DEADLINE_S, _STEP_S):
            return Proof(proved=False, source=source, detail=f"it reads {read[-1]}, not {self.bad}")
        return Proof(proved=True, source=source, detail=f"field {self._field.number}: {read[-1]}")

    def roll_back(self) -> None:
        """Stop injecting, and end the engine with its cache."""
        self._stopping.set()
        self._dcgm.close()
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown()

    def prove_rollback(self) -> Proof:
        """The engine is gone, and with it the only cache that held the value."""
        source = "/proc and TCP connect"
        if self._dcgm.alive():
            return Proof(proved=False, source=source, detail=f"{self._dcgm.host} still answers")
        remains = prove_no_remains(self.target)
        return Proof(
            proved=remains.proved, source=source, detail=f"the engine is gone, {remains.detail}"
        )

    def broken_expectation(self) -> str | None:
        """Injecting again has to have worked until now."""
        again = self._again
        if again is not None and again.done() and (error := again.exception()) is not None:
            return f"the value expired: {error}"
        return None

    def close(self) -> None:
        """See `Injection.close`."""
        self.roll_back()
        super().close()
        if self._folder.exists():
            shutil.rmtree(self._folder)

    def _inject_bad(self) -> None:
        self._dcgm.inject(self._gpu_id, self._field.number, self.bad, OFFSET_S)

    def _keep(self) -> None:
        while not self._stopping.wait(AGAIN_S):
            self._inject_bad()
