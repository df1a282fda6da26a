"""A short round of fuzzing: no reader of what comes from outside falls over or takes rubbish.

`python -m benchmarks.fuzz` is the long one.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from benchmarks.fuzz.engine import HangError, Target, WrongAcceptanceError, make_input, run_round
from benchmarks.fuzz.mutation import Form, mutate
from benchmarks.fuzz.targets import all_targets
from resilience_pipelines.errors import InputError

INPUTS = 60
SEED = 20260302


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Target]:
    return {item.name: item for item in all_targets(tmp_path_factory.mktemp("fuzz"))}


def test_every_reader_takes_good_input_and_refuses_bad_input_in_its_own_words(
    targets: dict[str, Target],
) -> None:
    problems = []
    for target in targets.values():
        found = run_round(target, max(len(target.seeds), INPUTS // target.cost), SEED)
        problems += found.problems
        assert found.accepted >= len(target.seeds)
    assert problems == []


def test_a_seed_names_an_input(targets: dict[str, Target]) -> None:
    for target in targets.values():
        inputs = [make_input(target, 7, index) for index in range(12)]
        assert inputs == [make_input(target, 7, index) for index in range(12)]
        assert inputs != [make_input(target, 8, index) for index in range(12)] or not target.seeds


@pytest.mark.parametrize("form", list(Form))
def test_mutations_differ_from_what_they_are_made_of(form: Form) -> None:
    good = b'{"a": [1, 2.5, "x"], "b": {"c": null}}'
    made = {mutate(Random(number), (good,), form) for number in range(200)}
    assert len(made - {good}) > 100


# The engine itself: what it has to notice.


def _target(check: object) -> Target:
    return Target("sample", (b"{}",), check, Form.JSON)  # type: ignore[arg-type]


def _hang(content: bytes) -> bool:
    while content is not None:
        pass
    return True


def _refuse(content: bytes) -> bool:
    raise InputError("x", content, "no", mend="")


def _crash(content: bytes) -> bool:
    raise KeyError("a")


def _lie(content: bytes) -> bool:
    raise WrongAcceptanceError("1 became 2")


@pytest.mark.parametrize(
    ("check", "kind"),
    [
        (_hang, HangError.__name__), (_crash, "KeyError"), (_lie, WrongAcceptanceError.__name__),
        (_refuse, "refusal"),
    ],
)  # fmt: skip
def test_a_hang_a_crash_and_a_wrong_answer_are_problems(
    check: object, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.fuzz.engine.TIME_LIMIT_S", 0.05)
    (problem,) = run_round(_target(check), 1, 1).problems
    assert (problem.kind, problem.index) == (kind, 0)


def test_bad_input_that_is_refused_is_no_problem(tmp_path: Path) -> None:
    def check(content: bytes) -> bool:
        return content == b"{}" or _refuse(content)

    found = run_round(_target(check), 20, 1)
    assert (found.problems, found.accepted + found.refused) == ((), 20)
