"""The filter refuses io_uring and nothing else; the supervisor starts a program behind it."""

from __future__ import annotations

import ctypes
import errno
import json
import signal
import subprocess
import sys
import time

import pytest

from resilience_pipelines.workers import seccomp, supervisor

_TRY_RING = """
import ctypes, errno
libc = ctypes.CDLL(None, use_errno=True)
found = []
for number in (425, 426, 427):
    ctypes.set_errno(0)
    answer = libc.syscall(number, 4, 0, 0, 0, 0, 0)
    found.append(ctypes.get_errno() if answer < 0 else 0)
print(found)
"""


def _run(*argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "resilience_pipelines.workers.supervisor", *argv],
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip


def test_io_uring_calls_fail_as_on_a_kernel_without_them() -> None:
    bare = subprocess.run(
        [sys.executable, "-c", _TRY_RING], capture_output=True, text=True, timeout=30, check=True
    )
    if bare.stdout.strip() == str([errno.ENOSYS] * 3):
        pytest.skip("this machine refuses io_uring anyway, so the filter can't be told apart")
    done = _run("--", sys.executable, "-c", _TRY_RING)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[1] == str([errno.ENOSYS] * 3)


def test_what_the_program_starts_inherits_the_filter() -> None:
    script = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {_TRY_RING!r}])"
    done = _run("--", sys.executable, "-c", script)
    assert done.stdout.splitlines()[1] == str([errno.ENOSYS] * 3)


def test_everything_else_still_works() -> None:
    script = (
        "import socket, tempfile, threading;"
        "thread = threading.Thread(target=print, args=('ok',)); thread.start(); thread.join();"
        "tempfile.TemporaryFile().write(b'x'); socket.socketpair()"
    )
    done = _run("--", sys.executable, "-c", script)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[1] == "ok"


def test_the_time_of_the_start_is_told_on_the_shared_clock() -> None:
    before = time.monotonic_ns()
    done = _run("--", "true")
    event = json.loads(done.stdout.splitlines()[0])
    assert event["event"] == supervisor.EXEC_EVENT
    assert before < event["at_ns"] < time.monotonic_ns()


@pytest.mark.parametrize(
    ("script", "code"), [("exit 0", 0), ("exit 7", 7), ("kill -KILL $$", 128 + signal.SIGKILL)]
)
def test_the_exit_code_is_that_of_the_program(script: str, code: int) -> None:
    assert _run("--", "sh", "-c", script).returncode == code


def test_a_program_that_is_not_there_is_named() -> None:
    done = _run("--", "/no/such/program")
    assert done.returncode == supervisor.EXIT_NO_PROGRAM
    assert "/no/such/program" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signals_reach_the_program(number: signal.Signals) -> None:
    script = f"import signal, time; signal.signal({int(number)}, lambda *_: exit(42));"
    script += "print('ready', flush=True); time.sleep(60)"
    process = subprocess.Popen(
        [
            sys.executable, "-m", "resilience_pipelines.workers.supervisor",
            "--", sys.executable, "-c", script,
        ],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    with process:
        process.stdout.readline()
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        assert process.wait(30) == 42


def test_killing_the_root_kills_the_program() -> None:
    process = subprocess.Popen(
        [
            sys.executable, "-m", "resilience_pipelines.workers.supervisor",
            "--", "sh", "-c", "echo ready; exec sleep 60",
        ],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    with process:
        process.stdout.readline()
        assert process.stdout.readline() == "ready\n"
        process.kill()
        # The program holds the other copy of the pipe: its end is the end of both.
        assert process.stdout.read() == ""


def test_the_program_is_a_child_so_that_the_root_of_the_tree_stays_small() -> None:
    done = _run("--", "sh", "-c", "cat /proc/$PPID/cmdline")
    assert "workers.supervisor" in done.stdout


@pytest.mark.parametrize("arguments", [[], ["--"], ["true"]])
def test_a_call_without_a_program_says_how_it_is_used(arguments: list[str]) -> None:
    with pytest.raises(SystemExit, match="usage"):
        supervisor.main(arguments)


@pytest.mark.parametrize("number", [0, 1, 59, 424, 428, 0x40000000, 0x40000000 | 424])
def test_other_calls_reach_allow(number: int) -> None:
    assert _interpret(number) == 0x7FFF0000


@pytest.mark.parametrize("number", [425, 426, 427, 0x40000000 | 425, 0x40000000 | 427])
def test_io_uring_calls_reach_refuse(number: int) -> None:
    assert _interpret(number) == 0x00050000 | errno.ENOSYS


def _interpret(number: int) -> int:
    """Run the filter on a call number, as the kernel would."""
    program = seccomp.filter_program()
    accumulator = at = 0
    while True:
        code, jump_true, jump_false, operand = program[at]
        at += 1
        if code == 0x20:
            accumulator = ctypes.c_uint32(number).value
        elif code == 0x54:
            accumulator &= operand
        elif code == 0x15:
            at += jump_true if accumulator == operand else jump_false
        else:
            return operand
