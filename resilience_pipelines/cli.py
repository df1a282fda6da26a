"""The `resilience` command.

What belongs here: options, what a person sees, `--json` for scripts, exit codes. What does not: any
work; each command is a thin call of the library.

Exit codes: 0 done; 1 failed; 2 bad input; 3 this machine can't; 4 busy; 5 storage; 6 corrupt data;
7 deadline; 8 not enough data; 130 interrupted.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)

from resilience_pipelines import __version__, cli_snapshots
from resilience_pipelines.answers import Form, choose_form, encode, write_file
from resilience_pipelines.cli_common import (
    HomeOption,
    JsonOption,
    err,
    options,
    out,
    print_json,
    show_rows,
    split_list,
)
from resilience_pipelines.cli_tables import print_record
from resilience_pipelines.errors import InputError, ResilienceError, Stopped, StorageError
from resilience_pipelines.home import open_home

if TYPE_CHECKING:
    from resilience_pipelines.trends.comparison import Comparison

app = typer.Typer(
    help="Resilience benchmarking of GPU inference: snapshots, faults, start-up, trends.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
run_app = typer.Typer(help="Measure: run a benchmark job and land its results.")
snapshot_app = typer.Typer(help="Take, look at, check, restore and remove snapshots of workers.")
faults_app = typer.Typer(help="Fault experiments as files of Chaos Toolkit, out and in.")
kubernetes_app = typer.Typer(help="Jobs on a Kubernetes cluster (docs/kubernetes.md).")
app.add_typer(faults_app, name="faults", no_args_is_help=True)
app.add_typer(kubernetes_app, name="kubernetes", no_args_is_help=True)
app.add_typer(run_app, name="run", no_args_is_help=True)
snapshot_app.add_typer(cli_snapshots.app)
app.add_typer(snapshot_app, name="snapshot", no_args_is_help=True)

WorkerOption = Annotated[str, typer.Option("--worker", help="The worker to measure.")]
LauncherOption = Annotated[
    str | None,
    typer.Option(
        "--launcher",
        help="Where the job runs: local, or kubernetes (docs/kubernetes.md); RESILIENCE_LAUNCHER, "
        "else local.",
    ),
]


DEMO_FAULTS = "worker_killed,worker_hung,memory_exhausted,snapshot_image_corrupted_bit_flip"
"""One of each kind, so that a first look takes minutes."""


def main() -> None:
    """Run the command; errors of ours become a message and their exit code."""
    try:
        # Outside click's standalone mode an early exit comes back as a value.
        sys.exit(app(standalone_mode=False) or 0)
    except ResilienceError as error:
        # Imported here: a command that ends well need not wait for it.
        from resilience_pipelines.redaction import redact

        reason = escape(redact(error.reason))
        err.print(f"[bold red]error:[/] {reason}", highlight=False, soft_wrap=True)
        if error.mend:
            err.print(f"[bold]mend:[/]  {escape(error.mend)}", highlight=False, soft_wrap=True)
        sys.exit(error.exit_code)
    except (typer.Abort, KeyboardInterrupt):
        err.print("interrupted")
        sys.exit(130)
    except typer.Exit as leave:
        sys.exit(leave.exit_code)
    except Exception as error:
        # Click's usage errors know how to show themselves; anything else is a bug of ours.
        show = getattr(error, "show", None)
        if show is None:
            raise
        show()
        sys.exit(getattr(error, "exit_code", 2))


def _version(asked: bool) -> None:
    if asked:
        out.print(__version__)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None: ...


@app.command()
def doctor(home: HomeOption = None, as_json: JsonOption = False) -> None:
    """Say what this machine can do, and for what it can't: why, and what would help."""
    from resilience_pipelines.doctor import diagnose, render

    diagnosis = diagnose(open_home(home).root)
    if as_json:
        out.print_json(diagnosis.to_json())
    else:
        render(diagnosis, out)


@app.command()
def stack(
    worker: WorkerOption = "reference", home: HomeOption = None, as_json: JsonOption = False
) -> None:
    """Show the stack of this machine: every dimension of hardware and software, and its key."""
    from resilience_pipelines.context import make_worker, read_machine

    data_home = open_home(home)
    found = read_machine(make_worker(worker, data_home), data_home).stack
    values = {
        **found.model_dump(),
        "key": found.key,
        "hardware_label": found.hardware_label,
        "software_label": found.software_label,
    }
    if as_json:
        print_json(values)
        return
    print_record(
        {name: "[dim]not known[/]" if v is None else escape(str(v)) for name, v in values.items()},
        out,
    )


