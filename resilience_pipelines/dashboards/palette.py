"""Colours and marks of the page and its charts, for a light and a dark ground.

What belongs here: one role per colour with its value on either ground, and which mark each arm and
status has, since a colour never tells anything alone. What does not: layout, and any chart.

The colours of data are Okabe and Ito's set, told apart by people with any common colour blindness;
yellow is darkened on white, where it would not be seen.
"""

from __future__ import annotations

from typing import NamedTuple

from resilience_pipelines.records import Arm


class Ground(NamedTuple):
    """One colour on a light and on a dark ground."""

    light: str
    dark: str


ROLES = {
    "ink": Ground("#17212b", "#e9eef3"),
    "muted": Ground("#55626f", "#9fadba"),
    "faint": Ground("#b9c3cd", "#465563"),
    "grid": Ground("#e4e9ee", "#26323d"),
    "surface": Ground("#ffffff", "#151e27"),
    "blue": Ground("#0072b2", "#52a8e0"),
    "orange": Ground("#e69f00", "#f0b440"),
    "green": Ground("#009e73", "#35c79d"),
    "vermillion": Ground("#d55e00", "#f58345"),
    "purple": Ground("#c06799", "#e09cc3"),
    "sky": Ground("#56b4e9", "#86ccf3"),
    "yellow": Ground("#bfae00", "#efe25a"),
    "slate": Ground("#8793a0", "#74818e"),
}

DATA = ("blue", "orange", "green", "purple", "sky", "yellow")
"""Roles for categories without a meaning of their own, in the order of use. Vermillion is bad."""

PATTERNS = ("", "/", "x", ".", "-")
"""Plotly's pattern shapes, taken in turn when the colours of `DATA` have all been used."""


class Mark(NamedTuple):
    """How a series is drawn: a role of `ROLES` and a symbol of Plotly."""

    role: str
    symbol: str


ARMS = {
    Arm.COLD.value: Mark("blue", "circle"),
    Arm.WARM_CACHE.value: Mark("orange", "square"),
    Arm.SLEEP_WAKE.value: Mark("purple", "diamond"),
    Arm.RESTORE.value: Mark("green", "triangle-up"),
}
OTHER = Mark("slate", "pentagon")


def light(role: str) -> str:
    """The colour of a role on a light ground, which is how figures are written."""
    return ROLES[role].light


def arm(name: str | None) -> Mark:
    """The mark of an arm, or of a recovery that is one."""
    return ARMS.get(name or "", OTHER)


def category(place: int) -> tuple[str, str]:
    """Role and pattern for the n-th category of a chart."""
    return DATA[place % len(DATA)], PATTERNS[place // len(DATA) % len(PATTERNS)]


def dark_of_light() -> dict[str, str]:
    """The exchange from light to dark that the page applies to a figure."""
    return {ground.light: ground.dark for ground in ROLES.values()}
