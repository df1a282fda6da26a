"""Experiments go to Chaos Toolkit and come back as they were, and what we don't have is refused."""

from __future__ import annotations

import json
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilience_pipelines.cli import main
from resilience_pipelines.errors import InputError
from resilience_pipelines.faults.catalogue import CATALOGUE
from resilience_pipelines.faults.chaostoolkit import (
    MAX_BYTES,
    make_experiment,
    make_journal,
    read_file,
)
from resilience_pipelines.faults.run import FaultPlan
from resilience_pipelines.home import open_home
from resilience_pipelines.job_spec import FaultSpec, parse_spec
from resilience_pipelines.records import FaultRun, RunKind, RunRecord, Verdict
from tests.factories import RecordFactory, land


@pytest.fixture
def valid(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Chaos Toolkit's own check of an experiment, which also looks for the program it names."""
    experiment = pytest.importorskip("chaoslib.experiment", reason="no chaostoolkit-lib here")
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    return experiment.ensure_experiment_is_valid


plans = st.builds(
    FaultPlan,
    faults=st.lists(st.sampled_from(sorted(CATALOGUE)), max_size=3, unique=True).map(tuple),
    repeats=st.integers(1, 50),
    controls=st.booleans(),
)


def encoded(value: object) -> bytes:
    return json.dumps(value).encode()


def foreign(provider: dict[str, Any], **parts: Any) -> dict[str, Any]:
    action = {"type": "action", "name": "a", "provider": provider}
    return {"title": "t", "description": "d", "method": [action], **parts}


@given(plans, st.sampled_from(["reference", "vllm"]))
def test_a_plan_comes_back_as_it_was(plan: FaultPlan, worker: str) -> None:
    imported = read_file(encoded(make_experiment(plan, worker)))
    assert (imported.plan, imported.worker, imported.left_out) == (plan, worker, ())
    specification = parse_spec(encoded(imported.specification()))
    assert isinstance(specification, FaultSpec)
    assert (specification.faults, specification.repeats) == (plan.faults, plan.repeats)


@pytest.mark.parametrize("name", CATALOGUE)
def test_chaos_toolkit_accepts_every_fault_of_the_catalogue(valid: Any, name: str) -> None:
    recoveries = CATALOGUE[name].recoveries[:1]
    valid(make_experiment(FaultPlan((name,), recoveries, 3), "reference"))


def journal_of(verdict: Verdict) -> tuple[RunRecord, FaultRun, dict[str, Any]]:
    factory = RecordFactory(1)
    run = factory.fault("worker_killed", verdict=verdict, recovery="warm_cache")
    record = factory.record(RunKind.FAULT, faults=[run])
    return record, run, json.loads(encoded(make_journal(record)))


def test_chaos_toolkit_accepts_the_experiment_in_a_journal(valid: Any) -> None:
    valid(journal_of(Verdict.FAIL)[2]["experiment"])


@pytest.mark.parametrize(
    ("verdict", "status", "deviated"),
    [
        (Verdict.PASS, "completed", False),
        (Verdict.FAIL, "failed", True),
        (Verdict.INCONCLUSIVE, "failed", False),
        (Verdict.NOT_INJECTED, "failed", False),
        (Verdict.NOT_APPLICABLE, "aborted", False),
        (Verdict.ABORTED, "interrupted", False),
        (Verdict.ROLLBACK_FAILED, "failed", True),
    ],
)
def test_a_journal_holds_the_whole_result(verdict: Verdict, status: str, deviated: bool) -> None:
    record, run, journal = journal_of(verdict)
    assert (journal["status"], journal["deviated"]) == (status, deviated)
    (activity,) = journal["run"]
    assert FaultRun.model_validate(activity["output"]) == run
    assert activity["status"] == ("succeeded" if verdict is Verdict.PASS else "failed")
    elapsed = datetime.fromisoformat(journal["end"]) - datetime.fromisoformat(journal["start"])
    assert elapsed.total_seconds() == pytest.approx(journal["duration"], abs=1e-5)
    (extension,) = journal["experiment"]["extensions"]
    assert (extension["run_id"], extension["verdict"]) == (record.run_id, verdict.value)
    assert read_file(encoded(journal)).plan.faults == ("worker_killed",)


@pytest.mark.parametrize(
    ("provider", "fault"),
    [
        ({"type": "process", "path": "/bin/kill", "arguments": ["-9", 17]}, "worker_killed"),
        ({"type": "process", "path": "pkill", "arguments": "-SIGSTOP -f vllm"}, "worker_hung"),
        ({"type": "process", "path": "killall", "arguments": ["-s", "KILL"]}, "worker_killed"),
        ({"type": "process", "path": "kill", "arguments": "--signal=stop 17"}, "worker_hung"),
        (
            {"type": "python", "module": "chaosk8s.pod.actions", "func": "terminate_pods",
             "arguments": {"label_selector": "app=vllm", "qty": 1}},
            "worker_killed",
        ),
    ],
)  # fmt: skip
def test_an_experiment_of_others_is_read_where_the_catalogue_has_its_fault(
    provider: dict[str, Any], fault: str
) -> None:
    assert read_file(encoded(foreign(provider))).plan == FaultPlan((fault,))


KILL = {"type": "process", "path": "kill", "arguments": ["-9", "17"]}


def test_what_a_plan_does_not_have_is_named() -> None:
    probe = {"type": "probe", "name": "still-there", "provider": {"type": "http", "url": "x"}}
    experiment = foreign(KILL, rollbacks=[probe]) | {"steady-state-hypothesis": {"title": "up"}}
    experiment["method"].append(probe)
    left_out = read_file(encoded(experiment)).left_out
    assert [part.split(":")[0] for part in left_out] == [
        "method[1]", "steady-state-hypothesis", "rollbacks",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("content", "field"),
    [
        (b"{", "file"),
        (b"[]", "file"),
        (b" " * (MAX_BYTES + 1), "file"),
        (encoded({"title": "t"}), "method"),
        (encoded({"method": []}), "method"),
        (encoded({"method": [1]}), "method[0]"),
        (encoded({"experiment": 1}), "experiment"),
        (encoded(foreign(KILL) | {"method": foreign(KILL)["method"] * 2}), "method"),
        (encoded(foreign({"type": "http", "url": "x"})), "method[0].provider.type"),
        (encoded(foreign({"type": "process", "path": "rm"})), "method[0].provider.path"),
        (encoded(foreign(KILL | {"arguments": ["-15", "9"]})), "method[0].provider.arguments"),
        (encoded(foreign(KILL | {"arguments": 9})), "method[0].provider.arguments"),
        (
            encoded(foreign({"type": "python", "module": "chaosaws.ec2.actions", "func": "stop"})),
            "method[0].provider.func",
        ),
        (encoded(foreign({"type": "process", "path": "resilience",
                          "arguments": ["run", "fault", "meteor"]})), "faults"),
        (encoded(foreign({"type": "process", "path": "resilience",
                          "arguments": ["run", "fault", "--launcher", "x"]})),
         "method[0].provider.arguments"),
    ],
)  # fmt: skip
def test_anything_else_is_refused_with_the_field(content: bytes, field: str) -> None:
    with pytest.raises(InputError) as refused:
        read_file(content)
    assert refused.value.field == field


def test_an_experiment_of_several_has_to_be_named() -> None:
    factory = RecordFactory(2)
    runs = [factory.fault("worker_hung", repeat) for repeat in range(2)]
    record = factory.record(RunKind.FAULT, faults=runs)
    for measurement in (None, "nothing"):
        with pytest.raises(InputError, match=runs[1].measurement_id) as refused:
            make_journal(record, measurement)
        assert refused.value.field == "measurement"


def test_the_command_exports_a_plan_and_a_result_and_imports_both(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def resilience(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr("sys.argv", ["resilience", *arguments])
        with pytest.raises(SystemExit) as end:
            main()
        return int(end.value.code or 0), capsys.readouterr().out

    factory = RecordFactory(2)
    runs = [factory.fault("worker_hung", repeat, recovery="resume") for repeat in range(2)]
    record = factory.record(RunKind.FAULT, faults=runs)
    home = open_home(tmp_path / "home")
    land(home.landing, record)
    options = ("--home", str(home.root))
    name = runs[1].measurement_id
    made = {
        "plan": resilience("faults", "export", "worker_hung", "--recoveries", "resume"),
        "result": resilience("faults", "journal", record.run_id, name, *options),
    }
    for kind, (code, text) in made.items():
        assert code == 0
        (tmp_path / kind).write_text(text)
        code, printed = resilience("faults", "import", str(tmp_path / kind))
        assert code == 0
        assert printed.startswith("resilience run fault worker_hung ")
        code, printed = resilience("faults", "import", str(tmp_path / kind), "--json")
        assert json.loads(printed)["specification"]["recoveries"] == ["resume"]
    assert json.loads(made["result"][1])["run"][0]["output"]["measurement_id"] == name
    assert resilience("faults", "journal", record.run_id, *options)[0] == 2
    assert resilience("faults", "journal", "nothing", *options)[0] == 2
    assert resilience("faults", "import", str(tmp_path / "missing"))[0] == 2
