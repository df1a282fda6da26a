"""The readers of what comes from outside, each with good inputs and a look at what it takes.

What belongs here: one function for each reader, and what taking an input has to mean: finite
numbers, plain names, no path that leads elsewhere, and for records and manifests the very values
that the input says. What does not: how inputs are broken (`mutation`) and limits (`engine`).
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import struct
import zlib
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from benchmarks.fuzz.engine import Target, WrongAcceptanceError
from benchmarks.fuzz.mutation import Form
from resilience_pipelines import dcgm, strict_json
from resilience_pipelines.baselines.formats import FORMATS, Origin
from resilience_pipelines.ci.suite import read_suite
from resilience_pipelines.collectives import nccl_log
from resilience_pipelines.detectors import kernel_log
from resilience_pipelines.faults import chaos_mesh, chaostoolkit, litmus
from resilience_pipelines.faults.gpu_burn_tool import parse_gpu_burn
from resilience_pipelines.home import Home
from resilience_pipelines.job_spec import parse_spec
from resilience_pipelines.kubernetes_api import object_of
from resilience_pipelines.launchers.kubernetes import failures, nodes, phases, state
from resilience_pipelines.launchers.kubernetes.settings import DeadlineSettings
from resilience_pipelines.launchers.launcher import parse_event, tell_progress, texts
from resilience_pipelines.records import RUN_ID_PATTERN, RunKind
from resilience_pipelines.releases import formats as feeds
from resilience_pipelines.releases.release import Release, version_key
from resilience_pipelines.snapshots.leases import FOLDER, Leases, Purpose
from resilience_pipelines.snapshots.manifest import SNAPSHOT_ID_PATTERN
from resilience_pipelines.snapshots.repository import FORMAT, MANIFESTS, Repository
from resilience_pipelines.snapshots.sealing import UNSEALED, Compression, Sealing
from resilience_pipelines.snapshots.store import SnapshotStore, parse_manifest
from resilience_pipelines.stopwatch import Stopwatch
from resilience_pipelines.warehouse.landing import RUN_FILE, SAMPLES_FILE, read_landing
from resilience_pipelines.workers.base import Mark, OutputLine
from resilience_pipelines.workers.reference_host import ReferenceWorker
from resilience_pipelines.workers.vllm_log import phases_of

ROOT: Final = Path(__file__).resolve().parents[2]
DATA: Final = ROOT / "tests" / "unit" / "data"


def require(holds: bool, what: str) -> None:
    """Say what an accepted input got wrong.

    Raises:
        WrongAcceptanceError
    """
    if not holds:
        raise WrongAcceptanceError(what)


# What a record says, and what was read of it.

_FREE: Final = (".parameters", ".faults[0].parameters", ".faults[1].parameters")
"""Kept as JSON, whatever they are."""


def says_the_same(said: object, read: object, where: str = "") -> None:
    """Every value of a JSON text is in what was read, unchanged.

    Raises:
        WrongAcceptanceError
    """
    if isinstance(said, dict):
        require(isinstance(read, dict), f"{where}: an object became {type(read).__name__}")
        assert isinstance(read, dict)
        for name, value in said.items():
            require(name in read, f"{where}.{name} was left out")
            says_the_same(value, read[name], f"{where}.{name}")
    elif isinstance(said, list):
        require(isinstance(read, list) and len(read) == len(said), f"{where}: another list")
        assert isinstance(read, list)
        for index, (mine, theirs) in enumerate(zip(said, read, strict=True)):
            says_the_same(mine, theirs, f"{where}[{index}]")
    elif isinstance(said, bool) or said is None or isinstance(read, bool):
        require(said is read, f"{where}: {said!r} became {read!r}")
    elif isinstance(said, int | float):
        require(isinstance(read, int | float), f"{where}: {said!r} became {read!r}")
        assert isinstance(read, int | float)
        # A whole number may stand where a fraction is wanted: it is read to a float's precision.
        same = float(said) == read if isinstance(read, float) else said == read
        require(same and abs(read) < math.inf, f"{where}: {said!r} became {read!r}")
        fits = not isinstance(read, int) or abs(read) < 2**63 or where.startswith(_FREE)
        require(fits, f"{where}: {read} has no column")
    elif said != read:
        assert isinstance(said, str)
        require(isinstance(read, str), f"{where}: {said!r} became {read!r}")
        assert isinstance(read, str)
        same = datetime.fromisoformat(said) == datetime.fromisoformat(read)
        require(same, f"{where}: {said!r} became {read!r}")


def _plain(text: bytes) -> Any:
    """JSON as a slow, simple reader sees it: no name twice, no number that is none."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        require(len({name for name, _ in pairs}) == len(pairs), "a name is there twice")
        return dict(pairs)

    def refuse(constant: str) -> None:
        raise WrongAcceptanceError(f"{constant} was taken")

    return json.loads(text, object_pairs_hook=once, parse_constant=refuse)


