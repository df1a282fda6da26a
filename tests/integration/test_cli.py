"""The `resilience` command as a person or a script runs it: exit codes, messages, JSON."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import psutil
import pytest

from resilience_pipelines.snapshots.criu import Criu
from resilience_pipelines.snapshots.criu_binary import PREFIX_VARIABLE, private_prefix
from resilience_pipelines.workers.reference import VERSION
from resilience_pipelines.workers.space import SpaceSupport

ROOT = Path(__file__).parents[2]
COMMAND = (sys.executable, "-m", "resilience_pipelines.cli")


def run(
    *arguments: str, home: Path | None = None, package: Path = ROOT, **env: str
) -> subprocess.CompletedProcess[str]:
    options = ("--home", str(home)) if home else ()
    return subprocess.run(
        [*COMMAND, *arguments, *options], capture_output=True, text=True, timeout=280, cwd=package,
        env=os.environ | {"NO_COLOR": "1", "COLUMNS": "200"} | env, check=False,
    )  # fmt: skip


def run_json(*arguments: str, home: Path, package: Path = ROOT, **env: str) -> Any:
    done = run(*arguments, "--json", home=home, package=package, **env)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with one short start-up run, loaded, built and published."""
    home = tmp_path_factory.mktemp("home")
    found = run_json("run", "startup", "--repeats", "2", "--cold-repeats", "1", home=home)
    assert {item["outcome"] for item in found["startups"]} <= {"ok", "unsupported"}
    assert run_json("load", home=home)["loaded"] >= 1
    assert Path(run_json("publish", home=home)["published"]).is_file()
    return home


def own_stack(home: Path) -> str:
    """The stack of the first run of a home: later ones may be of others that a test made up."""
    first = min(home.glob("landing/*/*/run.json"))
    return str(json.loads(first.read_text())["stack_key"])


def test_the_summary_has_one_row_for_each_arm_and_stack(measured: Path) -> None:
    own = own_stack(measured)
    rows = run_json(
        "query",
        "select arm, n, median_s, ci_low_s, ci_high_s from startup_summary "
        f"where stack_key = '{own}' order by arm",
        home=measured,
    )
    assert [row["arm"] for row in rows] == ["cold", "restore", "sleep_wake", "warm_cache"]
    for row in rows:
        if row["n"] >= 2:
            assert row["ci_low_s"] <= row["median_s"] <= row["ci_high_s"]


def test_loading_again_loads_nothing_twice(measured: Path) -> None:
    again = run_json("load", "--no-build", home=measured)
    assert again["loaded"] == 0
    assert again["already_loaded"] >= 1


def test_the_dashboard_is_one_page(measured: Path) -> None:
    found = run_json("dashboard", home=measured)
    assert Path(found["path"]).stat().st_size == found["bytes"] > 1000


def test_snapshots_of_this_stack_are_compatible_with_it(
    measured: Path, support: SpaceSupport, criu: object
) -> None:
    own = own_stack(measured)
    found = run_json("run", "compatibility", "--edits", "nothing,file_mode", home=measured)
    stored, same, another = found["compatibility"]
    assert {trial["source_stack_key"] for trial in found["compatibility"]} == {own}
    assert (stored["predicted_compatible"], stored["outcome"]) == (True, "ok")
    assert (same["predicted_compatible"], same["outcome"]) == (True, "ok")
    assert (another["predicted_compatible"], another["outcome"]) == (False, "failed")
    assert another["snapshot_id"] == f"{stored['snapshot_id']}+file_mode"
    assert list((measured / "work").iterdir()) == []


def test_a_snapshot_comes_back_from_another_installation_with_another_version_of_the_engine(
    measured: Path, support: SpaceSupport, criu: Criu, tmp_path: Path
) -> None:
    """As from two virtual environments that share a data home: the image brings its own engine."""
    name = "resilience_pipelines"
    shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    engine = tmp_path / name / "workers" / "reference" / "__init__.py"
    engine.write_text(engine.read_text().replace(f'VERSION = "{VERSION}"', 'VERSION = "next"'))
    prefix = {PREFIX_VARIABLE: str(private_prefix())}
    found = run_json("run", "compatibility", home=measured, package=tmp_path, **prefix)
    (trial,) = found["compatibility"]
    assert (trial["predictions"], trial["outcome"]) == (["engine"], "ok")
    (run_file,) = measured.glob(f"landing/*/{found['run_id']}/run.json")
    record = json.loads(run_file.read_text())
    assert record["stack"]["engine_version"] == "next"
    assert record["compatibility"][0]["source_stack"]["engine_version"] == VERSION


