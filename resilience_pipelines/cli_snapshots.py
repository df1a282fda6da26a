"""`resilience snapshot`: taking, restoring and keeping snapshots.

What belongs here: options and what a person sees of snapshots, stores and repositories. What does
not: any work (`api`, `stored_snapshot`, `regeneration`, `snapshots.stores`).

Without `--repository` a command works on the local store of the data home.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from resilience_pipelines.cli_common import (
    HomeOption,
    JsonOption,
    LauncherOption,
    WorkerOption,
    err,
    options,
    out,
    print_json,
    progress_bar,
    show_rows,
    split_list,
    stop,
    tell,
)
from resilience_pipelines.cli_run import run_job
from resilience_pipelines.cli_tables import print_record
from resilience_pipelines.home import Home, open_home

if TYPE_CHECKING:
    from resilience_pipelines.records import RunRecord
    from resilience_pipelines.snapshots.stores import Store

app = typer.Typer(help="Take, look at, check, restore and remove snapshots of workers.")

CONFIGURED = "configured"
"""The value of `--repository` that means the one of the settings."""

RepositoryOption = Annotated[
    str | None,
    typer.Option(
        "--repository",
        help="A repository in place of the local store: a folder, a URL, or `configured` for that "
        "of snapshots.toml.",
    ),
]
SharedOption = Annotated[
    str | None,
    typer.Option("--repository", help="A folder or URL; that of snapshots.toml if none."),
]
SnapshotArgument = Annotated[str, typer.Argument(help="Id of the snapshot.")]


@app.command("create")
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
    from resilience_pipelines.api import Snapshot

    run_job(Snapshot(worker=worker, sleep_level=sleep_level), launcher, home, as_json)


@app.command("regenerate")
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

    from resilience_pipelines.api import Snapshot
    from resilience_pipelines.regeneration import regenerate, stale_workers

    stale = stale_workers(open_home(home), worker)
    if dry_run or not stale:
        show_rows([{"worker": name} for name in stale], as_json)
        if not stale:
            err.print("No worker needs a new snapshot here.")
        return
    signal.signal(signal.SIGTERM, stop)
    with progress_bar(as_json) as report:

        def take(name: str) -> RunRecord:
            job = Snapshot(worker=name)
            return job.run(home=home, launcher=launcher, progress=report, tell=tell).record

        done = list(regenerate(stale, take))
    show_rows([asdict(item) for item in done], as_json)
    if any(item.problem for item in done):
        raise typer.Exit(1)


@app.command("inspect")
def snapshot_inspect(
    snapshot: SnapshotArgument, home: HomeOption = None, as_json: JsonOption = False
) -> None:
    """Show a snapshot's manifest, and whether this machine may restore it."""
    from resilience_pipelines.stored_snapshot import inspect

    found = inspect(open_home(home), snapshot)
    if as_json:
        print_json(found.as_dict())
        return
    manifest = found.manifest
    facts = {
        "snapshot": manifest.snapshot_id,
        "worker": escape(f"{manifest.worker} on {manifest.stack.software_label}"),
        "taken": f"{manifest.created_at:%Y-%m-%d %H:%M:%S} UTC",
        "engine": escape(f"{manifest.engine} {manifest.criu_version}"),
        "image": f"{manifest.image_bytes / 1e6:.1f} MB in {len(manifest.files)} files",
        "maps": f"{len(manifest.mapped_files)} files of this machine",
    }
    print_record(facts, out)
    for item in found.incompatibilities:
        colour = "red" if item.blocking else "yellow"
        out.print(f"[{colour}]{escape(str(item))}[/]", soft_wrap=True)
    if not found.incompatibilities:
        out.print("[green]compatible[/]: this machine is what it was taken on")