def _records() -> tuple[bytes, ...]:
    from tests.factories import RecordFactory

    factory = RecordFactory(7)
    made = (
        factory.startup_record(repeats=1),
        factory.fault_record(repeats=1),
        factory.record(RunKind.SNAPSHOT, snapshots=(factory.snapshot(),)),
        factory.record(RunKind.COMPATIBILITY, compatibility=(factory.compatibility_trial(),)),
        factory.record(RunKind.COLLECTIVES, collectives=(factory.collective(),)),
    )
    return tuple(record.model_dump_json(indent=1).encode() for record in made)


class LandingRecord:
    """`run.json` in a folder that is otherwise right."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def check(self, content: bytes) -> bool:
        """See `Target.check`."""
        found = re.search(rb'"run_id":\s*"([^"/]{1,100})"', content)
        name = found[1].decode(errors="ignore") if found else ""
        folder = self._folder / (name if re.fullmatch(RUN_ID_PATTERN, name) else "other")
        folder.mkdir(exist_ok=True)
        (folder / RUN_FILE).write_bytes(content)
        landed = read_landing(folder)
        require(re.fullmatch(RUN_ID_PATTERN, landed.record.run_id) is not None, "run_id")
        says_the_same(_plain(content), json.loads(landed.record.model_dump_json()))
        return True


class LandingSamples:
    """`samples.parquet`, listed with its right hash: who writes the one writes the other."""

    def __init__(self, folder: Path) -> None:
        import polars as pl

        from tests.factories import RecordFactory

        factory = RecordFactory(8)
        self._record = factory.startup_record(repeats=1)
        self._folder = folder / self._record.run_id
        self._folder.mkdir()
        seeds = []
        for codec in ("zstd", "snappy", "uncompressed"):
            path = folder / f"{codec}.parquet"
            factory.samples(self._record).write_parquet(path, compression=codec)  # type: ignore[arg-type]
            seeds.append(path.read_bytes())
        self.seeds = tuple(seeds)
        self._polars = pl

    def check(self, content: bytes) -> bool:
        """See `Target.check`."""
        file = {
            "path": SAMPLES_FILE, "bytes": len(content),
            "sha256": hashlib.sha256(content).hexdigest(),
        }  # fmt: skip
        run = json.loads(self._record.model_dump_json()) | {"evidence": [file]}
        (self._folder / RUN_FILE).write_text(json.dumps(run))
        (self._folder / SAMPLES_FILE).write_bytes(content)
        landed = read_landing(self._folder)
        require(landed.samples is not None, "the samples were overlooked")
        return True


class LandingLoad:
    """Records and samples that were taken, brought into a warehouse."""

    def __init__(self, folder: Path) -> None:
        self._home = Home(folder / "home")
        self._folder = folder
        self._number = 0
        self._samples = LandingSamples(folder)
        self.seeds = _records() + self._samples.seeds

    def check(self, content: bytes) -> bool:
        """See `Target.check`."""
        import duckdb

        from resilience_pipelines.warehouse.load import load

        self._number += 1
        source = self._folder / f"source-{self._number}"
        source.mkdir()
        landing: LandingRecord | LandingSamples = LandingRecord(source)
        if content[:4] == b"PAR1" or content[-4:] == b"PAR1":
            landing = self._samples
            source = self._samples._folder.parent
        try:
            landing.check(content)
        finally:
            self._home.root.mkdir(exist_ok=True)
            report = load(self._home, [source])
        if report.rejected:
            return False
        with duckdb.connect(str(self._home.warehouse), read_only=True) as connection:
            (bad,) = connection.execute(
                "select count(*) from raw.samples where not isfinite(value)"
            ).fetchone() or (0,)
        require(bad == 0, "samples that are no numbers")
        self._home.warehouse.unlink()
        return True


# Snapshots.


def _snapshot(folder: Path) -> tuple[str, bytes]:
    from tests.support.snapshots import put

    moment = datetime(2026, 3, 2, 9, tzinfo=UTC)
    stored = put(SnapshotStore(folder / "store"), created_at=moment)
    return stored.manifest.snapshot_id, (stored.folder / "manifest.json").read_bytes()


class SnapshotManifest:
    """`manifest.json`."""

    def __init__(self, folder: Path) -> None:
        self._id, text = _snapshot(folder)
        self.seeds = (text,)

    def check(self, content: bytes) -> bool:
        """See `Target.check`."""
        manifest = parse_manifest(self._id, content)
        says_the_same(_plain(content), json.loads(manifest.model_dump_json()))
        require(re.fullmatch(SNAPSHOT_ID_PATTERN, manifest.snapshot_id) is not None, "snapshot_id")
        paths = [file.path for file in manifest.files]
        require(len(set(paths)) == len(paths), "a file is there twice")
        for path in paths:
            parts = path.split("/")
            inside = parts[0] in ("images", "shm") and len(parts) > 1
            require(inside and not {"", ".", ".."} & set(parts), f"the path {path!r}")
        return True


class MemoryStorage:
    """A storage whose one object is what somebody put there."""

    address = "memory"

    def __init__(self, objects: dict[str, bytes]) -> None:
        self.objects = objects

    def put(self, name: str, content: bytes) -> None:
        """Write an object."""
        self.objects[name] = content

    def get(self, name: str) -> bytes | None:
        """What an object holds."""
        return self.objects.get(name)

    def exists(self, name: str) -> bool:
        """Whether it is there."""
        return name in self.objects

    def sizes(self, prefix: str) -> dict[str, int]:
        """Names and bytes."""
        return {name: len(c) for name, c in self.objects.items() if name.startswith(prefix)}

    def delete(self, name: str) -> None:
        """Remove it."""
        self.objects.pop(name, None)

    def tidy(self) -> None:
        """Nothing."""


class RepositoryManifest:
    """A manifest's envelope in a repository, sealed by somebody who can write there."""

    def __init__(self, folder: Path) -> None:
        self._id, text = _snapshot(folder)
        self.seeds = (
            json.dumps({"manifest": text.decode(), "ed25519": None}).encode(),
            json.dumps({"manifest": text.decode(), "ed25519": "c2lnbmF0dXJl"}).encode(),
        )

    def check(self, content: bytes) -> bool:
        """See `Target.check`."""
        name = MANIFESTS + self._id
        repository = Repository(MemoryStorage({name: UNSEALED.seal(name, content)}))
        manifest = repository.manifest(self._id)
        require(manifest.snapshot_id == self._id, "the manifest of another")
        return True


