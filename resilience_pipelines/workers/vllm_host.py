"""vLLM from the host's side: how to start `vllm serve` and how to read its output.

What belongs here: what `Worker` asks for. What does not: reading the log (`vllm_log`), sleep and
wake (`vllm_middleware`, `vllm_extension`), the model (`seeded_model`).

vLLM runs in a process of its own, from the Python that runs this. Nothing here imports it.
"""

from __future__ import annotations

import importlib.metadata
import json
import math
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from resilience_pipelines.errors import InputError, UnsupportedError
from resilience_pipelines.records import Basis
from resilience_pipelines.workers.base import LaunchPlan, Mark, OutputLine
from resilience_pipelines.workers.seeded_model import PRECISION, SHAPES, WEIGHTS_NAME, write_model
from resilience_pipelines.workers.vllm_log import phases_of

MODEL_VARIABLE: Final = "RESILIENCE_VLLM_MODEL"
ARGUMENTS_VARIABLE: Final = "RESILIENCE_VLLM_ARGS"
DEFAULT_SHAPE: Final = "qwen3-0.6b"
SEED: Final = 20260101

_ENVIRONMENT: Final = {
    # The worker's network is loopback alone.
    "VLLM_HOST_IP": "127.0.0.1",
    "NCCL_SOCKET_IFNAME": "lo",
    "GLOO_SOCKET_IFNAME": "lo",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    # The endpoints for sleep and wake.
    "VLLM_SERVER_DEV_MODE": "1",
    # Sockets between its processes: in the space's own /dev/shm, so that workers restored from one
    # snapshot don't meet each other's.
    "VLLM_RPC_BASE_PATH": "/dev/shm",  # noqa: S108
    # Sampling is compiled by Triton with everything else, not by a second compiler at first use.
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
    # The phases are read from plain lines, at once.
    "VLLM_DISABLE_LOG_LOGO": "1",
    "NO_COLOR": "1",
    "PYTHONUNBUFFERED": "1",
    # A monitor that NCCL otherwise starts with a thread and a socket of its own.
    "NCCL_RAS_ENABLE": "0",
}  # fmt: skip

# Folders of compile caches: variable -> name below the cache folder.
_CACHES: Final = {
    "VLLM_CACHE_ROOT": "vllm",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TRITON_CACHE_DIR": "triton",
    "CUDA_CACHE_PATH": "cuda",
    "XDG_CACHE_HOME": "xdg",
    "HF_HOME": "huggingface",
}  # fmt: skip


@dataclass(frozen=True)
class VllmWorker:
    """vLLM's OpenAI server with one model.

    Args:
        model_folder: where the model is, or will be when `shape` names one to make.
        shape: key of `SHAPES` for a model made from a seed; None for a model that is there.
        extra_arguments: further arguments of `vllm serve`, the same for every arm.
    """

    model_folder: Path
    engine_version: str
    model: str
    shape: str | None = None
    model_precision: str = PRECISION
    extra_arguments: tuple[str, ...] = ()

    name: str = "vllm"
    basis: Basis = Basis.MEASURED
    engine: str = "vllm"
    start_deadline_s: float = 900.0
    request_deadline_s: float = 120.0
    sleep_levels: tuple[int, ...] = (1, 2)
    snapshot_sleep_level: int = 2
    logprob_tolerance: float = 0.0625

    def prepare(self) -> None:
        """Write the model, once, where it is made from a seed."""
        if self.shape is not None:
            write_model(self.model_folder, SHAPES[self.shape], SEED)

    def plan(self, port: int, cache: Path) -> LaunchPlan:
        """See `Worker.plan`."""
        caches = {variable: str(cache / folder) for variable, folder in _CACHES.items()}
        return LaunchPlan(
            argv=(
                sys.executable, "-m", "resilience_pipelines.workers.supervisor", "--",
                sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", str(self.model_folder),
                "--served-model-name", self.model,
                "--host", "127.0.0.1", "--port", str(port),
                "--enable-sleep-mode", "--seed", "0", "--generation-config", "vllm",
                "--middleware",
                "resilience_pipelines.workers.vllm_middleware.WakeRestoresService",
                "--worker-extension-cls",
                "resilience_pipelines.workers.vllm_extension.SnapshotExtension",
                *self.extra_arguments,
            ),
            port=port,
            env=_ENVIRONMENT | caches,
        )  # fmt: skip

    def weight_files(self) -> Sequence[Path]:
        """See `Worker.weight_files`."""
        if self.shape is not None:
            return (self.model_folder / WEIGHTS_NAME,)
        return tuple(sorted(self.model_folder.glob("*.safetensors")))

    def with_weights_in(self, folder: Path) -> VllmWorker:
        """See `Worker.with_weights_in`."""
        return replace(self, model_folder=folder)

    def marks(self, lines: Sequence[OutputLine]) -> list[Mark]:
        """See `Worker.marks`."""
        return phases_of(lines, self.engine_version)

    def stack_facts(self) -> Mapping[str, str | int | None]:
        """See `Worker.stack_facts`."""
        return {
            "torch_version": distribution_version("torch"),
            "nccl_version": distribution_version("nvidia-nccl-cu13")
            or distribution_version("nvidia-nccl-cu12"),
        }