@run_app.command("startup")
def run_startup(
    worker: WorkerOption = "reference",
    arms: Annotated[
        str, typer.Option(help="Arms, separated by commas: cold,warm_cache,sleep_wake,restore.")
    ] = "cold,warm_cache,sleep_wake,restore",
    repeats: Annotated[int, typer.Option(help="Starts of each arm.")] = 5,
    cold_repeats: Annotated[
        int | None, typer.Option(help="Starts of the arm cold, if other than --repeats.")
    ] = None,
    page_cache: Annotated[
        str, typer.Option(help="Before each start: auto (cold arm cold, others warm), cold, warm, "
                               "as_found.")
    ] = "auto",
    sleep_levels: Annotated[
        str, typer.Option(help="Sleep levels of the arm sleep_wake, separated by commas.")
    ] = "",
    snapshot: Annotated[
        str | None, typer.Option(help="Restore this stored snapshot, whoever took it; by default "
                                      "one that this run takes.")
    ] = None,
    port: Annotated[int | None, typer.Option(help="Port of the worker on loopback.")] = None,
    launcher: LauncherOption = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Measure how fast a worker starts: cold, with warm caches, woken, restored."""
    _run(
        {
            "kind": "startup",
            "worker": worker,
            "arms": split_list(arms),
            "repeats": repeats,
            "cold_repeats": cold_repeats,
            "page_cache": page_cache,
            "sleep_levels": _numbers("--sleep-levels", sleep_levels),
            "snapshot": snapshot,
            "port": port,
        },
        launcher,
        home,
        as_json,
    )


@run_app.command("fault")
def run_fault(
    faults: Annotated[
        list[str] | None, typer.Argument(help="Faults to inject; all of the catalogue if none.")
    ] = None,
    worker: WorkerOption = "reference",
    recoveries: Annotated[
        str, typer.Option(help="Ways to recover, separated by commas; all that a fault allows.")
    ] = "",
    repeats: Annotated[int, typer.Option(help="Experiments of each fault and recovery.")] = 1,
    controls: Annotated[
        bool, typer.Option(help="Also run each fault's control arm, without the injection.")
    ] = True,
    port: Annotated[int | None, typer.Option(help="Port of the worker on loopback.")] = None,
    list_them: Annotated[
        bool, typer.Option("--list", help="List the catalogue and leave.")
    ] = False,
    launcher: LauncherOption = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Inject faults, prove their effect, time who notices and how service comes back."""
    if list_them:
        _list_faults(as_json)
        return
    _run(
        {
            "kind": "fault",
            "worker": worker,
            "faults": faults or [],
            "recoveries": split_list(recoveries),
            "repeats": repeats,
            "controls": controls,
            "port": port,
        },
        launcher,
        home,
        as_json,
    )


def _list_faults(as_json: bool) -> None:
    from resilience_pipelines.faults.catalogue import CATALOGUE

    rows = [
        {
            "fault": fault.name,
            "strategy": fault.strategy,
            "layer": fault.layer.value,
            "description": fault.description,
        }
        for fault in CATALOGUE.values()
    ]
    show_rows(rows, as_json)


@faults_app.command("export")
def faults_export(
    faults: Annotated[
        list[str] | None, typer.Argument(help="As in `resilience run fault`.")
    ] = None,
    worker: WorkerOption = "reference",
    recoveries: Annotated[str, typer.Option(help="Ways to recover, separated by commas.")] = "",
    repeats: Annotated[int, typer.Option(help="Experiments of each fault and recovery.")] = 1,
    controls: Annotated[bool, typer.Option(help="Also the control arms.")] = True,
) -> None:
    """Print a plan as an experiment of Chaos Toolkit (JSON)."""
    from resilience_pipelines.faults.chaostoolkit import make_experiment
    from resilience_pipelines.faults.run import FaultPlan

    plan = FaultPlan(tuple(faults or ()), tuple(split_list(recoveries)), repeats, controls)
    print_json(make_experiment(plan, worker))


@faults_app.command("journal")
def faults_journal(
    run_id: Annotated[str, typer.Argument(help="The run: the name of its landing folder.")],
    measurement: Annotated[
        str | None, typer.Argument(help="The experiment; may be left out where there is one.")
    ] = None,
    home: HomeOption = None,
) -> None:
    """Print the result of an experiment as a journal of Chaos Toolkit (JSON)."""
    from resilience_pipelines.faults.chaostoolkit import make_journal
    from resilience_pipelines.warehouse.landing import find_landings, read_landing

    landings = {path.name: path for path in find_landings(open_home(home).landing)}
    if run_id not in landings:
        raise InputError(
            "RUN_ID", run_id, "no such run has landed here", mend='`resilience query "from runs"`.'
        )
    record = read_landing(landings[run_id]).record
    runs = {run.measurement_id: run for run in record.faults}
    name = next(iter(runs)) if measurement is None and len(runs) == 1 else measurement
    if name not in runs:
        raise InputError(
            "MEASUREMENT", measurement, "this run has no such fault experiment",
            mend=f"Choose from {', '.join(runs) or 'another run'}.",
        )  # fmt: skip
    print_json(make_journal(record, runs[name]))


@faults_app.command("import")
def faults_import(
    file: Annotated[Path, typer.Argument(help="An experiment or a journal (JSON).")],
    as_json: JsonOption = False,
) -> None:
    """Say what an experiment of Chaos Toolkit asks for, as a command. Nothing is injected."""
    import shlex

    from resilience_pipelines.faults.chaostoolkit import MAX_BYTES, read_file

    imported = read_file(_read_some(file, MAX_BYTES))
    if as_json:
        print_json({"specification": imported.specification(), "left_out": list(imported.left_out)})
        return
    out.print(shlex.join(["resilience", *imported.arguments()]), soft_wrap=True, markup=False)
    for part in imported.left_out:
        err.print(f"left out: {part}", markup=False)


def _read_some(file: Path, most: int) -> bytes:
    """A file that a user named; one byte more than is allowed shows that it is more."""
    if not file.is_file():
        raise InputError("FILE", str(file), "it is no file", mend="Give a readable file.")
    try:
        with file.open("rb") as stream:
            return stream.read(most + 1)
    except OSError as error:
        raise InputError(
            "FILE", str(file), f"it can't be read ({error.strerror})", mend="Give a readable file."
        ) from error


@run_app.command("compatibility")
def run_compatibility(
    snapshots: Annotated[
        list[str] | None, typer.Argument(help="Ids of snapshots; all of the worker if none.")
    ] = None,
    worker: WorkerOption = "reference",
    edits: Annotated[
        str, typer.Option(help="Restore edited copies too: names by commas, or `all`.")
    ] = "",
    repeats: Annotated[int, typer.Option(help="Restores of each image.")] = 1,
    launcher: LauncherOption = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Restore stored snapshots on this stack, whatever the gate predicts, and record both.

    Edited copies stand for other machines and for images that somebody changed; stored snapshots
    stay as they are.

    Exit code 1: a restore failed that the gate had predicted to work.
    """
    from resilience_pipelines.snapshots.image_edits import ImageEdit

    fields = {"kind": "compatibility", "worker": worker, "repeats": repeats}
    chosen = [edit.value for edit in ImageEdit] if edits == "all" else split_list(edits)
    _run(fields | {"snapshots": snapshots or [], "edits": chosen}, launcher, home, as_json)


@run_app.command("fanout")
def run_fanout(
    snapshot: Annotated[
        str | None, typer.Argument(help="Id of a snapshot of the local store; a new one if none.")
    ] = None,
    worker: WorkerOption = "reference",
    widths: Annotated[str, typer.Option(help="How many at once, by commas.")] = "1,2,4,8",
    page_caches: Annotated[
        str, typer.Option("--page-caches", help="cold, warm or both.")
    ] = "cold,warm",
    repeats: Annotated[int, typer.Option(help="Waves of each width and page cache.")] = 3,
    launcher: LauncherOption = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Restore one snapshot many times at once, and measure the disk that it comes from."""
    _run(
        {
            "kind": "fanout",
            "worker": worker,
            "snapshot": snapshot,
            "widths": _numbers("--widths", widths),
            "page_caches": split_list(page_caches),
            "repeats": repeats,
        },
        launcher,
        home,
        as_json,
    )


@run_app.command("collectives")
def run_collectives(
    arms: Annotated[
        str, typer.Option(help="Arms, separated by commas: healthy and ways to degrade it; all.")
    ] = "",
    operations: Annotated[
        str, typer.Option(help="all_reduce,all_gather,send_recv.")
    ] = "all_reduce,all_gather,send_recv",
    sizes: Annotated[
        str, typer.Option(help="Bytes, separated by commas.")
    ] = "65536,1048576,16777216",
    ranks: Annotated[
        int | None, typer.Option(help="Processes; one for each GPU, or two on the CPU.")
    ] = None,
    repeats: Annotated[int, typer.Option(help="Lives of the ranks in each arm.")] = 5,
    launcher: LauncherOption = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Measure the bandwidth of collectives: NCCL over GPUs, or gloo on the CPU."""
    _run(
        {
            "kind": "collectives",
            "arms": split_list(arms),
            "operations": split_list(operations),
            "sizes": _numbers("--sizes", sizes),
            "ranks": ranks,
            "repeats": repeats,
        },
        launcher,
        home,
        as_json,
    )


@snapshot_app.command("create")
def snapshot_create(
    worker: WorkerOption = "reference",
    sleep_level: Annotated[
        int | None, typer.Option(help="How deep it sleeps meanwhile; by default as suits it best.")
    ] = None,
    launcher: LauncherOption = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Start a worker, take its snapshot and keep it in the store."""
    _run(
        {"kind": "snapshot", "worker": worker, "sleep_level": sleep_level}, launcher, home, as_json
    )


@snapshot_app.command("regenerate")
def snapshot_regenerate(
    worker: Annotated[
        str | None, typer.Option(help="Only this one; all that need it if none.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say who needs one.")] = False,
    launcher: LauncherOption = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Take new snapshots of workers whose stored ones are all of stacks that this machine lost.

    A driver, an engine or CRIU was upgraded since. Exit code 1: a snapshot could not be taken.
    """
    from dataclasses import asdict

    from resilience_pipelines.api import run
    from resilience_pipelines.job_spec import SnapshotSpec
    from resilience_pipelines.regeneration import (
        choose_workers,
        regenerate,
        workers_without_snapshot,
    )

    stale = choose_workers(workers_without_snapshot(open_home(home)), worker)
    if dry_run or not stale:
        show_rows([{"worker": name} for name in stale], as_json)
        if not stale:
            err.print("No worker needs a new snapshot here.")
        return
    signal.signal(signal.SIGTERM, _stop)
    with _progress(as_json) as report:
        done = list(
            regenerate(
                stale,
                lambda name: run(
                    SnapshotSpec(worker=name), home=home, launcher=launcher, progress=report,
                    tell=_tell,
                ).record,
            )
        )  # fmt: skip
    show_rows([asdict(item) for item in done], as_json)
    if any(item.problem for item in done):
        raise typer.Exit(1)


@snapshot_app.command("inspect")
def snapshot_inspect(
    snapshot: Annotated[str, typer.Argument(help="Id of the snapshot.")],
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show a snapshot's manifest, and whether this machine may restore it."""
    from resilience_pipelines.context import make_worker, read_machine
    from resilience_pipelines.snapshots.compatibility import check, this_host

    data_home = open_home(home)
    manifest = _store(home).get(snapshot).manifest
    machine = read_machine(make_worker(manifest.worker, data_home), data_home)
    problems = check(manifest, this_host(machine.stack))
    if as_json:
        print_json(
            manifest.model_dump(mode="json")
            | {
                "restorable_here": not any(item.blocking for item in problems),
                "incompatibilities": [
                    {"code": item.code, "blocking": item.blocking, "wanted": item.wanted,
                     "found": item.found}
                    for item in problems
                ],
            }
        )  # fmt: skip
        return
    facts = {
        "snapshot": manifest.snapshot_id,
        "worker": escape(f"{manifest.worker} on {manifest.stack.software_label}"),
        "taken": f"{manifest.created_at:%Y-%m-%d %H:%M:%S} UTC",
        "engine": escape(f"{manifest.engine} {manifest.criu_version}"),
        "image": f"{manifest.image_bytes / 1e6:.1f} MB in {len(manifest.files)} files",
        "maps": f"{len(manifest.mapped_files)} files of this machine",
    }
    print_record(facts, out)
    for item in problems:
        colour = "red" if item.blocking else "yellow"
        out.print(f"[{colour}]{escape(str(item))}[/]", soft_wrap=True)
    if not problems:
        out.print("[green]compatible[/]: this machine is what it was taken on")


@snapshot_app.command("restore")
def snapshot_restore(
    snapshot: Annotated[str, typer.Argument(help="Id of the snapshot.")],
    times: Annotated[int, typer.Option(help="How often, one after the other.")] = 1,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Restore a snapshot, ask the oracle, show the phases, and end the worker again."""
    from resilience_pipelines.context import make_worker, open_machine
    from resilience_pipelines.errors import UnsupportedError
    from resilience_pipelines.startup.arms import restore_worker
    from resilience_pipelines.workers.oracle import check_answer

    if times < 1:
        raise InputError("--times", times, "nothing would be restored", mend="Give 1 or more.")
    data_home = open_home(home)
    stored = _store(home).get(snapshot)
    worker = make_worker(stored.manifest.worker, data_home)
    rows: list[dict[str, Any]] = []
    with open_machine(worker, data_home) as machine:
        if machine.engine is None:
            raise UnsupportedError(machine.no_engine_why, mend="`resilience doctor` says more.")
        for _ in range(times):
            started = restore_worker(machine.engine, stored, worker)
            with started.running as running:
                answer = check_answer(
                    running.client, stored.manifest.answer,
                    tolerance=worker.logprob_tolerance, timeout_s=worker.request_deadline_s,
                )  # fmt: skip
            phases = {phase.name: round(phase.duration_s, 4) for phase in started.phases}
            rows.append({"total_s": round(started.total_s, 4), **phases, "oracle": answer.verdict})
    show_rows(rows, as_json)
    if any(row["oracle"] != "equal" for row in rows):
        raise typer.Exit(1)


@app.command()
def load(
    sources: Annotated[
        list[Path] | None,
        typer.Argument(help="Folders with landing folders; by default the home's and results/."),
    ] = None,
    build: Annotated[bool, typer.Option(help="Also build the marts with dbt.")] = True,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Load new landing folders into the warehouse, each exactly once, and build the marts."""
    from resilience_pipelines.lineage.warehouse import build as build_marts
    from resilience_pipelines.lineage.warehouse import load as load_landing
    from resilience_pipelines.side_tables import load_side_tables
    from resilience_pipelines.warehouse.load import published_results

    data_home = open_home(home)
    for source in sources or []:
        if not source.is_dir():
            raise InputError(
                "SOURCES", str(source), "it is no folder", mend="Give a folder of landing folders."
            )
    with _status("loading landing folders", as_json):
        report = load_landing(data_home, sources or [data_home.landing, *published_results()])
        load_side_tables(data_home)
    if build:
        with _status("building marts with dbt", as_json):
            build_marts(data_home)
    facts = {
        "loaded": len(report.loaded),
        "already_loaded": len(report.already),
        "rejected": [
            {"folder": str(folder), "reason": reason} for folder, reason in report.rejected
        ],
    }
    if as_json:
        print_json(facts)
    else:
        out.print(f"{facts['loaded']} loaded, {facts['already_loaded']} already there")
        for folder, reason in report.rejected:
            err.print(f"[red]rejected[/] {escape(str(folder))}: {escape(reason)}", soft_wrap=True)
    if report.rejected:
        raise typer.Exit(6)


@app.command()
def publish(
    parquet: Annotated[
        bool, typer.Option("--parquet", help="Also write each mart as published/parquet/*.parquet.")
    ] = False,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Copy the marts to published/resilience.duckdb, which analysts read without locks."""
    from resilience_pipelines.lineage.warehouse import publish as publish_marts

    with _status("publishing", as_json):
        path = publish_marts(open_home(home), parquet=parquet)
    written = [path, *([path.parent / "parquet"] if parquet else [])]
    if as_json:
        facts = {"published": str(path), "bytes": path.stat().st_size}
        print_json(facts | ({"parquet": str(written[1])} if parquet else {}))
        return
    for made in written:
        out.print(str(made), soft_wrap=True)


@app.command()
def query(
    sql: Annotated[str, typer.Argument(help="One SELECT over the marts.")],
    home: HomeOption = None,
    asked: Annotated[
        Form | None,
        typer.Option("--format", help="By default as the ending of --out says, else a table."),
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--out", help="A file to write, in place of printing.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
) -> None:
    """Ask the published database, read-only: tables are listed by `SHOW TABLES`."""
    from resilience_pipelines.warehouse.query import query as ask

    form = choose_form(asked, as_json, file)
    frame = ask(open_home(home), sql)
    if file is not None:
        write_file(file, encode(frame, form))
        out.print(f"{len(frame)} rows in {escape(str(file))}", soft_wrap=True)
    elif form is Form.TABLE:
        show_rows(frame.to_dicts(), False)
    else:
        sys.stdout.write(encode(frame, form).decode())


@app.command()
def releases(
    feeds: Annotated[
        list[str] | None, typer.Argument(help="Feeds: driver, vllm, ...; all if none.")
    ] = None,
    refresh: Annotated[bool, typer.Option(help="Read the feeds again first.")] = False,
    prereleases: Annotated[bool, typer.Option(help="List pre-releases too.")] = False,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the releases of drivers, engines and tools, and how far each has come here.

    A release is known from its feed, available once this machine has it, running while a job
    measures it for the first time, and measured once there are published results with it; it is
    incompatible if some way to start the worker, or every snapshot, failed each time.

    A mirror's address is set by RESILIENCE_FEED_<NAME>, e.g. RESILIENCE_FEED_DRIVER; it may be a
    file:// address. Exit code 1: a feed could not be read; what was known of it is listed.
    """
    from resilience_pipelines.release_survey import statuses
    from resilience_pipelines.releases.catalogue import FEEDS
    from resilience_pipelines.releases.ledger import refresh as refresh_feed

    data_home = open_home(home)
    failed = {}
    names = feeds or list(FEEDS)
    for name in names:
        if name not in FEEDS:
            raise InputError("feeds", name, "no such feed", mend=f"Choose from {', '.join(FEEDS)}.")
    if refresh:
        for name in names:
            with _status(f"reading {FEEDS[name].product}", as_json):
                try:
                    refresh_feed(data_home, FEEDS[name])
                except ResilienceError as error:
                    failed[name] = str(error)
    rows = [
        {"feed": item.feed, "state": item.state.value, **item.release.model_dump(mode="json")}
        for item in statuses(data_home, names)
        if prereleases or not item.release.prerelease
    ]
    if as_json:
        print_json({"releases": rows, "failed": failed})
    else:
        shown = ("feed", "version", "state", "branch", "kind", "released", "withdrawn")
        show_rows([{key: row[key] for key in shown} for row in rows], False)
        for name, why in failed.items():
            err.print(f"[red]{name}[/]: {escape(why)}", soft_wrap=True)
    if failed:
        raise typer.Exit(1)


@app.command()
def trends(
    muted: Annotated[bool, typer.Option(help="List muted changes too.")] = False,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the changes of level in start-up times, and what changed in the stack there.

    `resilience decide` accepts, mutes or annotates one.
    """
    from resilience_pipelines.warehouse.query import query as ask

    rows = ask(
        open_home(home),
        "select change_id, changed_at, worker, basis, hardware_label, model, arm, variant, "
        "before_median_s, "
        "after_median_s, change_fraction, change_low, change_high, n_before, n_after, significant, "
        "relevant, attribution, candidate_dimensions, previous_stack_key, stack_key, decision, "
        "decision_note, decided_by, decided_at from change_points "
        "where ? or decision is distinct from 'muted' order by changed_at desc, arm, variant",
        [muted],
    ).to_dicts()
    if as_json:
        print_json(rows)
        return
    shown = [
        {
            "change": row["change_id"],
            "at": f"{row['changed_at']:%Y-%m-%d %H:%M}",
            "worker": f"{row['worker']} ({row['basis']})",
            "arm": " ".join(filter(None, (row["arm"], row["variant"]))),
            "by": _percent(row["change_fraction"]),
            "95 %": f"{_percent(row['change_low'])} to {_percent(row['change_high'])}",
            "n": f"{row['n_before']}, {row['n_after']}",
            "relevant": {True: "yes", False: "no", None: "not known"}[row["relevant"]],
            "what changed": ", ".join(row["candidate_dimensions"]) or "nothing known",
            "decision": " ".join(filter(None, (row["decision"], row["decision_note"]))),
        }
        for row in rows
    ]
    show_rows(shown, False)


@app.command()
def decide(
    change: Annotated[str, typer.Argument(help="The change, as `resilience trends` names it.")],
    choice: Annotated[
        str,
        typer.Argument(
            help="accepted: wanted, no longer speaks against an upgrade. muted: not listed any "
            "more either. noted: a note, counts as before."
        ),
    ],
    note: Annotated[str, typer.Option(help="Why, or what else one should know.")] = "",
    by: Annotated[str | None, typer.Option(help="Who decides; this user by default.")] = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Accept, mute or annotate a change of level. The newest decision on a change counts."""
    import getpass

    from pydantic import ValidationError

    from resilience_pipelines.trends.decisions import Choice
    from resilience_pipelines.trends.decisions import decide as keep_decision
    from resilience_pipelines.warehouse.query import query as ask

    data_home = open_home(home)
    choices = [item.value for item in Choice]
    if choice not in choices:
        raise InputError(
            "choice", choice, "no such choice", mend=f"Choose from {', '.join(choices)}."
        )
    known = ask(data_home, "select change_id from change_points order by all")["change_id"]
    if change not in known:
        raise InputError(
            "change", change, "no change is named so",
            mend="`resilience trends --muted` lists them.",
        )  # fmt: skip
    try:
        who = by or getpass.getuser()
    except (KeyError, OSError) as error:
        raise InputError(
            "--by", "", "this user has no name here", mend="Say who decides: --by NAME."
        ) from error
    try:
        decision = keep_decision(data_home, change, Choice(choice), note, who)
    except ValidationError as error:
        first = error.errors()[0]
        raise InputError(
            str(first["loc"][0]), str(first["input"])[:100], first["msg"], mend="Shorten it."
        ) from error
    if as_json:
        print_json(decision.model_dump(mode="json"))
    else:
        out.print(f"{decision.change_id} is {decision.decision.value}")
        out.print("next: resilience load && resilience publish")


@app.command(name="import")
def import_baselines(
    file: Annotated[Path, typer.Argument(help="The file that holds the figures.")],
    file_format: Annotated[
        str,
        typer.Option(
            "--format",
            help="table (CSV whose columns are source, product, figure, value, unit, ...), "
            "vllm-bench-startup, nccl-tests (-J), nvbandwidth (-j), dynamo-snapshot (NDJSON), "
            "dynamo-agent-log.",
        ),
    ],
    source: Annotated[str | None, typer.Option(help="Who published it; the file's name.")] = None,
    url: Annotated[str | None, typer.Option(help="Where it can be read again.")] = None,
    fact: Annotated[
        list[str] | None,
        typer.Option(help="What the file does not say, e.g. gpu_sku='NVIDIA H200'; repeatable."),
    ] = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Import figures that others published, to stand beside one's own.

    A file is taken as a whole or not at all, and each figure once, however often it is imported.
    """
    from resilience_pipelines.baselines.baseline import Baseline
    from resilience_pipelines.baselines.formats import FORMATS, MAX_BYTES, Origin
    from resilience_pipelines.baselines.keep import keep

    if file_format not in FORMATS:
        raise InputError(
            "--format", file_format, "no such format", mend=f"Choose from {', '.join(FORMATS)}."
        )
    facts = {}
    for item in fact or []:
        name, equals, value = item.partition("=")
        if not equals or name not in Baseline.model_fields:
            raise InputError(
                "--fact", item, "it has to be FIELD=VALUE",
                mend=f"Fields: {', '.join(Baseline.model_fields)}.",
            )  # fmt: skip
        facts[name] = value
    content = _read_some(file, MAX_BYTES)
    found = FORMATS[file_format](content, Origin(source or file.name, url, facts))
    _, new = keep(open_home(home), found)
    if as_json:
        print_json({"figures": len(found), "new": new})
    else:
        out.print(f"{len(found)} figures, {new} of them new")
        out.print("next: resilience load && resilience publish")


@app.command()
def baselines(home: HomeOption = None, as_json: JsonOption = False) -> None:
    """List the figures that others published, with one's own beside them where there is one.

    One's own is the newest measured of the same engine, model's shape and arm; hardware and
    versions may differ, so that a difference is no verdict.
    """
    from resilience_pipelines.warehouse.query import query as ask

    rows = ask(
        open_home(home),
        "from baselines order by product, model, arm nulls last, figure, source, baseline_id",
    ).to_dicts()
    if as_json:
        print_json(rows)
        return
    shown = [
        {
            "product": row["product"],
            "figure": row["figure"],
            "model": row["model"],
            "value": f"{row['value']:g} {row['unit']}",
            "on": " ".join(filter(None, (row["gpu_sku"], row["engine_version"]))) or "not said",
            "own": (f"{row['own_median_s']:.2f} s (n = {row['own_n']})" if row["own_n"] else "-"),
            "own on": row["own_hardware_label"] or "-",
            "source": row["source"],
        }
        for row in rows
    ]
    show_rows(shown, False)


@app.command()
def compare(
    before: Annotated[
        str, typer.Option("--from", help="Stack now: its key, the beginning of one, or `latest`.")
    ],
    after: Annotated[str, typer.Option("--to", help="Stack after the upgrade, likewise.")],
    max_slowdown: Annotated[
        float, typer.Option(help="Relevant slowdowns up to this fraction are notes.")
    ] = 0.2,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Judge an upgrade: what got slower, what fails now, and one word for it.

    Exit codes: 0 safe or safe_with_notes, 1 not_safe, 8 not_enough_data.
    """
    from resilience_pipelines.api import compare as judge

    with options(before="--from", after="--to", max_slowdown="--max-slowdown"):
        upgrade = judge(before, after, max_slowdown=max_slowdown, home=home)
    if as_json:
        print_json(upgrade.as_dict())
    else:
        _show_comparison(upgrade.comparison, upgrade.changed)
    code = _verdict_code(upgrade.comparison.verdict)
    if code:
        raise typer.Exit(code)


@app.command()
def upgrades(
    notify: Annotated[
        bool, typer.Option(help="Send the verdicts to the channels that the environment names.")
    ] = False,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Judge the newest upgrade of each machine, engine and model that was measured.

    Channels: RESILIENCE_ALERT_WEBHOOK (JSON), RESILIENCE_ALERT_SLACK, and RESILIENCE_ALERT_EMAIL
    with RESILIENCE_SMTP. Exit codes: 1 if one is not_safe or could not be sent, else 0.
    """
    from resilience_pipelines.alerts import channels, send
    from resilience_pipelines.trends.comparison import UpgradeVerdict
    from resilience_pipelines.upgrades import newest_upgrades

    found = newest_upgrades(open_home(home))
    if as_json:
        print_json([upgrade.as_dict() for upgrade in found])
    elif not found:
        out.print("No machine was measured with two stacks yet.")
    for upgrade in [] if as_json else found:
        out.print(f"[bold]{escape(upgrade.title)}[/]", soft_wrap=True)
        for reason in upgrade.comparison.reasons:
            out.print(f"- {escape(reason)}", soft_wrap=True)
    failed = False
    if notify and not channels():
        raise InputError(
            "--notify", True, "the environment names no channel",
            mend="Set RESILIENCE_ALERT_WEBHOOK, RESILIENCE_ALERT_SLACK or RESILIENCE_ALERT_EMAIL.",
        )  # fmt: skip
    for upgrade in found if notify else []:
        for channel in channels():
            try:
                send(channel, upgrade.alert())
            except ResilienceError as error:
                failed = True
                err.print(f"[red]{channel}[/]: {escape(str(error))}", soft_wrap=True)
    if failed or any(item.comparison.verdict is UpgradeVerdict.NOT_SAFE for item in found):
        raise typer.Exit(1)


def _verdict_code(verdict: str) -> int:
    return {"not_safe": 1, "not_enough_data": 8}.get(verdict, 0)


def _show_comparison(result: Comparison, differing: Mapping[str, tuple[object, object]]) -> None:
    from resilience_pipelines.upgrades import words

    colours = {"safe": "green", "safe_with_notes": "yellow"}
    out.print(f"[bold {colours.get(result.verdict.value, 'red')}]{words(result.verdict)}[/]")
    for reason in result.reasons:
        out.print(f"- {escape(reason)}", soft_wrap=True)
    out.print()
    changed = [
        {"dimension": name, "from": old, "to": new} for name, (old, new) in differing.items()
    ]
    show_rows(changed, False)
    out.print()
    rows = [
        {
            "figure": item.figure,
            "from_s": item.before,
            "to_s": item.after,
            "change": _percent(item.fraction),
            "95 %": f"{_percent(item.low)} to {_percent(item.high)}",
            "n": f"{item.n_before}, {item.n_after}",
            "relevant": "yes" if item.relevant else "no",
        }
        for item in result.differences
    ]
    show_rows(rows, False)


def _percent(fraction: float | None) -> str:
    return "-" if fraction is None else f"{fraction:+.1%}"


@app.command()
def dashboard(
    out_path: Annotated[
        Path | None, typer.Option("--out", help="Where the page goes (default: in the home).")
    ] = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write the dashboard: one HTML page that works offline."""
    from resilience_pipelines.dashboards import write_dashboard

    data_home = open_home(home)
    target = out_path or data_home.dashboard / "index.html"
    with _status("writing the dashboard", as_json):
        report = write_dashboard(data_home.published, target)
    if as_json:
        print_json({"path": str(report.path), "bytes": report.bytes})
    else:
        out.print(str(report.path))


@app.command()
def metrics(
    out_path: Annotated[
        Path | None,
        typer.Option("--out", help="A file to replace, NAME.prom; standard output if none."),
    ] = None,
    home: HomeOption = None,
) -> None:
    """Metrics of the platform itself for Prometheus: backlog, freshness, room, newest figures."""
    from resilience_pipelines.durability import replace_text
    from resilience_pipelines.metrics import exposition

    text = exposition(open_home(home))
    if out_path is None:
        sys.stdout.write(text)
        return
    try:
        replace_text(out_path, text, mode=0o644)
    except OSError as error:
        raise StorageError(f"{out_path} can't be written: {error}.") from error


@kubernetes_app.command("clean")
def kubernetes_clean(
    settings: Annotated[
        Path | None, typer.Option(help="Settings; kubernetes.toml in the data home if none.")
    ] = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Remove the jobs of this data home whose launcher was killed. What they landed stays."""
    from resilience_pipelines.launchers.choice import kubernetes_settings
    from resilience_pipelines.launchers.kubernetes.client import connect
    from resilience_pipelines.launchers.kubernetes.launcher import clean_orphans

    data_home = open_home(home)
    with closing(connect(kubernetes_settings(data_home, settings))) as cluster:
        removed = clean_orphans(cluster, data_home)
    show_rows([{"removed_run": run_id} for run_id in removed], as_json)


@app.command()
def ci(
    suite_file: Annotated[
        Path, typer.Argument(metavar="SUITE", help="The suite, a TOML file (docs/ci.md).")
    ],
    junit: Annotated[Path | None, typer.Option(help="Write JUnit XML to this file.")] = None,
    summary: Annotated[Path | None, typer.Option(help="Write Markdown to this file.")] = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run a suite of jobs for a CI system; the exit code is its verdict.

    Exit codes: 0 pass, 1 fail, 8 not enough data, else that of the job that could not run.
    """
    from resilience_pipelines.ci.junit import to_junit
    from resilience_pipelines.ci.run import Tell, run_suite
    from resilience_pipelines.ci.suite import read_suite
    from resilience_pipelines.ci.summary import to_markdown

    suite = read_suite(suite_file)
    for option, file in (("--junit", junit), ("--summary", summary)):
        if file is not None and not file.absolute().parent.is_dir():
            raise InputError(option, str(file), "its folder is not there", mend="Make it first.")
    signal.signal(signal.SIGTERM, _stop)
    with _progress(as_json) as report:
        done = run_suite(suite, home, Tell(report, _tell))
    if junit is not None:
        write_file(junit, to_junit(done))
    if summary is not None:
        write_file(summary, to_markdown(done).encode())
    if as_json:
        print_json(done.as_dict())
    else:
        sys.stdout.write(to_markdown(done))
    if done.exit_code:
        raise typer.Exit(done.exit_code)


@app.command()
def demo(
    repeats: Annotated[int, typer.Option(help="Starts of each arm; cold at most 2.")] = 3,
    fault_repeats: Annotated[int, typer.Option(help="Experiments of each fault.")] = 1,
    faults: Annotated[
        str, typer.Option(help="Faults, separated by commas; '' for all of the catalogue.")
    ] = DEMO_FAULTS,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run the whole main job on this machine through Dagster, and say what came out of it."""
    from resilience_pipelines.warehouse.query import query as ask

    data_home = open_home(home)
    begin = time.monotonic()
    command = [
        sys.executable, "-m", "resilience_pipelines.dagster_io.run_main",
        "--home", str(data_home.root),
        "--repeats", str(repeats), "--fault-repeats", str(fault_repeats), "--faults", faults,
    ]  # fmt: skip
    code = subprocess.run(
        command, check=False, stdout=sys.stderr if as_json else None, timeout=3600
    ).returncode
    if code:
        raise typer.Exit(code)
    startup = ask(
        data_home,
        "select stack_key, worker, basis, arm, n, median_s, ci_low_s, ci_high_s "
        "from startup_summary order by worker, stack_key, median_s desc",
    )
    verdicts = ask(
        data_home, "select fault, verdict, count(*) n from fault_runs group by all order by all"
    )
    page = data_home.dashboard / "index.html"
    seconds = round(time.monotonic() - begin, 1)
    if as_json:
        print_json(
            {
                "startup": startup.to_dicts(),
                "faults": verdicts.to_dicts(),
                "dashboard": str(page),
                "published": str(data_home.published),
                "seconds": seconds,
            }
        )
        return
    if startup["stack_key"].n_unique() == startup["worker"].n_unique():
        # Without the key, which tells no more then, the table fits into 80 columns.
        startup = startup.drop("stack_key")
    show_rows(startup.to_dicts(), False)
    show_rows(verdicts.to_dicts(), False)
    out.print()
    print_record(
        {
            "dashboard": escape(str(page)),
            "database": escape(str(data_home.published)),
            "took": f"{seconds} s",
        },
        out,
    )


def _run(
    fields: Mapping[str, object], launcher: str | None, home: Path | None, as_json: bool
) -> None:
    from resilience_pipelines.api import run
    from resilience_pipelines.job_spec import parse_spec

    spec = parse_spec(json.dumps(fields))
    # A job that runs elsewhere has to be ended there, so this process must not just die.
    signal.signal(signal.SIGTERM, _stop)
    with _progress(as_json) as report:
        result = run(spec, home=home, launcher=launcher, progress=report, tell=_tell)
    if as_json:
        print_json(result.as_dict())
    else:
        _show_record(result.record.model_dump(mode="json"))
        for what, why in result.unsupported.items():
            err.print(f"[yellow]{what} is not supported here:[/] {escape(why)}", soft_wrap=True)
        out.print(f"landed in {result.folder}", soft_wrap=True)
        out.print("next: resilience load && resilience publish")
    if result.failed:
        raise typer.Exit(1)


def _tell(text: str) -> None:
    err.print(f"[yellow]{escape(text)}[/]")


def _stop(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise Stopped(128 + number)


def _show_record(record: Mapping[str, Any]) -> None:
    for name, columns in (
        ("snapshots", ("snapshot_id", "outcome", "total_s", "image_bytes", "reason_code")),
        ("startups", ("arm", "variant", "repeat", "outcome", "total_s", "reason_code")),
        (
            "faults",
            (
                "fault", "control", "recovery", "verdict",
                "time_to_detect_s", "time_to_recover_s", "reason_code",
            ),
        ),
        (
            "compatibility",
            ("snapshot_id", "predicted_compatible", "outcome", "reason_code", "elapsed_s"),
        ),
        (
            "fanout",
            ("width", "page_cache_found", "repeat", "outcome", "total_s", "reason_code"),
        ),
        (
            "collectives",
            ("arm", "operation", "bytes", "repeat", "outcome", "busbw_bytes_per_s", "reason_code"),
        ),
    ):  # fmt: skip
        rows = [{column: item[column] for column in columns} for item in record[name]]
        if rows:
            show_rows(rows, False)


def _store(home: Path | None) -> Any:
    from resilience_pipelines.snapshots.settings import open_store

    return open_store(open_home(home))


def _numbers(option: str, text: str) -> list[int]:
    try:
        return [int(part) for part in split_list(text)]
    except ValueError as error:
        raise InputError(
            option, text, "it is no list of whole numbers", mend="Separate numbers by commas."
        ) from error


@contextmanager
def _progress(quiet: bool) -> Iterator[Any]:
    """A bar on the error stream, so that standard output stays for results."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=err, transient=True, disable=quiet) as bar:
        task = bar.add_task("starting", total=None)

        def report(what: str, done: int, total: int) -> None:
            bar.update(task, description=what, completed=done, total=total)

        yield report


@contextmanager
def _status(what: str, quiet: bool) -> Iterator[None]:
    if quiet:
        yield
        return
    with err.status(what):
        yield


if __name__ == "__main__":
    main()
