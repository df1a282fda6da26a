"""Asking NCCL's RAS service about the ranks of a job, as NVIDIA's `ncclras` does.

What belongs here: the protocol (NCCL 2.24 and later; src/ras/client.cc and client_support.cc of
NVIDIA/nccl), and what an answer says. What does not: when to ask, and what is an alarm
(`detectors.nccl_ras`).

Each process of a job has a RAS thread, and those of one machine listen on one port together: who
answers is the kernel's choice. Lines of text go both ways:

    CLIENT PROTOCOL 2      SERVER PROTOCOL 2
    TIMEOUT 1              OK
    SET FORMAT json        OK, or ERROR: ... before NCCL 2.28.7
    STATUS                 the answer, and the end of the connection

Nothing that is said is trusted to end, to be short, or to be what it should be.
"""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from resilience_pipelines import strict_json
from resilience_pipelines.errors import ResilienceError

PORT = 28028
PROTOCOL = 2
MAX_BYTES = 4 * 2**20
HANDSHAKE_DEADLINE_S = 1.0
STATUS_DEADLINE_S = 1.5
_MAX_LINE = 4096
_GATHERING_S = 1
_NCCL_SUCCESS, _NCCL_IN_PROGRESS = 0, 7
# NCCL 2.28 leaves the comma out here. Inside a text a quotation mark would have a backslash.
_NO_COMMA = re.compile(rb'("nvml_dev": -?[0-9]{1,10})(\s{1,200}"status")')
_TEXT_VERSION = re.compile(r"NCCL version (?P<version>\S{1,40})")
_RULE = re.compile(r"={3,40}")


class RasAbsentError(ResilienceError):
    """Nobody listens."""


class RasSilentError(ResilienceError):
    """A process of the job takes connections, and does not answer in time."""


class RasProtocolError(ResilienceError):
    """The answer is none of RAS, or of another version of it."""


@dataclass(frozen=True)
class RasCommunicator:
    """One communicator.

    Attributes:
        name: its hash, as RAS writes it.
        size: how many ranks it was made of.
        counts: collectives that each rank has begun, by name, for the ranks that answered.
        missing: the ranks that did not.
        errors: `ncclResult_t` of the ranks that have an error.
    """

    name: str
    size: int
    counts: Mapping[int, Mapping[str, int]]
    missing: tuple[int, ...] = ()
    errors: Mapping[int, int] = field(default_factory=dict)

    @property
    def alive(self) -> tuple[int, ...]:
        """The ranks that answered."""
        return tuple(sorted(self.counts))

    @property
    def mismatched(self) -> bool:
        """Whether the ranks have begun different numbers of collectives; for moments, usual."""
        each = list(self.counts.values())
        return any(counts != each[0] for counts in each)


@dataclass(frozen=True)
class RasStatus:
    """What RAS says of a job.

    Attributes:
        timeouts: RAS threads that another has waited for in vain.
        errors: the section Errors of the text form, which has no communicators.
        warnings: its section Warnings.
    """

    nccl_version: str
    communicators: tuple[RasCommunicator, ...] = ()
    timeouts: int = 0
    errors: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


class RasClient:
    """Asks the RAS service of one job.

    Args:
        make_socket: a new TCP socket that reaches the job's loopback.
        port: as in NCCL_RAS_ADDR.
    """

    def __init__(
        self,
        make_socket: Callable[[], socket.socket],
        port: int = PORT,
        *,
        handshake_deadline_s: float = HANDSHAKE_DEADLINE_S,
        status_deadline_s: float = STATUS_DEADLINE_S,
    ) -> None:
        self._make_socket = make_socket
        self._port = port
        self._handshake_deadline_s = handshake_deadline_s
        self._status_deadline_s = status_deadline_s

    def status(self) -> RasStatus:
        """Ask once.

        Raises:
            RasAbsentError, RasSilentError, RasProtocolError
        """
        try:
            with self._make_socket() as connection:
                return self._talk(_Line(connection, self._handshake_deadline_s))
        except TimeoutError as error:
            raise RasSilentError(
                f"A process of the job takes connections at port {self._port}, and its RAS thread "
                f"did not answer in time."
            ) from error
        except OSError as error:
            raise RasAbsentError(f"No RAS thread is at port {self._port} ({error}).") from error

    def _talk(self, line: _Line) -> RasStatus:
        line.connect(self._port)
        greeting = line.ask(f"CLIENT PROTOCOL {PROTOCOL}")
        word, _, version = greeting.rpartition(" ")
        if word.upper() != "SERVER PROTOCOL":
            _refuse("it is no RAS service", greeting)
        if version != str(PROTOCOL):
            _refuse(f"another protocol than {PROTOCOL}", greeting)
        # How long it waits for other processes; it adds 5 s once one of them is slow.
        answer = line.ask(f"TIMEOUT {_GATHERING_S}")
        if answer.upper() != "OK":
            _refuse("an unknown answer", answer)
        answer = line.ask("SET FORMAT json")
        if answer.upper() != "OK" and not answer.upper().startswith("ERROR"):
            _refuse("an unknown answer", answer)
        line.give(self._status_deadline_s)
        content = line.last("STATUS")
        return parse_json(content) if answer.upper() == "OK" else parse_text(content)


