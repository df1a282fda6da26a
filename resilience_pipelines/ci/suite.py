"""A suite: which jobs a CI system runs, and what their figures may be at most.

What belongs here: the suite's data model, and reading it from TOML with errors that name the line
and the field. What does not: running it (`run`) and telling of it (`junit`, `summary`).
"""

from __future__ import annotations

import difflib
import json
import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, NoReturn, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from resilience_pipelines.ci.toml_lines import line_of
from resilience_pipelines.collectives.arms import HEALTHY
from resilience_pipelines.collectives.bandwidth import BandwidthPlan
from resilience_pipelines.collectives.support import GLOO
from resilience_pipelines.context import WORKERS
from resilience_pipelines.errors import InputError
from resilience_pipelines.faults.run import FaultPlan
from resilience_pipelines.job_spec import (
    CollectiveSpec,
    CompatibilitySpec,
    FanoutSpec,
    FaultSpec,
    JobSpec,
    SnapshotSpec,
    StartupSpec,
    parse_spec,
)
from resilience_pipelines.launchers.choice import LauncherName
from resilience_pipelines.records import Arm, CollectiveOperation, RunKind
from resilience_pipelines.startup.benchmark import StartupPlan
from resilience_pipelines.startup.fanout import FanoutPlan
from resilience_pipelines.upgrades import MAX_SLOWDOWN

MAX_BYTES: Final = 1_000_000
_MEND: Final = "docs/ci.md shows a suite and lists the fields."

Name = Annotated[str, Field(min_length=1, max_length=100)]
Limit = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class _Job(_Part):
    name: Name
    """What reports call it; no two jobs of a suite share one."""


class StartupJob(_Job, StartupSpec):
    """A start-up benchmark. Its fields are those of `resilience run startup`."""

    max_median_s: dict[Arm, Limit] = Field(default_factory=dict)
    """By arm: the median in seconds above which the job has failed."""

    @model_validator(mode="after")
    def _limits_what_it_measures(self) -> Self:
        for arm in self.max_median_s:
            if arm not in self.arms:
                raise ValueError(f"max_median_s names the arm {arm}, which arms does not")
        return self


class FaultJob(_Job, FaultSpec):
    """Fault experiments. Its fields are those of `resilience run fault`."""

    max_detect_s: Limit | None = None
    """The time to detect in seconds above which an experiment has failed."""
    max_recover_s: Limit | None = None
    """The time to recover in seconds above which an experiment has failed."""


class SnapshotJob(_Job, SnapshotSpec):
    """A snapshot that is taken and kept."""


class CompatibilityJob(_Job, CompatibilitySpec):
    """Stored snapshots that are restored here."""


class FanoutJob(_Job, FanoutSpec):
    """One snapshot restored many times at once. Its fields are those of `resilience run fanout`."""

    max_wave_s: dict[int, Limit] = Field(default_factory=dict)
    """By width: the median of its waves in seconds above which the job has failed."""

    @model_validator(mode="after")
    def _limits_what_it_measures(self) -> Self:
        for width in self.max_wave_s:
            if width not in self.widths:
                raise ValueError(f"max_wave_s names the width {width}, which widths does not")
        return self


class CollectivesJob(_Job, CollectiveSpec):
    """Bandwidth of collectives. Its fields are those of `resilience run collectives`."""

    min_busbw_bytes_per_s: dict[CollectiveOperation, Limit] = Field(default_factory=dict)
    """By operation: the median bus bandwidth of the healthy arm at the largest size, below which
    the job has failed."""

    @model_validator(mode="after")
    def _limits_what_it_measures(self) -> Self:
        if self.min_busbw_bytes_per_s and self.arms and HEALTHY not in self.arms:
            raise ValueError(
                f"min_busbw_bytes_per_s holds for the arm {HEALTHY}, which arms does not name"
            )
        for operation in self.min_busbw_bytes_per_s:
            if operation not in self.operations:
                raise ValueError(
                    f"min_busbw_bytes_per_s names {operation}, which operations does not"
                )
        return self


Job = StartupJob | FaultJob | SnapshotJob | CompatibilityJob | FanoutJob | CollectivesJob


def spec_of(job: Job) -> JobSpec:
    """The specification of a job: its fields without those about judging it."""
    judging = {
        "name", "max_median_s", "max_detect_s", "max_recover_s", "max_wave_s",
        "min_busbw_bytes_per_s",
    }  # fmt: skip
    return parse_spec(job.model_dump_json(exclude=judging))


