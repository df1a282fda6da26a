"""The commands on results: loading, publishing, asking, trends, upgrades, releases, pages.

What belongs here: their options and what a person sees. What does not: any work (`results`,
`upgrades`, `release_survey`, `baselines`, `dashboards`, `metrics`).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from resilience_pipelines.answers import Form, choose_form, encode, write_file
from resilience_pipelines.cli_common import (
    HomeOption,
    JsonOption,
    err,
    options,
    out,
    print_json,
    show_rows,
    status,
)
from resilience_pipelines.errors import InputError
from resilience_pipelines.home import open_home

if TYPE_CHECKING:
    from resilience_pipelines.trends.comparison import Comparison

app = typer.Typer()


@app.command()
def load(
    sources: Annotated[
        list[Path] | None,
        typer.Argument(help="Folders with landing folders; by default the home's and results/."),
    ] = None,
    build: Annotated[bool, typer.Option(help="Also build the marts with dbt.")] = True,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Load new landing folders into the warehouse, each exactly once, and build the marts."""
    from resilience_pipelines.results import load as load_results

    with options(sources="SOURCES"), status("loading", as_json) as tell:
        report = load_results(open_home(home), sources or (), build=build, tell=tell)
    facts = {
        "loaded": len(report.loaded),
        "already_loaded": len(report.already),
        "rejected": [
            {"folder": str(folder), "reason": reason} for folder, reason in report.rejected
        ],
    }
    if as_json:
        print_json(facts)
    else:
        out.print(f"{facts['loaded']} loaded, {facts['already_loaded']} already there")
        for folder, reason in report.rejected:
            err.print(f"[red]rejected[/] {escape(str(folder))}: {escape(reason)}", soft_wrap=True)
    if report.rejected:
        raise typer.Exit(6)


