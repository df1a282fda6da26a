"""`resilience snapshot`: the commands that work on stored snapshots.

What belongs here: options and what a person sees of stores and repositories. What does not:
commands that start workers (`cli`), and any work.

Without `--repository` a command works on the local store of the data home.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from resilience_pipelines.cli_common import (
    HomeOption,
    JsonOption,
    err,
    out,
    print_json,
    show_rows,
    split_list,
)
from resilience_pipelines.errors import InputError, ResilienceError, StorageError
from resilience_pipelines.home import Home, open_home

if TYPE_CHECKING:
    from resilience_pipelines.snapshots.manifest import Manifest
    from resilience_pipelines.snapshots.repository import Repository
    from resilience_pipelines.snapshots.secret_scan import Finding
    from resilience_pipelines.snapshots.store import SnapshotStore, StoredSnapshot

app = typer.Typer()

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


@app.command("list")
def snapshot_list(
    repository: RepositoryOption = None, home: HomeOption = None, as_json: JsonOption = False
) -> None:
    """List the snapshots of the store."""
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
        for item in _manifests(store)
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
    store = _open(open_home(home), repository)
    rows: list[dict[str, Any]] = []
    known = (item.snapshot_id for item in _manifests(store))
    for snapshot_id in snapshots or [*known, *store.unreadable()]:
        begin = time.monotonic()
        problem = ""
        try:
            _verify(store, snapshot_id)
        except InputError:
            raise
        except ResilienceError as error:
            problem = error.reason
        rows.append(
            {
                "snapshot": snapshot_id,
                "intact": not problem,
                "seconds": round(time.monotonic() - begin, 3),
                "problem": problem,
            }
        )
    show_rows(rows, as_json)
    if not all(row["intact"] for row in rows):
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

    store = open_store(open_home(home))
    chosen = [store.get(name) for name in snapshots] if snapshots else list(store.all())
    rows: list[dict[str, Any]] = [
        {"snapshot": stored.manifest.snapshot_id, **asdict(finding)}
        for stored in chosen
        for finding in _secrets(stored)
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
    from dataclasses import replace

    from resilience_pipelines.snapshots.repository import Repository
    from resilience_pipelines.snapshots.settings import read_settings

    data_home = open_home(home)
    store = _open(data_home, repository)
    asked: dict[str, Any] = {"keep": keep, "max_age_days": max_age_days, "max_bytes": max_bytes}
    given = {name: limit for name, limit in asked.items() if limit is not None}
    policy = replace(read_settings(data_home).policy, **given)
    if isinstance(store, Repository):
        report = store.prune(policy, dry_run=dry_run)
        doomed = list(report.doomed)
        if not dry_run and not report.swept:
            err.print("[yellow]Somebody puts a snapshot: content goes with the next prune.[/]")
    else:
        doomed = store.prune(policy, dry_run=dry_run)
        if not dry_run:
            store.clean()
    rows: list[dict[str, Any]] = [
        {"snapshot": item.snapshot_id, "image_bytes": item.image_bytes, "why": item.why,
         "removed": not dry_run}
        for item in doomed
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
    from resilience_pipelines.snapshots.settings import (
        TUNED,
        open_repository,
        open_repository_storage,
        open_store,
        read_settings,
    )
    from resilience_pipelines.snapshots.tuning import keep_tuning, tune

    data_home = open_home(home)
    store = open_store(data_home)
    stored = store.get(snapshot) if snapshot else next(reversed(store.all()), None)
    if stored is None:
        raise InputError(
            "SNAPSHOT", None, "the local store has none to try with",
            mend="`resilience snapshot create` takes one.",
        )  # fmt: skip
    open_repository(data_home, _address(repository))  # refuses another key than it has
    storage, settings, key = open_repository_storage(
        data_home, read_settings(data_home), _address(repository)
    )
    with _progress("measuring", as_json) as report:
        tuning = tune(
            storage,
            key,
            stored,
            candidates=split_list(compressions),
            repeats=repeats,
            progress=report,
        )
    path = keep_tuning(data_home, tuning)
    if as_json:
        print_json(tuning.model_dump(mode="json") | {"kept_in": str(path)})
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
    if settings.compression != TUNED:
        err.print(f"snapshots.toml says {settings.compression}, which stays.", markup=False)


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


def _open(home: Home, repository: str | None) -> SnapshotStore | Repository:
    from resilience_pipelines.snapshots.settings import open_repository, open_store

    return open_store(home) if repository is None else open_repository(home, _address(repository))


def _address(repository: str | None) -> str | None:
    return None if repository == CONFIGURED else repository


def _manifests(store: SnapshotStore | Repository) -> list[Manifest]:
    from resilience_pipelines.snapshots.repository import Repository

    if isinstance(store, Repository):
        return store.all()
    return [snapshot.manifest for snapshot in store.all()]


def _secrets(stored: StoredSnapshot) -> list[Finding]:
    from resilience_pipelines.snapshots.secret_scan import scan

    try:
        return list(scan(stored.folder, [file.path for file in stored.manifest.files]))
    except OSError as error:
        raise StorageError(
            f"The image of {stored.manifest.snapshot_id} can't be read: {error}.",
            mend="`resilience snapshot verify` says which files are damaged.",
        ) from error


def _verify(store: SnapshotStore | Repository, snapshot_id: str) -> None:
    from resilience_pipelines.snapshots.repository import Repository

    if isinstance(store, Repository):
        store.verify(snapshot_id)
    else:
        store.verify(store.get(snapshot_id))


@contextmanager
def _progress(what: str, quiet: bool) -> Iterator[Any]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=err, transient=True, disable=quiet) as bar:
        task = bar.add_task(what, total=None)

        def report(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        yield report