class _Line:
    """A connection with a deadline for all that is said until `give` sets the next."""

    def __init__(self, connection: socket.socket, deadline_s: float) -> None:
        self._connection = connection
        self._rest = b""
        self.give(deadline_s)

    def give(self, deadline_s: float) -> None:
        self._end = time.monotonic() + deadline_s

    def connect(self, port: int) -> None:
        self._limit()
        self._connection.connect(("127.0.0.1", port))

    def ask(self, words: str) -> str:
        """Say a line and hear one."""
        self._say(words)
        while b"\n" not in self._rest:
            more = self._hear()
            if not more:
                _refuse("the connection ended", self._rest.decode(errors="replace"))
            self._rest += more
            if len(self._rest) > _MAX_LINE:
                _refuse("a line without end", self._rest.decode(errors="replace"))
        found, _, self._rest = self._rest.partition(b"\n")
        return found.decode(errors="replace").strip()

    def last(self, words: str) -> bytes:
        """Say a line and hear all that comes until the connection ends."""
        self._say(words)
        parts, size = [self._rest], len(self._rest)
        while more := self._hear():
            parts.append(more)
            size += len(more)
            if size > MAX_BYTES:
                _refuse(f"more than {MAX_BYTES} bytes", "")
        return b"".join(parts)

    def _say(self, words: str) -> None:
        self._limit()
        self._connection.sendall(f"{words}\n".encode())

    def _hear(self) -> bytes:
        self._limit()
        return self._connection.recv(65536)

    def _limit(self) -> None:
        left_s = self._end - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("out of time")
        self._connection.settimeout(left_s)


def parse_json(content: bytes) -> RasStatus:
    """Read the JSON form (NCCL 2.28.7 and later).

    Raises:
        RasProtocolError: it is something else, or was cut short.
    """
    try:
        found = strict_json.loads(_NO_COMMA.sub(rb"\1,\2", content))
        return RasStatus(
            nccl_version=str(found["nccl_version"])[:40],
            communicators=tuple(_communicator(each) for each in found["communicators"]),
            timeouts=_whole(found["ras"]["timeouts_count"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RasProtocolError(f"RAS gave no status in its JSON form: {error!r}.") from error


def _communicator(found: Any) -> RasCommunicator:
    errors = {}
    for rank in found["ranks"]:
        status = rank["status"]
        for name in ("init_state", "async_error"):
            if _whole(status[name]) not in (_NCCL_SUCCESS, _NCCL_IN_PROGRESS):
                errors[_whole(rank["rank"])] = _whole(status[name])
    return RasCommunicator(
        name=str(found["hash"])[:40],
        size=_whole(found["size"]),
        counts={
            _whole(rank["rank"]): {
                str(name)[:40]: _whole(count) for name, count in rank["collective_counts"].items()
            }
            for rank in found["ranks"]
        },
        missing=tuple(_whole(rank["rank"]) for rank in found["missing_ranks"]),
        errors=errors,
    )


def _whole(value: Any) -> int:
    if type(value) is not int:
        raise TypeError(f"{value!r} is no whole number")
    return value


def parse_text(content: bytes) -> RasStatus:
    """Read the text form (NCCL 2.24 and later): its sections Errors and Warnings.

    Raises:
        RasProtocolError: it is something else, or was cut short.
    """
    text = content.decode(errors="replace")
    version = _TEXT_VERSION.search(text)
    sections: dict[str, list[str]] = {}
    title, before = "", ""
    for line in (line.strip() for line in text.splitlines()):
        if _RULE.fullmatch(line):
            title = before
            sections[title] = []
        elif line and title:
            sections[title].append(line)
        before = line
    # A title is followed by its rule, so that it was taken for a line of the section before.
    found = {name: [x for x in lines if x not in sections] for name, lines in sections.items()}
    if version is None or not {"Errors", "Warnings"} <= set(found):
        raise RasProtocolError(f"RAS gave no status in its text form: {text[:200]!r}.")
    return RasStatus(
        nccl_version=version["version"],
        errors=tuple(found["Errors"]),
        warnings=tuple(found["Warnings"]),
    )


def _refuse(why: str, said: str) -> NoReturn:
    raise RasProtocolError(f"RAS: {why}" + (f", it said {said[:200]!r}." if said else "."))