@app.command()
def publish(
    parquet: Annotated[
        bool, typer.Option("--parquet", help="Also write each mart as published/parquet/*.parquet.")
    ] = False,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Copy the marts to published/resilience.duckdb, which analysts read without locks."""
    from resilience_pipelines.results import publish as publish_marts

    with status("publishing", as_json):
        path = publish_marts(open_home(home), parquet=parquet)
    written = [path, *([path.parent / "parquet"] if parquet else [])]
    if as_json:
        facts = {"published": str(path), "bytes": path.stat().st_size}
        print_json(facts | ({"parquet": str(written[1])} if parquet else {}))
        return
    for made in written:
        out.print(str(made), soft_wrap=True)


@app.command()
def query(
    sql: Annotated[str, typer.Argument(help="One SELECT over the marts.")],
    home: HomeOption = None,
    asked: Annotated[
        Form | None,
        typer.Option("--format", help="By default as the ending of --out says, else a table."),
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--out", help="A file to write, in place of printing.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
) -> None:
    """Ask the published database, read-only: tables are listed by `SHOW TABLES`."""
    from resilience_pipelines.warehouse.query import query as ask

    form = choose_form(asked, as_json, file)
    frame = ask(open_home(home), sql)
    if file is not None:
        write_file(file, encode(frame, form))
        out.print(f"{len(frame)} rows in {escape(str(file))}", soft_wrap=True)
    elif form is Form.TABLE:
        show_rows(frame.to_dicts(), False)
    else:
        sys.stdout.write(encode(frame, form).decode())


@app.command()
def releases(
    feeds: Annotated[
        list[str] | None, typer.Argument(help="Feeds: driver, vllm, ...; all if none.")
    ] = None,
    refresh: Annotated[bool, typer.Option(help="Read the feeds again first.")] = False,
    prereleases: Annotated[bool, typer.Option(help="List pre-releases too.")] = False,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the releases of drivers, engines and tools, and how far each has come here.

    A release is known from its feed, available once this machine has it, running while a job
    measures it for the first time, and measured once there are published results with it; it is
    incompatible if some way to start the worker, or every snapshot, failed each time.

    A mirror's address is set by RESILIENCE_FEED_<NAME>, e.g. RESILIENCE_FEED_DRIVER; it may be a
    file:// address. Exit code 1: a feed could not be read; what was known of it is listed.
    """
    from resilience_pipelines.release_survey import refresh_feeds, statuses
    from resilience_pipelines.releases.catalogue import FEEDS

    data_home, names = open_home(home), feeds or list(FEEDS)
    failed: Mapping[str, Exception] = {}
    if refresh:
        with status("reading", as_json) as tell:
            _, failed = refresh_feeds(data_home, names, tell)
    rows = [
        {"feed": item.feed, "state": item.state.value, **item.release.model_dump(mode="json")}
        for item in statuses(data_home, names, prereleases=prereleases)
    ]
    if as_json:
        print_json({"releases": rows, "failed": failed})
    else:
        shown = ("feed", "version", "state", "branch", "kind", "released", "withdrawn")
        show_rows([{key: row[key] for key in shown} for row in rows], False)
        for name, why in failed.items():
            err.print(f"[red]{name}[/]: {escape(str(why))}", soft_wrap=True)
    if failed:
        raise typer.Exit(1)


@app.command()
def trends(
    muted: Annotated[bool, typer.Option(help="List muted changes too.")] = False,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the changes of level in start-up times, and what changed in the stack there.

    `resilience decide` accepts, mutes or annotates one.
    """
    from resilience_pipelines.results import changes

    rows = changes(open_home(home), muted=muted).to_dicts()
    if as_json:
        print_json(rows)
        return
    shown = [
        {
            "change": row["change_id"],
            "at": f"{row['changed_at']:%Y-%m-%d %H:%M}",
            "worker": f"{row['worker']} ({row['basis']})",
            "arm": " ".join(filter(None, (row["arm"], row["variant"]))),
            "by": _percent(row["change_fraction"]),
            "95 %": f"{_percent(row['change_low'])} to {_percent(row['change_high'])}",
            "n": f"{row['n_before']}, {row['n_after']}",
            "relevant": {True: "yes", False: "no", None: "not known"}[row["relevant"]],
            "what changed": ", ".join(row["candidate_dimensions"]) or "nothing known",
            "decision": " ".join(filter(None, (row["decision"], row["decision_note"]))),
        }
        for row in rows
    ]
    show_rows(shown, False)


@app.command()
def decide(
    change: Annotated[str, typer.Argument(help="The change, as `resilience trends` names it.")],
    choice: Annotated[
        str,
        typer.Argument(
            help="accepted: wanted, no longer speaks against an upgrade. muted: not listed any "
            "more either. noted: a note, counts as before."
        ),
    ],
    note: Annotated[str, typer.Option(help="Why, or what else one should know.")] = "",
    by: Annotated[str | None, typer.Option(help="Who decides; this user by default.")] = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Accept, mute or annotate a change of level. The newest decision on a change counts."""
    from resilience_pipelines.results import decide as keep_decision

    with options(by="--by", decided_by="--by", note="--note"):
        decision = keep_decision(open_home(home), change, choice, note=note, by=by)
    if as_json:
        print_json(decision.model_dump(mode="json"))
    else:
        out.print(f"{decision.change_id} is {decision.decision.value}")
        out.print("next: resilience load && resilience publish")


@app.command(name="import")
def import_baselines(
    file: Annotated[Path, typer.Argument(help="The file that holds the figures.")],
    file_format: Annotated[
        str,
        typer.Option(
            "--format",
            help="table (CSV whose columns are source, product, figure, value, unit, ...), "
            "vllm-bench-startup, nccl-tests (-J), nvbandwidth (-j), dynamo-snapshot (NDJSON), "
            "dynamo-agent-log.",
        ),
    ],
    source: Annotated[str | None, typer.Option(help="Who published it; the file's name.")] = None,
    url: Annotated[str | None, typer.Option(help="Where it can be read again.")] = None,
    fact: Annotated[
        list[str] | None,
        typer.Option(help="What the file does not say, e.g. gpu_sku='NVIDIA H200'; repeatable."),
    ] = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Import figures that others published, to stand beside one's own.

    A file is taken as a whole or not at all, and each figure once, however often it is imported.
    """
    from resilience_pipelines.baselines.keep import import_file

    with options(path="FILE", file_format="--format", facts="--fact"):
        report = import_file(
            open_home(home), file, file_format, source=source, url=url, facts=_facts(fact or [])
        )
    if as_json:
        print_json({"figures": report.figures, "new": report.new})
    else:
        out.print(f"{report.figures} figures, {report.new} of them new")
        out.print("next: resilience load && resilience publish")


def _facts(given: Sequence[str]) -> dict[str, str]:
    facts = {}
    for item in given:
        name, equals, value = item.partition("=")
        if not equals:
            raise InputError(
                "--fact", item, "it has to be FIELD=VALUE", mend="For example gpu_sku=H200."
            )
        facts[name] = value
    return facts


@app.command()
def baselines(home: HomeOption = None, as_json: JsonOption = False) -> None:
    """List the figures that others published, with one's own beside them where there is one.

    One's own is the newest measured of the same engine, model's shape and arm; hardware and
    versions may differ, so that a difference is no verdict.
    """
    from resilience_pipelines.results import baselines as published_by_others

    rows = published_by_others(open_home(home)).to_dicts()
    if as_json:
        print_json(rows)
        return
    shown = [
        {
            "product": row["product"],
            "figure": row["figure"],
            "model": row["model"],
            "value": f"{row['value']:g} {row['unit']}",
            "on": " ".join(filter(None, (row["gpu_sku"], row["engine_version"]))) or "not said",
            "own": (f"{row['own_median_s']:.2f} s (n = {row['own_n']})" if row["own_n"] else "-"),
            "own on": row["own_hardware_label"] or "-",
            "source": row["source"],
        }
        for row in rows
    ]
    show_rows(shown, False)


@app.command()
def compare(
    before: Annotated[
        str, typer.Option("--from", help="Stack now: its key, the beginning of one, or `latest`.")
    ],
    after: Annotated[str, typer.Option("--to", help="Stack after the upgrade, likewise.")],
    max_slowdown: Annotated[
        float, typer.Option(help="Relevant slowdowns up to this fraction are notes.")
    ] = 0.2,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Judge an upgrade: what got slower, what fails now, and one word for it.

    Exit codes: 0 safe or safe_with_notes, 1 not_safe, 8 not_enough_data.
    """
    from resilience_pipelines.api import compare as judge

    with options(before="--from", after="--to", max_slowdown="--max-slowdown"):
        upgrade = judge(before, after, max_slowdown=max_slowdown, home=home)
    if as_json:
        print_json(upgrade.as_dict())
    else:
        _show_comparison(upgrade.comparison, upgrade.changed)
    code = _verdict_code(upgrade.comparison.verdict)
    if code:
        raise typer.Exit(code)


@app.command()
def upgrades(
    notify: Annotated[
        bool, typer.Option(help="Send the verdicts to the channels that the environment names.")
    ] = False,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Judge the newest upgrade of each machine, engine and model that was measured.

    Channels: RESILIENCE_ALERT_WEBHOOK (JSON), RESILIENCE_ALERT_SLACK, and RESILIENCE_ALERT_EMAIL
    with RESILIENCE_SMTP. Exit codes: 1 if one is not_safe or could not be sent, else 0.
    """
    from resilience_pipelines.alerts import send_all
    from resilience_pipelines.trends.comparison import UpgradeVerdict
    from resilience_pipelines.upgrades import newest_upgrades

    found = newest_upgrades(open_home(home))
    if as_json:
        print_json([upgrade.as_dict() for upgrade in found])
    elif not found:
        out.print("No machine was measured with two stacks yet.")
    for upgrade in [] if as_json else found:
        out.print(f"[bold]{escape(upgrade.title)}[/]", soft_wrap=True)
        for reason in upgrade.comparison.reasons:
            out.print(f"- {escape(reason)}", soft_wrap=True)
    failed = []
    if notify:
        with options(channels="--notify"):
            failed = send_all(upgrade.alert() for upgrade in found)
    for channel, error in failed:
        err.print(f"[red]{channel}[/]: {escape(str(error))}", soft_wrap=True)
    if failed or any(item.comparison.verdict is UpgradeVerdict.NOT_SAFE for item in found):
        raise typer.Exit(1)


def _verdict_code(verdict: str) -> int:
    return {"not_safe": 1, "not_enough_data": 8}.get(verdict, 0)


def _show_comparison(result: Comparison, differing: Mapping[str, tuple[object, object]]) -> None:
    from resilience_pipelines.upgrades import words

    colours = {"safe": "green", "safe_with_notes": "yellow"}
    out.print(f"[bold {colours.get(result.verdict.value, 'red')}]{words(result.verdict)}[/]")
    for reason in result.reasons:
        out.print(f"- {escape(reason)}", soft_wrap=True)
    out.print()
    changed = [
        {"dimension": name, "from": old, "to": new} for name, (old, new) in differing.items()
    ]
    show_rows(changed, False)
    out.print()
    rows = [
        {
            "figure": item.figure,
            "from_s": item.before,
            "to_s": item.after,
            "change": _percent(item.fraction),
            "95 %": f"{_percent(item.low)} to {_percent(item.high)}",
            "n": f"{item.n_before}, {item.n_after}",
            "relevant": "yes" if item.relevant else "no",
        }
        for item in result.differences
    ]
    show_rows(rows, False)


def _percent(fraction: float | None) -> str:
    return "-" if fraction is None else f"{fraction:+.1%}"


@app.command()
def dashboard(
    out_path: Annotated[
        Path | None, typer.Option("--out", help="Where the page goes (default: in the home).")
    ] = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write the dashboard: one HTML page that works offline."""
    from resilience_pipelines.dashboards import write_dashboard

    data_home = open_home(home)
    target = out_path or data_home.dashboard / "index.html"
    with status("writing the dashboard", as_json):
        report = write_dashboard(data_home.published, target)
    if as_json:
        print_json({"path": str(report.path), "bytes": report.bytes})
    else:
        out.print(str(report.path))


@app.command()
def metrics(
    out_path: Annotated[
        Path | None,
        typer.Option("--out", help="A file to replace, NAME.prom; standard output if none."),
    ] = None,
    home: HomeOption = None,
) -> None:
    """Metrics of the platform itself for Prometheus: backlog, freshness, room, newest figures."""
    from resilience_pipelines.metrics import exposition, write_exposition

    if out_path is None:
        sys.stdout.write(exposition(open_home(home)))
    else:
        write_exposition(open_home(home), out_path)
