"""The program of a pod that Dynamo Snapshot captures: its side of the contract, as processes."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from resilience_pipelines.launchers.dynamo_snapshot import workload
from resilience_pipelines.launchers.dynamo_snapshot.contract import (
    CONTROL_VARIABLE,
    READY_FILE,
    RESTORED_FILE,
    SERVING_FILE,
)
from resilience_pipelines.launchers.dynamo_snapshot.manifests import (
    Marks,
    Shape,
    restore_job,
    source_job,
)
from resilience_pipelines.records import OracleVerdict
from resilience_pipelines.workers.client import WorkerClient
from resilience_pipelines.workers.oracle import check_answer, record_answer
from resilience_pipelines.workers.pod import PodSettings
from resilience_pipelines.workers.process import DEFAULT_PORT, WorkerOutput
from resilience_pipelines.workers.reference import MODEL_NAME
from resilience_pipelines.workers.reference.weights import TINY, write_weights
from resilience_pipelines.workers.reference_host import ReferenceWorker
from resilience_pipelines.workers.space import Capsule, Process, SpaceSupport, wait_until

REPOSITORY = Path(__file__).parents[2]
SHAPE = Shape(Marks("run", "home"), None, 60)


@dataclass(frozen=True)
class Pod:
    """A pod's process, the folder that it shares with the agent, and a client of its worker."""

    process: Process
    control: Path
    client: WorkerClient
    output: WorkerOutput

    def said(self) -> str:
        return "\n".join(item.text for item in self.output.lines())


@contextmanager
def started(job: dict[str, Any], control: Path) -> Iterator[Pod]:
    """Start a manifest's container where it meets no network but its own loopback."""
    [container] = job["spec"]["template"]["spec"]["containers"]
    told = {item["name"]: item["value"] for item in container["env"]}
    output = WorkerOutput()
    with Capsule() as capsule:
        process = capsule.spawn(
            container["command"],
            env=told | {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(REPOSITORY),
                        CONTROL_VARIABLE: str(control)},
            output=output.write_end,
        )  # fmt: skip
        output.close_write_end()
        try:
            yield Pod(process, control, WorkerClient(capsule, DEFAULT_PORT, MODEL_NAME), output)
        finally:
            process.close()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A data home with weights that load fast."""
    worker = ReferenceWorker(tmp_path / "home" / "cache")
    worker.weights.parent.mkdir(parents=True)
    write_weights(worker.weights, TINY, worker.seed)
    return tmp_path / "home"


@pytest.fixture
def control(tmp_path: Path) -> Path:
    found = tmp_path / "control"
    found.mkdir()
    return found


def settings(home: Path) -> PodSettings:
    return PodSettings(image="none", python=sys.executable, home=str(home))


def test_a_source_is_ready_once_it_is_quiet_and_serves_again_once_it_is_restored(
    home: Path, control: Path, support: SpaceSupport
) -> None:
    del support  # skips where there are no capsules
    (control / READY_FILE).write_text("left by an earlier life")
    job = source_job(ReferenceWorker(home / "cache"), "source", settings(home), SHAPE)
    with started(job, control) as pod:
        wait_until(pod.client.healthy, 120, "the worker serves", 0.1)
        assert not (control / READY_FILE).exists(), "a worker that is awake may not be captured"
        answer = record_answer(pod.client, timeout_s=30)
        pod.client.sleep(1, timeout_s=30)
        wait_until((control / READY_FILE).exists, 10, "it says that it is quiet", 0.02)
        time.sleep(3 * workload.POLL_S)
        assert not (control / SERVING_FILE).exists(), "nobody has restored it"
        (control / RESTORED_FILE).touch()
        wait_until((control / SERVING_FILE).exists, 10, "it says that it serves", 0.02)
        found = check_answer(pod.client, answer, tolerance=0.0, timeout_s=30)
        assert found.verdict is OracleVerdict.EQUAL
        assert pod.said().count(workload.STARTED_LINE) == 1
        first, *rest = pod.process.tree()
        assert len(rest) == 1, "its worker alone"
        first.send_signal(signal.SIGTERM)
        assert pod.process.wait_gone(15), "it went on"
        assert not rest[0].is_running(), "its worker went on"


def test_a_pod_to_restore_into_starts_nothing_and_ends_when_it_is_told_to(
    home: Path, control: Path, support: SpaceSupport
) -> None:
    del support
    job = restore_job(
        ReferenceWorker(home / "cache"), "restore", settings(home), SHAPE, "snapshot", None
    )
    with started(job, control) as pod:
        wait_until(lambda: workload.STANDBY_LINE in pod.said(), 30, "it waits", 0.05)
        [alone] = pod.process.tree()
        assert workload.STARTED_LINE not in pod.said()
        assert list(control.iterdir()) == []
        alone.send_signal(signal.SIGTERM)
        assert pod.process.wait_gone(10), "it went on"


@dataclass
class Answers:
    """What a worker's stand-in answers with, and what it was asked."""

    sleeping: tuple[int, str] = (200, "{}")
    waking: tuple[int, str] = (200, "{}")
    asked: list[str] = field(default_factory=list)


