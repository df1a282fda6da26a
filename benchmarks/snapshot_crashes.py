"""Kills whoever works on a repository of snapshots, again and again, and looks what is lost.

    python benchmarks/snapshot_crashes.py --rounds 200

A round starts one process that puts, gets, verifies or prunes, and kills it (SIGKILL) at a random
moment of its work; in every second round another one works beside it undisturbed, and in every
fourth the storage fails at random (no space, I/O error: injected, not a real disk's). Then:

- a snapshot that was put and that no limit condemns is there, and every byte of it is right;
- each snapshot that is listed, in the repository and in the local store, is intact;
- of every stack that ever had a snapshot there is one.

Exit code 1: one of these did not hold. The clock of the leases runs 200 times as fast as time, so
that those of the dead run out within a round or two.
"""

from __future__ import annotations

import argparse
import errno
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from resilience_pipelines.errors import ResilienceError
from resilience_pipelines.snapshots.leases import Leases
from resilience_pipelines.snapshots.manifest import Manifest, new_snapshot_id
from resilience_pipelines.snapshots.repository import Repository
from resilience_pipelines.snapshots.retention import Policy
from resilience_pipelines.snapshots.sealing import Sealing, parse_compression
from resilience_pipelines.snapshots.storage import FolderStorage
from resilience_pipelines.snapshots.store import SnapshotStore, StoredSnapshot
from resilience_pipelines.stack import Stack
from resilience_pipelines.workers.oracle import RecordedAnswer

ACTIONS: Final = ("put", "get", "verify", "prune")
POLICY: Final = Policy(keep=2)
CLOCK_SPEED: Final = 200
DEADLINE_S: Final = 120
FAILURE_CHANCE: Final = 0.2
STACKS: Final = 3
SNAPSHOTS_OF_A_STACK: Final = 4
KEY: Final = bytes(range(32))


