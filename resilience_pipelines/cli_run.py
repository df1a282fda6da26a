"""`resilience run`: the commands that measure.

What belongs here: their options, and what a person sees of a job and its record. What does not: any
work, which is that of the classes of `api`.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from resilience_pipelines.cli_common import (
    HomeOption,
    JsonOption,
    LauncherOption,
    WorkerOption,
    err,
    numbers,
    out,
    print_json,
    progress_bar,
    show_rows,
    split_list,
    stop,
    tell,
)

if TYPE_CHECKING:
    from resilience_pipelines.api import (
        Benchmark,
        Collectives,
        Compatibility,
        Experiment,
        Fanout,
        Snapshot,
    )

    Job = Benchmark | Experiment | Snapshot | Compatibility | Fanout | Collectives

app = typer.Typer(help="Measure: run a benchmark job and land its results.")


@app.command("startup")
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
    snapshot_engine: Annotated[
        str, typer.Option(help="Whose snapshots are restored: own, or dynamo_snapshot (NVIDIA "
                               "Dynamo Snapshot, with --launcher kubernetes).")
    ] = "own",
    port: Annotated[int | None, typer.Option(help="Port of the worker on loopback.")] = None,
    launcher: LauncherOption = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Measure how fast a worker starts: cold, with warm caches, woken, restored."""
    from resilience_pipelines.api import Benchmark

    job = Benchmark(
        worker=worker,
        arms=split_list(arms),
        repeats=repeats,
        cold_repeats=cold_repeats,
        page_cache=page_cache,
        sleep_levels=numbers("--sleep-levels", sleep_levels),
        port=port,
        snapshot=snapshot,
        snapshot_engine=snapshot_engine,
    )
    run_job(job, launcher, home, as_json)


@app.command("fault")
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
    backend: Annotated[
        str | None,
        typer.Option(
            help="What the ranks of training jobs speak through: gloo or nccl; by default NCCL "
            "where there are two GPUs."
        ),
    ] = None,
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
    from resilience_pipelines.api import Experiment

    job = Experiment(
        fault=faults or (),
        worker=worker,
        recoveries=split_list(recoveries),
        repeats=repeats,
        controls=controls,
        backend=backend,
        port=port,
    )
    run_job(job, launcher, home, as_json)


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


@app.command("compatibility")
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
    from resilience_pipelines.api import Compatibility
    from resilience_pipelines.snapshots.image_edits import ImageEdit

    chosen = tuple(ImageEdit) if edits == "all" else split_list(edits)
    job = Compatibility(worker=worker, snapshots=snapshots or (), edits=chosen, repeats=repeats)
    run_job(job, launcher, home, as_json)


@app.command("fanout")
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
    from resilience_pipelines.api import Fanout

    job = Fanout(
        worker=worker,
        snapshot=snapshot,
        widths=numbers("--widths", widths),
        page_caches=split_list(page_caches),
        repeats=repeats,
    )
    run_job(job, launcher, home, as_json)


@app.command("collectives")
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
    from resilience_pipelines.api import Collectives

    job = Collectives(
        arms=split_list(arms),
        operations=split_list(operations),
        sizes=numbers("--sizes", sizes),
        ranks=ranks,
        repeats=repeats,
    )
    run_job(job, launcher, home, as_json)


def run_job(job: Job, launcher: str | None, home: Path | None, as_json: bool) -> None:
    """Run a job and show what it found.

    Raises:
        typer.Exit: 1: a measurement failed.
    """
    # A job that runs elsewhere has to be ended there, so this process must not just die.
    signal.signal(signal.SIGTERM, stop)
    with progress_bar(as_json) as report:
        result = job.run(home=home, launcher=launcher, progress=report, tell=tell)
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