def _seal_seeds() -> tuple[bytes, ...]:
    content = b"page of memory " * 400
    return tuple(
        Sealing(compression).seal("blobs/aa/aa", content)
        for compression in (Compression(), Compression("lz4"), Compression("zstd", 3))
    )


def check_sealed(content: bytes) -> bool:
    """A sealed object, as it is and with a checksum that somebody made right again."""
    header, body = content[:15], content[19:]
    checksum = struct.pack(">I", zlib.crc32(body, zlib.crc32(header + b"blobs/aa/aa")))
    mended = header + checksum + body if len(content) >= 19 else content
    plain = UNSEALED.open("blobs/aa/aa", mended)
    require(len(plain) == struct.unpack(">Q", header[7:15])[0], "another length than it says")
    require(header[6] == 0, f"the cipher {header[6]}")
    again = UNSEALED.open("blobs/aa/aa", mended)
    require(plain == again, "two readings differ")
    return True


def check_format(content: bytes) -> bool:
    """The object that says what a repository is."""
    Repository(MemoryStorage({FORMAT: content}))
    require(UNSEALED.open(FORMAT, content) == b"resilience snapshot repository 1", "format")
    return True


def check_lease(content: bytes) -> bool:
    """A lease of somebody else: in doubt it is held."""
    storage = MemoryStorage({f"{FOLDER}put-0123456789abcdef": content})
    leases = Leases(storage, clock=lambda: 1_000_000.0)
    leases.remove_expired()
    if storage.objects:
        return False
    ends_at = _plain(content)["ends_at"]
    require(isinstance(ends_at, int | float) and ends_at < 1_000_000, "a lease that holds was void")
    require(not isinstance(ends_at, bool), "true is no time")
    with leases.hold(Purpose.PRUNE, wait_s=0):
        return True