def find_vllm(cache: Path) -> VllmWorker:
    """The installed vLLM with the model that RESILIENCE_VLLM_MODEL names.

    Args:
        cache: folder for a model made from a seed.

    Raises:
        UnsupportedError: vLLM is not installed.
        InputError: the variable names neither a shape nor a model folder.
    """
    version = distribution_version("vllm")
    if version is None:
        raise UnsupportedError(
            "vLLM is not installed in this Python.",
            mend="pip install 'resilience-pipelines[gpu]'",
        )
    asked = os.environ.get(MODEL_VARIABLE, DEFAULT_SHAPE)
    extra = tuple(shlex.split(os.environ.get(ARGUMENTS_VARIABLE, "")))
    if asked in SHAPES:
        name = f"{asked}-seed-{SEED}"
        return VllmWorker(
            cache / "models" / name, version, name, shape=asked, extra_arguments=extra,
            logprob_tolerance=logprob_tolerance(SHAPES[asked].hidden),
        )  # fmt: skip
    folder = Path(asked).expanduser().absolute()
    config = _config(folder, asked)
    hidden = config.get("hidden_size")
    return VllmWorker(
        folder,
        version,
        folder.name,
        model_precision=str(config.get("dtype") or config.get("torch_dtype") or "unknown"),
        extra_arguments=extra,
        logprob_tolerance=logprob_tolerance(hidden if isinstance(hidden, int) else 1024),
    )


def logprob_tolerance(hidden: int) -> float:
    """Greatest difference of a log-probability between two starts that answer the same.

    A start that compiles and one that takes compiled code from the cache round differently: by half
    a step of a bfloat16 logit between 8 and 16 with a hidden size of 1024 (0.031), by 0.093 with
    4096, the same on every such pair of starts. A logit is a sum of `hidden` products, so its size,
    and with it the step, grows with the root of `hidden`. Tokens have to be equal whatever this is,
    and a restore has so far differed from its source by exactly 0.
    """
    return 0.0625 * math.sqrt(max(hidden, 1024) / 1024)


def distribution_version(name: str) -> str | None:
    """Version of an installed package, without importing it; None where it is not installed."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _config(folder: Path, asked: str) -> Mapping[str, object]:
    try:
        config = json.loads((folder / "config.json").read_text())
        if not isinstance(config, dict):
            raise ValueError("config.json is no object")
    except (OSError, ValueError) as error:
        raise InputError(
            MODEL_VARIABLE, asked, f"this is no model folder ({error})",
            mend=f"Give a folder with config.json and weights, or one of {', '.join(SHAPES)}.",
        ) from error  # fmt: skip
    return config
