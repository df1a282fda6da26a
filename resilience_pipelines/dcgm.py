"""DCGM through its own tools: a host engine of one's own, and what `dcgmi` says and does.

What belongs here: starting `nv-hostengine` on a loopback port, calling `dcgmi`, reading its output.
What does not: what a value means for a fault or a detector.

The engine belongs to this process: it listens on a port that nobody else knows, nobody else reads
its cache, and it ends with this process whatever happens. A machine's own engine is left alone.
"""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from resilience_pipelines import strict_json
from resilience_pipelines.errors import ResilienceError, UnsupportedError
from resilience_pipelines.workers.base import LaunchPlan
from resilience_pipelines.workers.process import WorkerOutput, worker_environment
from resilience_pipelines.workers.space import HostSpace, Process, SpaceError, free_port, wait_until

ENGINE: Final = "nv-hostengine"
CLIENT: Final = "dcgmi"
START_DEADLINE_S: Final = 60.0
CALL_TIMEOUT_S: Final = 20.0
HEALTHY: Final = "Healthy"
_STEP_S: Final = 0.05
_JOIN_S: Final = 1.0

_GPU_ROW = re.compile(r"^\|\s*(?P<id>[0-9]{1,4})\s*\|")
_UUID = re.compile(r"Device UUID:\s*(?P<uuid>GPU-[0-9A-Za-z-]+)")
_VERSION = re.compile(r"version:\s*(?P<version>\S+)")
_VALUE_ROW = re.compile(r"^GPU\s+(?P<id>[0-9]{1,4})\s+(?P<value>\S+)\s*$")
_INJECTED = "Successfully injected field info."


class DcgmError(ResilienceError):
    """A tool of DCGM failed, or said something that can't be read."""


@dataclass(frozen=True)
class Health:
    """What a health check found.

    Attributes:
        overall: `Healthy`, `Warning` or `Failure`.
        detail: the systems that are not healthy, with DCGM's words.
    """

    overall: str
    detail: str


def find_tools() -> tuple[Path, Path]:
    """The host engine and its client.

    Raises:
        UnsupportedError: one is missing.
    """
    found = {name: shutil.which(name) for name in (ENGINE, CLIENT)}
    missing = [name for name, path in found.items() if path is None]
    if missing:
        raise UnsupportedError(f"DCGM is not installed: no {' and no '.join(missing)} on PATH.")
    return Path(str(found[ENGINE])), Path(str(found[CLIENT]))


