"""The decoder's kernels: what numba compiles once, when this is imported, and keeps in its cache.

What belongs here: arithmetic over arrays. Every number is summed up by one thread in an order that
depends on nothing but its operands' shapes, so results are the same to the bit in every process,
for every number of threads and for every split of a prompt.
"""

from __future__ import annotations

import numba
import numpy as np
from numba import float32, int64, void

from resilience_pipelines.workers.reference.memory import Array

# Its threads wait on a condition variable between kernels: nothing that a snapshot can't hold. It
# is for one caller at a time; the server sees to that.
numba.config.THREADING_LAYER = "workqueue"  # type: ignore[attr-defined]

_VECTOR = float32[::1]
_MATRIX = float32[:, ::1]
_EPSILON = np.float32(1e-6)

# A panel of weights, 64 x 256 float32, stays in the second-level cache while all rows use it.
_BLOCK_COLUMNS = 256
_PANEL_INPUTS = 64


@numba.njit(_MATRIX(_MATRIX, _MATRIX), parallel=True, nogil=True, cache=True)
def linear(x: Array, weight: Array) -> Array:
    """The product of (rows, inputs) and (inputs, outputs). Inputs are a multiple of 4."""
    rows, inputs = x.shape
    columns = weight.shape[1]
    out = np.zeros((rows, columns), np.float32)
    for block in numba.prange((columns + _BLOCK_COLUMNS - 1) // _BLOCK_COLUMNS):
        first = block * _BLOCK_COLUMNS
        last = min(first + _BLOCK_COLUMNS, columns)
        for panel in range(0, inputs, _PANEL_INPUTS):
            for row in range(rows):
                sums = out[row, first:last]
                for i in range(panel, min(panel + _PANEL_INPUTS, inputs), 4):
                    x0, x1, x2, x3 = x[row, i], x[row, i + 1], x[row, i + 2], x[row, i + 3]
                    w0, w1 = weight[i, first:last], weight[i + 1, first:last]
                    w2, w3 = weight[i + 2, first:last], weight[i + 3, first:last]
                    for c in range(sums.size):
                        sums[c] += x0 * w0[c] + x1 * w1[c] + x2 * w2[c] + x3 * w3[c]
    return out


@numba.njit(_MATRIX(_MATRIX, _VECTOR), nogil=True, cache=True)
def rms_norm(x: Array, weight: Array) -> Array:
    """Each row over its root mean square, times the weight."""
    out = np.empty_like(x)
    for row in range(x.shape[0]):
        total = np.float32(0)
        for c in range(x.shape[1]):
            total += x[row, c] * x[row, c]
        scale = np.float32(1) / np.sqrt(total / np.float32(x.shape[1]) + _EPSILON)
        for c in range(x.shape[1]):
            out[row, c] = x[row, c] * scale * weight[c]
    return out


@numba.njit(void(_MATRIX, _MATRIX, _MATRIX, int64, int64), nogil=True, cache=True)
def rotate(x: Array, cosines: Array, sines: Array, first: int, columns: int) -> None:
    """Rotary position embedding, in place.

    Args:
        cosines, sines: (positions, half of a head's columns).
        first: position of the first row.
        columns: how many of the columns are rotated, from the left.
    """
    half = cosines.shape[1]
    for row in range(x.shape[0]):
        for start in range(0, columns, 2 * half):
            for pair in range(half):
                cosine, sine = cosines[first + row, pair], sines[first + row, pair]
                a, b = x[row, start + pair], x[row, start + pair + half]
                x[row, start + pair] = a * cosine - b * sine
                x[row, start + pair + half] = a * sine + b * cosine


@numba.njit(_MATRIX(_MATRIX, _MATRIX, _MATRIX, int64, int64), nogil=True, cache=True)
def attend(query: Array, keys: Array, values: Array, first: int, heads: int) -> Array:
    """Causal attention of the rows, at positions `first` and on, over all positions up to each.

    Args:
        query: (rows, hidden or more); only the first `hidden` columns are read.
        keys: (hidden, positions). values: (positions, hidden).
    """
    rows, hidden = query.shape[0], keys.shape[0]
    width = hidden // heads
    scale = np.float32(1) / np.sqrt(np.float32(width))
    out = np.zeros((rows, hidden), np.float32)
    scores = np.empty(first + rows, np.float32)
    for start in range(0, hidden, width):
        for row in range(rows):
            seen = first + row + 1
            for position in range(seen):
                scores[position] = np.float32(0)
            for c in range(start, start + width):
                scaled = query[row, c] * scale
                key = keys[c, :seen]
                for position in range(seen):
                    scores[position] += scaled * key[position]
            highest = scores[0]
            for position in range(seen):
                highest = max(highest, scores[position])
            total = np.float32(0)
            for position in range(seen):
                scores[position] = np.exp(scores[position] - highest)
                total += scores[position]
            mixed = out[row, start : start + width]
            for position in range(seen):
                share = scores[position] / total
                value = values[position, start : start + width]
                for c in range(width):
                    mixed[c] += share * value[c]
    return out


@numba.njit(_MATRIX(_MATRIX), nogil=True, cache=True)
def gated(x: Array) -> Array:
    """SwiGLU: the left half of each row through SiLU, times the right half."""
    rows, width = x.shape[0], x.shape[1] // 2
    out = np.empty((rows, width), np.float32)
    for row in range(rows):
        for c in range(width):
            gate = x[row, c]
            out[row, c] = gate / (np.float32(1) + np.exp(-gate)) * x[row, width + c]
    return out


@numba.njit(_VECTOR(_VECTOR), nogil=True, cache=True)
def log_softmax(logits: Array) -> Array:
    """Natural logarithms of the probabilities."""
    highest = logits[0]
    for logit in logits:
        highest = max(highest, logit)
    total = 0.0
    for logit in logits:
        total += np.exp(np.float64(logit - highest))
    norm = highest + np.float32(np.log(total))
    out = np.empty_like(logits)
    for index in range(logits.size):
        out[index] = logits[index] - norm
    return out