@pytest.fixture
def server() -> Iterator[tuple[Answers, int]]:
    """A worker's HTTP on a loopback port."""
    answers = Answers()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(*answers.sleeping)

        def do_POST(self) -> None:
            self._answer(*answers.waking)

        def _answer(self, status: int, text: str) -> None:
            answers.asked.append(f"{self.command} {self.path}")
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        threading.Thread(target=http.serve_forever, args=(0.01,), daemon=True).start()
        yield answers, int(http.server_address[1])
        http.shutdown()


class Attended(threading.Thread):
    """`attend` in a thread; ended with the block."""

    def __init__(self, control: Path, port: int, command: list[str]) -> None:
        super().__init__(daemon=True)
        self.code: int | None = None
        self.told = threading.Event()
        self._arguments = (command, control, port, self.told)

    def run(self) -> None:
        self.code = workload.attend(*self._arguments)

    def __enter__(self) -> Attended:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.told.set()
        self.join(20)
        assert not self.is_alive()


SLEEPS = [sys.executable, "-c", "import time; time.sleep(60)"]


@pytest.mark.parametrize(
    "answer",
    [(500, ""), (200, "no JSON"), (200, "[]"), (200, "{}"), (200, '{"is_sleeping": 1}')],
    ids=["error", "text", "list", "empty", "number"],
)
def test_only_a_worker_that_says_so_is_quiet(
    control: Path, server: tuple[Answers, int], answer: tuple[int, str]
) -> None:
    answers, port = server
    answers.sleeping = answer
    with Attended(control, port, SLEEPS):
        wait_until(lambda: len(answers.asked) >= 3, 10, "it is asked", 0.02)
        assert list(control.iterdir()) == []
        answers.sleeping = (200, '{"is_sleeping": true}')
        wait_until((control / READY_FILE).exists, 10, "it says that it is quiet", 0.02)


def test_a_restored_worker_that_does_not_wake_never_serves_and_the_log_says_why(
    control: Path, server: tuple[Answers, int], capfd: pytest.CaptureFixture[str]
) -> None:
    answers, port = server
    answers.sleeping = (200, '{"is_sleeping": true}')
    answers.waking = (500, '{"error": "the weights can\'t be read"}')
    with Attended(control, port, SLEEPS) as attended:
        wait_until((control / READY_FILE).exists, 10, "it says that it is quiet", 0.02)
        (control / RESTORED_FILE).touch()
        attended.join(20)
    assert attended.code == 1
    assert not (control / SERVING_FILE).exists()
    assert f"{workload.NOT_WOKEN_LINE}: POST /wake_up: status 500" in capfd.readouterr().out


def test_a_worker_s_own_end_is_the_pod_s(control: Path) -> None:
    command = [sys.executable, "-c", "raise SystemExit(7)"]
    assert workload.attend(command, control, 1, threading.Event()) == 7


def test_a_worker_that_does_not_end_when_it_is_told_to_is_killed(
    control: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workload, "_END_S", 0.5)
    up = tmp_path / "up"
    program = (
        "import pathlib, signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        "pathlib.Path(sys.argv[1]).touch(); time.sleep(60)"
    )
    with Attended(control, 1, [sys.executable, "-c", program, str(up)]) as attended:
        wait_until(up.exists, 20, "it is up", 0.02)
    assert attended.code == -signal.SIGKILL


def test_a_workload_without_its_words_is_told(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", workload.__name__, "--home", str(tmp_path)],
        capture_output=True, text=True, timeout=60, check=False, cwd=REPOSITORY,
    )  # fmt: skip
    assert ended.returncode == 2
    assert "--worker" in ended.stderr
