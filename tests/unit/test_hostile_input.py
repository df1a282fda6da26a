"""Input that fuzzing found to fall over or to be taken for another: one test for each kind."""

from __future__ import annotations

import json
import math
import struct
import threading
import zlib
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import duckdb
import pyarrow
import pytest

from resilience_pipelines.ci.suite import read_suite
from resilience_pipelines.errors import CorruptError, InputError
from resilience_pipelines.faults.chaos_mesh import parse_state
from resilience_pipelines.faults.chaostoolkit import read_file
from resilience_pipelines.faults.gpu_burn_tool import parse_gpu_burn
from resilience_pipelines.job_spec import parse_spec
from resilience_pipelines.kubernetes_api import ApiError
from resilience_pipelines.launchers.kubernetes.state import parse_cluster_event, parse_pod
from resilience_pipelines.records import CriuStatistics, OracleVerdict
from resilience_pipelines.releases.formats import parse_atom, parse_nvidia_drivers
from resilience_pipelines.snapshots.criu import read_statistics
from resilience_pipelines.snapshots.leases import FOLDER, Leases
from resilience_pipelines.snapshots.reasons import SnapshotError
from resilience_pipelines.snapshots.repository import MANIFESTS, Repository
from resilience_pipelines.snapshots.sealing import UNSEALED
from resilience_pipelines.snapshots.storage import FolderStorage
from resilience_pipelines.snapshots.store import SnapshotStore, parse_manifest
from resilience_pipelines.warehouse.landing import RUN_FILE, read_landing
from resilience_pipelines.warehouse.load import load
from resilience_pipelines.workers.base import OutputLine
from resilience_pipelines.workers.client import WorkerAnswerError, WorkerClient, parse_completion
from resilience_pipelines.workers.oracle import check_answer, record_answer
from resilience_pipelines.workers.reference_host import ReferenceWorker
from resilience_pipelines.workers.space import HostSpace
from resilience_pipelines.workers.vllm_log import phases_of
from tests.factories import RecordFactory, land, make_home, make_stack
from tests.support.snapshots import put

EQUAL = OracleVerdict.EQUAL

# Records and manifests say what they mean, in one way.


def changed_record(tmp_path: Path, old: str, new: str) -> Path:
    record = RecordFactory(3).startup_record(repeats=1)
    text = record.model_dump_json()
    assert old in text
    folder = tmp_path / record.run_id
    folder.mkdir()
    (folder / RUN_FILE).write_text(text.replace(old, new, 1))
    return folder


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"repeat":0', '"repeat":true'),
        ('"repeat":0', '"repeat":"0"'),
        ('"repeat":0', '"repeat":9223372036854775808'),
        ('"repeat":0', '"repeat":0,"repeat":1'),
        ('"worker":', '"worker":"other","worker":'),
        ('"parameters":{', '"parameters":{"a":NaN,'),
        ('"parameters":{', '"parameters":{"a":1e400,'),
        ('"parameters":{', '"parameters":{"a":' + "[" * 5000 + "]" * 5000 + ","),
        ('"throughput_tokens_per_s":', '"throughput_tokens_per_s":1e999,"x":'),
        ('"max_logprob_difference":0.0', '"max_logprob_difference":Infinity'),
        ('"started_at":"', '"started_at":17,"x":"'),
        ('"cpu_count":2', '"cpu_count":"2"'),
    ],
)
def test_a_record_that_says_something_twice_or_in_another_type_is_refused(
    tmp_path: Path, old: str, new: str
) -> None:
    with pytest.raises(CorruptError):
        read_landing(changed_record(tmp_path, old, new))


def manifest(tmp_path: Path) -> tuple[str, dict[str, Any]]:
    stored = put(SnapshotStore(tmp_path / "store"), created_at=datetime(2026, 3, 2, tzinfo=UTC))
    return stored.manifest.snapshot_id, json.loads(stored.manifest.model_dump_json())


@pytest.mark.parametrize(
    "path",
    ["manifest.json", "manifest.sig", ".owner.lock", "images", "images/", "images/../x", "/etc/x",
     "other/x", "images//x", "shm/./x", "images/\0"],
)  # fmt: skip
def test_a_manifest_names_files_of_the_image_alone(tmp_path: Path, path: str) -> None:
    snapshot_id, content = manifest(tmp_path)
    content["files"][0]["path"] = path
    with pytest.raises(SnapshotError):
        parse_manifest(snapshot_id, json.dumps(content).encode())