class Comparison(_Part):
    """The upgrade to judge once all jobs have ended: from a published stack to this one."""

    baseline: Name
    """Key of the stack to compare with, or the beginning of one."""
    max_slowdown: Annotated[float, Field(ge=0, lt=math.inf)] = MAX_SLOWDOWN
    """Relevant slowdowns up to this fraction are notes, above it the suite fails."""


class Suite(_Part):
    """A suite file."""

    name: Name
    worker: Name = "reference"
    """The worker of jobs that name none."""
    launcher: LauncherName | None = None
    """Where jobs run; RESILIENCE_LAUNCHER, else `local`, when not set."""
    jobs: Annotated[
        tuple[Annotated[Job, Field(discriminator="kind")], ...], Field(alias="job", min_length=1)
    ]
    """`[[job]]`, in the order in which they run."""
    compare: Comparison | None = None


def read_suite(path: Path) -> Suite:
    """Read a suite from a TOML file.

    Raises:
        InputError: it can't be read, or something in it is wrong; names file, line and field.
    """
    text = _read(path)
    try:
        found = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _no_toml(path, text, error) from error
    except (ValueError, RecursionError) as error:  # a number or a nesting without end
        raise InputError("SUITE", str(path), f"it can't be read ({error})", mend=_MEND) from error
    # Jobs that name no worker have the suite's; a wrong one is told where it stands.
    worker = found.get("worker", "reference")
    jobs = found.get("job")
    if isinstance(jobs, list):
        found["job"] = [{"worker": worker, **job} if _has_worker(job) else job for job in jobs]
    try:
        # In JSON's rules a text is an arm and a list is a tuple, but true is no number, nor is "2".
        suite = Suite.model_validate_json(json.dumps(found, default=str), strict=True)
    except ValidationError as error:
        _refuse(path, text, error)
    except ValueError as error:  # hexadecimal digits without end, which no decimal text can hold
        raise InputError("SUITE", str(path), f"it can't be read ({error})", mend=_MEND) from error
    _check_names(path, text, suite)
    for number, job in enumerate(suite.jobs):
        _check_job(path, text, number, job)
    return suite


def _has_worker(job: object) -> bool:
    """Whether a job, as the file has it, is one of a worker: collectives need none."""
    return isinstance(job, dict) and job.get("kind") != RunKind.COLLECTIVES


def _read(path: Path) -> str:
    try:
        with path.open("rb") as stream:
            content = stream.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise InputError(
                "SUITE", str(path), f"it has more than {MAX_BYTES} bytes", mend="Split it."
            )
        # Editors on Windows begin a file with a mark and end lines with two characters.
        return content.decode("utf-8-sig").replace("\r\n", "\n")
    except OSError as error:
        raise InputError(
            "SUITE", str(path), f"it can't be read ({error.strerror})", mend="Give a readable file."
        ) from error
    except UnicodeDecodeError as error:
        *before, line = error.object[: error.start].decode(errors="replace").split("\n")
        field = line.partition("=")[0].strip() or "the file"
        raise InputError(
            f"{path}:{len(before) + 1}: {field}", error.object[error.start : error.end],
            f"it is no UTF-8 ({error.reason})", mend="Save the file as UTF-8.",
        ) from error  # fmt: skip


def _refuse(path: Path, text: str, error: ValidationError) -> NoReturn:
    # A name that is mistyped is also missing: what stands in the file says more.
    first = min(error.errors(include_url=False), key=lambda item: item["type"] != "extra_forbidden")
    loc = _without_tags(first["loc"])
    kind, reason, mend = first["type"], first["msg"], _MEND
    if kind == "extra_forbidden":
        reason, mend = "no such field", _fields_like(loc, first["loc"])
    elif kind == "missing":
        reason, mend = "it is missing", f"Add it. {_MEND}"
    elif kind == "union_tag_not_found":
        loc, reason = (*loc, "kind"), "it is missing"
        mend = f"Say which job it is: {_KINDS}."
    elif kind == "union_tag_invalid":
        loc, reason, mend = (*loc, "kind"), "no such kind of job", f"Choose from {_KINDS}."
    elif kind == "tuple_type":
        reason = "it has to be a list"
        mend = "Begin each job with [[job]], in two brackets." if loc == ("job",) else _MEND
    elif kind in ("model_type", "dict_type"):
        reason = "it has to be a table"
        mend = f"Begin it with [{loc[0]}], in one bracket." if len(loc) == 1 else _MEND
    elif kind == "value_error":
        # A check over several fields begins with the name of the one that is wrong.
        reason = str(first["ctx"]["error"])
        loc = (*loc, reason.split(" ", 1)[0])
    raise _error(path, text, loc, reason[:1].lower() + reason[1:], mend) from error