def main() -> int:
    """Run the rounds, or with `--child` the work of one process."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--child", nargs=3, metavar=("ACTION", "FOLDER", "SEED"))
    parser.add_argument("--failing", action="store_true")
    asked = parser.parse_args()
    if asked.child:
        action, folder, seed = asked.child
        # Without the interpreter's own end, which nobody would want to measure or to kill.
        os._exit(work(action, Path(folder), random.Random(int(seed)), asked.failing))
    with tempfile.TemporaryDirectory(prefix="snapshot-crashes-") as folder:
        report = run_rounds(Path(folder), asked.rounds, random.Random(asked.seed))
    print(json.dumps(report, indent=1))
    return 1 if report["problems"] else 0


def run_rounds(folder: Path, rounds: int, chance: random.Random) -> dict[str, object]:
    """All rounds; what happened and what was found wrong."""
    make_snapshots(folder, chance)
    put_at_least_once: set[str] = set()
    problems: list[str] = []
    ends: Counter[str] = Counter()
    for snapshot in sources(folder).all()[:STACKS]:
        repository(folder).put(snapshot)
    durations = {
        action: max(timed(start(action, folder, chance)) for _ in range(3)) for action in ACTIONS
    }
    for number in range(rounds):
        action = chance.choice(ACTIONS)
        victim = start(action, folder, chance, failing=number % 4 == 3)
        beside = start(chance.choice(ACTIONS), folder, chance) if number % 2 else None
        try:
            victim.wait(chance.uniform(0, 0.9 * durations[action]))
            ends[f"{action}: ended before it was killed"] += 1
        except subprocess.TimeoutExpired:
            victim.kill()
            victim.wait(DEADLINE_S)
            ends[f"{action}: killed"] += 1
        if beside is not None:
            timed(beside)
        put_at_least_once |= {item.snapshot_id for item in repository(folder).all()}
        problems += [f"round {number}: {problem}" for problem in check(folder, put_at_least_once)]
    return {
        "rounds": rounds,
        "ends": dict(sorted(ends.items())),
        "snapshots_put": len(put_at_least_once),
        "problems": problems,
    }


def check(folder: Path, put_at_least_once: set[str]) -> list[str]:
    """What does not hold of what must always hold."""
    problems = []
    shared = repository(folder)
    listed = {item.snapshot_id: item for item in shared.all()}
    problems += [f"{name} has a manifest that can't be used" for name in shared.unreadable()]
    for name in listed:
        try:
            shared.verify(name)
        except ResilienceError as error:
            problems.append(f"{name} is listed in the repository and damaged: {error}")
    local = SnapshotStore(folder / "there")
    for snapshot in local.all():
        try:
            local.verify(snapshot)
        except ResilienceError as error:
            problems.append(f"{snapshot.folder.name} is listed locally and damaged: {error}")
    source = {item.manifest.snapshot_id: item.manifest for item in sources(folder).all()}
    for key in {source[name].stack.key for name in put_at_least_once}:
        ever = sorted(name for name in put_at_least_once if source[name].stack.key == key)
        # A limit only ever condemns what has as many newer ones as stay.
        kept = set(ever[-(POLICY.keep or 1) :])
        problems += [f"{name} is lost" for name in sorted(kept - listed.keys())]
    return problems


def start(
    action: str, folder: Path, chance: random.Random, *, failing: bool = False
) -> subprocess.Popen[bytes]:
    """A process that is just about to begin its work."""
    command = [
        sys.executable,
        __file__,
        "--child",
        action,
        str(folder),
        str(chance.getrandbits(32)),
    ]
    process = subprocess.Popen(
        [*command, "--failing"] if failing else command, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"begin\n"
    return process


def timed(process: subprocess.Popen[bytes]) -> float:
    """Seconds until a process has ended; it is ended at the deadline."""
    begin = time.monotonic()
    try:
        process.wait(DEADLINE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(DEADLINE_S)
        raise
    return time.monotonic() - begin


def work(action: str, folder: Path, chance: random.Random, failing: bool) -> int:
    """What one process does. It fails where it is made to, and may be too late or too early."""
    shared = repository(folder)
    listed = [item.snapshot_id for item in shared.all()]
    print("begin", flush=True)
    if failing:
        fail_at_random(chance)
    try:
        if action == "put":
            shared.put(chance.choice(sources(folder).all()))
        elif action == "prune":
            shared.prune(POLICY)
        elif listed and action == "verify":
            shared.verify(chance.choice(listed))
        elif listed and action == "get":
            name = chance.choice(listed)
            store = SnapshotStore(folder / "there")
            store.clean()
            if (store.root / name).exists():
                store.remove(name)
            shared.get(name, store)
    except ResilienceError as error:
        return error.exit_code
    return 0


def fail_at_random(chance: random.Random) -> None:
    """From now on, syncing a file fails now and then, as on a full or broken disk."""
    sync = os.fsync

    def fsync(handle: int) -> None:
        if chance.random() < FAILURE_CHANCE:
            raise OSError(chance.choice((errno.ENOSPC, errno.EIO)), "injected")
        sync(handle)

    os.fsync = fsync


def repository(folder: Path) -> Repository:
    """The repository that everybody works on."""
    storage = FolderStorage(folder / "repository")
    leases = Leases(storage, lambda: time.time() * CLOCK_SPEED)
    return Repository(storage, Sealing(parse_compression("lz4"), KEY), leases=leases)


def sources(folder: Path) -> SnapshotStore:
    """The local store that snapshots are put from."""
    return SnapshotStore(folder / "here")


def make_snapshots(folder: Path, chance: random.Random) -> None:
    """Snapshots of several stacks that have content in common."""
    store = sources(folder)
    common = [chance.randbytes(200_000) for _ in range(8)]
    for number in range(STACKS * SNAPSHOTS_OF_A_STACK):
        moment = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(hours=number)
        pages = [*chance.sample(common, 6), chance.randbytes(5_000)]
        make_snapshot(store, moment, str(number % STACKS), pages)


def make_snapshot(
    store: SnapshotStore, moment: datetime, engine_version: str, pages: list[bytes]
) -> StoredSnapshot:
    """Commit a snapshot that has such files, the last of them no memory pages."""
    snapshot_id = new_snapshot_id(moment)
    with store.begin(snapshot_id) as partial:
        for place, content in enumerate(pages[:-1]):
            (partial.images / f"pages-{place}.img").write_bytes(content)
        (partial.images / "core-1.img").write_bytes(pages[-1])
        manifest = Manifest(
            snapshot_id=snapshot_id, created_at=moment, engine="criu", criu_version="4.2.1",
            worker="reference",
            stack=Stack(engine="reference", engine_version=engine_version),
            cpu_features=(), port=8000, root_pid=1000, output_pipe="pipe:[1]",
            answer=RecordedAnswer(prompt="p", token_ids=(1,), logprobs=(-1.0,)),
            files=partial.describe_files(), mapped_files=(),
        )  # fmt: skip
        return store.commit(partial, manifest)


if __name__ == "__main__":
    sys.exit(main())