def test_a_snapshot_is_listed_inspected_verified_restored_and_pruned(
    measured: Path, support: SpaceSupport, criu: object
) -> None:
    (listed,) = run_json("snapshot", "list", home=measured)
    name = listed["snapshot"]
    assert run_json("snapshot", "inspect", name, home=measured)["restorable_here"] is True
    assert run_json("snapshot", "verify", home=measured)[0]["intact"] is True
    restored = run_json("snapshot", "restore", name, "--times", "2", home=measured)
    assert [row["oracle"] for row in restored] == ["equal", "equal"]
    assert run_json("snapshot", "prune", "--keep", "1", home=measured) == []
    image = max(
        (measured / "snapshots" / name / "images").iterdir(), key=lambda p: p.stat().st_size
    )
    with image.open("r+b") as stream:
        stream.seek(image.stat().st_size // 2)
        byte = stream.read(1)
        stream.seek(-1, os.SEEK_CUR)
        stream.write(bytes([byte[0] ^ 1]))
    verified = run("snapshot", "verify", "--json", home=measured)
    assert verified.returncode == 6
    assert json.loads(verified.stdout)[0]["intact"] is False
    refused = run("snapshot", "restore", name, home=measured)
    assert refused.returncode != 0
    assert "SHA-256" in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("run", "startup", "--arms", "tepid"), 2, "cold"),
        (("run", "startup", "--arms", ""), 2, "arms"),
        (("run", "startup", "--repeats", "-1"), 2, "repeats"),
        (("run", "startup", "--repeats", "many"), 2, "repeats"),
        (("run", "startup", "--worker", "nobody"), 2, "reference"),
        (("run", "startup", "--port", "0"), 2, "port"),
        (("run", "fault", "earthquake"), 2, "worker_killed"),
        (("snapshot", "inspect", "../../etc/passwd"), 2, "snapshot"),
        (("snapshot", "restore", "snap-20260101T000000Z-00000000"), 2, "no such snapshot"),
        (("snapshot", "prune", "--keep", "0"), 2, "keep"),
        (("load", "/nowhere"), 2, "/nowhere"),
        (("query", "select 1"), 2, "publish"),
        (("dance",), 2, "dance"),
    ],
)
def test_bad_input_is_named_and_mended(
    tmp_path: Path, arguments: tuple[str, ...], code: int, words: str
) -> None:
    done = run(*arguments, RESILIENCE_HOME=str(tmp_path / "home"))
    assert done.returncode == code, done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_a_home_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = run("stack", home=tmp_path / "file" / "home")
    assert done.returncode == 2
    assert "--home" in done.stderr


def test_an_upgrade_without_enough_data_has_an_exit_code_of_its_own(measured: Path) -> None:
    own = own_stack(measured)
    done = run("compare", "--from", own[:8], "--to", own, "--json", home=measured)
    assert done.returncode == 8, done.stderr
    found = json.loads(done.stdout)
    assert (found["from"], found["to"], found["verdict"]) == (own, own, "not_enough_data")
    assert found["differing_dimensions"] == {}
    figures = {item["figure"]: item for item in found["figures"]}
    assert figures["start-up, warm_cache, reference"]["n_before"] == 2
    shown = run("compare", "--from", own, "--to", own, home=measured)
    assert shown.returncode == 8
    assert shown.stdout.startswith("not enough data\n")


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        (("--from", "zz", "--to", "latest"), "--from = 'zz'"),
        (("--from", "latest", "--to", ""), "--to = ''"),
        (("--from", "latest", "--to", "latest", "--max-slowdown", "-1"), "--max-slowdown = -1"),
        (("--from", "latest", "--to", "latest", "--max-slowdown", "nan"), "--max-slowdown = nan"),
    ],
)
def test_a_comparison_of_nothing_is_bad_input(
    measured: Path, arguments: tuple[str, ...], field: str
) -> None:
    done = run("compare", *arguments, home=measured)
    assert done.returncode == 2
    assert field in done.stderr