def _no_toml(path: Path, text: str, error: tomllib.TOMLDecodeError) -> InputError:
    """The parser tells the line in its message and nowhere else."""
    lines = text.split("\n")
    at = re.search(r" \(at line (\d+), column \d+\)$", str(error))
    number = int(at[1]) if at else len(lines)
    line = lines[number - 1].strip() if 0 < number <= len(lines) else ""
    field = line.partition("=")[0].strip() or "the file"
    reason = str(error)[: at.start()] if at else str(error)
    return InputError(
        f"{path}:{number}: {field}", line, f"it is no TOML ({reason.lower()})", mend=_MEND
    )


def _error(path: Path, text: str, loc: Sequence[str | int], reason: str, mend: str) -> InputError:
    line = line_of(text, loc)
    value: Any = tomllib.loads(text)
    for part in loc:
        try:
            value = value[part]
        except (KeyError, IndexError, TypeError):
            value = None
    return InputError(f"{path}:{line}: {_field(loc)}", value, reason, mend=mend)


def _field(loc: Sequence[str | int]) -> str:
    """`job[2].repeats`, counted from 1 as a person does."""
    words = ""
    for part in loc:
        words += f"[{part + 1}]" if isinstance(part, int) else f".{part}" if words else part
    return words or "the suite"


def _without_tags(loc: tuple[str | int, ...]) -> tuple[str | int, ...]:
    """A location without the kinds of jobs, which pydantic adds and the file has not."""
    if len(loc) > 2 and loc[0] == "job" and loc[2] in _MODELS:
        loc = (*loc[:2], *loc[3:])
    return tuple(part for part in loc if part != "[key]")


def _fields_like(loc: Sequence[str | int], tagged: Sequence[str | int]) -> str:
    model: type[BaseModel] = Suite
    if loc[0] == "job" and len(tagged) > 2:
        model = _MODELS[str(tagged[2])]
    elif loc[0] == "compare" and len(loc) > 1:
        model = Comparison
    known = [field.alias or name for name, field in model.model_fields.items()]
    close = difflib.get_close_matches(str(loc[-1]), known, n=1)
    return f"Did you mean {close[0]}?" if close else f"Fields: {', '.join(known)}."


def _check_names(path: Path, text: str, suite: Suite) -> None:
    seen: set[str] = set()
    for number, job in enumerate(suite.jobs):
        if job.name in seen:
            raise _error(
                path, text, ("job", number, "name"), "another job has this name",
                "Give each job a name of its own: reports tell them apart by it.",
            )  # fmt: skip
        seen.add(job.name)


def _check_job(path: Path, text: str, number: int, job: Job) -> None:
    """Check what only the catalogue and the plans know, before the first job has started."""
    if not isinstance(job, CollectivesJob) and job.worker not in WORKERS:
        own = "worker" in tomllib.loads(text)["job"][number]
        loc = ("job", number, "worker") if own else ("worker",)
        raise _error(path, text, loc, "no such worker", f"Choose from {', '.join(WORKERS)}.")
    try:
        if isinstance(job, StartupJob):
            StartupPlan(job.arms, job.repeats, job.cold_repeats, sleep_levels=job.sleep_levels)
        elif isinstance(job, FaultJob):
            FaultPlan(job.faults, job.recoveries, job.repeats, job.controls)
        elif isinstance(job, FanoutJob):
            FanoutPlan(job.widths, job.page_caches, job.repeats)
        elif isinstance(job, CollectivesJob):
            # How many ranks there may be, only the machine knows that measures.
            BandwidthPlan(job.arms, job.operations, job.sizes, job.ranks, job.repeats, backend=GLOO)
    except InputError as error:
        loc = ("job", number, error.field)
        raise _error(path, text, loc, error.why, error.mend) from error


_MODELS: Final[Mapping[str, type[BaseModel]]] = {
    "startup": StartupJob,
    "fault": FaultJob,
    "snapshot": SnapshotJob,
    "compatibility": CompatibilityJob,
    "fanout": FanoutJob,
    "collectives": CollectivesJob,
}
_KINDS: Final = ", ".join(_MODELS)
