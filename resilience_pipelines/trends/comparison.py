"""The verdict on an upgrade: what is known of two stacks, figure by figure, and one word for it.

What belongs here: comparing two sets of figures and drawing the verdict, with its reasons. What
does not: reading the figures (`warehouse.stack_figures`) and showing the result (`cli`).

Only figures of one basis, worker, machine and model are compared: the reader makes sure of that.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import numpy as np

from resilience_pipelines.trends.significance import noise_threshold
from resilience_pipelines.trends.statistics import ratio_of_medians_ci

MIN_N: Final = 5
"""Values below which a figure of a stack is no base for a verdict."""
DEFAULT_THRESHOLD: Final = 0.05
"""What counts as relevant where a series has too little history to tell its own noise."""


class UpgradeVerdict(StrEnum):
    """What an upgrade from one stack to the other is."""

    SAFE = "safe"
    SAFE_WITH_NOTES = "safe_with_notes"
    NOT_SAFE = "not_safe"
    NOT_ENOUGH_DATA = "not_enough_data"


@dataclass(frozen=True)
class Series:
    """What one stack says of one figure, in order of time.

    Attributes:
        values: in seconds; less is better.
        runs: the run of each value.
    """

    values: tuple[float, ...] = ()
    runs: tuple[str, ...] = ()


@dataclass(frozen=True)
class FaultTally:
    """Experiments of one fault that could be judged."""

    passed: int = 0
    failed: int = 0


@dataclass(frozen=True)
class StackFigures:
    """Everything that is known of one stack.

    Attributes:
        times: figure -> its series, e.g. `start-up, restore`.
        failures: figure -> reason code -> how many starts ended so; wrong answers included.
        faults: fault and layer -> its experiments.
    """

    times: Mapping[str, Series]
    failures: Mapping[str, Mapping[str, int]]
    faults: Mapping[str, FaultTally]


@dataclass(frozen=True)
class Difference:
    """How one figure differs.

    Attributes:
        fraction: relative change of the median; 0.1 is a tenth longer. None without both medians.
        low, high: its 95 % interval; None below two values on a side.
        threshold: above which a change is relevant.
        own_threshold: whether the threshold is the series' own, not the default.
    """

    figure: str
    n_before: int
    n_after: int
    before: float | None
    after: float | None
    fraction: float | None
    low: float | None
    high: float | None
    threshold: float
    own_threshold: bool

    @property
    def enough(self) -> bool:
        """Whether both sides have enough values for a verdict."""
        return min(self.n_before, self.n_after) >= MIN_N

    @property
    def significant(self) -> bool:
        """Whether the interval excludes no change."""
        return self.low is not None and self.high is not None and not self.low <= 0 <= self.high

    @property
    def relevant(self) -> bool:
        """Whether it is significant and above the threshold."""
        return (
            self.significant and self.fraction is not None and abs(self.fraction) > self.threshold
        )


@dataclass(frozen=True)
class Comparison:
    """Two stacks side by side.

    Attributes:
        reasons: why the verdict is what it is, in words, the gravest first.
    """

    verdict: UpgradeVerdict
    reasons: tuple[str, ...]
    differences: tuple[Difference, ...]


def compare(
    before: StackFigures,
    after: StackFigures,
    *,
    max_slowdown: float = 0.2,
    snapshots_carry_over: bool | None = None,
    accepted: Collection[str] = (),
    caveats: Sequence[str] = (),
) -> Comparison:
    """Draw the verdict on going from one stack to another.

    Args:
        max_slowdown: relevant slowdowns up to this fraction are notes, above it they are not safe.
        snapshots_carry_over: whether snapshots of the first stack came back on the second; None
            where nobody tried.
        accepted: figures whose change somebody has accepted: a slowdown of theirs is a note.
        caveats: why the two may not be comparable, in words: notes.
    """
    names = [*before.times, *(name for name in after.times if name not in before.times)]
    differences = tuple(
        _difference(name, before.times.get(name, Series()), after.times.get(name, Series()))
        for name in names
    )
    grave = [*_new_failures(before, after), *_faults_that_fail_now(before, after)]
    notes: list[str] = []
    for item in differences:
        if item.relevant and item.fraction is not None and item.fraction > 0 and item.enough:
            text = f"{item.figure} takes {item.fraction:.0%} longer ({_interval(item)})"
            if item.figure in accepted:
                notes.append(f"{text}, accepted")
            else:
                (grave if item.fraction > max_slowdown else notes).append(text)
    notes += caveats
    if snapshots_carry_over is False:
        notes.append("snapshots of the first stack do not come back on the second: take new ones")
    notes += [
        f"{item.figure}: {item.n_before} and {item.n_after} values, {MIN_N} each are needed"
        for item in differences
        if not item.enough
    ]
    if grave:
        return Comparison(UpgradeVerdict.NOT_SAFE, (*grave, *notes), differences)
    if not any(item.enough for item in differences):
        why = f"no figure has {MIN_N} values on both stacks"
        return Comparison(UpgradeVerdict.NOT_ENOUGH_DATA, (why, *notes), differences)
    if notes:
        return Comparison(UpgradeVerdict.SAFE_WITH_NOTES, tuple(notes), differences)
    count = sum(item.enough for item in differences)
    return Comparison(
        UpgradeVerdict.SAFE,
        (f"no figure of {count} got worse by more than its noise",),
        differences,
    )


def _difference(figure: str, before: Series, after: Series) -> Difference:
    old, new = _median(before.values), _median(after.values)
    ratio = ratio_of_medians_ci(after.values, before.values)
    own = noise_threshold(before.values, before.runs, [])
    return Difference(
        figure=figure,
        n_before=len(before.values),
        n_after=len(after.values),
        before=old,
        after=new,
        fraction=new / old - 1 if old and new is not None else None,
        low=ratio.low - 1 if ratio else None,
        high=ratio.high - 1 if ratio else None,
        threshold=DEFAULT_THRESHOLD if own is None else own,
        own_threshold=own is not None,
    )


def _new_failures(before: StackFigures, after: StackFigures) -> list[str]:
    return [
        f"{figure}: {count} ended with {reason}, none did before"
        for figure, reasons in after.failures.items()
        for reason, count in reasons.items()
        if reason not in before.failures.get(figure, {})
    ]


def _faults_that_fail_now(before: StackFigures, after: StackFigures) -> list[str]:
    found = []
    for fault, tally in after.faults.items():
        earlier = before.faults.get(fault, FaultTally())
        if tally.failed and not earlier.failed and earlier.passed:
            found.append(
                f"{fault}: {tally.failed} of {tally.passed + tally.failed} experiments failed, "
                f"all {earlier.passed} passed before"
            )
    return found


def _interval(item: Difference) -> str:
    assert item.low is not None
    assert item.high is not None
    return f"95 % {item.low:+.0%} to {item.high:+.0%}, n = {item.n_before} and {item.n_after}"


def _median(values: Sequence[float]) -> float | None:
    return float(np.median(values)) if values else None