def test_trends_of_too_few_starts_are_empty(measured: Path) -> None:
    own = own_stack(measured)
    assert own not in {row["stack_key"] for row in run_json("trends", home=measured)}
    assert run("trends", home=measured).returncode == 0


@pytest.mark.parametrize(
    "sql",
    [
        "select * from nowhere",
        "selec 1",
        "copy (select 1) to '/tmp/out.csv'",
        "select * from read_csv('/etc/passwd')",
        "attach '/tmp/other.duckdb'",
        "create table t as select 1",
    ],
)
def test_a_query_can_only_read_the_marts(measured: Path, sql: str) -> None:
    done = run("query", sql, home=measured)
    assert done.returncode == 2, done.stdout
    assert "Traceback" not in done.stderr


def test_a_warehouse_held_by_another_program_is_busy_and_loses_nothing(
    measured: Path, tmp_path: Path
) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c",
         "import duckdb, sys; c = duckdb.connect(sys.argv[1]); print('held', flush=True);"
         "sys.stdin.read()", str(measured / "warehouse.duckdb")],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        done = run("load", "--no-build", home=measured)
        assert done.returncode == 4, done.stderr
        assert str(holder.pid) in done.stderr
        # Analysts read on.
        assert run("query", "select count(*) from runs", home=measured).returncode == 0
    finally:
        holder.communicate(timeout=10)
    assert run("load", "--no-build", home=measured).returncode == 0


def test_a_corrupt_landing_folder_stops_no_other(measured: Path) -> None:
    bad = measured / "landing/date=2026-01-01/20260101T000000Z-startup-deadbeef"
    bad.mkdir(parents=True)
    (bad / "run.json").write_text('{"schema_version": 1')
    try:
        done = run("load", "--no-build", "--json", home=measured)
        assert done.returncode == 6
        assert "deadbeef" in json.loads(done.stdout)["rejected"][0]["folder"]
        assert (bad / "run.json").exists()
    finally:
        (bad / "run.json").unlink()
        bad.rmdir()


def test_an_interrupted_run_lands_nothing_and_leaves_no_process(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*COMMAND, "run", "startup", "--repeats", "50", "--home", str(tmp_path)],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, cwd=ROOT,
        start_new_session=True,
    )  # fmt: skip
    deadline = time.monotonic() + 120
    tree: list[psutil.Process] = []
    while not any("workers.reference" in " ".join(_cmdline(p)) for p in tree):
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.05)
        tree = psutil.Process(process.pid).children(recursive=True)
    os.killpg(process.pid, signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    _, alive = psutil.wait_procs(tree, timeout=20)
    assert alive == []
    assert list(tmp_path.glob("landing/date=*")) == []


def _cmdline(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []


def test_doctor_names_a_mend_for_what_is_missing(tmp_path: Path) -> None:
    found = run_json("doctor", home=tmp_path)
    capabilities = {item["name"]: item for item in found["capabilities"]}
    assert {"criu", "pycriu", "gpu", "driver", "vllm", "kubernetes", "dcgm", "numa"} <= set(
        capabilities
    )
    for item in capabilities.values():
        if item["status"] == "unavailable":
            assert item["reason"], item
            assert item["mend"], item


def test_the_published_file_opens_while_nobody_holds_it(measured: Path) -> None:
    with duckdb.connect(str(measured / "published/resilience.duckdb"), read_only=True) as con:
        tables = {row[0] for row in con.execute("show tables").fetchall()}
    assert {"startup_summary", "startup_phases", "fault_runs", "stacks", "runs"} <= tables


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system with room for next to nothing."""
    disk = tmp_path / "disk"
    disk.mkdir()
    options = ["mount", "-t", "tmpfs", "-o", "size=20m", "tmpfs", str(disk)]
    mounted = subprocess.run(options, capture_output=True, text=True, timeout=30, check=False)
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")
    yield disk
    subprocess.run(["umount", str(disk)], check=True, timeout=30)


def test_a_full_disk_is_named_and_leaves_nothing_half_written(small_disk: Path) -> None:
    home = small_disk / "home"
    done = run("run", "startup", "--repeats", "1", "--arms", "warm_cache", home=home)
    assert done.returncode == 5, done.stderr
    assert "No space left on device" in done.stderr
    assert "Free space" in done.stderr
    assert "Traceback" not in done.stderr
    assert [path for path in home.rglob("*") if path.is_file()] == []
