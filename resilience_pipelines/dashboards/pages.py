"""Pages: put the one page together and write it.

What belongs here: which charts and tables make up the page, its inline data, its content security
policy, and the atomic write. What does not: results, wording and drawing, which the page takes from
the modules beside this one, and layout, which is in `template/`.

The page is one file that asks nothing of a network: Plotly's script, styles and data are inside.
Text from data reaches it in three ways, each with its own guard: markup (Jinja escapes it), inline
JSON (`inline_json`) and labels in charts (`charts.label_text`). Behind all three stands the policy
in the page's head, which lets only the three scripts run whose hashes it names and forbids every
request.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
import plotly.offline
from markupsafe import Markup

from resilience_pipelines import __version__
from resilience_pipelines.dashboards import (
    fault_figures,
    figures,
    headline,
    palette,
    raw_tables,
    tables,
    trend_figure,
    words,
)
from resilience_pipelines.dashboards.charts import BASE_LAYOUT, Chart, Table, equal_heights
from resilience_pipelines.dashboards.data import Published, Scope, read_published
from resilience_pipelines.dashboards.rows import (
    MOST_DETAILED,
    MOST_EXPERIMENTS,
)
from resilience_pipelines.durability import replace_file
from resilience_pipelines.errors import StorageError

MOST_SNAPSHOTS = 12
MOST_RUNS = 40
MOST_CHANGE_POINTS = 40
MOST_COMPATIBILITY = 40
_MOST = {
    "changes": MOST_CHANGE_POINTS,
    "snapshots": MOST_SNAPSHOTS,
    "compatibility": MOST_COMPATIBILITY,
    "runs": MOST_RUNS,
}
DATA_BUDGET_BYTES = 2_500_000
"""Inline data after which older stacks are only listed, so that the page stays well below 10 MB."""

TITLES = {
    "startup": "Start-up",
    "trend": "Trend over stacks",
    "faults": "Faults",
    "snapshots": "Snapshots",
    "quality": "Data coverage",
    "glossary": "Glossary",
}


@dataclass(frozen=True)
class Result:
    """What the page says first of one result."""

    hardware: str
    software: str
    worker: str
    measured: str
    start_up: str
    faults: str


@dataclass(frozen=True)
class DashboardReport:
    """What was written.

    Attributes:
        results: those that the page shows in full, in its order.
        path: the page.
        bytes: its size.
        sections: the titles of the sections that show results, in the order of the page.
    """

    path: Path
    bytes: int
    sections: tuple[str, ...]
    results: tuple[Result, ...]


@dataclass(frozen=True)
class ScopeView:
    """One scope as the template shows it."""

    id: str
    scope: Scope
    basis_label: str
    statements: tuple[headline.Statement, ...]
    cards: tuple[headline.Card, ...]
    findings: tuple[headline.Finding, ...]
    charts: Mapping[str, Chart | None]
    arm_lines: tuple[tables.ArmLine, ...]
    change_lines: tuple[tables.ChangeLine, ...]
    changes_left_out: int
    fault_lines: tuple[tuple[tables.FaultLine, ...], ...]
    score_lines: tuple[tables.ScoreLine, ...]
    control_chips: tuple[tables.Chip, ...]
    controls: int
    coverage: tables.Coverage
    experiments: tuple[tuple[str, str], ...]
    """Id and label of every experiment with a timeline, the one to open first in front."""
    experiments_left_out: int
    snapshot_lines: tuple[tables.SnapshotLine, ...]
    snapshots_left_out: int
    economics_lines: tuple[tables.EconomicsLine, ...]
    fanout_lines: tuple[tables.FanoutLine, ...]
    fanout_note: str
    criu_tables: tuple[tables.CriuTable, ...]
    compatibility_lines: tuple[tables.CompatibilityLine, ...]
    compatibility_left_out: int
    quality_lines: tuple[tables.QualityLine, ...]
    run_lines: tuple[tables.RunLine, ...]
    runs_left_out: int
    stack_facts: tuple[tuple[str, str], ...]
    platforms: tuple[str, ...]

    @property
    def sections(self) -> tuple[str, ...]:
        """The names of the sections that hold results."""
        held = {
            "startup": bool(self.arm_lines),
            "trend": self.charts["trend"] is not None,
            "faults": bool(self.scope.fault_counts),
            "snapshots": bool(self.snapshot_lines or self.compatibility_lines or self.fanout_lines),
            "quality": bool(self.quality_lines),
        }
        return tuple(name for name in TITLES if held.get(name))


def write_dashboard(published: Path, out: Path) -> DashboardReport:
    """Write the page from the published results; a reader never meets half of one.

    Args:
        published: the published DuckDB file; it is opened for reading only.
        out: the page's file, or a folder (a path without `.html`), which gets `index.html`.

    Raises:
        InputError: there is no published file.
        CorruptError: it does not hold the tables of this version.
        StorageError: it can't be opened, or the page can't be written.
    """
    page = out if out.suffix == ".html" else out / "index.html"
    views, html = render(read_published(published), source=published.name, now=datetime.now(UTC))
    content = html.encode()
    _replace(page, content)
    shown = {name for view in views for name in view.sections}
    return DashboardReport(
        page,
        len(content),
        tuple(title for name, title in TITLES.items() if name in shown),
        tuple(_result(view.scope) for view in views),
    )


def _result(scope: Scope) -> Result:
    line = tables.overview_line(scope)
    return Result(
        hardware=line.hardware,
        software=line.software,
        worker=line.worker,
        measured=line.measured,
        start_up=headline.restore_statement(scope).text,
        faults=headline.fault_statement(scope).text,
    )


def render(
    published: Published, *, source: str, now: datetime
) -> tuple[tuple[ScopeView, ...], str]:
    """The page as text, and the scopes that it shows in full."""
    views: list[ScopeView] = []
    store: dict[str, Any] = {"charts": {}, "tables": {}, "experiments": {}, "scopes": []}
    used = 0
    for place, scope in enumerate(published.scopes[:MOST_DETAILED]):
        view, part = _scope(f"s{place}", scope, published)
        part_bytes = len(inline_json(part).encode())
        if views and used + part_bytes > DATA_BUDGET_BYTES:
            break  # the older ones are listed only, so none of them is drawn to be thrown away
        used += part_bytes
        views.append(view)
        store["charts"].update(part["charts"])
        store["tables"].update(part["tables"])
        store["experiments"].update(part["experiments"])
        store["scopes"].append(part["scope"])
    store["dark"] = palette.dark_of_light()
    store["layout"] = BASE_LAYOUT
    shown = {view.scope.key: view.id for view in views}
    template = _environment().get_template("page.html.j2")
    styles, script, library = _asset("page.css"), _asset("page.js"), _plotly()
    html = template.render(
        views=views,
        overview=[
            (shown.get(scope.key, ""), _hash(scope), tables.overview_line(scope))
            for scope in published.scopes
        ],
        left_out=len(published.scopes) - len(views),
        titles=TITLES,
        glossary=words.GLOSSARY,
        roles=palette.ROLES,
        words=words,
        styles=Markup(styles),  # noqa: S704  (a file of this package)
        script=Markup(script),  # noqa: S704  (a file of this package)
        library=Markup(library),  # noqa: S704  (Plotly's own script)
        data=Markup(inline_json(store)),  # noqa: S704  (escaped for a script element)
        policy=_policy(script, library),
        source=source,
        written=words.minute(now),
        version=__version__,
    )
    return tuple(views), html


def inline_json(value: object) -> str:
    """JSON that no text in it can end, or turn into, a script element.

    Raises:
        ValueError: a number is not finite.
    """
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _scope(
    scope_id: str, scope: Scope, published: Published
) -> tuple[ScopeView, dict[str, dict[str, Any]]]:
    startup = figures.startup_segments(scope.phase_summary, scope.summary)
    dump = figures.snapshot_segments(
        scope.dumps, scope.dump_phases, scope.phase_summary, scope.summary
    )

    def bars(name: str, title: str, rows: Any, *, share: bool = False) -> Chart | None:
        return figures.phase_bars(f"{scope_id}-{name}", title, rows, share=share) if rows else None

    charts: dict[str, Chart | None] = {
        "phases": bars("phases", "Where the time goes, in seconds", startup),
        "shares": bars("shares", "Where the time goes, as shares", startup, share=True),
        "distribution": figures.distribution(
            f"{scope_id}-distribution", scope.startups, scope.variants, scope.start_counts
        ),
        "speedups": figures.speedups(f"{scope_id}-speedups", scope.speedups),
        "trend": trend_figure.trend(
            f"{scope_id}-trend", scope.trend, published.stacks, scope.change_points
        ),
        "detect": fault_figures.fault_times(
            f"{scope_id}-detect", "detect", scope.fault_summary, scope.faults
        ),
        "recover": fault_figures.fault_times(
            f"{scope_id}-recover", "recover", scope.fault_summary, scope.faults
        ),
        "dump": bars("dump", "Taking and restoring a snapshot, by phase", dump),
    }
    equal_heights(charts["phases"], charts["shares"])
    equal_heights(charts["distribution"], charts["speedups"])
    equal_heights(charts["detect"], charts["recover"])
    part: dict[str, dict[str, Any]] = {
        "charts": {
            chart.key: _stored(chart, scope) for chart in charts.values() if chart is not None
        },
        "tables": {
            f"{scope_id}-{name}": _columns_and_rows(table, scope)
            for name, table in raw_tables.raw_tables(scope, _MOST).items()
        },
        "experiments": {},
        "scope": {
            "id": scope_id,
            "hardware": scope.stack.hardware_label,
            "hardwareLabel": words.hardware(scope.stack.dimensions),
            "worker": f"{scope.worker}.{scope.basis}",
            "workerLabel": words.worker(scope.worker, scope.basis),
            "stack": scope.stack.stack_key,
            "stackLabel": ", ".join(
                (words.software(scope.stack.dimensions), words.day(scope.last_measured_at))
            ),
            "runs": [run.run_id for run in scope.runs],
        },
    }
    experiments = _experiments(scope_id, scope, published, part)
    first_run = scope.runs[:MOST_RUNS]
    view = ScopeView(
        id=scope_id,
        scope=scope,
        basis_label=words.basis_label(scope.basis, gpu=_text(scope.stack.dimensions["gpu_sku"])),
        statements=headline.statements(scope),
        cards=headline.cards(scope),
        findings=headline.findings(scope),
        charts=charts,
        arm_lines=tables.arm_lines(scope),
        change_lines=tables.change_lines(
            scope.change_points[:MOST_CHANGE_POINTS], published.stacks
        ),
        changes_left_out=max(len(scope.change_points) - MOST_CHANGE_POINTS, 0),
        fault_lines=tables.fault_lines(
            scope.fault_summary, scope.faults, [key for key, _ in experiments]
        ),
        score_lines=tables.score_lines(scope.fault_scores),
        control_chips=tables.control_chips(scope.fault_counts),
        controls=scope.n_controls,
        coverage=tables.coverage(scope.coverage),
        experiments=experiments,
        experiments_left_out=scope.n_experiments - len(experiments),
        snapshot_lines=tables.snapshot_lines(scope.snapshots[:MOST_SNAPSHOTS]),
        snapshots_left_out=max(sum(row.n for row in scope.snapshot_counts) - MOST_SNAPSHOTS, 0),
        economics_lines=tables.economics_lines(scope.economics),
        fanout_lines=tables.fanout_lines(scope.fanout),
        fanout_note=tables.fanout_note(scope.fanout),
        criu_tables=tables.criu_tables(scope),
        compatibility_lines=tables.compatibility_lines(
            scope.compatibility[:MOST_COMPATIBILITY], scope.stack.stack_key
        ),
        compatibility_left_out=max(len(scope.compatibility) - MOST_COMPATIBILITY, 0),
        quality_lines=tables.quality_lines(scope.quality),
        run_lines=tables.run_lines(first_run),
        runs_left_out=scope.n_runs - len(first_run),
        stack_facts=tables.stack_facts(scope.stack),
        platforms=tuple(dict.fromkeys(map(tables.platform, scope.run_facts))),
    )
    return view, part


def _experiments(
    scope_id: str, scope: Scope, published: Published, part: dict[str, dict[str, Any]]
) -> tuple[tuple[str, str], ...]:
    listed = []
    for place, row in enumerate(tables.by_severity(scope.faults)[:MOST_EXPERIMENTS]):
        measurement = (row.run_id, row.measurement_id)
        chart = fault_figures.timeline(
            f"{scope_id}-timeline-{place}",
            published.events.get(measurement, ()),
            published.detections.get(measurement, ()),
        )
        key = tables.experiment_id(row)
        part["experiments"][key] = {
            "scope": scope_id,
            "facts": tables.experiment_facts(row),
            "chart": _stored(chart, scope) if chart else None,
            "legend": [
                [item.label, item.role, item.symbol] for item in (chart.legend if chart else ())
            ],
        }
        listed.append((key, tables.experiment_label(row)))
    return tuple(listed)


def _stored(chart: Chart, scope: Scope) -> dict[str, Any]:
    """A chart as the page keeps it; each row of its data names its scope, for use on its own."""
    return {"figure": chart.figure, **_columns_and_rows(chart.table, scope)}


def _columns_and_rows(table: Table, scope: Scope) -> dict[str, Any]:
    complete = _with_scope(table, scope)
    return {"columns": complete.columns, "rows": complete.rows}


def _with_scope(table: Table, scope: Scope) -> Table:
    names = ("worker", "basis", "stack_key")
    added = {
        name: value
        for name, value in zip(
            names, (scope.worker, scope.basis, scope.stack.stack_key), strict=True
        )
        if name not in table.columns
    }
    return Table((*table.columns, *added), tuple((*row, *added.values()) for row in table.rows))


def _hash(scope: Scope) -> dict[str, str]:
    """The URL's hash that chooses a scope, as names and values."""
    return {
        "hardware": scope.stack.hardware_label,
        "worker": f"{scope.worker}.{scope.basis}",
        "stack": scope.stack.stack_key,
    }


def _text(value: str | int | None) -> str | None:
    return None if value is None else str(value)


@cache
def _environment() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.PackageLoader("resilience_pipelines.dashboards", "template"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


@cache
def _asset(name: str) -> str:
    """A file of the template that goes into the page as it is."""
    folder = Path(__file__).parent / "template"
    return (folder / name).read_text(encoding="utf-8").replace("\r\n", "\n")


@cache
def _plotly() -> str:
    """Plotly's script, which nothing in it may end early."""
    script: str = plotly.offline.get_plotlyjs().replace("\r\n", "\n")
    return script.replace("</script", "<\\/script")


def _policy(*scripts: str) -> str:
    """A content security policy: these scripts, the page's own styles, and no request at all."""
    # A script element's text is what lies between its tags, the template's line ends included.
    hashes = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
        for text in scripts
    )
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


def _replace(page: Path, content: bytes) -> None:
    try:
        page.parent.mkdir(parents=True, exist_ok=True)
        replace_file(page, content, mode=0o644)
    except OSError as error:
        raise StorageError(
            f"the page {page} can't be written ({error.strerror or error}).",
            mend="Give a place that this user may write and that has free space.",
        ) from error