class CriuImages:
    """Statistics of CRIU and the maps of pages, in CRIU's own form, by its own pycriu."""

    def __init__(self, folder: Path, pycriu: Any) -> None:
        self._folder = folder
        self._pycriu = pycriu
        stats = {
            "magic": "STATS",
            "entries": [
                {"dump": {"freezing_time": 1, "frozen_time": 2, "memdump_time": 3,
                          "memwrite_time": 4, "pages_scanned": 5, "pages_skipped_parent": 0,
                          "pages_written": 6, "pages_lazy": 0}}
            ],
        }  # fmt: skip
        pagemap = {
            "magic": "PAGEMAP",
            "entries": [
                {"pages_id": 1},
                {"vaddr": 1 << 30, "compat_nr_pages": 40, "nr_pages": 40, "flags": 4},
            ],
        }
        self.seeds = (self._encoded(stats), self._encoded(pagemap))

    def _encoded(self, image: Mapping[str, Any]) -> bytes:
        path = self._folder / "made.img"
        with path.open("wb") as stream:
            self._pycriu.images.dump(image, stream)
        return path.read_bytes()

    def check(self, content: bytes) -> bool:
        """See `Target.check`."""
        from resilience_pipelines.snapshots.criu import read_statistics
        from resilience_pipelines.snapshots.zero_pages import PAGE_BYTES, drop_zero_pages

        (self._folder / "stats-dump").write_bytes(content)
        found = read_statistics(self._folder, "dump", self._pycriu)
        (self._folder / "pagemap-shmem-7.img").write_bytes(content)
        pages = self._folder / "pages-1.img"
        if not pages.exists() or pages.stat().st_size != 40 * PAGE_BYTES:
            pages.write_bytes(bytes(40 * PAGE_BYTES))
        dropped = drop_zero_pages(self._folder, self._pycriu)
        require(0 <= dropped <= 40 * PAGE_BYTES, "more was dropped than there was")
        return found is not None or dropped > 0


# Engines, tools and detectors.


def _lines(content: bytes) -> list[OutputLine]:
    text = content.decode(errors="replace")
    return [OutputLine(index * 1000, line) for index, line in enumerate(text.split("\n"))]


def _check_marks(marks: Iterable[Mark]) -> bool:
    watch = Stopwatch(0)
    end = 0
    for mark in marks:
        require(0 <= mark.start_ns <= mark.end_ns, "a phase that ends before it begins")
        require(mark.start_ns >= end, "phases overlap")
        end = mark.end_ns
        watch.add(mark.name, mark.start_ns, mark.end_ns, mark.clock, mark.resolution_s)
    require(all(math.isfinite(phase.duration_s) for phase in watch.phases), "no finite time")
    return end > 0


def check_vllm_log(content: bytes) -> bool:
    """What vLLM logs while it starts."""
    return _check_marks(phases_of(_lines(content), "0.23.0"))


def check_reference_output(content: bytes) -> bool:
    """What the reference worker writes while it starts."""
    return _check_marks(ReferenceWorker(Path("/nowhere")).marks(_lines(content)))


def check_job_events(content: bytes) -> bool:
    """What a job prints for whoever launched it."""
    taken = False
    for line in content.decode(errors="replace").splitlines():
        event = parse_event(line)
        if event is not None:
            tell_progress(event, lambda *_: None)
            texts(event, "unsupported")
            taken = True
    return taken


def check_kernel_log(content: bytes) -> bool:
    """Messages of the kernel."""
    lines = content.decode(errors="replace").splitlines()
    found = [kernel_log.concerns(line, (4242,), "worker-7") for line in lines]
    return any(found)


def check_nccl_log(content: bytes) -> bool:
    """NCCL's log."""
    lines = content.decode(errors="replace").splitlines()
    found = nccl_log.transports(lines)
    version = nccl_log.version(lines)
    require(version is None or len(version) < 100, "a version without end")
    return bool(found)


def check_gpu_burn(content: bytes) -> bool:
    """What gpu-burn prints."""
    found = parse_gpu_burn(content.decode(errors="replace"))
    require(len(found) < 5000, f"{len(found)} GPUs")
    for gpu in found:
        require(math.isfinite(gpu.gflops) and gpu.gflops >= 0, "Gflop/s")
        faulty = re.search(rf"^\s*GPU 0*{gpu.index}: FAULTY\s*$".encode(), content, re.MULTILINE)
        require(not (gpu.passed and faulty), "a GPU passed that was called faulty")
    return bool(found)


def check_dcgmi(content: bytes) -> bool:
    """What dcgmi prints: GPUs, a value, a health check."""
    text = content.decode(errors="replace")
    if text.lstrip().startswith("{"):
        health = dcgm.read_health(text)
        said = _last_overall(text)
        require((health.overall == dcgm.HEALTHY) == (said == dcgm.HEALTHY), "healthy or not")
        return True
    if "GPU ID" in text:
        found = dcgm.read_discovery(text)
        require(all(0 <= number < 10_000 for number in found.values()), "a GPU's number")
        return bool(found)
    return dcgm.read_value(text, 0) is not None


def _last_overall(text: str) -> object:
    return json.loads(text)["body"]["Overall Health"]["value"]


# Feeds, files of people, queries.


def _check_releases(parse: Callable[[bytes], list[Release]]) -> Callable[[bytes], bool]:
    def check(content: bytes) -> bool:
        found = parse(content)
        sorted(found, key=lambda release: version_key(release.version))
        for release in found:
            release.model_dump_json()
        return True

    return check


