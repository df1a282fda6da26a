"""How vLLM is started: confined, offline, with its caches where they belong."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from resilience_pipelines.errors import InputError, UnsupportedError
from resilience_pipelines.workers import vllm_host
from resilience_pipelines.workers.vllm_host import VllmWorker, find_vllm


@pytest.fixture
def vllm_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {"vllm": "0.23.0", "torch": "2.11.0"}
    monkeypatch.setattr(vllm_host, "distribution_version", versions.get)


@pytest.fixture
def worker(tmp_path: Path) -> VllmWorker:
    return VllmWorker(tmp_path / "m", "0.23.0", "m", extra_arguments=("--max-num-seqs", "8"))


def test_vllm_starts_behind_the_filter(worker: VllmWorker, tmp_path: Path) -> None:
    argv = worker.plan(8000, tmp_path).argv
    wrapper = argv.index("--")
    assert argv[:wrapper] == (sys.executable, "-m", "resilience_pipelines.workers.supervisor")
    assert argv[wrapper + 1 : wrapper + 5] == (
        sys.executable, "-m", "vllm.entrypoints.cli.main", "serve",
    )  # fmt: skip


def test_it_listens_on_loopback_at_the_port_asked_for(worker: VllmWorker, tmp_path: Path) -> None:
    argv = worker.plan(8123, tmp_path).argv
    assert argv[argv.index("--host") + 1] == "127.0.0.1"
    assert argv[argv.index("--port") + 1] == "8123"


def test_two_cache_folders_share_no_cache(worker: VllmWorker, tmp_path: Path) -> None:
    def paths(name: str) -> set[str]:
        plan = worker.plan(8000, tmp_path / name)
        return {value for value in plan.env.values() if value.startswith(str(tmp_path))}

    assert len(paths("a")) >= 5
    assert paths("a").isdisjoint(paths("b"))


def test_arguments_of_the_user_come_last(worker: VllmWorker, tmp_path: Path) -> None:
    assert worker.plan(8000, tmp_path).argv[-2:] == ("--max-num-seqs", "8")


def test_without_vllm_the_mend_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(vllm_host, "distribution_version", lambda name: None)
    with pytest.raises(UnsupportedError, match="pip install"):
        find_vllm(tmp_path)


@pytest.mark.usefixtures("vllm_is_installed")
def test_a_model_folder_of_the_user_is_served_as_it_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"dtype": "float16"}))
    (folder / "a.safetensors").touch()
    monkeypatch.setenv(vllm_host.MODEL_VARIABLE, str(folder))
    monkeypatch.setenv(vllm_host.ARGUMENTS_VARIABLE, "--max-model-len '4096'")
    found = find_vllm(tmp_path)
    found.prepare()
    assert (found.model, found.model_precision) == ("mine", "float16")
    assert found.weight_files() == (folder / "a.safetensors",)
    assert found.extra_arguments == ("--max-model-len", "4096")


@pytest.mark.usefixtures("vllm_is_installed")
@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"hidden_size": 1024}, 0.0625),
        ({"hidden_size": 4096}, 0.125),
        ({"hidden_size": 64}, 0.0625),
        ({}, 0.0625),
        ({"hidden_size": "large"}, 0.0625),
    ],
)
def test_the_tolerance_of_log_probabilities_grows_with_the_size_of_logits(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, config: dict[str, object], expected: float
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    monkeypatch.setenv(vllm_host.MODEL_VARIABLE, str(tmp_path))
    assert find_vllm(tmp_path).logprob_tolerance == pytest.approx(expected)


@pytest.mark.usefixtures("vllm_is_installed")
@pytest.mark.parametrize(("shape", "expected"), [("qwen3-0.6b", 0.0625), ("qwen3-8b", 0.125)])
def test_a_shape_has_the_tolerance_of_its_size(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, shape: str, expected: float
) -> None:
    monkeypatch.setenv(vllm_host.MODEL_VARIABLE, shape)
    assert find_vllm(tmp_path).logprob_tolerance == pytest.approx(expected)


@pytest.mark.usefixtures("vllm_is_installed")
def test_a_config_that_is_no_object_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text("[1]")
    monkeypatch.setenv(vllm_host.MODEL_VARIABLE, str(tmp_path))
    with pytest.raises(InputError, match="no object"):
        find_vllm(tmp_path)


@pytest.mark.usefixtures("vllm_is_installed")
@pytest.mark.parametrize("asked", ["qwen4-900b", "/nowhere"])
def test_a_model_that_is_neither_shape_nor_folder_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, asked: str
) -> None:
    monkeypatch.setenv(vllm_host.MODEL_VARIABLE, asked)
    with pytest.raises(InputError, match=r"qwen3-0\.6b"):
        find_vllm(tmp_path)


@pytest.mark.usefixtures("vllm_is_installed")
def test_versions_that_are_not_known_stay_unknown(tmp_path: Path) -> None:
    facts = find_vllm(tmp_path).stack_facts()
    assert facts == {"torch_version": "2.11.0", "nccl_version": None}
