"""The reference decoder: a small transformer with a KV cache, greedy or sampled generation.

What belongs here: the forward pass, generation, sleep and wake of the weights. What does not: HTTP
(`server`) and the weight file's form (`weights`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from resilience_pipelines.workers.reference import kernels
from resilience_pipelines.workers.reference.weights import (
    Array,
    ModelShape,
    Weights,
    WeightsError,
    load_weights,
)


@dataclass(frozen=True)
class Token:
    """A generated token.

    Attributes:
        top: the most probable tokens with their log-probabilities, best first.
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]


def encode(text: str) -> list[int]:
    """One token for each byte of the text in UTF-8."""
    return list(text.encode())


def decode(token_id: int) -> str:
    """A printable form: the byte's character, or the id in brackets."""
    return chr(token_id) if 32 <= token_id < 127 else f"<{token_id}>"


class Decoder:
    """The model with its weights and its cache of keys and values.

    Args:
        path: the weight file, read again when it wakes from sleep level 2.
    """

    def __init__(self, path: Path, shape: ModelShape, weights: Weights) -> None:
        self.shape = shape
        self._path = path
        self._weights: Weights | None = weights
        self._allocate_cache()

    @property
    def asleep(self) -> bool:
        """Whether it can't answer before it is woken."""
        return self._keys is None

    def _allocate_cache(self) -> None:
        size = (self.shape.layers, self.shape.max_sequence, self.shape.hidden)
        self._keys: Array | None = np.zeros(size, np.float32)
        self._values: Array | None = np.zeros(size, np.float32)

    def sleep(self, level: int) -> int:
        """Give memory up; returns the bytes given up.

        Level 1 drops the cache of keys and values: the weights stay in host memory, which on a CPU
        is where they are. Level 2 drops the weights too.
        """
        if self.asleep:
            return 0
        released = 0
        if self._keys is not None and self._values is not None:
            released = self._keys.nbytes + self._values.nbytes
            self._keys = self._values = None
        if level == 2 and self._weights is not None:
            released += sum(tensor.nbytes for tensor in self._weights.values())
            self._weights = None
        return released

    def wake(self) -> None:
        """Undo `sleep`.

        Raises:
            WeightsError: level 2 reads the file again, and it is not what it was.
        """
        if not self.asleep:
            return
        if self._weights is None:
            shape, weights = load_weights(self._path)
            if shape != self.shape:
                raise WeightsError(f"{self._path} holds another model now")
            self._weights = weights
        self._allocate_cache()

    def generate(
        self,
        prompt: list[int],
        count: int,
        *,
        temperature: float = 0.0,
        seed: int = 0,
        top: int = 1,
    ) -> Iterator[Token]:
        """Continue a prompt by `count` tokens."""
        random = np.random.Generator(np.random.PCG64(seed))
        tokens, position = prompt, 0
        for _ in range(count):
            logprobs = self._forward(tokens, position)
            position += len(tokens)
            if temperature > 0:
                chosen = kernels.sample(logprobs, temperature, float(random.random()))
            else:
                chosen = kernels.greatest(logprobs)
            yield Token(int(chosen), float(logprobs[chosen]), _top(logprobs, top))
            tokens = [int(chosen)]

    def _forward(self, tokens: list[int], first: int) -> Array:
        """Log-probabilities of the token after `tokens`, which begin at position `first`."""
        weights, keys, values = self._weights, self._keys, self._values
        if weights is None or keys is None or values is None:
            raise RuntimeError("the model is asleep")
        hidden, heads = self.shape.hidden, self.shape.heads
        last = first + len(tokens)
        x = weights["embedding"][np.array(tokens)]
        for layer in range(self.shape.layers):
            name = f"layers.{layer}."
            normed = kernels.rms_norm(x, weights[name + "attention_norm"])
            qkv = normed @ weights[name + "qkv"]
            kernels.rotate(qkv, first, 2 * hidden, hidden // heads)
            keys[layer, first:last] = qkv[:, hidden : 2 * hidden]
            values[layer, first:last] = qkv[:, 2 * hidden :]
            query = np.ascontiguousarray(qkv[:, :hidden])
            attended = kernels.attend(query, keys[layer], values[layer], first, heads)
            x = x + attended @ weights[name + "attention_out"]
            normed = kernels.rms_norm(x, weights[name + "mlp_norm"])
            x = x + kernels.gated(normed @ weights[name + "gate_up"]) @ weights[name + "down"]
        final = kernels.rms_norm(np.ascontiguousarray(x[-1:]), weights["norm"])
        return kernels.log_softmax((final @ weights["head"])[0])


def _top(logprobs: Array, count: int) -> tuple[tuple[int, float], ...]:
    best = np.argsort(-logprobs, kind="stable")[:count]
    return tuple((int(index), float(logprobs[index])) for index in best)
