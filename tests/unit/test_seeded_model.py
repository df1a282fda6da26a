"""The same shape and seed give the same files, and the files are what the formats ask for."""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path

import pytest
from safetensors import safe_open

from resilience_pipelines.owned_folder import LOCK_NAME, owned_folder
from resilience_pipelines.workers.seeded_model import (
    SHAPES,
    WEIGHTS_NAME,
    Shape,
    tokenizer,
    write_model,
)

TINY = Shape(
    "tiny", hidden=8, intermediate=16, layers=2, heads=2, tied=False, head_dim=4, vocabulary=300,
    end_token=299,
)  # fmt: skip


def _digests(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def test_a_seed_gives_the_same_files_and_another_seed_other_weights(tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        write_model(tmp_path / name, TINY, seed)
    assert _digests(tmp_path / "a") == _digests(tmp_path / "b")
    assert _digests(tmp_path / "a")[WEIGHTS_NAME] != _digests(tmp_path / "c")[WEIGHTS_NAME]


def test_the_weights_are_a_safetensors_file_with_every_tensor(tmp_path: Path) -> None:
    write_model(tmp_path / "m", TINY, 1)
    with safe_open(tmp_path / "m" / WEIGHTS_NAME, "np") as weights:
        assert set(weights.keys()) == set(TINY.tensors())
        for name, dimensions in TINY.tensors().items():
            described = weights.get_slice(name)
            assert tuple(described.get_shape()) == dimensions
            assert described.get_dtype() == "BF16"


def test_no_weight_is_zero_infinite_or_not_a_number(tmp_path: Path) -> None:
    write_model(tmp_path / "m", TINY, 1)
    raw = (tmp_path / "m" / WEIGHTS_NAME).read_bytes()
    body = raw[8 + int.from_bytes(raw[:8], "little") :]
    exponents = {(body[at + 1] & 0x7F) << 1 | body[at] >> 7 for at in range(0, len(body), 2)}
    assert exponents == {119, 120, 121, 122, 127}


def test_a_model_that_is_there_is_left_alone_and_nothing_partial_stays(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    write_model(tmp_path / "m", TINY, 1)
    assert list((tmp_path / "m").iterdir()) == []
    write_model(tmp_path / "n", TINY, 1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m", "n"]


def test_what_a_killed_writer_left_is_removed_and_work_in_progress_is_not(tmp_path: Path) -> None:
    dead, alive = tmp_path / ".partial-m-dead", tmp_path / ".partial-m-alive"
    dead.mkdir()
    (dead / LOCK_NAME).touch()
    (dead / WEIGHTS_NAME).write_bytes(b"half")
    with owned_folder(alive):
        write_model(tmp_path / "m", TINY, 1)
        assert sorted(tmp_path.iterdir()) == [alive, tmp_path / "m"]
    assert LOCK_NAME not in _digests(tmp_path / "m")


@pytest.mark.parametrize(
    ("name", "parameters"), [("qwen3-0.6b", 596_049_920), ("qwen3-8b", 8_190_735_360)]
)
def test_the_shapes_have_as_many_parameters_as_the_models_they_are_named_after(
    name: str, parameters: int
) -> None:
    assert sum(math.prod(dims) for dims in SHAPES[name].tensors().values()) == parameters


def test_every_token_id_has_a_text_and_every_byte_a_token() -> None:
    model = tokenizer(SHAPES["qwen3-0.6b"])["model"]
    assert isinstance(model, dict)
    vocabulary = model["vocab"]
    assert sorted(vocabulary.values()) == list(range(len(vocabulary)))
    assert sum(len(text) == 1 for text in vocabulary) == 256
    json.dumps(tokenizer(SHAPES["qwen3-0.6b"]))
