"""Plots: figures as SVG inside Markdown, which the Dagster UI shows beside a materialization.

What belongs here: drawing horizontal bars as text. What does not: which figures (`metadata`), and
the dashboard's charts (`dashboards`), which answer to a pointer and need a script.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

import dagster as dg

from resilience_pipelines.dashboards.palette import DATA, light

OTHER: Final = "other phases"
UNACCOUNTED: Final = "unaccounted"

_WIDTH, _PLOT_WIDTH = 960, 500
_TITLE_HEIGHT, _AXIS_HEIGHT, _ROW_HEIGHT, _BAR_HEIGHT = 34, 30, 34, 20
_CHARACTER_WIDTH = 6.6
_SMALL_SHARE = 0.03


@dataclass(frozen=True)
class Bar:
    """A row: parts that add up, each measurement as a dot, and the interval of their median.

    Attributes:
        parts: names and values, in order.
        interval: low and high.
        note: what stands at the row's right end.
    """

    label: str
    parts: tuple[tuple[str, float], ...]
    dots: tuple[float, ...] = ()
    interval: tuple[float, float] | None = None
    note: str = ""

    @property
    def total(self) -> float:
        """The sum of the parts."""
        return sum(value for _, value in self.parts)


def bars_plot(
    title: str, bars: Sequence[Bar], unit: str, *, shares: bool
) -> dg.MarkdownMetadataValue:
    """Bars as Markdown with the image inside it.

    Args:
        shares: whether a second panel shows what each bar is made of, whatever its length.
    """
    encoded = base64.b64encode(draw_bars(title, bars, unit, shares=shares).encode()).decode()
    return dg.MetadataValue.md(f"![{title}](data:image/svg+xml;base64,{encoded})")


def draw_bars(title: str, bars: Sequence[Bar], unit: str, *, shares: bool) -> str:
    """An SVG document on white ground, as the UI has a light and a dark theme."""
    merged = [_merge_small(bar, _large_parts(bars)) for bar in bars]
    left = _text_width(max((bar.label for bar in bars), key=len, default="")) + 30
    fills = _fills(dict.fromkeys(name for bar in merged for name, _ in bar.parts))
    drawing, y = _totals_panel(title, merged, unit, fills, left)
    if shares:
        panel, y = _shares_panel(merged, fills, left, y)
        drawing += panel
    legend, height = _legend(fills, y)
    content = "".join([*drawing, *legend])
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" '
        f'viewBox="0 0 {_WIDTH} {height}" font-family="Inter,Arial,sans-serif" font-size="12">'
        f'<rect width="{_WIDTH}" height="{height}" rx="6" fill="{light("surface")}"/>'
        f"{content}</svg>"
    )


def _totals_panel(
    title: str, bars: Sequence[Bar], unit: str, fills: Mapping[str, str], left: float
) -> tuple[list[str], float]:
    """Bars on one axis; returns also where the next panel may begin."""
    step, last = _scale(max((_reach(bar) for bar in bars), default=0.0))
    top = _TITLE_HEIGHT
    bottom = top + _ROW_HEIGHT * len(bars)

    def x(value: float) -> float:
        return left + value / last * _PLOT_WIDTH

    drawing = [_text(20, 22, title, light("ink"), weight="bold")]
    for tick in range(round(last / step) + 1):
        value = tick * step
        drawing.append(_line(x(value), top, x(value), bottom, light("grid")))
        text = f"{value:g} {unit}" if tick and value >= last else f"{value:g}"
        drawing.append(_text(x(value), bottom + 15, text, light("muted"), anchor="middle"))
    for middle, bar in _rows(bars, top):
        drawing.append(_text(left - 10, middle + 4, bar.label, light("ink"), anchor="end"))
        start = 0.0
        for name, value in bar.parts:
            hint = f"{name}: {value:.3g} {unit}"
            drawing.append(_rectangle(x(start), x(start + value), middle, fills[name], hint))
            start += value
        drawing += [
            f'<circle cx="{x(value):.1f}" cy="{middle:.1f}" r="3" fill="{light("surface")}" '
            f'fill-opacity="0.6" stroke="{light("ink")}"/>'
            for value in bar.dots
        ]
        if bar.interval:
            low, high = x(bar.interval[0]), x(bar.interval[1])
            drawing.append(_line(low, middle, high, middle, light("ink"), width=2))
            drawing += [
                _line(end, middle - 6, end, middle + 6, light("ink"), width=2)
                for end in (low, high)
            ]
        drawing.append(_text(left + _PLOT_WIDTH + 14, middle + 4, bar.note, light("ink")))
    return drawing, bottom + _AXIS_HEIGHT


def _shares_panel(
    bars: Sequence[Bar], fills: Mapping[str, str], left: float, top: float
) -> tuple[list[str], float]:
    drawing = [_text(20, top + 22, "What each is made of", light("ink"), weight="bold")]
    top += _TITLE_HEIGHT
    for middle, bar in _rows(bars, top):
        drawing.append(_text(left - 10, middle + 4, bar.label, light("ink"), anchor="end"))
        start = left
        for name, value in bar.parts:
            share = value / bar.total if bar.total else 0.0
            end = start + share * _PLOT_WIDTH
            text = f"{name} {share:.0%}"
            drawing.append(_rectangle(start, end, middle, fills[name], text))
            if end - start > _text_width(text) + 6:
                at = (start + end) / 2
                drawing.append(_text(at, middle + 4, text, light("ink"), anchor="middle"))
            start = end
    return drawing, top + _ROW_HEIGHT * len(bars) + 6


def _large_parts(bars: Iterable[Bar]) -> set[str]:
    """Parts that are worth a colour of their own: a visible share of some bar."""
    large = {
        name
        for bar in bars
        for name, value in bar.parts
        if bar.total and value / bar.total >= _SMALL_SHARE
    }
    return large | {UNACCOUNTED}


def _merge_small(bar: Bar, large: set[str]) -> Bar:
    parts = [(name, value) for name, value in bar.parts if name in large and name != UNACCOUNTED]
    rest = sum(value for name, value in bar.parts if name not in large)
    if rest:
        parts.append((OTHER, rest))
    parts += [(name, value) for name, value in bar.parts if name == UNACCOUNTED]
    return Bar(bar.label, tuple(parts), bar.dots, bar.interval, bar.note)


def _fills(names: Iterable[str]) -> dict[str, str]:
    """How each part is filled. Colours come a second time paler, never in the same way."""
    own = {OTHER: light("slate"), UNACCOUNTED: light("faint")}
    ordered = [name for name in names if name not in own]
    fills = {
        name: f'fill="{light(DATA[place % len(DATA)])}" '
        f'fill-opacity="{(0.85, 0.4, 0.2)[min(place // len(DATA), 2)]}"'
        for place, name in enumerate(ordered)
    }
    return fills | {name: f'fill="{own[name]}"' for name in own if name in set(names)}


def _reach(bar: Bar) -> float:
    return max(bar.total, *bar.dots, *(bar.interval or ()), 0.0)


def _scale(reach: float) -> tuple[float, float]:
    """Distance of ticks and end of an axis, so that the ticks are round and about six."""
    if reach <= 0:
        return 1.0, 1.0
    rough = reach / 6
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough)
    return step, step * math.ceil(reach / step - 1e-9)


def _rows(bars: Sequence[Bar], top: float) -> list[tuple[float, Bar]]:
    return [(top + _ROW_HEIGHT * (row + 0.5), bar) for row, bar in enumerate(bars)]


def _legend(fills: Mapping[str, str], top: float) -> tuple[list[str], int]:
    drawing: list[str] = []
    x, y = 20.0, top + 18
    for name, fill in fills.items():
        width = 34 + _text_width(name)
        if x + width > _WIDTH - 20:
            x, y = 20.0, y + 20
        drawing.append(f'<rect x="{x:.1f}" y="{y - 9:.1f}" width="11" height="11" {fill}/>')
        drawing.append(_text(x + 16, y + 1, name, light("ink")))
        x += width
    return drawing, round(y + 16)


def _rectangle(start: float, end: float, middle: float, fill: str, hint: str) -> str:
    return (
        f'<rect x="{start:.1f}" y="{middle - _BAR_HEIGHT / 2:.1f}" '
        f'width="{max(end - start, 0.5):.1f}" height="{_BAR_HEIGHT}" {fill}>'
        f"<title>{escape(hint)}</title></rect>"
    )


def _text_width(text: str) -> float:
    return len(text) * _CHARACTER_WIDTH


def _text(
    x: float, y: float, text: str, colour: str, anchor: str = "start", weight: str = "normal"
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}" text-anchor="{anchor}" '
        f'font-weight="{weight}">{escape(text)}</text>'
    )


def _line(x1: float, y1: float, x2: float, y2: float, colour: str, width: int = 1) -> str:
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" '
        f'stroke-width="{width}"/>'
    )
