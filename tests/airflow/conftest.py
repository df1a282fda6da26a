"""A real Dagster on loopback for tests of the Airflow provider, which run where Airflow is.

`make test-airflow` runs them: Airflow lives in an environment of its own, and RESILIENCE_PYTHON
names the Python of the platform's.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
START_DEADLINE_S = 240.0

FEED = """<?xml version="1.0" encoding="UTF-8"?>
<feed xmlns="http://www.w3.org/2005/Atom">
  <entry><title>v{release}</title><updated>2026-02-01T00:00:00Z</updated>
    <link rel="alternate" href="https://example.org/criu/releases/tag/v{release}"/></entry>
  <entry><title>v0.1</title><updated>2020-01-01T00:00:00Z</updated>
    <link rel="alternate" href="https://example.org/criu/releases/tag/v0.1"/></entry>
</feed>
"""

try:
    import airflow  # noqa: F401
except ImportError:
    WHY = "Airflow is not installed in this environment: `make test-airflow` runs these tests"
else:
    WHY = "" if "RESILIENCE_PYTHON" in os.environ else "RESILIENCE_PYTHON names no platform"


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def wait_for(what: Callable[[], Any], deadline_s: float, process: subprocess.Popen[Any]) -> Any:
    """The first true answer of a question, asked until the deadline."""
    end = time.monotonic() + deadline_s
    while time.monotonic() < end:
        if found := what():
            return found
        assert process.poll() is None, f"ended with {process.returncode}"
        time.sleep(1.0)
    raise AssertionError(f"not within {deadline_s:g} s: {what}")


@contextlib.contextmanager
def session_of(command: list[str], log: Path, **env: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process in a session of its own, all of which has ended when the block has."""
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, stdout=out, stderr=out, cwd=ROOT, env=os.environ | env, start_new_session=True
        )
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGINT)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(20)
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(20)


@dataclass(frozen=True)
class Platform:
    """A data home with Dagster's webserver and daemon."""

    home: Path
    port: int
    partition: str
    release: str
    """The newest release of CRIU, as the feed has it: the one that this machine has."""

    @property
    def connection(self) -> str:
        """The Airflow connection, as AIRFLOW_CONN_DAGSTER_DEFAULT."""
        extra = {"timeout": 20, "X-Team": "gpu-operations"}
        return json.dumps(
            {"conn_type": "http", "host": "127.0.0.1", "port": self.port, "extra": extra}
        )

    def job_processes(self) -> list[int]:
        """Processes of jobs of this home."""
        found = []
        for entry in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                words = entry.read_bytes().split(b"\0")
                if b"resilience_pipelines.job" in words and str(self.home).encode() in words:
                    found.append(int(entry.parent.name))
        return found


@pytest.fixture(scope="session")
def platform() -> Iterator[Platform]:
    """The platform's own environment, with a Dagster that serves its definitions."""
    if WHY:
        pytest.skip(WHY)
    python = os.environ["RESILIENCE_PYTHON"]
    base = Path(tempfile.mkdtemp(prefix="resilience-airflow-"))
    home, port = base / "home", free_port()
    env = {"RESILIENCE_HOME": str(home), "DAGSTER_DISABLE_TELEMETRY": "yes"}
    try:
        done = subprocess.run(
            [python, "-m", "resilience_pipelines.dagster_io.instance"],
            env=os.environ | env, cwd=ROOT, capture_output=True, text=True, timeout=120, check=True,
        )  # fmt: skip
        stack = json.loads(
            subprocess.run(
                [python, "-m", "resilience_pipelines.cli", "stack", "--json"],
                env=os.environ | env, cwd=ROOT, capture_output=True, timeout=120, check=True,
            ).stdout
        )  # fmt: skip
        release = stack["criu_version"]
        assert release, "this machine has no CRIU: `make setup` gets one"
        feed = base / "criu.atom"
        feed.write_text(FEED.format(release=release))
        env["RESILIENCE_FEED_CRIU"] = feed.as_uri()
        log = base / "dagster.log"
        command = [
            python, "-m", "dagster", "dev", "-m", "resilience_pipelines.definitions",
            "-h", "127.0.0.1", "-p", str(port),
        ]  # fmt: skip
        with session_of(command, log, DAGSTER_HOME=done.stdout.strip(), **env) as process:
            import httpx

            def serves() -> bool:
                with contextlib.suppress(httpx.HTTPError):
                    answer = httpx.post(
                        f"http://127.0.0.1:{port}/graphql",
                        json={"query": "{ assetNodes { assetKey { path } } }"},
                        timeout=20,
                    )
                    return bool((answer.json().get("data") or {}).get("assetNodes"))
                return False

            wait_for(serves, START_DEADLINE_S, process)
            labels = (stack["hardware_label"], stack["software_label"])
            yield Platform(home, port, "|".join(labels), release)
    finally:
        shutil.rmtree(base, ignore_errors=True)


@pytest.fixture(scope="session")
def airflow_home(platform: Platform, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """AIRFLOW_HOME with a database of its own, for this process and what it starts."""
    home = tmp_path_factory.mktemp("airflow")
    os.environ |= {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__DAGS_FOLDER": str(home / "dags"),
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
        "AIRFLOW__CORE__UNIT_TEST_MODE": "False",
        "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
        "AIRFLOW_CONN_DAGSTER_DEFAULT": platform.connection,
        "QUALIFY_PARTITION": platform.partition,
        "QUALIFY_REPEATS": "1",
        "QUALIFY_ARMS": "warm_cache",
        # A machine of any kind has CRIU; others may have measured its release before.
        "QUALIFY_FEED": "criu",
        "QUALIFY_STATES": "available,running,measured",
        "PYTHONPATH": str(ROOT),
    }
    (home / "dags").mkdir()
    subprocess.run(["airflow", "db", "migrate"], capture_output=True, timeout=240, check=True)
    return home
