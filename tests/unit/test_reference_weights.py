"""The reference worker's weight file: the same for the same seed, refused when damaged."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

from resilience_pipelines.workers.reference import WEIGHTS_FORMAT
from resilience_pipelines.workers.reference.weights import (
    DEFAULT,
    TINY,
    ModelShape,
    WeightsError,
    load_weights,
    reload_weights,
    write_weights,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    written = tmp_path / "weights.safetensors"
    write_weights(written, TINY, 1)
    return written


def rewrite(path: Path, **about: object) -> None:
    """The same tensors under another header."""
    with safe_open(path, framework="numpy") as stream:
        tensors = {name: stream.get_tensor(name) for name in stream.keys()}  # noqa: SIM118
    whole = {"format": WEIGHTS_FORMAT, "seed": 1, "shape": asdict(TINY)} | about
    save_file(tensors, path, {"reference_decoder": json.dumps(whole)})


def test_the_same_seed_makes_the_same_bytes_and_another_makes_others(
    path: Path, tmp_path: Path
) -> None:
    for _ in range(8):  # several: the order of a hash map is not the same each time
        write_weights(tmp_path / "again", TINY, 1)
        assert (tmp_path / "again").read_bytes() == path.read_bytes()
    write_weights(tmp_path / "other", TINY, 2)
    assert (tmp_path / "other").read_bytes() != path.read_bytes()


def test_a_seed_makes_the_same_weights_everywhere(path: Path) -> None:
    weights = load_weights(path)
    assert weights.header.seed == 1
    assert weights.header.shape == TINY
    # From numpy's own stream for the seed (1, position of the tensor).
    expected = np.random.default_rng([1, 0]).standard_normal((320, 32), np.float32)
    assert np.array_equal(weights.tensors["embedding"], expected)


def test_what_was_written_is_loaded_whole(path: Path) -> None:
    weights = load_weights(path)
    assert {name: tensor.shape for name, tensor in weights.tensors.items()} == TINY.tensors()
    with safe_open(path, framework="numpy") as stream:
        for name, tensor in weights.tensors.items():
            assert tensor.dtype == np.float32
            assert tensor.flags.c_contiguous
            assert np.array_equal(tensor, stream.get_tensor(name))


def test_loaded_weights_hold_no_mapping_and_no_descriptor_of_the_file(path: Path) -> None:
    weights = load_weights(path)
    assert str(path) not in Path("/proc/self/maps").read_text()
    open_files = [os.readlink(entry) for entry in Path("/proc/self/fd").iterdir() if entry.exists()]
    assert str(path) not in open_files
    path.unlink()
    assert np.isfinite(weights.tensors["head"]).all()


def test_the_default_is_a_few_hundred_megabytes() -> None:
    assert 200e6 < DEFAULT.parameters * 4 < 330e6


@pytest.mark.parametrize("kept", [0, 1, 8, 9, 400, -1, -8, -4096])
def test_a_file_that_was_cut_off_is_refused_by_name(path: Path, kept: int) -> None:
    size = path.stat().st_size
    os.truncate(path, kept if kept >= 0 else size + kept)
    with pytest.raises(WeightsError, match=r"weights\.safetensors: the weight file can't be read"):
        load_weights(path)


def test_a_missing_file_and_a_folder_are_refused_by_name(path: Path, tmp_path: Path) -> None:
    path.unlink()
    with pytest.raises(WeightsError, match=r"weights\.safetensors: there is no such weight file"):
        load_weights(path)
    with pytest.raises(WeightsError, match="can't be read"):
        load_weights(tmp_path)


@pytest.mark.parametrize(
    ("about", "words"),
    [
        ({"format": "another-2"}, "another-2"),
        ({"shape": {}}, "missing"),
        ({"shape": asdict(TINY) | {"depth": 3}}, "depth"),
        ({"shape": asdict(TINY) | {"heads": 3}}, "hidden = 32: give an even multiple of heads"),
        ({"shape": asdict(TINY) | {"layers": 3}}, r"layers\.2\."),
        ({"shape": asdict(TINY) | {"layers": 1}}, r"layers\.1\."),
        ({"shape": asdict(TINY) | {"vocabulary": 10**12}}, "embedding"),
        ({"seed": None}, "header"),
        ({"shape": None}, "header"),
    ],
)
def test_a_header_that_does_not_fit_is_refused(
    path: Path, about: dict[str, object], words: str
) -> None:
    rewrite(path, **about)
    with pytest.raises(WeightsError, match=words):
        load_weights(path)


def test_tensors_of_another_type_are_refused(path: Path) -> None:
    with safe_open(path, framework="numpy") as stream:
        tensors = {name: stream.get_tensor(name) for name in stream.keys()}  # noqa: SIM118
        metadata = stream.metadata()
    save_file(tensors | {"norm": tensors["norm"].astype(np.float16)}, path, metadata)
    with pytest.raises(WeightsError, match=r"do not fit the shape in the header: norm$"):
        load_weights(path)


def test_a_foreign_safetensors_file_is_refused(path: Path) -> None:
    save_file({"x": np.zeros(3, np.float32)}, path)
    with pytest.raises(WeightsError, match="none of a reference decoder"):
        load_weights(path)


def test_a_write_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    with pytest.raises(OSError, match="taken"):
        write_weights(tmp_path / "taken", TINY, 1)
    assert [entry.name for entry in tmp_path.iterdir()] == ["taken"]


def test_a_reload_brings_the_same_numbers_into_the_same_memory(path: Path) -> None:
    weights = load_weights(path)
    before = {name: tensor.copy() for name, tensor in weights.tensors.items()}
    weights.arena.release()
    assert not weights.tensors["head"].any()
    reload_weights(path, weights)
    assert all(np.array_equal(weights.tensors[name], before[name]) for name in before)


@pytest.mark.parametrize("damage", ["other seed", "cut off"])
def test_a_reload_of_another_file_is_refused_and_leaves_no_numbers(path: Path, damage: str) -> None:
    weights = load_weights(path)
    if damage == "other seed":
        write_weights(path, TINY, 2)
    else:
        os.truncate(path, path.stat().st_size - 8)
    with pytest.raises(WeightsError, match=r"now holds|can't be read"):
        reload_weights(path, weights)
    assert not any(tensor.any() for tensor in weights.tensors.values())


@pytest.mark.parametrize(
    ("field", "value"),
    [("layers", 0), ("hidden", 30), ("heads", -1), ("mlp", 66), ("vocabulary", 257),
     ("max_sequence", 1.5)],
)  # fmt: skip
def test_a_shape_that_can_not_be_computed_is_refused_by_its_field(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{field} = {value}"):
        replace(TINY, **{field: value})


def test_parameters_are_counted() -> None:
    shape = ModelShape(layers=1, hidden=4, heads=1, mlp=8, vocabulary=300, max_sequence=8)
    per_layer = 4 + 4 * 12 + 4 * 4 + 4 + 4 * 16 + 8 * 4
    assert shape.parameters == 300 * 4 + per_layer + 4 + 4 * 300
