"""The reference worker as a real process: its contract, its phases, its snapshot."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from resilience_pipelines.records import OracleVerdict
from resilience_pipelines.snapshots.engine import SnapshotEngine
from resilience_pipelines.startup.arms import restore_worker
from resilience_pipelines.workers.client import WorkerAnswerError, WorkerClient
from resilience_pipelines.workers.oracle import RecordedAnswer, check_answer, record_answer
from resilience_pipelines.workers.process import RunningWorker, WorkerFailedError, launch
from resilience_pipelines.workers.reference import server as worker_server
from resilience_pipelines.workers.reference.weights import TINY, write_weights
from resilience_pipelines.workers.reference_host import ReferenceWorker
from resilience_pipelines.workers.space import HostSpace, SpaceSupport, open_space, wait_until

MODULE = "resilience_pipelines.workers.reference"
START_DEADLINE_S = 120.0
PHASES = ["import", "weights", "compile", "warm_up", "server_up"]


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> ReferenceWorker:
    made = ReferenceWorker(tmp_path_factory.mktemp("weights"))
    write_weights(made.weights, TINY, made.seed)
    return made


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("compiled")


@pytest.fixture(scope="module")
def shared(worker: ReferenceWorker, cache: Path) -> Iterator[RunningWorker]:
    """One worker for all tests that leave it as they found it."""
    with launch(worker, HostSpace(), cache) as started:
        started.wait_ready()
        yield started


@pytest.fixture
def running(worker: ReferenceWorker, cache: Path) -> Iterator[RunningWorker]:
    with launch(worker, HostSpace(), cache) as started:
        started.wait_ready()
        yield started


@contextlib.contextmanager
def program(
    worker: ReferenceWorker, cache: Path, *arguments: str, **options: Any
) -> Iterator[subprocess.Popen[bytes]]:
    """The bare program with other arguments or standard streams."""
    argv = [sys.executable, "-m", MODULE, "--weights", str(worker.weights), *arguments]
    environment = dict(os.environ) | {"NUMBA_CACHE_DIR": str(cache)}
    process: subprocess.Popen[bytes] = subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, env=environment, **options
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait(10)
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()


def ended(worker: ReferenceWorker, cache: Path, *arguments: str) -> tuple[int, str]:
    with program(worker, cache, *arguments, stderr=subprocess.PIPE) as process:
        _, errors = process.communicate(timeout=START_DEADLINE_S)
    return process.returncode, errors.decode()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def events(lines: Sequence[str], name: str) -> list[dict[str, Any]]:
    told = [json.loads(line) for line in lines if line.startswith("{")]
    return [event for event in told if event["event"] == name]


def output_of(running: RunningWorker) -> list[str]:
    return [line.text for line in running.output.lines()]


def request(
    port: int, method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None
) -> tuple[int, Any, http.client.HTTPMessage]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    text = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    try:
        connection.request(method, path, text, dict(headers or {}))
        response = connection.getresponse()
        content = response.read()
        return response.status, json.loads(content or b"null"), response.headers
    finally:
        connection.close()


def complete(port: int, body: object) -> tuple[int, Any]:
    status, answer, _ = request(port, "POST", "/v1/completions", body)
    return status, answer


def answers_right(client: WorkerClient, answer: RecordedAnswer) -> bool:
    verdict = check_answer(client, answer, tolerance=0, timeout_s=30).verdict
    return verdict is OracleVerdict.EQUAL


# Start


def test_phases_follow_each_other_from_start_to_ready(running: RunningWorker) -> None:
    lines = output_of(running)
    (started,), (ready,) = events(lines, "started"), events(lines, "ready")
    assert json.loads(lines[0]) == started
    assert started["pid"] == running.process.inner_pid
    assert ready["port"] == running.plan.port
    phases = events(lines, "phase")
    assert [phase["name"] for phase in phases] == PHASES
    cursor = started["monotonic_ns"]
    assert running.launched_ns < cursor
    for phase in phases:
        assert phase["start_ns"] == cursor < phase["end_ns"]
        cursor = phase["end_ns"]
    assert cursor <= ready["monotonic_ns"] < time.monotonic_ns()
    assert [mark.name for mark in running.worker.marks(running.output.lines())] == PHASES


def test_a_filled_cache_is_used_and_not_written_again(
    worker: ReferenceWorker, cache: Path, shared: RunningWorker
) -> None:
    before = {path: path.stat().st_mtime_ns for path in cache.rglob("*.nb?")}
    assert len(before) >= 12  # an index and a function for each kernel
    with launch(worker, HostSpace(), cache) as other:
        other.wait_ready()
    assert {path: path.stat().st_mtime_ns for path in cache.rglob("*.nb?")} == before


def test_its_process_imports_nothing_of_the_platform() -> None:
    modules = ", ".join(f"{MODULE}.{name}" for name in ("server", "model", "__main__"))
    code = f"import sys, {modules}; print(*sorted(sys.modules))"
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    ).stdout.split()
    ours = {name for name in found if name.startswith("resilience_pipelines")}
    allowed = {"resilience_pipelines", "resilience_pipelines.workers"}
    assert {name for name in ours if not name.startswith(MODULE)} == allowed
    assert not {"pydantic", "dagster", "httpx", "polars"} & set(found)


def test_it_holds_no_file_and_no_connection_at_rest(
    shared: RunningWorker, worker: ReferenceWorker
) -> None:
    assert shared.client.healthy()
    process = psutil.Process(shared.process.pid)
    # Sockets are closed by threads that may still be about to.
    wait_until(lambda: len(process.net_connections()) == 1, 5, "only the listening socket", 0.02)
    assert process.net_connections()[0].status == psutil.CONN_LISTEN
    links = [os.readlink(f"/proc/{process.pid}/fd/{entry.name}") for entry in
             Path(f"/proc/{process.pid}/fd").iterdir()]  # fmt: skip
    assert [link for link in links if link.startswith("/") and link != "/dev/null"] == []
    assert not [link for link in links if "inotify" in link or "io_uring" in link]
    assert str(worker.weights) not in Path(f"/proc/{process.pid}/maps").read_text()
    assert process.children() == []


def test_a_taken_port_is_told_before_the_long_phases(worker: ReferenceWorker, cache: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        code, errors = ended(worker, cache, "--port", str(port))
    assert code == 98
    assert f"--port {port}: Address already in use. Give a free port" in errors


def test_missing_weights_end_it_with_a_message(tmp_path: Path, cache: Path) -> None:
    nothing = ReferenceWorker(tmp_path)
    code, errors = ended(nothing, cache, "--port", "0")
    assert code == 66
    assert f"--weights: {nothing.weights}: there is no such weight file" in errors
    with (
        launch(nothing, HostSpace(), cache) as started,
        pytest.raises(WorkerFailedError, match="no such weight file"),
    ):
        started.wait_ready()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--port", "65536"), "'65536': give 0 to 65535"),
        (("--port", "0", "--max-sequence", "129"), "max_sequence = 129: give 1 to 128"),
        (("--port", "0", "--host", "192.0.2.1"), "--host 192.0.2.1"),
    ],
)
def test_an_argument_that_can_not_be_used_is_told_by_name(
    worker: ReferenceWorker, cache: Path, arguments: tuple[str, ...], words: str
) -> None:
    code, errors = ended(worker, cache, *arguments)
    assert code in (2, 71)
    assert words in errors
    assert "Traceback" not in errors


# Life and end


@pytest.mark.parametrize("busy", [False, True])
def test_sigterm_ends_it_with_exit_code_0(worker: ReferenceWorker, cache: Path, busy: bool) -> None:
    port = free_port()
    with program(worker, cache, "--port", str(port), stdout=subprocess.PIPE) as process:
        client = WorkerClient(HostSpace(), port, worker.model)
        wait_until(client.healthy, START_DEADLINE_S, "a healthy worker", 0.05)
        stop = threading.Event()

        def keep_busy() -> None:
            while not stop.is_set():
                try:
                    complete(port, {"prompt": "x", "max_tokens": 120, "ignore_eos": True})
                except OSError:
                    return  # it ended, as it should

        clients = [threading.Thread(target=keep_busy) for _ in range(3 if busy else 0)]
        for thread in clients:
            thread.start()
        time.sleep(0.3 if busy else 0)
        process.terminate()
        try:
            assert process.wait(10) == 0
        finally:
            stop.set()
            for thread in clients:
                thread.join(30)


@pytest.mark.parametrize("output", ["reader gone", "closed", "never read"])
def test_it_works_on_whatever_becomes_of_its_output(
    worker: ReferenceWorker, cache: Path, output: str
) -> None:
    port = free_port()
    read_end, write_end = os.pipe()
    if output == "reader gone":
        os.close(read_end)
    options: dict[str, Any] = {"stdout": write_end}
    if output == "closed":
        options = {"preexec_fn": lambda: os.close(1)}
    with program(worker, cache, "--port", str(port), **options) as process:
        os.close(write_end)
        client = WorkerClient(HostSpace(), port, worker.model)
        wait_until(client.healthy, START_DEADLINE_S, "a healthy worker", 0.05)
        if output == "never read":
            for _ in range(500):  # more events than the pipe holds
                client.complete("x", 1, timeout_s=30)
                client.sleep(1, timeout_s=30)
                client.wake_up(timeout_s=30)
        assert len(client.complete("x", 2, timeout_s=30).token_ids) == 2
        assert process.poll() is None
    if output != "reader gone":
        os.close(read_end)


# Contract


def test_two_processes_give_the_same_answer(shared: RunningWorker, running: RunningWorker) -> None:
    answer = record_answer(shared.client, timeout_s=30)
    assert len(answer.token_ids) == 24
    assert len(set(answer.token_ids)) >= 8
    assert answers_right(running.client, answer)


@pytest.mark.parametrize("level", [1, 2])
def test_sleep_refuses_work_and_wake_brings_the_same_answer(
    running: RunningWorker, level: int
) -> None:
    port = running.plan.port
    answer = record_answer(running.client, timeout_s=30)
    running.client.sleep(level, timeout_s=30)
    assert request(port, "GET", "/is_sleeping")[1] == {"is_sleeping": True}
    assert running.client.healthy()
    with pytest.raises(WorkerAnswerError, match="POST /wake_up first") as caught:
        running.client.complete("x", 1, timeout_s=30)
    assert caught.value.status == 503
    running.client.wake_up(timeout_s=30)
    assert request(port, "GET", "/is_sleeping")[1] == {"is_sleeping": False}
    assert answers_right(running.client, answer)
    wait_until(lambda: len(events(output_of(running), "generation")) == 2, 5, "events", 0.02)
    lines = output_of(running)
    (slept,), (woke,) = events(lines, "sleep"), events(lines, "wake")
    first, last = events(lines, "generation")
    assert slept["level"] == level
    assert isinstance(slept["released_bytes"], int)
    assert first["tokens"] == last["tokens"] == 24
    times = [
        first["start_ns"], first["first_token_ns"], first["end_ns"],
        slept["start_ns"], slept["end_ns"], woke["start_ns"], woke["end_ns"],
        last["start_ns"], last["first_token_ns"], last["end_ns"],
    ]  # fmt: skip
    assert times == sorted(times)


def test_a_wake_without_its_weights_says_so_and_works_once_they_are_back(
    tmp_path: Path, cache: Path
) -> None:
    own = ReferenceWorker(tmp_path)
    write_weights(own.weights, TINY, 3)
    with launch(own, HostSpace(), cache) as started:
        started.wait_ready()
        answer = record_answer(started.client, timeout_s=30)
        started.client.sleep(2, timeout_s=30)
        write_weights(own.weights, TINY, 4)
        with pytest.raises(
            WorkerAnswerError, match=r"now holds other weights .*The worker sleeps on"
        ) as caught:
            started.client.wake_up(timeout_s=30)
        assert caught.value.status == 500
        assert request(started.plan.port, "GET", "/is_sleeping")[1] == {"is_sleeping": True}
        write_weights(own.weights, TINY, 3)
        started.client.wake_up(timeout_s=30)
        assert answers_right(started.client, answer)


def test_a_completion_has_the_form_of_openai(shared: RunningWorker) -> None:
    status, answer = complete(
        shared.plan.port,
        {"model": "reference-decoder", "prompt": [1, 2, 3], "max_tokens": 4, "temperature": 0,
         "logprobs": 2, "return_token_ids": True, "ignore_eos": True},
    )  # fmt: skip
    assert status == 200
    (choice,) = answer["choices"]
    told = choice["logprobs"]
    assert len(choice["token_ids"]) == 4
    assert choice["prompt_token_ids"] == [1, 2, 3]
    assert choice["finish_reason"] == "length"
    assert choice["text"] == "".join(told["tokens"])
    assert all(value < 0 for value in told["token_logprobs"])
    for token, value, top in zip(
        told["tokens"], told["token_logprobs"], told["top_logprobs"], strict=True
    ):
        assert len(top) == 2
        assert top[token] == value == max(top.values())
    assert answer["usage"] == {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}


def test_other_routes_answer_as_they_should(shared: RunningWorker) -> None:
    port = shared.plan.port
    assert request(port, "GET", "/health")[:2] == (200, None)
    assert request(port, "GET", "/version")[1] == {"version": "1.0"}
    (model,) = request(port, "GET", "/v1/models")[1]["data"]
    assert (model["id"], model["max_model_len"]) == ("reference-decoder", TINY.max_sequence)


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "words"),
    [
        ("POST", "/v1/completions", {"prompt": []}, 400, "prompt = []"),
        ("POST", "/v1/completions", {"prompt": "x", "max_tokens": 4000}, 400, "max_tokens = 4000"),
        ("POST", "/v1/completions", {"prompt": "x", "model": "y"}, 404, "model = 'y'"),
        ("POST", "/v1/completions", b"{", 400, "body"),
        ("POST", "/v1/completions", None, 400, "body"),
        ("POST", "/v1/completions", b"x" * (2 << 20), 413, "Content-Length = 2097152"),
        ("POST", "/sleep?level=3", None, 400, "level = '3'"),
        ("GET", "/sleep", None, 405, "give POST"),
        ("POST", "/health", None, 405, "give GET"),
        ("GET", "/v1/chat/completions", None, 404, "/v1/completions"),
        ("PATCH", "/health", None, 501, "PATCH"),
    ],
)
def test_a_wrong_request_is_refused_in_the_form_of_openai(
    shared: RunningWorker, method: str, path: str, body: object, status: int, words: str
) -> None:
    found, answer, _ = request(shared.plan.port, method, path, body)
    assert found == status
    assert answer["error"]["code"] == status
    assert words in answer["error"]["message"]
    assert shared.client.healthy()


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Content-Length": "x"}, 400),
        ({"Content-Length": "\xb2"}, 400),
        ({"Content-Length": "-1"}, 400),
        ({"Content-Length": "9" * 30}, 400),
        ({"Transfer-Encoding": "chunked"}, 411),
    ],
)
def test_a_body_of_unknown_length_is_refused(
    shared: RunningWorker, headers: dict[str, str], status: int
) -> None:
    found, answer, _ = request(shared.plan.port, "POST", "/v1/completions", None, headers)
    assert (found, answer["error"]["code"]) == (status, status)


@pytest.mark.parametrize("line", [b"nonsense\r\n\r\n", b"GET / HTTP/9\r\n\r\n", b"x" * 70_000])
def test_what_is_no_http_does_no_harm(shared: RunningWorker, line: bytes) -> None:
    with socket.create_connection(("127.0.0.1", shared.plan.port), timeout=30) as connection:
        connection.sendall(line)
        # It may be refused before it was read to its end.
        with connection.makefile("rb") as answer, contextlib.suppress(ConnectionResetError):
            answer.read()
    assert shared.client.healthy()


def test_connections_are_closed_after_each_answer(shared: RunningWorker) -> None:
    with socket.create_connection(("127.0.0.1", shared.plan.port), timeout=5) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: keep-alive\r\n\r\n")
        with connection.makefile("rb") as answer:
            assert b"Connection: close" in answer.read()  # ends only because it was closed


def test_a_client_that_trickles_is_cut_off_and_holds_nobody_up(shared: RunningWorker) -> None:
    begun = time.monotonic()
    with socket.create_connection(("127.0.0.1", shared.plan.port), timeout=30) as connection:
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nContent-Length: 1000\r\n\r\n{")
        assert len(shared.client.complete("x", 2, timeout_s=30).token_ids) == 2

        def trickle() -> None:
            while time.monotonic() < begun + 3 * worker_server.REQUEST_DEADLINE_S:
                try:
                    connection.sendall(b" ")
                except OSError:
                    return  # cut off
                time.sleep(0.5)

        thread = threading.Thread(target=trickle)
        thread.start()
        with connection.makefile("rb") as answer:
            assert answer.readline().startswith(b"HTTP/1.0 408")
        thread.join(4 * worker_server.REQUEST_DEADLINE_S)
    assert begun + worker_server.REQUEST_DEADLINE_S <= time.monotonic()


def test_requests_take_turns(shared: RunningWorker) -> None:
    before = len(events(output_of(shared), "generation"))
    body = {"prompt": "x", "max_tokens": 40, "temperature": 0, "return_token_ids": True,
            "ignore_eos": True}  # fmt: skip
    answers: list[list[int]] = []

    def ask() -> None:
        answers.append(complete(shared.plan.port, body)[1]["choices"][0]["token_ids"])

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(answers) == 6
    assert all(answer == answers[0] for answer in answers)
    wait_until(
        lambda: len(events(output_of(shared), "generation")) == before + 6, 5, "events", 0.02
    )
    told = sorted(
        (event["start_ns"], event["end_ns"]) for event in events(output_of(shared), "generation")
    )
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(told))


def test_fewer_positions_can_be_asked_for(worker: ReferenceWorker, cache: Path) -> None:
    arguments = ("--port", "0", "--max-sequence", "10")
    with program(worker, cache, *arguments, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        lines = []
        for raw in process.stdout:
            lines.append(raw.decode())
            if events(lines[-1:], "ready"):
                break
        port = events(lines, "ready")[0]["port"]
        assert complete(port, {"prompt": [1] * 6, "max_tokens": 4, "ignore_eos": True})[0] == 200
        status, answer = complete(port, {"prompt": [1] * 7, "max_tokens": 4})
        assert status == 400
        assert "at most 10 tokens" in answer["error"]["message"]


# Snapshot


@pytest.mark.parametrize("sleep_level", [1, 2, None])
def test_a_snapshot_of_it_comes_back_with_the_same_answer(
    engine: SnapshotEngine,
    support: SpaceSupport,
    worker: ReferenceWorker,
    cache: Path,
    sleep_level: int | None,
) -> None:
    with launch(worker, open_space(support), cache) as source:
        source.wait_ready()
        answer = record_answer(source.client, timeout_s=30)
        taken = engine.take(
            source, engine.host.stack, answer, measurement_id="test", sleep_level=sleep_level
        )
        assert taken.snapshot is not None, taken.measurement.detail
        assert answers_right(source.client, answer)
    for _ in range(2):
        with restore_worker(engine, taken.snapshot, worker).running as restored:
            assert answers_right(restored.client, answer)
            restored.client.sleep(2, timeout_s=30)
            restored.client.wake_up(timeout_s=30)
            assert answers_right(restored.client, answer)
            restored.process.send(signal.SIGTERM)
            assert restored.process.wait_gone(10)
