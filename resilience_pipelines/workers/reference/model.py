"""The reference decoder: a small transformer with a KV cache, greedy or sampled generation.

What belongs here: the forward pass, generation, sleep and wake. What does not: HTTP (`server`), the
weight file's form (`weights`), arithmetic (`kernels`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from resilience_pipelines.workers.reference import kernels
from resilience_pipelines.workers.reference.generation import (
    GREEDY,
    AsleepError,
    Sampling,
    Token,
)
from resilience_pipelines.workers.reference.memory import Arena, Array
from resilience_pipelines.workers.reference.tokenizer import END
from resilience_pipelines.workers.reference.weights import Weights, reload_weights

_ROTARY_BASE = 10_000.0
AWAKE = 0


@dataclass(frozen=True)
class _Layer:
    attention_norm: Array
    qkv: Array
    attention_out: Array
    mlp_norm: Array
    gate_up: Array
    down: Array


class Decoder:
    """The model with its weights and its cache of keys and values. For one caller at a time.

    Args:
        path: the weight file, read again when it wakes from sleep level 2.
        max_sequence: positions of prompt and completion together; the model's own by default.

    Raises:
        ValueError: the model has fewer positions.
    """

    def __init__(self, path: Path, weights: Weights, max_sequence: int | None = None) -> None:
        self.shape = shape = weights.header.shape
        self.max_sequence = shape.max_sequence if max_sequence is None else max_sequence
        if not 1 <= self.max_sequence <= shape.max_sequence:
            raise ValueError(
                f"max_sequence = {max_sequence}: give 1 to {shape.max_sequence}, "
                "which is what this model has"
            )
        self._path = path
        self._weights = weights
        self._layers = [
            _Layer(
                **{
                    name: weights.tensors[f"layers.{layer}.{name}"]
                    for name in _Layer.__dataclass_fields__
                }
            )
            for layer in range(shape.layers)
        ]
        half_bytes = 4 * shape.layers * shape.hidden * self.max_sequence
        self._cache = Arena(2 * half_bytes)
        self._keys = self._cache.array(0, (shape.layers, shape.hidden, self.max_sequence))
        self._values = self._cache.array(
            half_bytes, (shape.layers, self.max_sequence, shape.hidden)
        )
        self._cosines, self._sines = _rotary_tables(self.max_sequence, shape.hidden // shape.heads)
        self._sleep_level = AWAKE

    @property
    def asleep(self) -> bool:
        """Whether it can't answer before it is woken."""
        return self._sleep_level != AWAKE

    def sleep(self, level: int) -> None:
        """Give memory up, and go deeper when it sleeps less deeply already.

        Args:
            level: 1 drops the cache and keeps the weights in host memory, where those of a CPU are
                anyway; 2 drops both.
        """
        if level <= self._sleep_level:
            return
        if level > 1:
            self._weights.arena.release()
        self._cache.release()
        self._sleep_level = level

    def wake(self) -> None:
        """Undo `sleep`: answers are the same as before, to the bit.

        Raises:
            WeightsError: level 2 reads the file again, and it is not what it was. It stays asleep.
        """
        if self._sleep_level > 1:
            reload_weights(self._path, self._weights)
        self._sleep_level = AWAKE

    def generate(
        self, prompt: Sequence[int], count: int, sampling: Sampling = GREEDY
    ) -> Iterator[Token]:
        """Continue a prompt by `count` tokens, or up to the end token.

        Raises:
            AsleepError
            ValueError: no prompt, or more positions than there are.
        """
        if self.asleep:
            raise AsleepError("the model is asleep")
        if not prompt or len(prompt) + count > self.max_sequence:
            raise ValueError(f"{len(prompt)} and {count} tokens: give 1 to {self.max_sequence}")
        random = np.random.default_rng(sampling.seed)
        tokens, position = list(prompt), 0
        for _ in range(count):
            logprobs = self._forward(tokens, position)
            position += len(tokens)
            if sampling.temperature > 0:
                chosen = _draw(logprobs, sampling.temperature, random.random())
            else:
                chosen = int(np.argmax(logprobs))
            yield Token(chosen, float(logprobs[chosen]), _most_probable(logprobs, sampling.top))
            if chosen == END and not sampling.ignore_end:
                return
            tokens = [chosen]

    def _forward(self, tokens: Sequence[int], first: int) -> Array:
        """Log-probabilities of what follows `tokens`, which begin at position `first`."""
        hidden, heads = self.shape.hidden, self.shape.heads
        last = first + len(tokens)
        x = self._weights.tensors["embedding"][list(tokens)]
        for layer, keys, values in zip(self._layers, self._keys, self._values, strict=True):
            qkv = kernels.linear(kernels.rms_norm(x, layer.attention_norm), layer.qkv)
            kernels.rotate(qkv, self._cosines, self._sines, first, 2 * hidden)
            keys[:, first:last] = qkv[:, hidden : 2 * hidden].T
            values[first:last] = qkv[:, 2 * hidden :]
            attended = kernels.attend(qkv, keys, values, first, heads)
            x += kernels.linear(attended, layer.attention_out)
            inner = kernels.linear(kernels.rms_norm(x, layer.mlp_norm), layer.gate_up)
            x += kernels.linear(kernels.gated(inner), layer.down)
        final = kernels.rms_norm(x[-1:], self._weights.tensors["norm"])
        logprobs: Array = kernels.log_softmax(
            kernels.linear(final, self._weights.tensors["head"])[0]
        )
        return logprobs


def _rotary_tables(positions: int, width: int) -> tuple[Array, Array]:
    frequencies = _ROTARY_BASE ** (-2.0 * np.arange(width // 2) / width)
    angles = np.outer(np.arange(positions), frequencies)
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def _draw(logprobs: Array, temperature: float, uniform: float) -> int:
    """The token that a uniform number in [0, 1) falls on."""
    scaled = (logprobs.astype(np.float64) - logprobs.max()) / temperature
    reached = np.cumsum(np.exp(scaled))
    index = int(np.searchsorted(reached, uniform * reached[-1], side="right"))
    return min(index, reached.size - 1)  # the product may round up to the whole


def _most_probable(logprobs: Array, count: int) -> tuple[tuple[int, float], ...]:
    if not count:
        return ()
    best = np.argpartition(-logprobs, count - 1)[:count]
    best = best[np.lexsort((best, -logprobs[best]))]
    return tuple((int(index), float(logprobs[index])) for index in best)
