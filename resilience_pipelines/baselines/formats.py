"""Reading the files that others' figures come in.

What belongs here: one function for each format, from the bytes of a file to baselines. What does
not: keeping them (`keep`).

A file that is not of its format is refused as a whole, with the field that is wrong.
"""

from __future__ import annotations

import csv
import io
import math
import re
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pydantic import ValidationError

from resilience_pipelines import strict_json
from resilience_pipelines.baselines.baseline import Baseline
from resilience_pipelines.errors import InputError
from resilience_pipelines.go_duration import go_duration_s
from resilience_pipelines.records import Arm

MAX_BYTES: Final = 64 * 2**20


@dataclass(frozen=True)
class Origin:
    """Where a file comes from, as the person says who imports it.

    Attributes:
        source: who published it.
        url: where it can be read again.
        facts: fields of `Baseline` that the file does not hold, e.g. `gpu_sku`.
    """

    source: str
    url: str | None = None
    facts: Mapping[str, str] | None = None


Parse = Callable[[bytes, Origin], list[Baseline]]


def parse_table(content: bytes, origin: Origin) -> list[Baseline]:
    """A CSV table whose columns are fields of `Baseline`; an empty cell is not said.

    Raises:
        InputError: a column or a cell is not of its form; names the row.
    """
    rows = csv.DictReader(io.StringIO(_text(content)), strict=True)
    try:
        listed = list(rows)
    except csv.Error as error:
        raise _refused(f"line {rows.line_num}", str(error)) from error
    if not listed:
        raise _refused("rows", "the table has none")
    return [
        _baseline(
            f"row {number}",
            origin,
            {str(name): value for name, value in row.items() if value not in (None, "")},
        )
        for number, row in enumerate(listed, start=1)
    ]


def parse_vllm_startup(content: bytes, origin: Origin) -> list[Baseline]:
    """What `vllm bench startup --output-json` writes: seconds of each cold and warm start.

    Its start-up ends when the engine is made, without a server and without a first token, so it is
    comparable with an arm here only in part; the detail says so.
    """
    data = _object(_json(content), "file")
    found = []
    for name, arm in (("cold", Arm.COLD), ("warm", Arm.WARM_CACHE)):
        for what, field in (("start-up", "startup"), ("compilation", "compilation")):
            times = data.get(f"{name}_{field}_times")
            if times is None:
                continue
            values = [_number(value, f"{name}_{field}_times") for value in _list(times, field)]
            if not values:
                continue
            found.append(
                _baseline(
                    f"{name}_{field}_times", origin,
                    {
                        "product": "vLLM", "engine": "vllm", "figure": f"{what}, {arm.value}",
                        "arm": arm.value if field == "startup" else None,
                        "value": statistics.median(values), "unit": "s",
                        "statistic": "median", "n": len(values),
                        "detail": "Engine only: no server, no first token.",
                    },
                )
            )  # fmt: skip
    if not found:
        raise _refused("cold_startup_times", "the file has no times of starts")
    return found


def parse_nccl_tests(content: bytes, origin: Origin) -> list[Baseline]:
    """What nccl-tests writes with `-J`: bus bandwidth for each size, out of place and in place.

    Results with wrong elements are refused: a fast wrong answer is no baseline.
    """
    data = _object(_json(content), "file")
    config = _object(data.get("config", {}), "config")
    ranks = _list(config.get("devices", []), "config.devices")
    facts: dict[str, object] = {"product": "nccl-tests", "gpu_count": len(ranks) or None}
    names = {str(_object(rank, "config.devices").get("device_info")) for rank in ranks}
    if len(names) == 1:
        facts["gpu_sku"] = names.pop()
    found = []
    for index, item in enumerate(_list(data.get("results"), "results")):
        result = _object(item, f"results[{index}]")
        where = f"results[{index}]"
        size = int(_number(result.get("size"), f"{where}.size"))
        name = str(result.get("experiment_name") or "collective").strip()
        for place in ("out_of_place", "in_place"):
            if result.get(place) is None:
                continue
            body = _object(result[place], f"{where}.{place}")
            if _number(body.get("nwrong") or 0, f"{where}.{place}.nwrong") > 0:
                raise _refused(f"{where}.{place}.nwrong", "the collective gave wrong elements")
            words = place.replace("_", " ")
            found.append(
                _baseline(
                    f"{where}.{place}", origin,
                    facts | {
                        "figure": f"{name} busbw, {size} bytes, {words}",
                        "value": _number(body.get("bus_bw"), f"{where}.{place}.bus_bw"),
                        "unit": "GB/s", "statistic": "mean",
                        "n": result.get("actual_iterations"),
                    },
                )
            )  # fmt: skip
    if not found:
        raise _refused("results", "the file has none")
    return found


