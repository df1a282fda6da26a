"""Which workers a machine has, and what is said of one that it has not."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from resilience_pipelines import context
from resilience_pipelines.context import make_worker, workers_here
from resilience_pipelines.errors import InputError, UnsupportedError
from resilience_pipelines.home import Home, open_home


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return open_home(tmp_path / "home")


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """A machine with every engine installed; `gpu_count` says how many GPUs it has."""
    facts: dict[str, object] = {"gpu_count": 1}
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(context, "read_gpu", lambda: facts)
    return facts


def test_with_a_gpu_every_worker_is_there(machine: dict[str, object]) -> None:
    assert workers_here() == ("reference", "torch", "vllm")


@pytest.mark.parametrize("count", [None, 0])
def test_without_a_gpu_only_the_reference_worker_is(
    machine: dict[str, object], home: Home, count: int | None
) -> None:
    machine["gpu_count"] = count
    assert workers_here() == ("reference",)
    with pytest.raises(UnsupportedError, match=r"torch needs an NVIDIA GPU.*--worker reference"):
        make_worker("torch", home)


def test_an_engine_that_is_not_installed_is_named(
    machine: dict[str, object], home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UnsupportedError, match=r"vllm is not installed.*pip install"):
        make_worker("vllm", home)


def test_a_worker_that_does_not_exist_is_bad_input(home: Home) -> None:
    with pytest.raises(InputError, match=r"worker = 'llama'.*reference, torch, vllm"):
        make_worker("llama", home)