class SuiteFile:
    """A suite for a CI system."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "suite.toml"

    def check(self, content: bytes) -> bool:
        """See `Target.check`."""
        self._path.write_bytes(content)
        suite = read_suite(self._path)
        for job in suite.jobs:
            limits = [*getattr(job, "max_median_s", {}).values()]
            require(all(math.isfinite(limit) for limit in limits), "a limit without end")
        return True


def _check_baselines(name: str) -> Callable[[bytes], bool]:
    def check(content: bytes) -> bool:
        found = FORMATS[name](content, Origin("somebody"))
        require(bool(found), "nothing was read")
        for item in found:
            require(math.isfinite(item.value) and item.value >= 0, f"the value {item.value}")
            item.model_dump_json().encode()
        return True

    return check


def check_chaos_toolkit(content: bytes) -> bool:
    """An experiment or a journal of Chaos Toolkit."""
    found = chaostoolkit.read_file(content)
    parse_spec(json.dumps(found.specification()))
    require(all(not word.startswith("-") for word in (found.worker, *found.plan.faults)), "option")
    return True


def check_job_spec(content: bytes) -> bool:
    """A job's specification, from the command line, a pod's environment or Dagster's run config."""
    spec = parse_spec(content)
    says_the_same(_plain(content), json.loads(spec.model_dump_json()))
    return True


class QueryText:
    """SQL of anybody who may read the results."""

    def __init__(self, folder: Path) -> None:
        import duckdb

        self._home = Home(folder)
        self._home.published.parent.mkdir(parents=True, exist_ok=True)
        with duckdb.connect(str(self._home.published)) as connection:
            connection.execute("create table t as select range as n, 'x' as text from range(50)")
        self._canary = folder / "canary.csv"

    def check(self, content: bytes) -> bool:
        """See `Target.check`."""
        from resilience_pipelines.warehouse.query import query

        text = content.decode(errors="surrogateescape").replace("CANARY", str(self._canary))
        query(self._home, text, deadline_s=2.0)
        require(not self._canary.exists(), "a query wrote a file")
        return True


QUERIES: Final = (
    b"select n, text from t where n > 3 order by n limit 5",
    b"with a as (select n % 3 as k, count(*) c from t group by all) select * from a where c > 1",
    b"select {'a': 1, 'b': [1, 2]}, n::varchar || 'x', date '2026-01-01' from t",
    b"show tables", b"describe t", b"explain select 1",
    b"select * from t a join t b using (n) where b.n in (select max(n) from t)",
    b"select row_number() over (partition by n % 2 order by n) from t -- end",
)  # fmt: skip
BAD_QUERIES: Final = (
    b"copy t to 'CANARY'", b"attach 'CANARY' as x", b"select * from read_csv('/etc/passwd')",
    b"install httpfs", b"select 1; select 2", b"pragma database_list", b"set threads = 1",
    b"select * from range(100000000000)", b"select repeat('x', 1000000000)",
)  # fmt: skip


# Kubernetes and the operators of faults.

POD: Final[dict[str, Any]] = {
    "metadata": {"name": "pod-a", "uid": "u1", "creationTimestamp": "2026-03-02T09:00:00Z",
                 "labels": {"a": "b"}},
    "spec": {"nodeName": "node-a"},
    "status": {
        "phase": "Running", "reason": "", "message": "",
        "conditions": [
            {"type": "PodScheduled", "status": "True",
             "lastTransitionTime": "2026-03-02T09:00:01Z"},
            {"type": "Ready", "status": "False", "reason": "x", "message": "m"},
        ],
        "containerStatuses": [
            {"name": state.CONTAINER, "imageID": "i", "restartCount": 0,
             "state": {"terminated": {"exitCode": 1, "reason": "Error", "message": "m",
                                      "startedAt": "2026-03-02T09:00:05Z",
                                      "finishedAt": "2026-03-02T09:01:05Z"}}}
        ],
    },
}  # fmt: skip
JOB: Final[dict[str, Any]] = {
    "metadata": {"name": "job-a", "uid": "u2", "creationTimestamp": "2026-03-02T09:00:00Z",
                 "labels": {state.RUN_LABEL: "run", state.WORKER_LABEL: "reference"}},
    "status": {"conditions": [{"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded",
                               "message": "m", "lastTransitionTime": "2026-03-02T09:02:00Z"}]},
}  # fmt: skip
EVENT: Final[dict[str, Any]] = {
    "type": "Normal", "reason": "Pulling", "message": "m", "count": 2,
    "involvedObject": {"kind": "Pod", "name": "pod-a"}, "source": {"component": "kubelet"},
    "firstTimestamp": "2026-03-02T09:00:02Z", "lastTimestamp": "2026-03-02T09:00:03Z",
}  # fmt: skip
NODE: Final[dict[str, Any]] = {
    "metadata": {"name": "node-a", "labels": {nodes.PRODUCT_LABEL: "NVIDIA-H200",
                                              nodes.MEMORY_LABEL: "143771",
                                              nodes.DRIVER_FULL_LABEL: "580.159.04"}},
    "spec": {}, "status": {"allocatable": {"nvidia.com/gpu": "8"},
                           "conditions": [{"type": "Ready", "status": "True"}],
                           "nodeInfo": {"kernelVersion": "6.8", "kubeletVersion": "v1.33.0",
                                        "containerRuntimeVersion": "containerd://2.0"}},
}  # fmt: skip


