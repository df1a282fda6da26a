"""Upgrades that were measured: which they are, and the verdict on each.

What belongs here: pairing stacks and putting their figures side by side. What does not: drawing the
verdict (`trends.comparison`), reading figures (`warehouse.stack_figures`), and telling somebody
(`alerts`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Final

import polars as pl

from resilience_pipelines.alerts import Alert
from resilience_pipelines.home import Home
from resilience_pipelines.releases.release import version_key
from resilience_pipelines.trends.comparison import (
    Comparison,
    Difference,
    compare,
)
from resilience_pipelines.warehouse import stack_figures
from resilience_pipelines.warehouse.query import query

MAX_SLOWDOWN: Final = 0.2
"""Relevant slowdowns up to this fraction are notes, above it an upgrade is not safe."""

FIGURES_SCHEMA: Final = pl.Schema(
    {
        "figure": pl.String,
        "n_before": pl.Int64,
        "n_after": pl.Int64,
        "before": pl.Float64,
        "after": pl.Float64,
        "fraction": pl.Float64,
        "low": pl.Float64,
        "high": pl.Float64,
        "threshold": pl.Float64,
        "own_threshold": pl.Boolean,
        "significant": pl.Boolean,
        "relevant": pl.Boolean,
    }
)
"""The columns of `Upgrade.figures`: the fields of a `Difference` and what follows from them."""

VERSIONS: Final = (
    "engine_version", "driver_version", "cuda_version", "criu_version", "torch_version",
    "nccl_version", "kernel_version", "kubernetes_version", "python_version",
)  # fmt: skip
"""Dimensions that tell which of two stacks is newer, the one that decides first."""


@dataclass(frozen=True)
class Upgrade:
    """Two stacks of one machine, engine and model, and the verdict on going to the second.

    Attributes:
        before, after: keys of the stacks.
        changed: the dimensions that differ -> their values on both.
    """

    before: str
    after: str
    hardware_label: str
    before_label: str
    after_label: str
    changed: Mapping[str, tuple[object, object]]
    comparison: Comparison

    @property
    def title(self) -> str:
        """The verdict and what it is about, in one line."""
        changes = ", ".join(f"{name} {old} to {new}" for name, (old, new) in self.changed.items())
        return f"{words(self.comparison.verdict)}: {changes} on {self.hardware_label}"

    def alert(self) -> Alert:
        """The verdict as it is told."""
        return Alert(f"Upgrade {self.title}", self.comparison.reasons, self.as_dict())

    @property
    def figures(self) -> pl.DataFrame:
        """One row for each figure: medians in seconds, the relative change and its interval."""
        return pl.DataFrame(
            [_figure(item) for item in self.comparison.differences], schema=FIGURES_SCHEMA
        )

    def as_dict(self) -> dict[str, Any]:
        """Everything, ready for JSON."""
        return {
            "title": self.title,
            "from": self.before,
            "to": self.after,
            "hardware_label": self.hardware_label,
            "from_label": self.before_label,
            "to_label": self.after_label,
            "verdict": self.comparison.verdict,
            "reasons": self.comparison.reasons,
            "differing_dimensions": {name: list(pair) for name, pair in self.changed.items()},
            "figures": [_figure(item) for item in self.comparison.differences],
        }


def _figure(item: Difference) -> dict[str, Any]:
    return asdict(item) | {"significant": item.significant, "relevant": item.relevant}


def words(verdict: StrEnum) -> str:
    """A verdict as a person writes it."""
    return verdict.value.replace("_", " ")


def judge(home: Home, before: str, after: str, *, max_slowdown: float = MAX_SLOWDOWN) -> Upgrade:
    """Put two measured stacks side by side.

    Args:
        before, after: keys as `stack_figures.find_stack` gives them.
    """
    labels = {
        row["stack_key"]: row
        for row in query(
            home,
            "select stack_key, hardware_label, software_label from stacks "
            "where stack_key in (?, ?)",
            [before, after],
        ).iter_rows(named=True)
    }
    return Upgrade(
        before=before,
        after=after,
        hardware_label=labels[after]["hardware_label"],
        before_label=labels[before]["software_label"],
        after_label=labels[after]["software_label"],
        changed=stack_figures.differing_dimensions(home, before, after),
        comparison=compare(
            stack_figures.read_figures(home, before),
            stack_figures.read_figures(home, after),
            max_slowdown=max_slowdown,
            snapshots_carry_over=stack_figures.snapshots_carry_over(home, before, after),
            accepted=stack_figures.accepted_figures(home, before, after),
            caveats=_data_sets_note(home, before, after),
        ),
    )


def newest_upgrades(home: Home) -> list[Upgrade]:
    """The newest upgrade of each machine, engine and model: its newest stack and the one before.

    Which stack is newer is told by its versions, in the order of `VERSIONS`: an old release that is
    measured later is no upgrade. Where they are the same, the one that was measured first is older.
    Empty before the first publishing, and where everything has but one stack.
    """
    if not home.published.is_file():
        return []
    series: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    for row in query(home, "from stacks").iter_rows(named=True):
        series[row["hardware_key"], row["engine"], row["model"]].append(row)
    newest = [sorted(rows, key=_age)[-2:] for rows in series.values() if len(rows) > 1]
    pairs = sorted((after["stack_key"], before["stack_key"]) for before, after in newest)
    return [judge(home, before, after) for after, before in pairs]


def _age(stack: Mapping[str, Any]) -> tuple[Any, ...]:
    versions = [stack[name] for name in VERSIONS]
    return (
        *((True, version_key(text)) if text else (False,) for text in versions),
        stack["first_measured_at"],
        stack["stack_key"],
    )


def _data_sets_note(home: Home, before: str, after: str) -> list[str]:
    one, other = (stack_figures.data_sets(home, key) for key in (before, after))
    if not one or not other or one & other:
        return []
    return [
        f"the stacks were measured in different data sets ({', '.join(sorted(one))}; "
        f"{', '.join(sorted(other))}), so perhaps on two machines of one kind: what differs may be "
        "theirs and not the versions'"
    ]
