"""Weights of the reference decoder: made from a seed, kept as safetensors, loaded into memory.

What belongs here: the decoder's shape and its weight file. What does not: computing with them
(`model`).
"""

from __future__ import annotations

import json
import math
import os
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from resilience_pipelines.workers.reference import WEIGHTS_FORMAT
from resilience_pipelines.workers.reference.memory import Arena, Array
from resilience_pipelines.workers.reference.tokenizer import SMALLEST_VOCABULARY

INNER_STEP = 4
"""Matrix products take this many inputs at a time, so widths are multiples of it."""

_METADATA_KEY = "reference_decoder"
_ALIGNMENT_BYTES = 64
# Spread of the logits. At 1 all tokens are nearly as probable as one another; at 3 the best of
# 16 384 has a probability of some percent, as in a trained model.
_LOGIT_DEVIATION = 3.0


class WeightsError(Exception):
    """The weight file is missing, damaged or not what was asked for."""


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a decoder whose weights are float32.

    Attributes:
        hidden: width of the residual stream, divided evenly over `heads`.
        mlp: width of the feed-forward layer.
        vocabulary: number of token ids.
        max_sequence: positions of prompt and completion together.

    Raises:
        ValueError: a size that can't be used, by name.
    """

    layers: int
    hidden: int
    heads: int
    mlp: int
    vocabulary: int
    max_sequence: int

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if type(value) is not int or value < 1:
                raise ValueError(f"{name} = {value!r}: give a positive integer")
        if self.hidden % (2 * self.heads):
            raise ValueError(f"hidden = {self.hidden}: give an even multiple of heads")
        for name in ("hidden", "mlp"):
            if getattr(self, name) % INNER_STEP:
                raise ValueError(f"{name} = {getattr(self, name)}: give a multiple of {INNER_STEP}")
        if self.vocabulary < SMALLEST_VOCABULARY:
            raise ValueError(f"vocabulary = {self.vocabulary}: give {SMALLEST_VOCABULARY} or more")

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of every tensor; matrices are (inputs, outputs)."""
        found: dict[str, tuple[int, ...]] = {"embedding": (self.vocabulary, self.hidden)}
        for layer in range(self.layers):
            found |= {
                f"layers.{layer}.attention_norm": (self.hidden,),
                f"layers.{layer}.qkv": (self.hidden, 3 * self.hidden),
                f"layers.{layer}.attention_out": (self.hidden, self.hidden),
                f"layers.{layer}.mlp_norm": (self.hidden,),
                f"layers.{layer}.gate_up": (self.hidden, 2 * self.mlp),
                f"layers.{layer}.down": (self.mlp, self.hidden),
            }
        return found | {"norm": (self.hidden,), "head": (self.hidden, self.vocabulary)}

    @property
    def parameters(self) -> int:
        """Number of weights."""
        return sum(math.prod(size) for size in self.tensors().values())


DEFAULT = ModelShape(
    layers=4, hidden=768, heads=12, mlp=2048, vocabulary=16_384, max_sequence=1024
)  # fmt: skip
"""53 million parameters, 214 MB."""

TINY = ModelShape(layers=2, hidden=32, heads=4, mlp=64, vocabulary=320, max_sequence=128)
"""For tests: 0.1 MB."""


@dataclass(frozen=True)
class WeightsHeader:
    """What a weight file says it holds."""

    shape: ModelShape
    seed: int


@dataclass(frozen=True)
class Weights:
    """Loaded weights: arrays over one arena."""

    header: WeightsHeader
    arena: Arena
    tensors: Mapping[str, Array]