def check_kubernetes(content: bytes) -> bool:
    """A job, its pod and an event, as an API server or a webhook sends them."""
    try:
        body = strict_json.loads(content)  # as `kubernetes_api.call` does
    except ValueError:
        return False
    if not isinstance(body, dict):
        return False
    job = state.parse_job(object_of(body["job"])) if "job" in body else None
    pods = (state.parse_pod(object_of(body["pod"])),) if "pod" in body else ()
    events = (state.parse_cluster_event(object_of(body["event"])),) if "event" in body else ()
    look = state.Look(job, pods, events, "1")
    failures.classify(look, failures.Waited(1, 1, 1, 1), DeadlineSettings())
    failures.is_unreachable(look)
    found, _ = phases.pod_phases(look)
    require(all(math.isfinite(phase.duration_s) for phase in found), "no finite time")
    if "node" in body:
        node = nodes.parse_node(object_of(body["node"]), "nvidia.com/gpu")
        require(0 <= node.gpus < 10_000, f"{node.gpus} GPUs")
    return True


def _kubernetes_seeds() -> tuple[bytes, ...]:
    whole = {"job": JOB, "pod": POD, "event": EVENT, "node": NODE}
    return (json.dumps(whole).encode(), json.dumps({"pod": POD, "job": JOB}).encode())


CHAOS: Final[dict[str, Any]] = {
    "metadata": {"uid": "u"},
    "status": {
        "conditions": [{"type": "Selected", "status": "True"},
                       {"type": "AllInjected", "status": "False"}],
        "experiment": {"containerRecords": [{"id": "a", "phase": "Not Injected", "events": [
            {"type": "Failed", "operation": "Apply", "message": "m"}]}]},
    },
}  # fmt: skip
LITMUS: Final[dict[str, Any]] = {
    "status": {
        "engineStatus": "initialized", "experiments": [{"name": "x", "status": "Running"}],
        "experimentStatus": {"phase": "Completed", "verdict": "Pass",
                             "probeSuccessPercentage": "100",
                             "failureOutput": {"failedStep": "s", "errorCode": "e"}},
    }
}  # fmt: skip


def check_chaos(content: bytes) -> bool:
    """The status of an object of Chaos Mesh or Litmus."""
    try:
        body = strict_json.loads(content)  # as `kubernetes_api.call` does
    except ValueError:
        return False
    if not isinstance(body, dict):
        return False
    found = chaos_mesh.parse_state(body)
    conditions = _conditions_of(body)
    require(not found.all_injected or conditions.get("AllInjected") == "True", "AllInjected")
    require(not found.all_recovered or conditions.get("AllRecovered") == "True", "AllRecovered")
    litmus.parse_engine(body)
    litmus.parse_result(body)
    return True


def _conditions_of(body: Mapping[str, Any]) -> dict[str, Any]:
    status = body.get("status")
    listed = status.get("conditions") if isinstance(status, dict) else None
    found = listed if isinstance(listed, list) else []
    return {
        item["type"]: item.get("status")
        for item in found
        if isinstance(item, dict) and isinstance(item.get("type"), str)
    }


# All of them.

