"""The reference decoder: what it computes, that it is always the same, what sleep does to it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numba
import numpy as np
import pytest
from numpy.typing import NDArray

from resilience_pipelines.workers.reference import kernels, model
from resilience_pipelines.workers.reference.generation import (
    GREEDY,
    AsleepError,
    Sampling,
    Token,
)
from resilience_pipelines.workers.reference.memory import resident_bytes
from resilience_pipelines.workers.reference.model import Decoder
from resilience_pipelines.workers.reference.tokenizer import encode
from resilience_pipelines.workers.reference.weights import (
    TINY,
    ModelShape,
    Weights,
    WeightsError,
    load_weights,
    write_weights,
)

PROMPT = encode("A worker that comes back must answer as it did before:")
Wide = NDArray[np.float64]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    written = tmp_path_factory.mktemp("weights") / "tiny.safetensors"
    write_weights(written, TINY, 7)
    return written


@pytest.fixture
def decoder(path: Path) -> Decoder:
    return Decoder(path, load_weights(path))


def answer(
    decoder: Decoder, prompt: list[int] = PROMPT, sampling: Sampling = GREEDY
) -> list[Token]:
    return list(decoder.generate(prompt, 24, sampling))


def plain_logprobs(weights: Weights, tokens: list[int]) -> Wide:
    """The decoder again, slowly and plainly, in float64 and without a cache: the oracle."""
    shape = weights.header.shape
    tensor = {name: value.astype(np.float64) for name, value in weights.tensors.items()}
    width = shape.hidden // shape.heads
    count = len(tokens)

    def norm(x: Wide, name: str) -> Wide:
        return np.asarray(x / np.sqrt((x * x).mean(axis=1, keepdims=True) + 1e-6) * tensor[name])

    def rotated(x: Wide) -> Wide:
        out = np.empty_like(x)
        for position, head, pair in np.ndindex(count, shape.heads, width // 2):
            angle = position * 10_000 ** (-2 * pair / width)
            turn = complex(np.cos(angle), np.sin(angle))
            turned = complex(x[position, head, pair], x[position, head, pair + width // 2]) * turn
            out[position, head, pair] = turned.real
            out[position, head, pair + width // 2] = turned.imag
        return out

    x = tensor["embedding"][tokens]
    for layer in range(shape.layers):
        name = f"layers.{layer}."
        qkv = (norm(x, name + "attention_norm") @ tensor[name + "qkv"]).reshape(
            count, 3, shape.heads, width
        )
        query, key, value = rotated(qkv[:, 0]), rotated(qkv[:, 1]), qkv[:, 2]
        scores = np.einsum("qhd,khd->hqk", query, key) / np.sqrt(width)
        scores[:, np.triu(np.ones((count, count), bool), 1)] = -np.inf
        shares = np.exp(scores - scores.max(axis=2, keepdims=True))
        shares /= shares.sum(axis=2, keepdims=True)
        mixed = np.einsum("hqk,khd->qhd", shares, value).reshape(count, shape.hidden)
        x = x + mixed @ tensor[name + "attention_out"]
        gate, up = np.split(norm(x, name + "mlp_norm") @ tensor[name + "gate_up"], 2, axis=1)
        x = x + (gate / (1 + np.exp(-gate)) * up) @ tensor[name + "down"]
    logits = norm(x, "norm")[-1] @ tensor["head"]
    return np.asarray(logits - np.log(np.exp(logits - logits.max()).sum()) - logits.max())


def test_log_probabilities_are_those_of_the_plain_oracle(decoder: Decoder, path: Path) -> None:
    told = list(decoder.generate(PROMPT, 3, Sampling(top=5)))
    tokens = list(PROMPT)
    for token in told:
        expected = plain_logprobs(load_weights(path), tokens)
        assert token.token_id == int(expected.argmax())
        best = np.argsort(-expected)[:5]
        assert [index for index, _ in token.top] == best.tolist()
        assert np.allclose([value for _, value in token.top], expected[best], atol=2e-4)
        tokens.append(token.token_id)


def test_the_same_prompt_has_the_same_answer_to_the_bit(decoder: Decoder, path: Path) -> None:
    first = answer(decoder)
    answer(
        decoder, encode("something else, and longer than the prompt that comes after it, so ...")
    )
    assert answer(decoder) == first
    assert answer(Decoder(path, load_weights(path))) == first


def test_a_prompt_read_at_once_and_token_by_token_is_the_same_to_the_bit(decoder: Decoder) -> None:
    whole = decoder._forward(PROMPT, 0).copy()
    for position, token in enumerate(PROMPT):
        single = decoder._forward([token], position)
    assert np.array_equal(whole, single)


def test_the_number_of_threads_changes_no_bit() -> None:
    random = np.random.default_rng(0)
    x = random.standard_normal((5, 132), np.float32)
    weight = random.standard_normal((132, 1100), np.float32)
    before = numba.get_num_threads()
    try:
        products = []
        for threads in range(1, before + 1):
            numba.set_num_threads(threads)
            products.append(kernels.linear(x, weight))
    finally:
        numba.set_num_threads(before)
    assert np.allclose(products[0], x @ weight, atol=1e-3)
    assert all(np.array_equal(product, products[0]) for product in products)


@pytest.mark.parametrize(("inputs", "outputs"), [(4, 1), (64, 256), (68, 257), (132, 1100)])
@pytest.mark.parametrize("rows", [1, 3])
def test_matrix_products_are_right_at_the_edges_of_blocks(
    rows: int, inputs: int, outputs: int
) -> None:
    random = np.random.default_rng(0)
    x = random.standard_normal((rows, inputs), np.float32)
    weight = random.standard_normal((inputs, outputs), np.float32)
    expected = x.astype(np.float64) @ weight.astype(np.float64)
    assert np.allclose(kernels.linear(x, weight), expected, atol=1e-4)


def test_greedy_answers_vary_and_are_not_certain(decoder: Decoder) -> None:
    told = answer(decoder)
    assert len({token.token_id for token in told}) >= 8
    assert all(-12 < token.logprob < 0 for token in told)
    assert max(token.logprob for token in told) - min(token.logprob for token in told) > 0.1


def test_an_answer_depends_on_the_first_token_of_the_prompt(decoder: Decoder) -> None:
    other = [PROMPT[0] + 1, *PROMPT[1:]]
    assert answer(decoder, other)[0].logprob != answer(decoder)[0].logprob


def test_a_sampled_answer_depends_on_its_seed_alone(decoder: Decoder) -> None:
    first = answer(decoder, sampling=Sampling(1.0, seed=1))
    assert answer(decoder, sampling=Sampling(1.0, seed=1)) == first
    assert answer(decoder, sampling=Sampling(1.0, seed=2)) != first
    assert answer(decoder, sampling=Sampling(1.0)) != answer(decoder, sampling=Sampling(1.0))


def test_a_temperature_near_zero_is_greedy(decoder: Decoder) -> None:
    assert answer(decoder, sampling=Sampling(1e-9, seed=3)) == answer(decoder)


def test_tokens_are_drawn_in_proportion_to_their_probability() -> None:
    logprobs = np.log(np.array([0.5, 0.125, 0.25, 0.125], np.float32))
    drawn = Counter(model._draw(logprobs, 1.0, (step + 0.5) / 1000) for step in range(1000))
    assert drawn == {0: 500, 1: 125, 2: 250, 3: 125}
    sharper = Counter(model._draw(logprobs, 0.5, (step + 0.5) / 1100) for step in range(1100))
    assert sharper == {0: 800, 1: 50, 2: 200, 3: 50}  # squares: 16 to 1 to 4 to 1
    assert model._draw(logprobs, 1.0, float(np.nextafter(1.0, 0.0))) == 3


def test_the_end_token_ends_a_generation_unless_told_otherwise(
    decoder: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [token.token_id for token in answer(decoder)]
    monkeypatch.setattr(model, "END", ids[5])
    assert [token.token_id for token in answer(decoder)] == ids[: ids.index(ids[5]) + 1]
    ignoring = answer(decoder, sampling=Sampling(ignore_end=True))
    assert [token.token_id for token in ignoring] == ids


@pytest.mark.parametrize("levels", [(1,), (2,), (1, 2), (2, 1), (1, 1)])
def test_after_sleep_answers_are_the_same_to_the_bit(
    decoder: Decoder, levels: tuple[int, ...]
) -> None:
    before = answer(decoder)
    for level in levels:
        decoder.sleep(level)
    assert decoder.asleep
    with pytest.raises(AsleepError):
        answer(decoder)
    decoder.wake()
    decoder.wake()
    assert not decoder.asleep
    assert answer(decoder) == before


def test_only_level_2_needs_the_file_to_wake(path: Path, tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.write_bytes(path.read_bytes())
    decoder = Decoder(own, load_weights(own))
    before = answer(decoder)
    own.unlink()
    decoder.sleep(1)
    decoder.wake()
    assert answer(decoder) == before
    decoder.sleep(2)
    with pytest.raises(WeightsError, match="no such weight file"):
        decoder.wake()
    assert decoder.asleep
    own.write_bytes(path.read_bytes())
    decoder.wake()
    assert answer(decoder) == before


def test_sleep_gives_memory_back(tmp_path: Path) -> None:
    shape = ModelShape(
        layers=2, hidden=256, heads=2, mlp=512, vocabulary=40_960, max_sequence=16_384
    )
    write_weights(tmp_path / "w", shape, 1)
    weights = load_weights(tmp_path / "w")
    decoder = Decoder(tmp_path / "w", weights)
    decoder._keys[:] = 1
    decoder._values[:] = 1
    cache = decoder._keys.nbytes + decoder._values.nbytes
    awake = resident_bytes()
    slack = 8 * 2**20
    decoder.sleep(1)
    assert awake - resident_bytes() == pytest.approx(cache, abs=slack)
    decoder.sleep(2)
    assert awake - resident_bytes() == pytest.approx(cache + weights.arena.size_bytes, abs=slack)
    decoder.wake()
    assert awake - resident_bytes() == pytest.approx(cache, abs=slack)


@pytest.mark.parametrize("positions", [0, -1, TINY.max_sequence + 1])
def test_more_positions_than_the_model_has_are_refused(path: Path, positions: int) -> None:
    with pytest.raises(ValueError, match=f"max_sequence = {positions}: give 1 to 128"):
        Decoder(path, load_weights(path), positions)


def test_a_sequence_fills_all_positions_and_no_more(path: Path) -> None:
    decoder = Decoder(path, load_weights(path), 16)
    assert len(list(decoder.generate(PROMPT[:4], 12, Sampling(ignore_end=True)))) == 12
    with pytest.raises(ValueError, match="give 1 to 16"):
        next(decoder.generate(PROMPT[:4], 13))
    with pytest.raises(ValueError, match="give 1 to 16"):
        next(decoder.generate([], 1))