@pytest.mark.parametrize(
    "change",
    [
        {"throughput_tokens_per_s": float("inf")}, {"port": True}, {"port": "8000"},
        {"root_pid": 2**40}, {"schema_version": 0},
        {"answer": {"prompt": "p", "token_ids": [2**63], "logprobs": [-1]}},
        {"sleep_level": -1}, {"sleep_level": 2**63},
    ],
)  # fmt: skip
def test_a_manifest_has_numbers_that_can_be(tmp_path: Path, change: dict[str, object]) -> None:
    snapshot_id, content = manifest(tmp_path)
    with pytest.raises(SnapshotError):
        parse_manifest(snapshot_id, json.dumps(content | change).encode())


def test_a_manifest_names_each_file_once(tmp_path: Path) -> None:
    snapshot_id, content = manifest(tmp_path)
    content["files"].append(content["files"][0])
    with pytest.raises(SnapshotError, match="twice"):
        parse_manifest(snapshot_id, json.dumps(content).encode())


def test_no_id_ends_in_a_line_break(tmp_path: Path) -> None:
    store = SnapshotStore(tmp_path / "store")
    stored = put(store)
    with pytest.raises(InputError, match="no snapshot id"):
        store.get(stored.manifest.snapshot_id + "\n")


# Repositories.


def sealed(codec: int, cipher: int, plain_bytes: int, body: bytes) -> bytes:
    """An object with a right checksum: whoever writes one can compute it."""
    header = struct.pack(">4sBBBQ", b"RSNP", 1, codec, cipher, plain_bytes)
    return header + struct.pack(">I", zlib.crc32(body, zlib.crc32(header + b"name"))) + body


@pytest.mark.parametrize(("codec", "name"), [(1, "lz4"), (2, "zstd")])
@pytest.mark.parametrize("said", [0, 5, 99, 5000, 200 * 2**20])
def test_an_object_that_holds_more_or_less_than_it_says_is_damaged(
    codec: int, name: str, said: int
) -> None:
    """Were it filled up, whatever was in memory would pass for its content."""
    body = pyarrow.Codec(name).compress(b"x" * 100, asbytes=True)
    with pytest.raises(CorruptError):
        UNSEALED.open("name", sealed(codec, 0, said, body))


def test_a_small_object_does_not_unpack_into_a_large_one() -> None:
    body = pyarrow.Codec("zstd").compress(bytes(64 * 2**20), asbytes=True)
    assert len(body) < 10_000
    with pytest.raises(CorruptError, match="101 bytes instead of 100"):
        UNSEALED.open("name", sealed(2, 0, 100, body))


def test_a_cipher_that_nobody_knows_is_damage() -> None:
    with pytest.raises(CorruptError, match="header"):
        UNSEALED.open("name", sealed(0, 7, 1, b"x"))


@pytest.mark.parametrize(
    "envelope",
    [b"[" * 5000, b"{}", b'{"manifest": 1, "ed25519": null}', b'{"manifest": "{}", "ed25519": 7}',
     b'{"manifest": "{}", "ed25519": ["x"]}', b'{"manifest": "\\ud800", "ed25519": null}', b"null"],
)  # fmt: skip
def test_a_manifest_that_can_not_be_used_is_named_and_hides_no_other(
    tmp_path: Path, envelope: bytes
) -> None:
    storage = FolderStorage(tmp_path / "repository")
    snapshot_id = "snap-20260302T090000Z-00000000"
    storage.put(MANIFESTS + snapshot_id, UNSEALED.seal(MANIFESTS + snapshot_id, envelope))
    repository = Repository(storage)
    stored = put(SnapshotStore(tmp_path / "store"))
    repository.put(stored)
    assert repository.unreadable() == [snapshot_id]
    assert [item.snapshot_id for item in repository.all()] == [stored.manifest.snapshot_id]


@pytest.mark.parametrize(
    "content",
    [b'{"ends_at": 1e400}', b'{"ends_at": NaN}', b'{"ends_at": false}', b'{"ends_at": "1"}',
     b"[" * 5000, b'{"ends_at": 1, "ends_at": 99999999999}', b"\xff", b""],
)  # fmt: skip
def test_a_lease_that_can_not_be_read_is_held(tmp_path: Path, content: bytes) -> None:
    storage = FolderStorage(tmp_path / "repository")
    storage.put(f"{FOLDER}put-1", content)
    Leases(storage, clock=lambda: 1e6).remove_expired()
    assert storage.get(f"{FOLDER}put-1") == content


