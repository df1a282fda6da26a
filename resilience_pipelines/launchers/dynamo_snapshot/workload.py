"""What runs in a pod whose worker Dynamo Snapshot captures and restores.

What belongs here: the workload's side of its contract: say when the worker is quiet, wait until it
was restored, wake it; and, in a pod that is restored into, do nothing. What does not: the worker
(`resilience_pipelines.serve`), and everything outside of the pod.

`python -m resilience_pipelines.launchers.dynamo_snapshot.workload --worker reference --home DIR
--port N`. It is the first process of its container, and the worker is its child: both are captured.
Who measures asks the worker first, and then lets it sleep: that is when it is quiet. Its log says
how it began, which tells a restored worker from one that was started in the pod: a restored process
writes no such line there.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Final

from resilience_pipelines.launchers.dynamo_snapshot.contract import (
    CONTROL_PATH,
    CONTROL_VARIABLE,
    READY_FILE,
    RESTORED_FILE,
    SERVING_FILE,
    STANDBY_VARIABLE,
)

STARTED_LINE: Final = "resilience workload: starts a worker"
STANDBY_LINE: Final = "resilience workload: waits to be restored into"
NOT_WOKEN_LINE: Final = "resilience workload: the restored worker did not wake"

POLL_S: Final = 0.05
_REQUEST_S: Final = 60.0
_END_S: Final = 10.0


def main(arguments: list[str] | None = None) -> int:
    """Be the workload until it is ended; returns the worker's exit code."""
    parser = argparse.ArgumentParser(prog="python -m resilience_pipelines...workload")
    parser.add_argument("--worker", required=True)
    parser.add_argument("--home", required=True)
    parser.add_argument("--port", type=int, required=True)
    options = parser.parse_args(arguments)
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    if os.environ.get(STANDBY_VARIABLE) == "1":
        _say(STANDBY_LINE)
        ended.wait()
        return 0
    control = Path(os.environ.get(CONTROL_VARIABLE, CONTROL_PATH))
    command = [
        sys.executable, "-m", "resilience_pipelines.serve", "--worker", options.worker,
        "--home", options.home, "--port", str(options.port),
    ]  # fmt: skip
    return attend(command, control, options.port, ended)


def attend(command: list[str], control: Path, port: int, ended: threading.Event) -> int:
    """Start a worker and keep the contract for it until it ends or is to end; returns its code.

    Args:
        control: the folder that is shared with the agent.
        port: where the worker listens on loopback.
        ended: set when the container is told to end.
    """
    # Left by an earlier life, it would say that a worker is quiet which is just starting.
    (control / READY_FILE).unlink(missing_ok=True)
    _say(STARTED_LINE)
    worker = subprocess.Popen(command)
    # Kept in memory, which is captured; a restored workload finds another, empty folder.
    quiet = serving = False
    try:
        while worker.poll() is None and not ended.wait(POLL_S):
            if not quiet and _sleeps(port):
                _write(control / READY_FILE)
                quiet = True
            elif quiet and not serving and (control / RESTORED_FILE).exists():
                try:
                    _request(port, "POST", "/wake_up", _REQUEST_S)
                except (OSError, http.client.HTTPException, ValueError) as error:
                    _say(f"{NOT_WOKEN_LINE}: {error}")
                    return 1
                _write(control / SERVING_FILE)
                serving = True
    finally:
        _end(worker)
    return worker.returncode


def _sleeps(port: int) -> bool:
    try:
        return _request(port, "GET", "/is_sleeping", 1.0).get("is_sleeping") is True
    except (OSError, http.client.HTTPException, ValueError):
        return False  # it does not listen yet


def _request(port: int, method: str, path: str, timeout_s: float) -> dict[str, object]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)
    try:
        connection.request(method, path, headers={"Connection": "close"})
        response = connection.getresponse()
        text = response.read()
        if response.status != http.client.OK:
            raise http.client.HTTPException(f"{method} {path}: status {response.status}")
        found = json.loads(text or b"{}")
        return found if isinstance(found, dict) else {}
    finally:
        connection.close()  # none is open when the worker is captured


def _write(path: Path) -> None:
    new = path.with_suffix(".new")
    new.write_text("ready\n")
    new.rename(path)


def _end(worker: subprocess.Popen[bytes]) -> None:
    if worker.poll() is None:
        worker.terminate()
        try:
            worker.wait(_END_S)
        except subprocess.TimeoutExpired:
            worker.kill()
            worker.wait(_END_S)


def _say(line: str) -> None:
    print(f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} {line}", flush=True)  # noqa: T201


if __name__ == "__main__":
    sys.exit(main())
