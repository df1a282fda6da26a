"""Weights of the reference decoder: made from a seed, kept as safetensors, loaded into memory.

What belongs here: the decoder's shape and its weight file. What does not: computing with them
(`model`).
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

FORMAT = "resilience-reference-decoder-1"

Array = NDArray[np.float32]
Weights = dict[str, Array]


class WeightsError(Exception):
    """The weight file is missing, damaged or of another format."""


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a decoder: float32 numbers unless a name says otherwise."""

    layers: int
    hidden: int
    heads: int
    mlp: int
    vocabulary: int
    max_sequence: int

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


DEFAULT = ModelShape(layers=4, hidden=768, heads=12, mlp=2048, vocabulary=16_384, max_sequence=512)
"""53 million parameters, 214 MB."""

TINY = ModelShape(layers=2, hidden=32, heads=4, mlp=64, vocabulary=320, max_sequence=128)


def write_weights(path: Path, shape: ModelShape, seed: int) -> None:
    """Make the weight file: the same bytes for the same shape and seed. Atomic."""
    random = np.random.Generator(np.random.PCG64(seed))
    tensors: Weights = {}
    for name, size in shape.tensors().items():
        if len(size) == 1:
            tensors[name] = np.ones(size, np.float32)
            continue
        values = random.standard_normal(size, np.float32)
        if name != "embedding":
            values *= np.float32(size[0] ** -0.5)
        tensors[name] = values
    metadata = {"format": FORMAT, "shape": json.dumps(asdict(shape)), "seed": str(seed)}
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        save_file(tensors, partial, metadata)
        with partial.open("rb") as stream:
            os.fsync(stream.fileno())
        partial.rename(path)
    finally:
        partial.unlink(missing_ok=True)


def load_weights(path: Path) -> tuple[ModelShape, Weights]:
    """Read the whole file into memory of this process, as a device load does. No mapping stays.

    Raises:
        WeightsError: naming what is wrong with the file.
    """
    try:
        with safe_open(path, framework="numpy") as stream:
            metadata = stream.metadata() or {}
            if metadata.get("format") != FORMAT:
                raise WeightsError(f"{path} is not a weight file of the format {FORMAT}")
            shape = ModelShape(**json.loads(metadata["shape"]))
            weights = {name: stream.get_tensor(name) for name in stream.keys()}  # noqa: SIM118
    except FileNotFoundError as error:
        raise WeightsError(f"there is no weight file {path}") from error
    except (SafetensorError, KeyError, TypeError, ValueError, OSError) as error:
        raise WeightsError(f"the weight file {path} can't be used: {error}") from error
    found = {name: tensor.shape for name, tensor in weights.items()}
    if found != shape.tensors():
        raise WeightsError(f"the tensors of {path} do not fit the shape in its header")
    return shape, weights