@pytest.mark.parametrize("end", ["1", "-" + "9" * 400])
def test_a_lease_that_ended_is_removed_however_long_ago(tmp_path: Path, end: str) -> None:
    storage = FolderStorage(tmp_path / "repository")
    storage.put(f"{FOLDER}put-1", b'{"ends_at": %s}' % end.encode())
    Leases(storage, clock=lambda: 1e6).remove_expired()
    assert storage.get(f"{FOLDER}put-1") is None


# Engines and tools.


def test_an_engine_that_logs_json_has_phases(tmp_path: Path) -> None:
    lines = [
        '{"event": "exec", "at_ns": 100}', '{"message": "vLLM server version 0.23.0"}',
        '{"message": "Initializing a V1 LLM engine"', '{"at_ns": "x", "m": "Loading model took 1"}',
    ]  # fmt: skip
    read = [OutputLine(1000 * number, text) for number, text in enumerate(lines)]
    assert [(mark.name, mark.start_ns) for mark in phases_of(read, "0.23.0")] == [
        ("import", 100), ("engine_start", 1000),
    ]  # fmt: skip


def test_a_start_that_is_said_to_begin_after_its_end_has_no_such_phase() -> None:
    lines = ['{"event": "exec", "at_ns": 99999}', "vLLM server version 0.23.0"]
    read = [OutputLine(number, text) for number, text in enumerate(lines)]
    assert phases_of(read, "0.23.0") == []


@pytest.mark.parametrize(
    "line",
    [
        '{"event": "phase", "name": "import"}', '{"event": "phase", "name": ["import"]}',
        '{"event": "phase", "name": "import", "start_ns": "a", "end_ns": 2}',
        '{"event": "phase", "name": "import", "start_ns": 1e400, "end_ns": 2}',
        '{"event": "phase", "name": "import", "start_ns": 5, "end_ns": 2}',
        '{"event": "phase", "name": "import", "start_ns": 1, "end_ns": ' + "9" * 5000 + "}",
        '{"event": "phase", "name": "import", "start_ns": -5, "end_ns": 2}', '{"a":' * 5000,
    ],
)  # fmt: skip
def test_a_phase_that_can_not_be_is_left_out_and_the_next_one_is_not(line: str) -> None:
    good = '{"event": "phase", "name": "weights", "start_ns": 10, "end_ns": 20}'
    read = [OutputLine(0, text) for text in (line, good, good)]
    assert [mark.name for mark in ReferenceWorker(Path("/x")).marks(read)] == ["weights"]


@pytest.mark.parametrize(
    "choice",
    [
        {"token_ids": [True], "logprobs": {"token_logprobs": [-1.0]}},
        {"token_ids": [1.5], "logprobs": {"token_logprobs": [-1.0]}},
        {"token_ids": ["1"], "logprobs": {"token_logprobs": [-1.0]}},
        {"token_ids": [10**400], "logprobs": {"token_logprobs": [-1.0]}},
        {"token_ids": [1], "logprobs": {"token_logprobs": [None]}},
        {"token_ids": [1], "logprobs": {"token_logprobs": [10**400]}},
        {"token_ids": [1], "logprobs": {"token_logprobs": ["-1"]}},
        {"token_ids": None, "logprobs": {}}, [], None,
    ],
)  # fmt: skip
def test_an_answer_whose_tokens_are_none_is_no_answer(choice: object) -> None:
    with pytest.raises(WorkerAnswerError):
        parse_completion({"choices": [choice]})


def test_a_gpu_once_called_faulty_stays_so_and_there_are_no_billions_of_them() -> None:
    text = "proc'd: 5 (5 Gflop/s)  errors: 0  temps: 1 C\nGPU 0: FAULTY\nGPU 0: OK\n"
    (gpu,) = parse_gpu_burn(text + "GPU 99999999999: OK\n")
    assert (gpu.verdict, gpu.passed) == ("FAULTY", False)
    assert parse_gpu_burn("proc'd: 5 (" + "9" * 5000 + " Gflop/s)  errors: 0") == ()