@app.command("restore")
def snapshot_restore(
    snapshot: SnapshotArgument,
    times: Annotated[int, typer.Option(help="How often, one after the other.")] = 1,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Restore a snapshot, ask the oracle, show the phases, and end the worker again."""
    from resilience_pipelines.stored_snapshot import restore

    with options(times="--times"):
        done = restore(open_home(home), snapshot, times=times)
    show_rows([item.as_dict() for item in done], as_json)
    if not all(item.right for item in done):
        raise typer.Exit(1)


@app.command("list")
def snapshot_list(
    repository: RepositoryOption = None, home: HomeOption = None, as_json: JsonOption = False
) -> None:
    """List the snapshots of the store."""
    from resilience_pipelines.snapshots.stores import manifests

    store = _open(open_home(home), repository)
    pinned = store.pinned()
    rows: list[dict[str, Any]] = [
        {
            "snapshot": item.snapshot_id,
            "worker": item.worker,
            "stack": item.stack.software_label,
            "image_bytes": item.image_bytes,
            "created_at": item.created_at.isoformat(),
            "pinned": item.snapshot_id in pinned,
        }
        for item in manifests(store)
    ]
    show_rows(rows, as_json)
    for snapshot_id in store.unreadable():
        err.print(f"[yellow]{snapshot_id}: its manifest can't be used[/]")


@app.command("verify")
def snapshot_verify(
    snapshots: Annotated[
        list[str] | None, typer.Argument(help="Ids of snapshots; all of the store if none.")
    ] = None,
    repository: RepositoryOption = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Read every byte of snapshots and compare it with their manifests.

    Exit code 6: one of them is damaged.
    """
    from resilience_pipelines.snapshots.stores import verify

    done = verify(_open(open_home(home), repository), snapshots or ())
    rows: list[dict[str, Any]] = [
        {"snapshot": item.snapshot_id, "intact": item.intact, "seconds": round(item.seconds, 3),
         "problem": item.problem}
        for item in done
    ]  # fmt: skip
    show_rows(rows, as_json)
    if not all(item.intact for item in done):
        raise typer.Exit(6)


@app.command("scan")
def snapshot_scan(
    snapshots: Annotated[
        list[str] | None, typer.Argument(help="Ids of snapshots; all of the local store if none.")
    ] = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Look for well-known secrets in images: private keys, and tokens of well-known services.

    Exit code 1: there are some. Nothing found is no proof that there is none. The secrets
    themselves are never shown.
    """
    from dataclasses import asdict

    from resilience_pipelines.snapshots.settings import open_store
    from resilience_pipelines.snapshots.stores import find_secrets

    rows: list[dict[str, Any]] = [
        {"snapshot": snapshot_id, **asdict(finding)}
        for snapshot_id, finding in find_secrets(open_store(open_home(home)), snapshots or ())
    ]
    show_rows(rows, as_json)
    if rows:
        raise typer.Exit(1)


@app.command("pin")
def snapshot_pin(
    snapshot: SnapshotArgument, repository: RepositoryOption = None, home: HomeOption = None
) -> None:
    """Keep a snapshot whatever limits say."""
    _open(open_home(home), repository).pin(snapshot)


@app.command("unpin")
def snapshot_unpin(
    snapshot: SnapshotArgument, repository: RepositoryOption = None, home: HomeOption = None
) -> None:
    """Let limits decide on a snapshot again."""
    _open(open_home(home), repository).unpin(snapshot)


@app.command("remove")
def snapshot_remove(
    snapshot: SnapshotArgument, repository: RepositoryOption = None, home: HomeOption = None
) -> None:
    """Remove one snapshot, also one that can't be read; a pinned one has to be unpinned first.

    The space is free again, but nothing is overwritten: file systems that copy on write, flash and
    object stores with versions keep old content for a time that nobody can tell. What must be
    unreadable afterwards has to be encrypted and its key destroyed. In a repository, content goes
    with the next prune.
    """
    _open(open_home(home), repository).remove(snapshot)


@app.command("prune")
def snapshot_prune(
    keep: Annotated[
        int | None, typer.Option(help="Newest snapshots to keep of each stack (default: 3).")
    ] = None,
    max_age_days: Annotated[float | None, typer.Option(help="Older ones go.")] = None,
    max_bytes: Annotated[
        int | None, typer.Option(help="Those that exceed this together, counted from the newest.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    repository: RepositoryOption = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Remove snapshots of each stack by number, age and size, and what killed jobs left.

    Limits that are not given come from snapshots.toml. Pinned snapshots stay, and the last one of
    a stack that is intact.
    """
    from resilience_pipelines.snapshots.stores import prune

    data_home = open_home(home)
    done = prune(
        data_home,
        _open(data_home, repository),
        keep=keep,
        max_age_days=max_age_days,
        max_bytes=max_bytes,
        dry_run=dry_run,
    )
    if not done.swept:
        err.print("[yellow]Somebody puts a snapshot: content goes with the next prune.[/]")
    rows: list[dict[str, Any]] = [
        {"snapshot": item.snapshot_id, "image_bytes": item.image_bytes, "why": item.why,
         "removed": not dry_run}
        for item in done.doomed
    ]  # fmt: skip
    show_rows(rows, as_json)


@app.command("push")
def snapshot_push(
    snapshot: SnapshotArgument,
    repository: SharedOption = None,
    rewrite: Annotated[
        bool, typer.Option("--rewrite", help="Write content that is there already again.")
    ] = False,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Put a snapshot of the local store into a repository; goes on where it was broken off.

    Whoever can read the repository has what is in the image: see `scan`, and encrypt it.
    """
    from dataclasses import asdict

    from resilience_pipelines.snapshots.settings import open_repository, open_store

    data_home = open_home(home)
    stored = open_store(data_home).get(snapshot)
    with _progress("putting", as_json) as report:
        done = open_repository(data_home, _address(repository)).put(
            stored, rewrite=rewrite, progress=report
        )
    if as_json:
        print_json(asdict(done))
    else:
        out.print(
            f"{done.chunks} chunks, {done.reused_chunks} of them were there; "
            f"{done.stored_bytes / 1e6:.1f} MB written for {done.image_bytes / 1e6:.1f} MB"
        )


@app.command("pull")
def snapshot_pull(
    snapshot: SnapshotArgument,
    repository: SharedOption = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Bring a snapshot of a repository into the local store; every byte is checked."""
    from resilience_pipelines.snapshots.settings import open_repository, open_store

    data_home = open_home(home)
    with _progress("getting", as_json) as report:
        got = open_repository(data_home, _address(repository)).get(
            snapshot, open_store(data_home), progress=report
        )
    if as_json:
        print_json({"snapshot": snapshot, "image_bytes": got.manifest.image_bytes})
    else:
        out.print(f"{got.manifest.image_bytes / 1e6:.1f} MB in {len(got.manifest.files)} files")


@app.command("tune")
def snapshot_tune(
    snapshot: Annotated[
        str | None, typer.Argument(help="Whose image is tried; the newest local one if none.")
    ] = None,
    repository: SharedOption = None,
    compressions: Annotated[
        str, typer.Option(help="Those to try, by commas.")
    ] = "none,lz4,zstd-1,zstd-3,zstd-9",
    repeats: Annotated[int, typer.Option(help="Readings with each of them.")] = 3,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Find the compression with which this machine gets a snapshot out of a repository fastest.

    Up to 256 MiB of a real image are written with each and read back. The choice and its reason are
    kept, and used for this repository where snapshots.toml names no compression or `tuned`. What is
    in the repository already stays as it is, and can be read whatever it was written with.
    """
    from resilience_pipelines.snapshots.stores import tune_repository

    names = options(snapshot_id="SNAPSHOT", candidates="--compressions", repeats="--repeats")
    with names, _progress("measuring", as_json) as report:
        done = tune_repository(
            open_home(home),
            _address(repository),
            snapshot,
            compressions=split_list(compressions),
            repeats=repeats,
            progress=report,
        )
    tuning = done.tuning
    if as_json:
        print_json(tuning.model_dump(mode="json") | {"kept_in": str(done.kept_in)})
        return
    rows: list[dict[str, Any]] = [
        {
            "compression": item.compression,
            "chosen": item.compression == tuning.chosen,
            "stored_bytes": item.stored_bytes,
            "put_s": round(item.put_s, 3),
            "get_median_s": round(item.get_median_s, 3),
        }
        for item in tuning.candidates
    ]
    show_rows(rows, False)
    out.print(tuning.why, markup=False)
    if done.overruled_by is not None:
        err.print(f"snapshots.toml says {done.overruled_by}, which stays.", markup=False)


@app.command("keygen")
def snapshot_keygen(
    folder: Annotated[Path, typer.Argument(help="Where the new keys go.")],
    as_json: JsonOption = False,
) -> None:
    """Make an encryption key and a pair of signing keys, as files that only you may read."""
    from resilience_pipelines.snapshots.keys import make_keys

    rows: list[dict[str, Any]] = [
        {"key": name, "file": str(path)} for name, path in make_keys(folder).items()
    ]
    show_rows(rows, as_json)


def _open(home: Home, repository: str | None) -> Store:
    from resilience_pipelines.snapshots.settings import open_repository, open_store

    return open_store(home) if repository is None else open_repository(home, _address(repository))


def _address(repository: str | None) -> str | None:
    return None if repository == CONFIGURED else repository


@contextmanager
def _progress(what: str, quiet: bool) -> Iterator[Callable[[int, int], None]]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=err, transient=True, disable=quiet) as bar:
        task = bar.add_task(what, total=None)

        def report(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        yield report