KERNEL_LOG: Final = (
    b"Out of memory: Killed process 4242 (python) total-vm:1kB\n"
    b"oom-kill:constraint=CONSTRAINT_MEMCG,task_memcg=/x/worker-7,task=python,pid=4242,uid=0\n"
    b"NVRM: Xid (PCI:0000:19:00): 31, pid='4242', name=python, Ch 00000008\n"
)
GPU_BURN: Final = (
    b"GPU 0: NVIDIA H200 (UUID: GPU-0)\nGPU 1: NVIDIA H200 (UUID: GPU-1)\n"
    b"\r50.0%  proc'd: 335 (52102 Gflop/s)  - 340 (52000 Gflop/s)   errors: 0  - 0   temps: 61 C\n"
    b"\r100.0%  proc'd: 670 (52102 Gflop/s)  - 680 (51000 Gflop/s)   errors: 0  - 0   temps: 61 C\n"
    b"Tested 2 GPUs:\n\tGPU 0: OK\n\tGPU 1: FAULTY\n"
)
DCGMI: Final = (
    json.dumps(
        {"body": {"Overall Health": {"value": "Failure"},
                  "GPU": {"children": {"0": {"children": {"Errors": {"children": {"Memory": {
                      "overflow": ["1 volatile DBE"], "value": "Failure"}}}}}}}},
         "header": ["Health Monitor Report"]}
    ).encode(),
    b"| GPU ID | Device |\n| 0      | Name: NVIDIA H200 |\n|        | Device UUID: GPU-4a3f-11 |\n",
    b"#Entity   XIDER     \nID                  \nGPU 0     95        \nGPU 1     N/A       \n",
)  # fmt: skip
REFERENCE_OUTPUT: Final = (
    b'{"event": "phase", "name": "import", "start_ns": 10, "end_ns": 2000}\n'
    b'{"event": "phase", "name": "weights", "start_ns": 2000, "end_ns": 2500}\nwords\n'
    b'{"event": "phase", "name": "server_up", "start_ns": 2500, "end_ns": 9000}\n'
)
JOB_EVENTS: Final = (
    b'{"event": "progress", "what": "restore", "done": 1, "total": 5}\n'
    b'{"event": "done", "unsupported": {"a": "b"}, "folder": "/x"}\nwords\n'
)
CUDA_INDEX: Final = (
    b'<html><pre><a href="redistrib_12.4.1.json">redistrib_12.4.1.json</a>  2024-04-02 12:00  1\n'
    b"<a href='redistrib_13.0.2.json'>redistrib_13.0.2.json</a></pre></html>"
)
SUITES: Final = (
    b'name = "gate"\nworker = "reference"\n\n[[job]]\nname = "comes back"\nkind = "startup"\n'
    b'arms = [\n  "warm_cache",\n  "restore",\n]\nrepeats = 2\nmax_median_s = { restore = 3.0 }\n\n'
    b'[[job]]\nname = "survives"\nkind = "fault"\nfaults = ["worker_killed"]\n'
    b'recoveries = ["restore"]\nmax_recover_s = 30\n\n[compare]\nbaseline = "latest"\n'
    b"max_slowdown = 0.1\n",
)
SPECS: Final = (
    b'{"kind": "startup", "worker": "reference", "arms": ["cold", "restore"], "repeats": 3, '
    b'"page_cache": "auto", "sleep_levels": [1]}',
    b'{"kind": "fault", "worker": "reference", "faults": ["worker_killed"], "recoveries": [], '
    b'"repeats": 2, "controls": true, "port": 8000}',
    b'{"kind": "snapshot", "worker": "reference", "sleep_level": 1}',
    b'{"kind": "collectives", "sizes": [1048576], "ranks": 2, "repeats": 1}',
)
CHAOS_TOOLKIT: Final = (
    json.dumps(
        {"title": "t", "method": [{"type": "action", "name": "a", "provider": {
            "type": "process", "path": "resilience",
            "arguments": ["run", "fault", "worker_killed", "--worker", "reference",
                          "--repeats", "2", "--no-controls"]}}], "rollbacks": []}
    ).encode(),
    json.dumps(
        {"experiment": {"title": "t", "method": [{"type": "action", "provider": {
            "type": "process", "path": "/bin/kill", "arguments": ["-9", "17"]}}]}}
    ).encode(),
)  # fmt: skip
IMPORTS: Final[Mapping[str, bytes]] = {
    "table": b"source,product,figure,value,unit,n,gpu_count\nsomebody,vLLM,start-up,12.5,s,5,8\n",
    "vllm-bench-startup": b'{"cold_startup_times": [60.5, 61.0], "warm_startup_times": [30.1]}',
    "nccl-tests": json.dumps(
        {"config": {"devices": [{"device_info": "NVIDIA H100"}]},
         "results": [{"size": 1024, "experiment_name": "all_reduce_perf", "actual_iterations": 20,
                      "out_of_place": {"bus_bw": 1.5, "nwrong": 0}, "in_place": None}]}
    ).encode(),
    "nvbandwidth": json.dumps(
        {"nvbandwidth": {"Driver Version": "580.1", "testcases": [
            {"name": "d2d", "status": "Passed", "bandwidth_description": "memcpy (GB/s)",
             "bandwidth_matrix": [["N/A", "390.5"], ["391.5", "N/A"]]}]}}
    ).encode(),
    "dynamo-snapshot": json.dumps(
        {"result": {"outcome": "passed", "startedAt": "2026-10-01T09:08:20Z",
                    "identity": {"case": "vllm"},
                    "environment": {"frameworkImage": "vllm:v0.27.1", "model": "Qwen/Qwen3-0.6B",
                                    "restoreGpus": [{"driverVersion": "615.71", "model": "A100"}],
                                    "storage": {"provisioner": "file"}},
                    "measurements": [{"displayName": "d", "status": "complete", "unit": "seconds",
                                      "name": "restore.to_traffic.duration", "value": 56.99}]}}
    ).encode(),
    "dynamo-agent-log": b'2026\tINFO\tRestore timing summary\t{"pod": "a", "snapshot": "b", '
    b'"restore": {"duration": "1m2.5s", "phases": {"criu_restore": "2.359102s"}}}\n',
}  # fmt: skip