def write_weights(path: Path, shape: ModelShape, seed: int) -> None:
    """Make the weight file: the same bytes for the same shape and seed. Atomic.

    Raises:
        OSError: it could not be written; nothing is left behind.
    """
    tensors = {
        name: _initial(name, size, np.random.default_rng([seed, index]))
        for index, (name, size) in enumerate(shape.tensors().items())
    }
    # One entry only: safetensors writes several in an order that differs from call to call.
    about = {"format": WEIGHTS_FORMAT, "seed": seed, "shape": asdict(shape)}
    partial = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file(tensors, partial, {_METADATA_KEY: json.dumps(about, sort_keys=True)})
        with partial.open("rb") as stream:
            os.fsync(stream.fileno())
        partial.replace(path)
    except SafetensorError as error:
        # The library's own for whatever went wrong while it wrote.
        raise OSError(f"{path}: {error}") from error
    finally:
        partial.unlink(missing_ok=True)


def load_weights(path: Path) -> Weights:
    """Read a weight file into memory of this process, as a device load does; no mapping stays.

    Raises:
        WeightsError: naming the file and what is wrong with it.
    """
    with _opened(path) as (stream, header):
        arena, tensors = _allocate(header.shape)
        weights = Weights(header, arena, tensors)
        _fill(weights, stream)
    return weights


def reload_weights(path: Path, weights: Weights) -> None:
    """Read a weight file again, into the arena that held it.

    Raises:
        WeightsError: also when the file now holds other weights. The arena is empty then.
    """
    try:
        with _opened(path) as (stream, header):
            if header != weights.header:
                raise WeightsError(
                    f"{path} now holds other weights (seed {header.seed}) than were loaded "
                    f"(seed {weights.header.seed})"
                )
            _fill(weights, stream)
    except WeightsError:
        weights.arena.release()
        raise


def _initial(name: str, size: tuple[int, ...], random: np.random.Generator) -> Array:
    if len(size) == 1:
        return np.ones(size, np.float32)
    values = random.standard_normal(size, np.float32)
    if name == "head":
        values *= np.float32(_LOGIT_DEVIATION)
    if name != "embedding":
        values *= np.float32(size[0] ** -0.5)
    return values


@contextmanager
def _opened(path: Path) -> Iterator[tuple[Any, WeightsHeader]]:
    """The file and its header, checked against each other, before anything is read or allocated."""
    try:
        with safe_open(path, framework="numpy") as stream:
            yield stream, _read_header(path, stream)
    except FileNotFoundError as error:
        raise WeightsError(f"{path}: there is no such weight file") from error
    except (SafetensorError, OSError) as error:
        raise WeightsError(f"{path}: the weight file can't be read: {error}") from error


def _read_header(path: Path, stream: Any) -> WeightsHeader:
    text = (stream.metadata() or {}).get(_METADATA_KEY)
    if text is None:
        raise WeightsError(f"{path}: this safetensors file is none of a reference decoder")
    try:
        about = json.loads(text)
        if about["format"] != WEIGHTS_FORMAT:
            raise ValueError(f"format {about['format']!r}, this worker reads {WEIGHTS_FORMAT!r}")
        header = WeightsHeader(ModelShape(**about["shape"]), int(about["seed"]))
    except (KeyError, TypeError, ValueError) as error:
        raise WeightsError(f"{path}: the header is not as it should be: {error}") from error
    wanted = {name: ("F32", list(size)) for name, size in header.shape.tensors().items()}
    found = {name: _kind(stream.get_slice(name)) for name in stream.keys()}  # noqa: SIM118
    if found != wanted:
        names = sorted(
            name for name in found.keys() | wanted.keys() if found.get(name) != wanted.get(name)
        )
        raise WeightsError(
            f"{path}: tensors do not fit the shape in the header: {', '.join(names[:5])}"
        )
    return header


def _kind(tensor: Any) -> tuple[str, list[int]]:
    return tensor.get_dtype(), tensor.get_shape()


def _allocate(shape: ModelShape) -> tuple[Arena, dict[str, Array]]:
    offsets, end = {}, 0
    for name, size in shape.tensors().items():
        offsets[name] = end
        end += -(-4 * math.prod(size) // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
    arena = Arena(end)
    return arena, {name: arena.array(offsets[name], size) for name, size in shape.tensors().items()}


def _fill(weights: Weights, stream: Any) -> None:
    for name, tensor in weights.tensors.items():
        np.copyto(tensor, stream.get_tensor(name))
