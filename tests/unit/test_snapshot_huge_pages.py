"""The operator's setting comes back when the last restore ends, whoever began."""

from __future__ import annotations

import multiprocessing
import os
import signal
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest

from resilience_pipelines.snapshots.huge_pages import VARIABLE, huge_pages

CHOICES = {
    "enabled": ("always", "madvise", "never"),
    "shmem_enabled": ("always", "within_size", "advise", "never", "deny", "force"),
}


class Kernel:
    """A folder like the kernel's. Writing a word there does not put brackets around it."""

    def __init__(self, folder: Path) -> None:
        self.switches = folder / "transparent_hugepage"
        self.state = folder / "state"
        self.switches.mkdir()
        self.set("enabled", "madvise")
        self.set("shmem_enabled", "never")

    def set(self, name: str, word: str) -> None:
        words = (f"[{w}]" if w == word else w for w in CHOICES[name])
        (self.switches / name).write_text(" ".join(words))

    def read(self) -> tuple[str, str]:
        return tuple((self.switches / name).read_text() for name in CHOICES)  # type: ignore[return-value]

    def use(self) -> None:
        """What the kernel does with a word that was written."""
        for name in CHOICES:
            self.set(name, (self.switches / name).read_text())


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kernel:
    monkeypatch.delenv(VARIABLE, raising=False)
    return Kernel(tmp_path)


def test_they_are_on_in_the_block_and_as_before_after_it(kernel: Kernel) -> None:
    with huge_pages(kernel.switches, kernel.state) as on:
        assert on
        assert kernel.read() == ("always", "always")
    assert kernel.read() == ("madvise", "never")


def test_an_error_in_the_block_puts_them_back(kernel: Kernel) -> None:
    with pytest.raises(RuntimeError), huge_pages(kernel.switches, kernel.state):
        raise RuntimeError
    assert kernel.read() == ("madvise", "never")


def test_they_stay_on_until_the_last_block_ends(kernel: Kernel) -> None:
    first = huge_pages(kernel.switches, kernel.state)
    second = huge_pages(kernel.switches, kernel.state)
    first.__enter__()
    kernel.use()
    second.__enter__()
    first.__exit__(None, None, None)
    assert "[always]" in kernel.read()[0]
    second.__exit__(None, None, None)
    assert kernel.read() == ("madvise", "never")


def _hold(kernel: Kernel, ready: Event) -> None:
    with huge_pages(kernel.switches, kernel.state):
        ready.set()
        signal.pause()


def test_what_a_killed_restore_left_on_is_put_back_by_the_next(kernel: Kernel) -> None:
    context = multiprocessing.get_context("fork")
    ready = context.Event()
    holder = context.Process(target=_hold, args=(kernel, ready))
    holder.start()
    assert ready.wait(20)
    assert holder.pid is not None
    os.kill(holder.pid, signal.SIGKILL)
    holder.join(20)
    kernel.use()
    assert "[always]" in kernel.read()[0]
    with huge_pages(kernel.switches, kernel.state):
        pass
    assert kernel.read() == ("madvise", "never")


def test_a_machine_without_such_switches_goes_without(tmp_path: Path) -> None:
    with huge_pages(tmp_path / "none", tmp_path / "state") as on:
        assert not on


def test_an_operator_can_say_no(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "0")
    with huge_pages(kernel.switches, kernel.state) as on:
        assert not on
        assert "[madvise]" in kernel.read()[0]
    assert not kernel.state.exists()