def parse_nvbandwidth(content: bytes, origin: Origin) -> list[Baseline]:
    """What `nvbandwidth -j` writes: each cell of each test that passed.

    A cell is named by its row and column, which are GPUs, or the CPU where there is one row.
    """
    body = _object(_object(_json(content), "file").get("nvbandwidth"), "nvbandwidth")
    driver = body.get("Driver Version")
    found = []
    for index, item in enumerate(_list(body.get("testcases"), "nvbandwidth.testcases")):
        where = f"testcases[{index}]"
        case = _object(item, where)
        if case.get("status") != "Passed":
            continue
        description = str(case.get("bandwidth_description") or "")
        unit = "ns" if description.endswith("(ns)") else "GB/s"
        for row, cells in enumerate(_list(case.get("bandwidth_matrix"), f"{where}.matrix")):
            for column, cell in enumerate(_list(cells, f"{where}.matrix")):
                if cell == "N/A":
                    continue  # a pair that does not exist, e.g. a GPU with itself
                found.append(
                    _baseline(
                        where, origin,
                        {
                            "product": "nvbandwidth",
                            "figure": f"{case.get('name')}, row {row}, column {column}",
                            "value": _written_number(cell, f"{where}.bandwidth_matrix"),
                            "unit": unit,
                            "driver_version": None if driver is None else str(driver),
                            "detail": description,
                        },
                    )
                )  # fmt: skip
    if not found:
        raise _refused("nvbandwidth.testcases", "none of them passed")
    return found


_IMAGE_VERSION: Final = re.compile(r":v?([0-9]+\.[0-9]+\.[0-9]+[a-z0-9.]*)")


def parse_dynamo_snapshot(content: bytes, origin: Origin) -> list[Baseline]:
    """The benchmark index of NVIDIA Dynamo Snapshot: NDJSON, one run on each line.

    Each measurement that is complete is a figure, of one run. Runs that did not pass are left out:
    a restore that did not serve is no baseline. Its `restore.to_traffic.duration` begins when its
    agent is told to restore, in a container that runs already, and ends when the pod takes traffic:
    the detail says so.
    """
    found = []
    lines = [line for line in _text(content).splitlines() if line.strip()]
    for number, line in enumerate(lines, start=1):
        entry = _object(_json(line.encode()), f"line {number}")
        run = _object(entry.get("result", entry), f"line {number}, result")
        if run.get("outcome") != "passed":
            continue
        facts = _of_dynamo_run(run, f"line {number}")
        for index, item in enumerate(_list(run.get("measurements"), f"line {number}")):
            where = f"line {number}, measurements[{index}]"
            body = _object(item, where)
            if body.get("status") != "complete":
                continue
            name = str(body.get("name"))
            found.append(
                _baseline(
                    where, origin,
                    facts | {
                        "figure": name,
                        "arm": Arm.RESTORE.value if name == _TO_TRAFFIC else None,
                        "value": _number(body.get("value"), f"{where}.value"),
                        "unit": "s" if body.get("unit") == "seconds" else body.get("unit"),
                        "statistic": "single", "n": 1,
                        "detail": f"{body.get('displayName') or name}; {facts['detail']}",
                    },
                )
            )  # fmt: skip
    if not found:
        raise _refused("file", "no run in it passed with a complete measurement")
    return found


def parse_dynamo_agent_log(content: bytes, origin: Origin) -> list[Baseline]:
    """The log of Dynamo Snapshot's node agent: the phases of each restore that it timed.

    One line tells a restore: a preamble, `Restore timing summary`, and an object whose durations
    are written as Go does. Phases have no offsets there, only durations; `unaccounted` is the
    agent's own remainder. Other lines are of no concern.
    """
    found = []
    for number, line in enumerate(_text(content).splitlines(), start=1):
        if _TIMING_LINE not in line or "{" not in line:
            continue
        where = f"line {number}"
        summary = _object(_json(line[line.index("{") :].encode()), where)
        restore = _object(summary.get("restore"), f"{where}, restore")
        phases = _object(restore.get("phases") or {}, f"{where}, restore.phases")
        durations = {"duration": restore.get("duration"), **phases}
        for name, text in durations.items():
            found.append(
                _baseline(
                    f"{where}, {name}", origin,
                    {
                        "product": "NVIDIA Dynamo Snapshot", "figure": f"restore.agent.{name}",
                        "value": _go_duration_s(text, f"{where}, {name}"), "unit": "s",
                        "statistic": "single", "n": 1,
                        "detail": f"pod {summary.get('pod')}, snapshot {summary.get('snapshot')}",
                    },
                )
            )  # fmt: skip
    if not found:
        raise _refused("file", f"no line has a {_TIMING_LINE!r}")
    return found


