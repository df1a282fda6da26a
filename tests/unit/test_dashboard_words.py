"""How the dashboard writes numbers: units, significant figures, and a dash for what is missing."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilience_pipelines.dashboards import words
from tests.dashboard_fixtures import plain


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "--"), (0.0, "0 s"), (0.00123, "1.23 ms"), (0.0419, "41.9 ms"), (0.52, "0.520 s"),
        (4.934, "4.93 s"), (52.44, "52.4 s"), (100.9, "101 s"), (4000.0, "4,000 s"),
    ],
)  # fmt: skip
def test_durations_have_three_figures_and_a_unit(value: float | None, text: str) -> None:
    assert plain(words.seconds(value)) == text


@given(st.floats(min_value=1e-4, max_value=1e5))
def test_a_written_duration_is_within_half_a_per_cent(value: float) -> None:
    number, unit = words.seconds(value).replace(",", "").split(words.NBSP)
    read = float(number) * {"s": 1.0, "ms": 1e-3}[unit]
    assert read == pytest.approx(value, rel=0.005, abs=5e-6)


def test_an_interval_has_one_unit_and_nothing_where_it_is_unknown() -> None:
    assert plain(words.seconds_range(0.0381, 0.0422)) == "38.1-42.2 ms"
    assert plain(words.seconds_range(0.09, 0.3)) == "0.090-0.300 s"
    assert words.seconds_range(None, 0.3) == words.confidence("") == ""


def test_ratios_keep_their_size_visible() -> None:
    assert [plain(words.times(r)) for r in (0.063, 0.52, 4.13, 21.4, 140.0)] == [
        "0.063x", "0.52x", "4.1x", "21.4x", "140x",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "--"), (0, "0 B"), (1023, "1023 B"), (1024, "1.00 KiB"), (188_000_000, "179 MiB"),
        (5_900_000_000, "5.49 GiB"), (1_070_000_000, "1.00 GiB"), (2**50, "1024 TiB"),
    ],
)  # fmt: skip
def test_sizes_are_in_binary_units(value: int | None, text: str) -> None:
    assert plain(words.size(value)) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "--"), (1.0, "100.0 %"), (0.5, "50.0 %"), (0.991, "99.10 %"),
        (86400 / 86405, "99.9942 %"), (0.99999996, "99.9999960 %"),
    ],
)  # fmt: skip
def test_an_availability_shows_what_is_missing_and_is_never_rounded_up(
    value: float | None, text: str
) -> None:
    assert plain(words.availability(value)) == text


@given(st.floats(min_value=0.0, max_value=1.0, exclude_max=True))
def test_a_written_availability_is_no_better_than_the_measured_one(value: float) -> None:
    read = float(words.availability(value).split(words.NBSP)[0])
    assert read <= value * 100 + 1e-9
    assert read >= value * 100 - 0.1


def test_an_interval_of_availabilities_has_the_digits_of_its_better_end() -> None:
    assert plain(words.availability_range(0.9999, 86400 / 86405)) == "99.9900-99.9942 %"
    assert words.availability_range(None, 0.9) == ""


def test_an_interval_of_changes_keeps_its_signs_apart() -> None:
    assert plain(words.percent_range(-0.4, -0.031)) == "-40 % to -3.1 %"
    assert words.percent_range(None, 0.1) == words.percent_range(0.1, None) == ""


def test_names_are_spoken_and_sentences_left_alone() -> None:
    assert words.spoken("xid_79_log") == "XID 79 log"
    assert words.spoken("one GPU: there is no_peer") == "one GPU: there is no_peer"
    assert words.label("worker_killed") == "Worker killed"
    assert words.label("vllm") == "vLLM"
    assert words.arm("a_new_arm", "level_2") == "A new arm, level 2"


def test_what_is_not_measured_is_named_as_such() -> None:
    assert words.basis_label("measured", gpu="H200") == ""
    assert words.basis_label("reference", gpu=None) == (
        "Reference worker on CPU: stands for vLLM, not a GPU result"
    )
    assert "Simulated" in words.basis_label("simulated", gpu="H200")
    assert "not a measurement" in words.basis_label("a_new_basis", gpu=None)


def test_a_machine_of_unknown_size_is_not_given_one() -> None:
    assert words.hardware({"gpu_sku": "H200", "gpu_count": None}) == "H200"
    assert words.hardware({}) == "CPU of unknown model"


def test_the_documented_glossary_is_the_one_of_the_page() -> None:
    page = (Path(__file__).parents[2] / "docs" / "glossary.md").read_text()
    assert re.findall(r"^\*\*(.+?)\.\*\* (.+)$", page, re.MULTILINE) == [
        (term.word, term.meaning) for term in words.GLOSSARY
    ]