class Dcgm:
    """A host engine of this process's own, and its client.

    Args:
        folder: for its log and its PID file, for as long as it lives.

    Raises:
        UnsupportedError: DCGM is not installed.
        ResilienceError: the engine did not start; nothing of it stays.
    """

    def __init__(self, folder: Path) -> None:
        engine, self._client = find_tools()
        self._port = free_port()
        self._output = WorkerOutput()
        self._space = HostSpace()
        plan = LaunchPlan(
            (
                str(engine), "--no-daemon", "--bind-interface", "127.0.0.1", "--port",
                str(self._port), "--pid", str(folder / "nv-hostengine.pid"),
                "--log-filename", str(folder / "nv-hostengine.log"),
            ),
            0,
        )  # fmt: skip
        self._process: Process | None = None
        try:
            self._process = self._space.spawn(
                plan.argv, env=worker_environment(plan), output=self._output.write_end
            )
            self._output.close_write_end()
            wait_until(self._answers, START_DEADLINE_S, "DCGM's host engine starts", _STEP_S)
        except SpaceError as error:  # it ended before it could be held
            self.close()
            raise DcgmError(f"{ENGINE} ended. Its last output:\n{self._output.tail()}") from error
        except BaseException:
            self.close()
            raise

    @property
    def host(self) -> str:
        """Where clients find the engine."""
        return f"127.0.0.1:{self._port}"

    @property
    def client(self) -> Path:
        """The program `dcgmi`."""
        return self._client

    def alive(self) -> bool:
        """Whether the engine runs and its port answers."""
        running = self._process is not None and self._process.alive()
        return running and _listening(self._port)

    def version(self) -> str:
        """The version of the client."""
        found = _VERSION.search(self._run("--version"))
        return found["version"] if found else "unknown"

    def gpu_id(self, uuid: str) -> int:
        """DCGM's own number for a GPU.

        Raises:
            DcgmError: it does not list it.
        """
        listed = read_discovery(self._run("discovery", "--list", "--host", self.host))
        if uuid not in listed:
            raise DcgmError(f"DCGM does not list the GPU {uuid}.")
        return listed[uuid]

    def watch_health(self) -> None:
        """Watch PCIe, memory, thermal and power, and NVLink of all GPUs, once a second."""
        self._run(
            "health", "--set", "pmtn", "--group", "0", "--update-interval", "1",
            "--max-keep-age", "120", "--host", self.host,
        )  # fmt: skip

    def health(self) -> Health:
        """Evaluate what was watched."""
        return read_health(
            self._run("health", "--check", "--group", "0", "--json", "--host", self.host)
        )

    def set_policy(self, max_temperature_c: int) -> None:
        """Report ECC, PCIe, NVLink and XID errors and a temperature; never act on one."""
        self._run(
            "policy", "--set", "0,0", "--group", "0", "--eccerrors", "--pcierrors",
            "--nvlinkerrors", "--xiderrors", "--maxtemp", str(max_temperature_c),
            "--host", self.host,
        )  # fmt: skip

    def inject(self, gpu_id: int, field: int, value: int, offset_s: int) -> None:
        """Write a sample into the engine's cache.

        Args:
            field: a number, since DCGM renames its fields. A value that it does not take for a
                number would become 0.
            offset_s: how far in the future the sample is; it stays the newest for that long.
        """
        said = self._run(
            "test", "--inject", "--gpuid", str(gpu_id), "--field", str(field),
            "--value", str(value), "--offset", str(offset_s), "--host", self.host,
        )  # fmt: skip
        if _INJECTED not in said:
            raise DcgmError(f"dcgmi did not say that it injected the value: {said.strip()!r}")

    def value(self, gpu_id: int, field: int) -> str | None:
        """The newest sample of a field as monitors read it; None where the GPU has no such."""
        said = self._run(
            "dmon", "--entity-id", str(gpu_id), "--field-id", str(field), "--count", "1",
            "--delay", "100", "--host", self.host,
        )  # fmt: skip
        return read_value(said, gpu_id)

    def close(self) -> None:
        """End the engine, and with it its cache. A second call does nothing."""
        self._space.close()
        self._output.close_write_end()
        self._output.join(_JOIN_S)
        if self._process is not None:
            self._process.close()
            self._process = None

    def _answers(self) -> bool:
        if self._process is None or not self._process.alive():
            self._output.join(_JOIN_S)
            raise DcgmError(f"{ENGINE} ended. Its last output:\n{self._output.tail()}")
        return _listening(self._port)

    def _run(self, *arguments: str) -> str:
        try:
            done = subprocess.run(
                [str(self._client), *arguments],
                capture_output=True, text=True, timeout=CALL_TIMEOUT_S, check=False,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as error:
            raise DcgmError(f"{CLIENT} {arguments[0]}: {error}") from error
        if done.returncode != 0 or done.stdout.startswith("Error:"):
            words = (done.stdout + done.stderr).strip()
            raise DcgmError(f"{CLIENT} {arguments[0]} (status {done.returncode}): {words[-500:]}")
        return done.stdout


def read_discovery(text: str) -> Mapping[str, int]:
    """DCGM's number for each GPU by its UUID, from `dcgmi discovery --list`."""
    found: dict[str, int] = {}
    number: int | None = None
    for line in text.splitlines():
        if row := _GPU_ROW.match(line):
            number = int(row["id"])
        if (uuid := _UUID.search(line)) and number is not None:
            found[uuid["uuid"]] = number
    return found


def read_health(text: str) -> Health:
    """A health check's answer, from `dcgmi health --check --json`.

    Raises:
        DcgmError: it is no such answer.
    """
    try:
        body = strict_json.loads(text)["body"]
        overall = body["Overall Health"]["value"]
    except (ValueError, KeyError, TypeError) as error:
        raise DcgmError(f"a health check said {text[:300]!r}") from error
    rest = {name: value for name, value in body.items() if name != "Overall Health"}
    return Health(str(overall), "; ".join(_words(rest)))


def _words(node: object) -> list[str]:
    """All texts of a part of the answer, with the names that lead to them."""
    if not isinstance(node, dict):
        return [str(node)] if isinstance(node, str) else []
    words = []
    for name, inner in node.items():
        below = _words(inner)
        words.extend(below if name in ("children", "value", "overflow") else
                     [f"{name}: {word}" for word in below])  # fmt: skip
        if isinstance(inner, list):
            words.extend(str(item) for item in inner)
    return words


def read_value(text: str, gpu_id: int) -> str | None:
    """The last value of one GPU, from `dcgmi dmon` with one field; None for N/A.

    Raises:
        DcgmError: there is no line of that GPU.
    """
    rows = [match for line in text.splitlines() if (match := _VALUE_ROW.match(line.strip()))]
    values = [row["value"] for row in rows if int(row["id"]) == gpu_id]
    if not values:
        raise DcgmError(f"dcgmi dmon has no line of GPU {gpu_id}: {text[:300]!r}")
    return None if values[-1] == "N/A" else values[-1]


def _listening(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(("127.0.0.1", port)) == 0