def find_pycriu() -> Any:
    """The pycriu of this machine's CRIU; None where there is none."""
    from resilience_pipelines.errors import ResilienceError
    from resilience_pipelines.snapshots.criu_binary import find_criu, import_pycriu

    try:
        return import_pycriu(find_criu())
    except ResilienceError:
        return None


def all_targets(folder: Path) -> list[Target]:
    """Every target of this machine, in a fixed order.

    Args:
        folder: where those that need files keep them.
    """

    def place(name: str) -> Path:
        made = folder / name
        made.mkdir(mode=0o700, exist_ok=True)
        return made

    samples = LandingSamples(place("landing_samples"))
    loading = LandingLoad(place("landing_load"))
    manifest = SnapshotManifest(place("snapshot_manifest"))
    envelope = RepositoryManifest(place("repository_manifest"))
    atom, drivers = (DATA / "feeds" / name for name in ("vllm.atom", "drivers.json"))
    vllm = (DATA / "vllm-0.23.0-warm-start.log").read_bytes()
    exec_event = b'{"event": "exec", "at_ns": 0}\n'
    vllm = exec_event + b"\n".join(line.partition(b" ")[2] for line in vllm.splitlines())
    found = [
        Target("landing_record", _records(), LandingRecord(place("record")).check, Form.JSON, 2),
        Target("landing_samples", samples.seeds, samples.check, Form.BINARY, 2),
        Target("landing_load", loading.seeds, loading.check, Form.JSON, 200),
        Target("snapshot_manifest", manifest.seeds, manifest.check, Form.JSON),
        Target("repository_manifest", envelope.seeds, envelope.check, Form.JSON),
        Target("repository_object", _seal_seeds(), check_sealed, Form.BINARY),
        Target(
            "repository_format", (UNSEALED.seal(FORMAT, b"resilience snapshot repository 1"),),
            check_format, Form.BINARY,
        ),
        Target("repository_lease", (b'{"ends_at": 1000}',), check_lease, Form.JSON),
        Target("vllm_log", (vllm,), check_vllm_log, Form.TEXT),
        Target("reference_output", (REFERENCE_OUTPUT,), check_reference_output, Form.JSON),
        Target("job_events", (JOB_EVENTS,), check_job_events, Form.JSON),
        Target("kernel_log", (KERNEL_LOG,), check_kernel_log, Form.TEXT),
        Target("nccl_log", ((DATA / "nccl-transports.log").read_bytes(),), check_nccl_log,
               Form.TEXT),
        Target("gpu_burn", (GPU_BURN,), check_gpu_burn, Form.TEXT),
        Target("dcgmi", DCGMI, check_dcgmi, Form.JSON),
        Target("feed_drivers", (drivers.read_bytes(),),
               _check_releases(feeds.parse_nvidia_drivers), Form.JSON),
        Target("feed_atom", (atom.read_bytes(),), _check_releases(feeds.parse_atom), Form.TEXT),
        Target("feed_cuda", (CUDA_INDEX,), _check_releases(feeds.parse_cuda_index), Form.TEXT),
        Target("suite", SUITES, SuiteFile(place("suite")).check, Form.TEXT),
        Target("job_spec", SPECS, check_job_spec, Form.JSON),
        Target("chaos_toolkit", CHAOS_TOOLKIT, check_chaos_toolkit, Form.JSON),
        *(
            Target(f"import_{name}", (content,), _check_baselines(name),
                   Form.TEXT if name in ("table", "dynamo-agent-log") else Form.JSON)
            for name, content in IMPORTS.items()
        ),
        Target("kubernetes", _kubernetes_seeds(), check_kubernetes, Form.JSON),
        Target("chaos_operators", (json.dumps(CHAOS).encode(), json.dumps(LITMUS).encode()),
               check_chaos, Form.JSON),
        Target("query", QUERIES, QueryText(place("query")).check, Form.TEXT, 10),
    ]  # fmt: skip
    if (pycriu := find_pycriu()) is not None:
        images = CriuImages(place("criu"), pycriu)
        found.append(Target("criu_images", images.seeds, images.check, Form.BINARY, 2))
    return found