_TIMING_LINE: Final = "Restore timing summary"


def _go_duration_s(text: object, where: str) -> float:
    seconds = go_duration_s(text)
    if seconds is None:
        raise _refused(where, "it has to be a duration such as 1m2.5s", text)
    return _number(seconds, where)


_TO_TRAFFIC: Final = "restore.to_traffic.duration"


def _of_dynamo_run(run: Mapping[str, Any], where: str) -> dict[str, object]:
    """What a run says of its stack; the GPUs are those of the restore."""
    environment = _object(run.get("environment") or {}, f"{where}, environment")
    identity = _object(run.get("identity") or {}, f"{where}, identity")
    storage = _object(environment.get("storage") or {}, f"{where}, environment.storage")
    gpus = [
        _object(gpu, f"{where}, environment.restoreGpus")
        for gpu in _list(environment.get("restoreGpus") or [], f"{where}, environment.restoreGpus")
    ]
    models = {str(gpu["model"]) for gpu in gpus if gpu.get("model")}
    drivers = {str(gpu["driverVersion"]) for gpu in gpus if gpu.get("driverVersion")}
    version = _IMAGE_VERSION.search(str(environment.get("frameworkImage") or ""))
    told = [
        f"run of {run.get('startedAt')}",
        *(f"storage {storage[name]}" for name in ("provisioner",) if storage.get(name)),
        *(f"node {environment[name]}" for name in ("nodeAffinity",) if environment.get(name)),
    ]
    return {
        "product": "NVIDIA Dynamo Snapshot",
        "gpu_sku": models.pop() if len(models) == 1 else None,
        "gpu_count": len(gpus) or None,
        "driver_version": drivers.pop() if len(drivers) == 1 else None,
        "engine": identity.get("case"),
        "engine_version": version[1] if version else None,
        "model": environment.get("model"),
        "detail": ", ".join(told),
    }


FORMATS: Final[Mapping[str, Parse]] = {
    "table": parse_table,
    "vllm-bench-startup": parse_vllm_startup,
    "nccl-tests": parse_nccl_tests,
    "nvbandwidth": parse_nvbandwidth,
    "dynamo-snapshot": parse_dynamo_snapshot,
    "dynamo-agent-log": parse_dynamo_agent_log,
}


def _baseline(where: str, origin: Origin, fields: Mapping[str, object]) -> Baseline:
    known = {name: value for name, value in fields.items() if value is not None}
    told = {"source": origin.source, "url": origin.url, **(origin.facts or {})}
    try:
        # What the file says stands before what the importing person says of it.
        return Baseline.model_validate({**told, **known})
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        raise _refused(f"{where}, {field}", first["msg"], first.get("input")) from error


def _json(content: bytes) -> object:
    try:
        return strict_json.loads(_text(content))
    except ValueError as error:
        raise _refused("file", f"it is no JSON ({error})") from error


def _text(content: bytes) -> str:
    if len(content) > MAX_BYTES:
        raise _refused("file", f"it has more than {MAX_BYTES} bytes")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _refused("file", "it is no text in UTF-8") from error


def _object(value: object, where: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise _refused(where, "it has to be an object", value)
    return value


def _list(value: object, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise _refused(where, "it has to be a list", value)
    return value


def _number(value: object, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _refused(where, "it has to be a number", value)
    try:
        number = float(value)
    except OverflowError as error:
        raise _refused(where, "it is too large", value) from error
    if not math.isfinite(number):
        raise _refused(where, "it has to be finite", value)
    return number


def _written_number(value: object, where: str) -> float:
    """A number that the format writes as text."""
    try:
        return _number(float(value) if isinstance(value, str) else value, where)
    except ValueError as error:
        raise _refused(where, "it has to be a number", value) from error


def _refused(where: str, reason: str, value: object = "") -> InputError:
    return InputError(
        where,
        str(value)[:100],
        reason,
        mend="Check that --format is the file's, and the file whole.",
    )
