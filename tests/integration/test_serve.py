"""The program of a pod that serves, as a pod's manifest starts it: a real process, on loopback."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from resilience_pipelines.errors import InputError
from resilience_pipelines.records import OracleVerdict
from resilience_pipelines.workers.client import WorkerAnswerError, WorkerClient
from resilience_pipelines.workers.oracle import check_answer, record_answer
from resilience_pipelines.workers.pod import PodSettings, target_job
from resilience_pipelines.workers.process import DEFAULT_PORT, WorkerOutput
from resilience_pipelines.workers.reference import MODEL_NAME
from resilience_pipelines.workers.reference.weights import TINY, write_weights
from resilience_pipelines.workers.reference_host import ReferenceWorker
from resilience_pipelines.workers.space import Capsule, Process, SpaceSupport, wait_until

REPOSITORY = Path(__file__).parents[2]
START_DEADLINE_S = 120.0
# What the manifest's security context leaves of root.
WITHOUT_RIGHTS = ("setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs")


@dataclass(frozen=True)
class Pod:
    """A pod's process and its client."""

    process: Process
    client: WorkerClient
    output: WorkerOutput


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pod's volume, with weights that load fast."""
    folder = tmp_path_factory.mktemp("pod") / "home"
    worker = ReferenceWorker(folder / "cache")
    worker.weights.parent.mkdir(parents=True)
    write_weights(worker.weights, TINY, worker.seed)
    return folder


def command(home: Path) -> list[str]:
    """A pod's own command, from its manifest."""
    settings = PodSettings(image="none", python=sys.executable, home=str(home))
    job = target_job(ReferenceWorker(home / "cache"), "pod", settings)
    [container] = job["spec"]["template"]["spec"]["containers"]
    return list(container["command"])


@contextmanager
def started(argv: Sequence[str]) -> Iterator[Pod]:
    """Start a pod's process where it meets no network but its own loopback."""
    output = WorkerOutput()
    with Capsule() as capsule:
        process = capsule.spawn(
            argv, env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(REPOSITORY)},
            output=output.write_end,
        )  # fmt: skip
        output.close_write_end()
        try:
            yield Pod(process, WorkerClient(capsule, DEFAULT_PORT, MODEL_NAME), output)
        finally:
            process.close()


def wait_for(pod: Pod) -> None:
    """As the readiness probe does."""

    def serves() -> bool:
        assert pod.process.alive(), pod.output.tail()
        return pod.client.healthy()

    wait_until(serves, START_DEADLINE_S, "the pod serves", 0.1)


@pytest.fixture(scope="module")
def pod(home: Path, support: SpaceSupport) -> Iterator[Pod]:
    del support  # skips where there are no capsules
    with started([*WITHOUT_RIGHTS, *command(home)]) as found:
        wait_for(found)
        yield found


def test_a_pod_without_any_right_serves_the_worker_s_contract(pod: Pod) -> None:
    answer = record_answer(pod.client, timeout_s=30)
    with pytest.raises(WorkerAnswerError) as refused:
        pod.client.sleep(3, timeout_s=30)
    assert refused.value.status == 400
    for level in (1, 2):
        pod.client.sleep(level, timeout_s=30)
        with pytest.raises(WorkerAnswerError) as asleep:
            pod.client.complete("asleep", 1, timeout_s=30)
        assert asleep.value.status == 503
        pod.client.wake_up(timeout_s=30)
        found = check_answer(pod.client, answer, tolerance=0.0, timeout_s=30)
        assert found.verdict is OracleVerdict.EQUAL


def test_a_pod_is_the_worker_itself_and_listens_on_all_addresses(pod: Pod) -> None:
    """Its kubelet watches this process, and the API server's proxy comes from outside."""
    [process] = pod.process.tree()
    words = process.cmdline()
    assert "resilience_pipelines.workers.reference" in words
    assert words[words.index("--host") + 1] == "0.0.0.0"
    assert words[words.index("--port") + 1] == str(DEFAULT_PORT)


def test_the_first_process_of_a_pod_ends_when_it_is_told_to(
    home: Path, support: SpaceSupport
) -> None:
    """The kernel drops signals for which the first process of a namespace has no handler."""
    del support
    with started(["unshare", "--pid", "--fork", "--kill-child", *command(home)]) as pod:
        wait_for(pod)
        _, first = pod.process.tree()
        first.send_signal(signal.SIGTERM)
        assert pod.process.wait_gone(10), "it went on"


def test_a_home_that_can_t_be_one_is_told_with_its_exit_code(tmp_path: Path) -> None:
    place = tmp_path / "file"
    place.write_text("no folder")
    ended = subprocess.run(
        [*command(place)], capture_output=True, text=True, timeout=60, check=False, cwd=REPOSITORY
    )
    assert ended.returncode == InputError.exit_code
    assert str(place) in ended.stderr
    assert "Traceback" not in ended.stderr
