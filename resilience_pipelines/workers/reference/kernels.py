"""The decoder's compiled kernels: what numba compiles once and keeps in its cache.

What belongs here: arithmetic over arrays. Matrix products are NumPy's and are not here. No kernel
reorders a sum, so results are the same in every process.
"""

from __future__ import annotations

import numba
import numpy as np
from numba import float32, int64
from numpy.typing import NDArray

Array = NDArray[np.float32]

_VECTOR = float32[::1]
_MATRIX = float32[:, ::1]
_CACHE = float32[:, :, ::1]


@numba.njit(_MATRIX(_MATRIX, _VECTOR), cache=True)
def rms_norm(x: Array, weight: Array) -> Array:
    """Each row over its root mean square, times the weight."""
    out = np.empty_like(x)
    for row in range(x.shape[0]):
        total = np.float32(0)
        for column in range(x.shape[1]):
            total += x[row, column] * x[row, column]
        scale = np.float32(1) / np.sqrt(total / np.float32(x.shape[1]) + np.float32(1e-6))
        for column in range(x.shape[1]):
            out[row, column] = x[row, column] * scale * weight[column]
    return out


@numba.njit(numba.void(_MATRIX, int64, int64, int64), cache=True)
def rotate(x: Array, first: int, count: int, head: int) -> None:
    """Rotary position embedding, in place, over the first `count` columns.

    Args:
        first: position of the first row.
        head: columns of one head.
    """
    half = head // 2
    for row in range(x.shape[0]):
        for start in range(0, count, head):
            for pair in range(half):
                angle = np.float32(first + row) * np.float32(10_000.0 ** (-2.0 * pair / head))
                cosine, sine = np.cos(angle), np.sin(angle)
                a, b = x[row, start + pair], x[row, start + pair + half]
                x[row, start + pair] = a * cosine - b * sine
                x[row, start + pair + half] = a * sine + b * cosine


@numba.njit(_MATRIX(_MATRIX, _MATRIX, _MATRIX, int64, int64), cache=True)
def attend(query: Array, keys: Array, values: Array, first: int, heads: int) -> Array:
    """Causal attention of rows at positions `first`.. over all keys up to each.

    Args:
        query: (rows, hidden). keys, values: (positions, hidden).
    """
    rows, hidden = query.shape
    head = hidden // heads
    out = np.zeros((rows, hidden), np.float32)
    scale = np.float32(1) / np.sqrt(np.float32(head))
    for row in range(rows):
        seen = first + row + 1
        scores = np.empty(seen, np.float32)
        for start in range(0, hidden, head):
            highest = np.float32(-np.inf)
            for position in range(seen):
                total = np.float32(0)
                for column in range(start, start + head):
                    total += query[row, column] * keys[position, column]
                scores[position] = total * scale
                highest = max(highest, scores[position])
            norm = np.float32(0)
            for position in range(seen):
                scores[position] = np.exp(scores[position] - highest)
                norm += scores[position]
            for position in range(seen):
                weight = scores[position] / norm
                for column in range(start, start + head):
                    out[row, column] += weight * values[position, column]
    return out


@numba.njit(_MATRIX(_MATRIX), cache=True)
def gated(x: Array) -> Array:
    """SwiGLU: the first half of each row through SiLU, times the second half."""
    rows, width = x.shape[0], x.shape[1] // 2
    out = np.empty((rows, width), np.float32)
    for row in range(rows):
        for column in range(width):
            gate = x[row, column]
            silu = gate / (np.float32(1) + np.exp(-gate))
            out[row, column] = silu * x[row, width + column]
    return out


@numba.njit(_VECTOR(_VECTOR), cache=True)
def log_softmax(logits: Array) -> Array:
    """Natural logarithms of the probabilities."""
    highest = logits[0]
    for value in logits:
        highest = max(highest, value)
    total = 0.0
    for value in logits:
        total += np.exp(np.float64(value) - highest)
    out = np.empty_like(logits)
    shift = np.float32(np.log(total)) + highest
    for index in range(logits.shape[0]):
        out[index] = logits[index] - shift
    return out


@numba.njit(int64(_VECTOR), cache=True)
def greatest(values: Array) -> int:
    """Index of the greatest value, the first of equals."""
    best = 0
    for index in range(1, values.shape[0]):
        if values[index] > values[best]:
            best = index
    return int(best)


@numba.njit(int64(_VECTOR, float32, float32), cache=True)
def sample(logprobs: Array, temperature: float, uniform: float) -> int:
    """Draw an index at a temperature, from one uniform number in [0, 1)."""
    total = 0.0
    for value in logprobs:
        total += np.exp(np.float64(value) / temperature)
    target, reached = uniform * total, 0.0
    for index in range(logprobs.shape[0]):
        reached += np.exp(np.float64(logprobs[index]) / temperature)
        if reached > target:
            return int(index)
    return int(logprobs.shape[0] - 1)