def test_a_damaged_statistics_file_leaves_figures_out(tmp_path: Path) -> None:
    def explode(stream: object) -> None:
        raise Exception("Array size mismatch")

    def says(**figures: object) -> Any:
        return SimpleNamespace(
            images=SimpleNamespace(load=lambda _: {"entries": [{"dump": figures}]})
        )

    nothing = CriuStatistics()
    (tmp_path / "stats-dump").write_bytes(b"x")
    broken: Any = SimpleNamespace(images=SimpleNamespace(load=explode))
    assert read_statistics(tmp_path, "dump", broken) == nothing
    assert read_statistics(tmp_path / "gone", "dump", broken) == nothing
    empty: Any = SimpleNamespace(images=SimpleNamespace(load=lambda _: {"entries": []}))
    assert read_statistics(tmp_path, "dump", empty) == nothing
    assert read_statistics(tmp_path, "dump", says(pages_written=-1)) == nothing
    found = read_statistics(tmp_path, "dump", says(frozen_time=5, pages_written=2**70))
    assert (found.frozen_s, found.pages_written) == (5e-6, None)


# Feeds, suites, specifications, clusters.


@pytest.mark.parametrize("architectures", [7, "x86_64", {"x86_64": 1}, True, None])
def test_architectures_that_are_no_list_are_not_told(architectures: object) -> None:
    entry = {"release_version": "580.1", "architectures": architectures}
    (release,) = parse_nvidia_drivers(json.dumps({"580": {"driver_info": [entry]}}).encode())
    assert release.architectures == ()


def test_a_version_of_thousands_of_digits_refuses_its_feed() -> None:
    entry = f"<entry><id>x/v{'9' * 5000}.1</id></entry>"
    with pytest.raises(CorruptError):
        parse_atom(f'<feed xmlns="http://www.w3.org/2005/Atom">{entry}</feed>'.encode())


def test_a_feed_in_an_encoding_that_nobody_knows_is_refused() -> None:
    with pytest.raises(CorruptError):
        parse_atom(b'<?xml version="1.0" encoding="no-such"?><feed/>')


@pytest.mark.parametrize("text", ["a = " + "[" * 5000, "a = " + "9" * 5000, "a = 0x" + "f" * 9000])
def test_a_suite_without_end_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "suite.toml").write_text(text)
    with pytest.raises(InputError):
        read_suite(tmp_path / "suite.toml")


@pytest.mark.parametrize(
    "text",
    ['{"kind": "fault", "repeats": true}', '{"kind": "fault", "repeats": "3"}',
     '{"kind": "fault", "repeats": 1, "repeats": 9}', '{"kind": "startup", "sleep_levels": [-1]}',
     '{"kind": "collectives", "sizes": [18446744073709551616]}', "[" * 5000],
)  # fmt: skip
def test_a_specification_of_other_types_is_refused(text: str) -> None:
    with pytest.raises(InputError):
        parse_spec(text)


@pytest.mark.parametrize(
    ("option", "value"), [("--repeats", "9" * 5000), ("--worker", "--json"), ("--worker", "")]
)
def test_an_experiment_has_no_option_for_a_name_and_an_end(option: str, value: str) -> None:
    arguments = ["run", "fault", "worker_killed", option, value]
    provider = {"type": "process", "path": "resilience", "arguments": arguments}
    action = {"type": "action", "name": "a", "provider": provider}
    with pytest.raises(InputError, match=option):
        read_file(json.dumps({"method": [action]}).encode())


@pytest.mark.parametrize("pod", [{}, {"metadata": []}, {"metadata": {"name": 7, "uid": "u"}}])
def test_a_pod_without_a_name_is_no_pod(pod: dict[str, Any]) -> None:
    with pytest.raises(ApiError, match="metadata"):
        parse_pod(pod)


def test_what_a_cluster_says_in_other_types_is_not_said() -> None:
    metadata = {"name": "a", "uid": "u", "creationTimestamp": "2026-03-02", "labels": 1}
    status = {"conditions": [1, {"type": {}}], "containerStatuses": {"a": 1}, "phase": []}
    pod = parse_pod({"metadata": metadata, "status": status, "spec": "x"})
    assert (pod.phase, pod.node, pod.created_at, pod.container) == ("Unknown", None, None, None)
    event = parse_cluster_event({"count": "many", "source": [], "firstTimestamp": "soon"})
    assert (event.count, event.at, event.source) == (1, None, "")


