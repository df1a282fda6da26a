"""Experiments exchanged with Chaos Toolkit: its experiment and journal files, in both directions.

What belongs here: our plan as its experiment, one of our results as its journal, and its experiment
as our plan. What does not: making an experiment (`experiment`), and finding a result (`warehouse`).

These files serve as interchange only. Chaos Toolkit's own engine calls an action `succeeded` when
its process has ended, whatever its exit status, and knows no proof of an effect or of a rollback.
So an experiment of ours is one action that runs the platform, which does all of it, and a journal
carries our whole record as that action's output.

The format is that of chaostoolkit-lib (`chaoslib.experiment`, `chaoslib.run`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path, PurePath
from typing import Any, Final

from resilience_pipelines import __version__, strict_json
from resilience_pipelines.errors import InputError
from resilience_pipelines.faults.catalogue import CATALOGUE
from resilience_pipelines.faults.run import FaultPlan
from resilience_pipelines.plain_files import read_named
from resilience_pipelines.records import FaultRun, RunRecord, Verdict

COMMAND: Final = "resilience"
EXTENSION: Final = "resilience_pipelines"
MAX_BYTES: Final = 16 * 2**20
_REPEATS_DIGITS: Final = 6

_SIGNAL_FAULTS: Final = {
    "9": "worker_killed", "KILL": "worker_killed", "SIGKILL": "worker_killed",
    "19": "worker_hung", "STOP": "worker_hung", "SIGSTOP": "worker_hung",
}  # fmt: skip
_SIGNAL_PROGRAMS: Final = ("kill", "pkill", "killall")
_PYTHON_FAULTS: Final = {
    # of chaostoolkit-kubernetes
    ("chaosk8s.pod.actions", "terminate_pods"): "worker_killed",
    ("chaosk8s.chaosmesh.stress.actions", "stress_memory"): "memory_exhausted",
}
_STATUS: Final = {
    Verdict.PASS: "completed",
    Verdict.FAIL: "failed",
    Verdict.INCONCLUSIVE: "failed",
    Verdict.NOT_INJECTED: "failed",
    Verdict.NOT_APPLICABLE: "aborted",
    Verdict.ABORTED: "interrupted",
    Verdict.ROLLBACK_FAILED: "failed",
}
_DEVIATED: Final = (Verdict.FAIL, Verdict.ROLLBACK_FAILED)


@dataclass(frozen=True)
class Imported:
    """What an experiment of Chaos Toolkit asks for, in our words.

    Attributes:
        left_out: parts of the experiment that the plan does not have, each in a few words.
    """

    plan: FaultPlan
    worker: str
    left_out: tuple[str, ...] = field(default=())

    def specification(self) -> dict[str, Any]:
        """As a job reads it (`job_spec.FaultSpec`)."""
        return {
            "kind": "fault",
            "worker": self.worker,
            "faults": list(self.plan.faults),
            "recoveries": list(self.plan.recoveries),
            "repeats": self.plan.repeats,
            "controls": self.plan.controls,
        }

    def arguments(self) -> list[str]:
        """As a person types it, after `resilience`."""
        return _arguments(self.plan, self.worker)


def make_experiment(plan: FaultPlan, worker: str) -> dict[str, Any]:
    """A plan as an experiment that `chaos validate` accepts and `chaos run` runs."""
    what = ", ".join(plan.faults) or "every fault of the catalogue"
    return {
        "version": "1.0.0",
        "title": f"{worker}: {what}",
        "description": (
            "The platform checks the steady state and its guards, injects, proves the effect, "
            "times the detectors, recovers, rolls back and proves that. Its verdicts are in the "
            "action's output and its exit status (0: none failed); Chaos Toolkit looks at neither."
        ),
        "tags": ["resilience", *plan.faults],
        "method": [
            {
                "type": "action",
                "name": "run-fault-experiments",
                "provider": {
                    "type": "process",
                    "path": COMMAND,
                    "arguments": [*_arguments(plan, worker), "--json"],
                },
            }
        ],
        "rollbacks": [],
    }


def make_journal(record: RunRecord, measurement: str | None = None) -> dict[str, Any]:
    """One experiment of a run as a journal.

    `duration` is from the first to the last event of the experiment's timeline, in seconds.

    Args:
        measurement: the experiment's `measurement_id`; may be None where the run has but one.

    Raises:
        InputError: the run has no such experiment, or several and none is named.
    """
    run = _chosen(record, measurement)
    plan = FaultPlan(
        faults=(run.fault,) if run.fault in CATALOGUE else (),
        recoveries=(run.recovery,) if run.recovery else (),
        controls=run.control,
    )
    experiment = make_experiment(plan, record.worker)
    (action,) = experiment["method"]
    duration_s = run.events[-1].at_s - run.events[0].at_s if run.events else 0.0
    start, end = run.started_at, run.started_at + timedelta(seconds=duration_s)
    passed = run.verdict is Verdict.PASS
    return {
        "chaoslib-version": "",  # nothing of it was at work
        "platform": f"{EXTENSION} {record.platform_version}",
        "node": record.stack.hardware_label,
        "experiment": experiment | {
            "extensions": [
                {
                    "name": EXTENSION,
                    "version": __version__,
                    "run_id": record.run_id,
                    "stack_key": record.stack_key,
                    "basis": record.basis.value,
                    "verdict": run.verdict.value,
                    "reason_code": run.reason_code,
                }
            ]
        },
        "start": start.isoformat(),
        "status": _STATUS[run.verdict],
        "deviated": run.verdict in _DEVIATED,
        "steady_states": {"before": None, "after": None, "during": []},
        "run": [
            {
                "activity": action,
                "output": run.model_dump(mode="json"),
                "start": start.isoformat(),
                "status": "succeeded" if passed else "failed",
                "end": end.isoformat(),
                "duration": duration_s,
            }
        ],
        "rollbacks": [],
        "end": end.isoformat(),
        "duration": duration_s,
    }  # fmt: skip


def _chosen(record: RunRecord, measurement: str | None) -> FaultRun:
    runs = {run.measurement_id: run for run in record.faults}
    name = next(iter(runs)) if measurement is None and len(runs) == 1 else measurement
    if name not in runs:
        raise InputError(
            "measurement", measurement, "this run has no such fault experiment",
            mend=f"Choose from {', '.join(runs) or 'another run'}.",
        )  # fmt: skip
    return runs[name]


def import_file(path: Path) -> Imported:
    """`read_file` of a file that somebody names.

    Raises:
        InputError: it can't be read; and as `read_file` raises.
    """
    return read_file(read_named("file", path, MAX_BYTES))


def read_file(content: bytes) -> Imported:
    """The plan of an experiment, or of the experiment that a journal is of.

    An action of ours is taken as it is; of others, those that have a fault in our catalogue.

    Raises:
        InputError: it is neither, or asks for a fault that the catalogue does not have.
    """
    found = _parse(content)
    experiment = found.get("experiment", found)
    if not isinstance(experiment, dict):
        raise _refused("experiment", experiment, "it is no object")
    method = experiment.get("method")
    if not isinstance(method, list) or not method:
        raise _refused("method", method, "it is no list of activities")
    actions, left_out = [], []
    for number, activity in enumerate(method):
        place = f"method[{number}]"
        if not isinstance(activity, dict):
            raise _refused(place, activity, "it is no object")
        if activity.get("type") == "action":
            actions.append((place, activity))
        else:
            left_out.append(f"{place}: {activity.get('name') or activity.get('ref')}")
    if len(actions) != 1:
        raise _refused("method", len(actions), "it has to have exactly one action")
    ((place, action),) = actions
    if experiment.get("steady-state-hypothesis"):
        left_out.append("steady-state-hypothesis: the platform has its own, an unchanged answer")
    if experiment.get("rollbacks"):
        left_out.append("rollbacks: the platform undoes its faults itself")
    plan, worker = _read_action(f"{place}.provider", action.get("provider"))
    return Imported(plan, worker, tuple(left_out))


def _parse(content: bytes) -> dict[str, Any]:
    if len(content) > MAX_BYTES:
        raise _refused("file", f"{len(content)} bytes", f"more than {MAX_BYTES} are not read")
    try:
        found = strict_json.loads(content)
    except ValueError as error:
        raise _refused("file", f"{len(content)} bytes", f"it is no JSON ({error})") from error
    if not isinstance(found, dict):
        raise _refused("file", type(found).__name__, "it is no object")
    return found


def _read_action(place: str, provider: object) -> tuple[FaultPlan, str]:
    if not isinstance(provider, dict):
        raise _refused(place, provider, "it is no object")
    match provider.get("type"):
        case "process":
            return _read_process(place, provider)
        case "python":
            name = (str(provider.get("module")), str(provider.get("func")))
            if name in _PYTHON_FAULTS:
                return FaultPlan(faults=(_PYTHON_FAULTS[name],)), "reference"
            raise _unknown(f"{place}.func", ".".join(name))
        case other:
            raise _unknown(f"{place}.type", other)


def _read_process(place: str, provider: Mapping[str, Any]) -> tuple[FaultPlan, str]:
    program = PurePath(str(provider.get("path"))).name
    given = provider.get("arguments", [])
    words = given.split() if isinstance(given, str) else given
    if not isinstance(words, list):
        raise _refused(f"{place}.arguments", given, "it is neither a text nor a list")
    arguments = [str(word) for word in words]
    if program == COMMAND and arguments[:2] == ["run", "fault"]:
        return _read_own(f"{place}.arguments", arguments[2:])
    if program in _SIGNAL_PROGRAMS:
        return FaultPlan(faults=(_fault_of_signal(place, arguments),)), "reference"
    raise _unknown(f"{place}.path", program)


def _fault_of_signal(place: str, arguments: list[str]) -> str:
    """The fault that stands for a signal: `-9`, `-KILL`, `-s KILL`, `--signal KILL`."""
    for number, word in enumerate(arguments):
        name = word.removeprefix("-").removeprefix("-signal=")
        if word in ("-s", "--signal"):
            name = "".join(arguments[number + 1 : number + 2])
        if word.startswith("-") and name.upper() in _SIGNAL_FAULTS:
            return _SIGNAL_FAULTS[name.upper()]
    raise _unknown(f"{place}.arguments", " ".join(arguments))


def _read_own(place: str, arguments: list[str]) -> tuple[FaultPlan, str]:
    """What `_arguments` wrote."""
    faults: list[str] = []
    recoveries: tuple[str, ...] = ()
    repeats, controls, worker = 1, True, "reference"
    words = iter(arguments)
    for word in words:
        match word:
            case "--json" | "--controls":
                pass
            case "--no-controls":
                controls = False
            case "--recoveries":
                recoveries = tuple(filter(None, next(words, "").split(",")))
            case "--repeats":
                given = next(words, "")
                if not given.isdecimal() or len(given) > _REPEATS_DIGITS:
                    raise _refused(f"{place}: --repeats", given, "it is no number")
                repeats = int(given)
            case "--worker":
                worker = next(words, "")
                if not worker or worker.startswith("-"):
                    raise _refused(f"{place}: --worker", worker, "it is no name of a worker")
            case _ if word.startswith("-"):
                raise _refused(place, word, "this option is not read here")
            case _:
                faults.append(word)
    return FaultPlan(tuple(faults), recoveries, repeats, controls), worker


def _arguments(plan: FaultPlan, worker: str) -> list[str]:
    recoveries = ["--recoveries", ",".join(plan.recoveries)] if plan.recoveries else []
    return [
        "run", "fault", *plan.faults, "--worker", worker, *recoveries,
        "--repeats", str(plan.repeats), "--controls" if plan.controls else "--no-controls",
    ]  # fmt: skip


def _refused(name: str, value: object, reason: str) -> InputError:
    return InputError(
        name, str(value)[:200], reason,
        mend="Give an experiment or a journal of Chaos Toolkit, as JSON.",
    )  # fmt: skip


def _unknown(name: str, value: object) -> InputError:
    return InputError(
        name, str(value)[:200], "no fault of the catalogue stands for it",
        mend="`resilience run fault --list` shows the catalogue.",
    )  # fmt: skip
