"""The decoder: weights and KV cache in regions, one step compiled and captured as a CUDA graph.

What belongs here: the forward pass, greedy generation, sleep and wake. What does not: HTTP
(`server`) and how memory is given back (`memory`).

A step takes one token at one position and leaves the next token and its log-probability. Prompt and
completion go through the same step, so that an answer does not depend on how they are cut.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor
from torch.nn import functional

from resilience_pipelines.workers.torch_reference.memory import DeviceRegion, HostRegion, Region

MAX_SEQUENCE = 512
AWAKE = 0
_ALIGNMENT = 256
_WARM_UP_STEPS = 3

Step = Callable[[], None]


class AsleepError(Exception):
    """A sleeping model was asked to compute."""


class Decoder:
    """A model folder, loaded. For one caller at a time.

    Args:
        folder: with `config.json` and `model.safetensors`.
        device: `cuda`, or `cpu` for tests.
    """

    def __init__(self, folder: Path, device: str) -> None:
        self._weights_file = folder / "model.safetensors"
        self._config = config = json.loads((folder / "config.json").read_text())
        self._device = device
        self._layers = int(config["num_hidden_layers"])
        self._heads = int(config["num_attention_heads"])
        self._kv_heads = int(config["num_key_value_heads"])
        self._head_dim = int(config["head_dim"])
        self._epsilon = float(config["rms_norm_eps"])
        self.vocabulary = int(config["vocab_size"])
        self.level = AWAKE
        self._backup: Tensor | None = None
        self._regions, self._weights, self._cache = self._load()
        self._token = torch.zeros(1, dtype=torch.long, device=device)
        self._position = torch.zeros(1, dtype=torch.long, device=device)
        self._next = torch.zeros(1, dtype=torch.long, device=device)
        self._logprob = torch.zeros(1, dtype=torch.float32, device=device)
        self._cosine, self._sine = self._rotary(float(config["rope_theta"]))
        self._places = torch.arange(MAX_SEQUENCE, device=device)
        self._step: Step = self._compute

    def compile(self) -> None:
        """Compile the step, or load what the cache on disk has of it."""
        compute: Any = torch.compile(self._forward, fullgraph=True)
        self._forward = compute  # type: ignore[method-assign]
        with torch.inference_mode():
            self._compute()
            torch.cuda.synchronize()

    def capture(self) -> None:
        """Record the step as a CUDA graph, which later steps replay."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.inference_mode(), torch.cuda.stream(stream):
            for _ in range(_WARM_UP_STEPS):
                self._compute()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.inference_mode(), torch.cuda.graph(graph):
            self._compute()
        self._step = graph.replay

    def generate(self, prompt: Sequence[int], count: int) -> Iterator[tuple[int, float]]:
        """Greedy tokens with their natural log-probabilities.

        Raises:
            AsleepError
            ValueError: prompt and completion don't fit.
        """
        if self.level != AWAKE:
            raise AsleepError
        if not prompt or len(prompt) + count > MAX_SEQUENCE:
            raise ValueError(f"1 to {MAX_SEQUENCE} tokens for prompt and completion together")
        with torch.inference_mode():
            for position, token in enumerate(prompt):
                chosen = self._advance(token, position)
            yield chosen
            for position in range(len(prompt), len(prompt) + count - 1):
                chosen = self._advance(chosen[0], position)
                yield chosen

    def sleep(self, level: int) -> None:
        """Give device memory back; level 1 keeps the weights in host memory, level 2 nothing."""
        if self.level != AWAKE:
            return
        weights, cache = self._regions
        if level == 1:
            pinned = self._device == "cuda"
            self._backup = torch.empty_like(weights.tensor, device="cpu", pin_memory=pinned)
            self._backup.copy_(weights.tensor)
        weights.release()
        cache.release()
        self.level = level

    def wake(self) -> None:
        """Undo `sleep`, at the same addresses."""
        if self.level == AWAKE:
            return
        weights, cache = self._regions
        weights.take()
        cache.take()
        cache.tensor.zero_()  # what is masked away must still be finite
        if self._backup is not None:
            weights.tensor.copy_(self._backup)
            self._backup = None
        else:
            self._fill()
        self.level = AWAKE

    def _advance(self, token: int, position: int) -> tuple[int, float]:
        self._token.fill_(token)
        self._position.fill_(position)
        self._step()
        return int(self._next.item()), float(self._logprob.item())

    def _load(self) -> tuple[tuple[Region, Region], dict[str, Tensor], tuple[Tensor, Tensor]]:
        make = DeviceRegion if self._device == "cuda" else HostRegion
        places: dict[str, tuple[int, int, tuple[int, ...]]] = {}
        end = 0
        with safe_open(self._weights_file, "pt") as file:
            for name in file.keys():  # noqa: SIM118 - no mapping: it has keys() alone
                shape = tuple(file.get_slice(name).get_shape())
                size = 2 * torch.Size(shape).numel()
                places[name] = (end, size, shape)
                end += -(-size // _ALIGNMENT) * _ALIGNMENT
        weights = make(end)
        views = {
            name: weights.tensor[start : start + size].view(torch.bfloat16).view(shape)
            for name, (start, size, shape) in places.items()
        }
        cache_shape = (self._layers, self._kv_heads, MAX_SEQUENCE, self._head_dim)
        half = 2 * torch.Size(cache_shape).numel()
        cache = make(2 * half)
        cache.tensor.zero_()
        keys = cache.tensor[:half].view(torch.bfloat16).view(cache_shape)
        values = cache.tensor[half:].view(torch.bfloat16).view(cache_shape)
        self._weights = views
        self._fill()
        return (weights, cache), views, (keys, values)

    def _fill(self) -> None:
        with safe_open(self._weights_file, "pt") as file:
            for name, view in self._weights.items():
                view.copy_(file.get_tensor(name))

    def _rotary(self, base: float) -> tuple[Tensor, Tensor]:
        half = torch.arange(0, self._head_dim, 2, dtype=torch.float64) / self._head_dim
        angles = torch.outer(torch.arange(MAX_SEQUENCE, dtype=torch.float64), base**-half)
        both = torch.cat((angles, angles), dim=-1)
        return (
            both.cos().to(self._device, torch.float32),
            both.sin().to(self._device, torch.float32),
        )

    def _compute(self) -> None:
        token, logprob = self._forward(self._token, self._position)
        self._next.copy_(token)
        self._logprob.copy_(logprob)

    def _forward(self, token: Tensor, position: Tensor) -> tuple[Tensor, Tensor]:
        weights, (keys, values) = self._weights, self._cache
        embedding = weights["model.embed_tokens.weight"]
        hidden = embedding[token]
        cosine, sine = self._cosine[position], self._sine[position]
        seen = (self._places <= position)[None, None, :]
        for layer in range(self._layers):
            base = f"model.layers.{layer}"
            normed = self._norm(hidden, f"{base}.input_layernorm")
            query = self._project(normed, f"{base}.self_attn.q", self._heads)
            key = self._project(normed, f"{base}.self_attn.k", self._kv_heads)
            value = functional.linear(normed, weights[f"{base}.self_attn.v_proj.weight"])
            query = _rotate(query, cosine, sine)
            keys[layer].index_copy_(1, position, _rotate(key, cosine, sine).transpose(0, 1))
            values[layer].index_copy_(
                1, position, value.view(1, self._kv_heads, -1).transpose(0, 1)
            )
            attended = functional.scaled_dot_product_attention(
                query.transpose(0, 1), keys[layer], values[layer], attn_mask=seen, enable_gqa=True
            )
            mixed = attended.transpose(0, 1).reshape(1, -1)
            hidden = hidden + functional.linear(mixed, weights[f"{base}.self_attn.o_proj.weight"])
            normed = self._norm(hidden, f"{base}.post_attention_layernorm")
            gate = functional.linear(normed, weights[f"{base}.mlp.gate_proj.weight"])
            up = functional.linear(normed, weights[f"{base}.mlp.up_proj.weight"])
            down = weights[f"{base}.mlp.down_proj.weight"]
            hidden = hidden + functional.linear(functional.silu(gate) * up, down)
        logits = functional.linear(self._norm(hidden, "model.norm"), embedding).float()
        best = logits.argmax(dim=-1)
        return best, torch.log_softmax(logits, dim=-1).gather(-1, best[:, None])[:, 0]

    def _project(self, hidden: Tensor, name: str, heads: int) -> Tensor:
        made = functional.linear(hidden, self._weights[f"{name}_proj.weight"])
        return self._norm(made.view(1, heads, self._head_dim), f"{name}_norm")

    def _norm(self, hidden: Tensor, name: str) -> Tensor:
        exact = hidden.float()
        scale = torch.rsqrt(exact.pow(2).mean(-1, keepdim=True) + self._epsilon)
        return (exact * scale).to(hidden.dtype) * self._weights[f"{name}.weight"]


def _rotate(heads: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    first, second = heads.chunk(2, dim=-1)
    turned = torch.cat((-second, first), dim=-1)
    return (heads.float() * cosine[:, None] + turned.float() * sine[:, None]).to(heads.dtype)