def test_a_condition_that_is_told_twice_holds_only_if_it_does_both_times() -> None:
    conditions = [
        {"type": "AllInjected", "status": "False"}, {"type": "AllInjected", "status": "True"}, 3,
    ]  # fmt: skip
    assert not parse_state({"status": {"conditions": conditions}}).all_injected
    assert parse_state({"status": ["x"]}).failures == ()


def test_a_value_that_can_not_be_shown_does_not_hide_its_error() -> None:
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    for value in (deep, 16**5000, "x" * 100_000):
        assert len(str(InputError("field", value, "no", mend=""))) < 3000


# Names are only names, and a worker is believed by its answers.


def test_a_name_that_is_sql_is_only_a_name(tmp_path: Path) -> None:
    evil = "x'); drop table raw.runs; --\"; attach '/tmp/x' as y; select $$"
    home = make_home(tmp_path / 'it\'s a "home"; drop table raw.runs; --')
    factory = RecordFactory(9, worker=evil)
    stack = make_stack(model=evil, gpu_sku=evil, engine=evil)
    startup = factory.startup().model_copy(update={"measurement_id": evil, "variant": evil})
    record = factory.record(stack=stack, startups=(startup,))
    land(home.landing, record, samples=factory.samples(record))
    land(home.landing, RecordFactory(10).startup_record(repeats=1))
    report = load(home)
    assert (len(report.loaded), report.rejected) == (2, ())
    with duckdb.connect(str(home.warehouse), read_only=True) as connection:
        assert connection.execute("select count(*) from raw.runs").fetchone() == (2,)
        found = connection.execute(
            "select r.worker, s.measurement_id, k.model from raw.runs r join raw.startups s "
            "using (run_id) join raw.stacks k using (stack_key) where r.run_id = ?",
            [record.run_id],
        ).fetchall()
    assert found == [(evil, evil, evil)]


LIES: dict[str, Any] = {
    "another token": ([1, 2, 9], [-1.0, -1.0, -1.0]),
    "the first token only": ([1], [-1.0]),
    "more tokens": ([1, 2, 3, 4], [-1.0] * 4),
    "no tokens": ([], []),
    "no log-probabilities": ([1, 2, 3], []),
    "numbers that are none": ([1, 2, 3], [math.nan] * 3),
    "numbers without end": ([1, 2, 3], [-math.inf] * 3),
    "other certainty": ([1, 2, 3], [-1.0, -1.0, -3.0]),
    "truths for tokens": ([True, 2, 3], [-1.0, -1.0, -1.0]),
    "fractions for tokens": ([1.0, 2, 3], [-1.0, -1.0, -1.0]),
    "text": (["1", "2", "3"], [-1.0, -1.0, -1.0]),
}


@pytest.fixture
def liar() -> Iterator[tuple[WorkerClient, dict[str, Any]]]:
    """A server that is always healthy, and answers what it is told to."""
    says: dict[str, Any] = {"answer": ([1, 2, 3], [-1.0, -1.0, -1.0])}

    class Handler(BaseHTTPRequestHandler):
        def _say(self, body: object) -> None:
            text = json.dumps(body).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def do_GET(self) -> None:
            self._say({"status": "healthy"})

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            ids, logprobs = says["answer"]
            choice = {"token_ids": ids, "logprobs": {"token_logprobs": logprobs}}
            self._say({"choices": [choice]})

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        space = HostSpace()
        yield WorkerClient(space, server.server_port, "model"), says
        space.close()
        server.shutdown()


@pytest.mark.parametrize("lie", list(LIES))
def test_a_worker_that_says_it_is_healthy_and_answers_wrong_is_found_out(
    liar: tuple[WorkerClient, dict[str, Any]], lie: str
) -> None:
    client, says = liar
    expected = record_answer(client, timeout_s=5)
    assert check_answer(client, expected, tolerance=0.1, timeout_s=5).verdict is EQUAL
    says["answer"] = LIES[lie]
    assert client.healthy()
    try:
        found = check_answer(client, expected, tolerance=0.1, timeout_s=5)
    except WorkerAnswerError:
        return
    assert found.verdict is OracleVerdict.DIFFERENT


@pytest.mark.parametrize("lie", ["numbers that are none", "numbers without end", "no tokens"])
def test_an_answer_that_nothing_can_be_compared_with_is_not_recorded(
    liar: tuple[WorkerClient, dict[str, Any]], lie: str
) -> None:
    client, says = liar
    says["answer"] = LIES[lie]
    with pytest.raises(WorkerAnswerError):
        record_answer(client, timeout_s=5)
