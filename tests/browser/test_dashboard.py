"""The page in a real browser: quiet console, no request, filters in the address, every ground.

What belongs here: what only a browser can tell. What does not: the page's text and its escaping,
which the unit tests read from the file.
"""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Any

import pytest

from resilience_pipelines.dashboards import write_dashboard
from tests import dashboard_fixtures as fixtures
from tests.browser.conftest import DESKTOP, PHONE, Visit

playwright_api = pytest.importorskip(
    "playwright.sync_api", reason="the Python package playwright is not installed"
)

pytestmark = pytest.mark.browser


def stacks(visit: Visit) -> list[dict[str, str]]:
    found: list[dict[str, str]] = visit.js(
        "JSON.parse(document.getElementById('data').textContent).scopes"
    )
    return found


@pytest.mark.parametrize("name", ["rich", "hostile", "one_row", "troubled"])
@pytest.mark.parametrize(
    ("scheme", "viewport"), [("light", DESKTOP), ("dark", PHONE)], ids=["desktop", "phone"]
)
def test_the_page_is_quiet_asks_for_nothing_and_fits(
    visits: Any, pages: dict[str, Path], name: str, scheme: str, viewport: dict[str, int]
) -> None:
    visit = visits(scheme=scheme, viewport=viewport).open(pages[name])
    for section in visit.page.locator("section:visible").all():
        section.scroll_into_view_if_needed()
    assert visit.said == []
    assert [url for url in visit.asked if not url.startswith(("file:", "data:", "blob:"))] == []
    assert len([url for url in visit.asked if url.startswith("file:")]) == 1
    assert visit.js("document.documentElement.scrollWidth") <= viewport["width"]
    assert visit.js("window.hacked === undefined")


def test_injected_script_would_not_run(visits: Any, pages: dict[str, Path]) -> None:
    """The policy in the page's head holds even if an escape were missed."""
    visit = visits().open(pages["one_row"])
    visit.js(
        "document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.hacked=1\">')"
    )
    visit.js(
        "document.body.append(Object.assign("
        "document.createElement('script'), {textContent: 'window.hacked=2'}))"
    )
    visit.page.wait_for_timeout(300)
    assert visit.js("window.hacked === undefined")
    assert any("Content Security Policy" in line for line in visit.said)


def test_no_label_is_cut_off_or_lies_on_another(visits: Any, pages: dict[str, Path]) -> None:
    """Row labels and axis titles stay inside their chart, and tick labels apart."""
    for viewport in (DESKTOP, PHONE):
        visit = visits(viewport=viewport).open(pages["rich"])
        outside = visit.js("""
          [...document.querySelectorAll('.plot .main-svg')].flatMap(svg => {
            const box = svg.getBoundingClientRect();
            return [...svg.querySelectorAll('text')].filter(t => {
              const b = t.getBoundingClientRect();
              return b.width > 0 && (b.left < box.left - 1 || b.right > box.right + 1 ||
                                     b.top < box.top - 1 || b.bottom > box.bottom + 1);
            }).map(t => t.textContent);
          })""")
        assert outside == []
        overlapping = visit.js("""
          [...document.querySelectorAll('.plot .xaxislayer-above, .plot .yaxislayer-above')]
            .flatMap(layer => {
              const boxes = [...layer.querySelectorAll('text')].filter(t => t.textContent)
                .map(t => [t.textContent, t.getBoundingClientRect()]);
              return boxes.flatMap(([a, p], i) => boxes.slice(i + 1).filter(([, q]) =>
                p.left < q.right - 1 && q.left < p.right - 1 &&
                p.top < q.bottom - 1 && q.top < p.bottom - 1).map(([b]) => [a, b]));
            })""")
        assert overlapping == []


def test_no_visible_chart_is_empty(visits: Any, pages: dict[str, Path]) -> None:
    visit = visits().open(pages["rich"])
    for scope in stacks(visit):
        visit.js(f"location.hash = 'stack={scope['stack']}&worker={scope['worker']}'")
        visit.until(f"!document.getElementById('{scope['id']}').hidden")
        visit.settled()
        bare = visit.js("""
          [...document.querySelectorAll('.plot')].filter(p => p.clientWidth > 0 &&
            !p.querySelector('.points path, .point path, .lines path')).length""")
        assert bare == 0


def test_filters_live_in_the_address(visits: Any, pages: dict[str, Path]) -> None:
    visit = visits().open(pages["rich"])
    assert "0.224" in visit.heading()
    visit.page.select_option("#filter-hardware", "1x-nvidia-h200")
    visit.settled()
    assert "hardware=1x-nvidia-h200" in visit.hash()
    assert "worker=vllm.simulated" in visit.hash()
    newest = visit.heading()
    oldest = stacks(visit)[-1]["stack"]
    visit.page.select_option("#filter-stack", oldest)
    visit.settled()
    assert f"stack={oldest}" in visit.hash()
    assert visit.heading() != newest
    # The address alone brings the same view back, in a browser that never saw it.
    again = visits().open(pages["rich"], visit.js("location.hash"))
    assert again.heading() == visit.heading()
    assert again.page.input_value("#filter-stack") == oldest
    visit.page.go_back()
    visit.until(f"document.querySelector('#filter-stack').value !== '{oldest}'")
    assert visit.heading() == newest


def test_an_address_that_names_nothing_known_still_shows_results(
    visits: Any, pages: dict[str, Path]
) -> None:
    visit = visits().open(pages["rich"], "#stack=gone&hardware=&experiment=%3Cscript%3E&run=x'\"]")
    assert "0.224" in visit.heading()
    assert visit.said == []


def test_an_experiment_has_an_address(visits: Any, pages: dict[str, Path]) -> None:
    visit = visits().open(pages["rich"])
    links = visit.page.locator("a:visible", has_text="timeline of Worker SIGKILL")
    links.last.click()
    facts = visit.page.locator("[data-facts]:visible")
    playwright_api.expect(facts).to_contain_text("Worker SIGKILL")
    playwright_api.expect(facts).to_contain_text("Restore")
    assert "experiment=" in visit.hash()
    again = visits().open(pages["rich"], visit.js("location.hash"))
    playwright_api.expect(again.page.locator("[data-facts]:visible")).to_contain_text(
        "Worker SIGKILL"
    )
    again.until("window.scrollY > 500")


def test_a_change_of_level_is_drawn_and_says_on_hover_what_differs(
    visits: Any, pages: dict[str, Path]
) -> None:
    visit = visits().open(pages["rich"], "#worker=vllm.simulated")
    trend = visit.page.locator("section[data-name=trend]:visible")
    playwright_api.expect(trend.locator(".shapelayer path[style*='4px, 3px']")).to_have_count(3)
    named = trend.locator(".plot .textpoint text", has_text="CRIU")
    named.scroll_into_view_if_needed()
    box = named.bounding_box()
    visit.page.mouse.move(box["x"], box["y"])
    visit.page.mouse.move(box["x"] + 2, box["y"] + 6)
    playwright_api.expect(trend.locator(".hoverlayer")).to_contain_text("changed its level by")
    playwright_api.expect(trend.locator(".hoverlayer")).to_contain_text("CRIU")
    assert visit.said == []


def test_compatibility_has_an_address(visits: Any, pages: dict[str, Path]) -> None:
    visit = visits().open(pages["rich"], "#worker=vllm.simulated&section=compatibility")
    playwright_api.expect(
        visit.page.locator("[data-name=compatibility]:visible tbody tr")
    ).to_have_count(1)
    visit.until("window.scrollY > 500")


def test_a_run_has_an_address(visits: Any, pages: dict[str, Path]) -> None:
    visit = visits().open(pages["rich"])
    run = next(
        run for scope in stacks(visit) if scope["worker"] == "vllm.simulated"
        for run in scope["runs"]
    )  # fmt: skip
    again = visits().open(pages["rich"], f"#run={run}")
    row = again.page.locator("tr.target:visible")
    playwright_api.expect(row).to_contain_text(run)


def test_the_dark_ground_reaches_the_charts(visits: Any, pages: dict[str, Path]) -> None:
    visit = visits(scheme="light").open(pages["rich"])

    def colours() -> tuple[str, str]:
        return (
            visit.js("getComputedStyle(document.body).backgroundColor"),
            visit.js("getComputedStyle(document.querySelector('.ytick text')).fill"),
        )

    bright = colours()
    assert bright[1] == "rgb(23, 33, 43)"
    visit.page.emulate_media(color_scheme="dark")
    visit.until(
        "getComputedStyle(document.querySelector('.ytick text')).fill === 'rgb(233, 238, 243)'"
    )
    assert colours()[0] != bright[0]


def test_labels_stand_above_their_rows_on_a_phone(visits: Any, pages: dict[str, Path]) -> None:
    visit = visits(viewport=PHONE).open(pages["rich"])
    plot = visit.page.locator("figure[data-chart='s0-phases'] .plot")
    assert plot.locator(".ytick").count() == 0
    assert "Cold" in (plot.locator(".annotation").first.text_content() or "")
    visit.page.set_viewport_size(DESKTOP)
    playwright_api.expect(plot.locator(".ytick")).to_have_count(4)


def test_the_data_of_a_chart_can_be_read_and_downloaded(
    visits: Any, pages: dict[str, Path], tmp_path: Path
) -> None:
    visit = visits().open(pages["hostile"])
    figure = visit.page.locator("figure[data-chart='s0-speedups']")
    figure.get_by_role("button", name="Data").click()
    assert figure.locator(".rows tbody tr").count() == 4
    with visit.page.expect_download() as waiting:
        figure.get_by_role("button", name="CSV").click()
    download = waiting.value
    assert re.fullmatch(r"resilience-speedups-[0-9a-f]{16}\.csv", download.suggested_filename)
    download.save_as(tmp_path / "data.csv")
    with (tmp_path / "data.csv").open(newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    assert {row["versus"] for row in rows} == {
        "cold", "warm_cache", "sleep_wake", "best_other_start",
    }  # fmt: skip
    assert all(row["stack_key"] and float(row["speedup"]) > 0 for row in rows)
    assert all("<script>" in row["worker"] for row in rows)


TABLES = {
    "arms": "median_s", "changes": "change_id", "verdicts": "n_pass", "coverage": "detector",
    "snapshots": "image_bytes", "criu": "criu_frozen_s", "compatibility": "gate",
    "quality": "asked", "runs": "run_id",
}  # fmt: skip


@pytest.mark.parametrize("name", TABLES)
def test_every_table_can_be_downloaded_with_the_rows_it_shows(
    visits: Any, pages: dict[str, Path], tmp_path: Path, name: str
) -> None:
    visit = visits().open(pages["rich"], "#worker=vllm.simulated")
    button = visit.page.locator(f".scope:not([hidden]) button[data-table$='-{name}']")
    if name == "runs":
        visit.page.locator("summary:visible", has_text="behind these figures").click()
    with visit.page.expect_download() as waiting:
        button.click()
    assert re.fullmatch(rf"resilience-{name}-[0-9a-f]{{16}}\.csv", waiting.value.suggested_filename)
    waiting.value.save_as(tmp_path / "data.csv")
    with (tmp_path / "data.csv").open(newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    assert rows
    assert all(row["worker"] and row["basis"] and row["stack_key"] for row in rows)
    assert any(row[TABLES[name]] for row in rows)
    if name in ("arms", "changes", "snapshots", "compatibility", "quality", "runs"):
        of_it = visit.page.locator(f"button[data-table$='-{name}']")
        card = visit.page.locator(".card:visible", has=of_it)
        assert card.locator("tbody tr").count() == len(rows)
    assert visit.said == []


def test_every_table_of_results_has_a_download(visits: Any, pages: dict[str, Path]) -> None:
    visit = visits().open(pages["rich"])
    bare = visit.js("""
      [...document.querySelectorAll('.scope:not([hidden]) table')].filter(t =>
        !t.closest('.card').querySelector('button[data-act=csv]') &&
        !t.classList.contains('overview')).length""")
    assert bare == 0


def test_a_cell_that_a_spreadsheet_would_run_is_quoted(visits: Any, tmp_path: Path) -> None:
    marts = fixtures.hostile("=HYPERLINK(1)")
    report = write_dashboard(marts.write(tmp_path / "p.duckdb"), tmp_path / "page.html")
    visit = visits().open(report.path)
    with visit.page.expect_download() as waiting:
        visit.page.locator("figure[data-chart='s0-speedups']").get_by_role(
            "button", name="CSV"
        ).click()
    waiting.value.save_as(tmp_path / "data.csv")
    with (tmp_path / "data.csv").open(newline="", encoding="utf-8") as stream:
        assert {row["worker"] for row in csv.DictReader(stream)} == {"'=HYPERLINK(1)"}


def test_hovering_shows_hostile_text_as_text(visits: Any, pages: dict[str, Path]) -> None:
    visit = visits().open(pages["hostile"])
    visit.js("""
      Plotly.Fx.hover(document.querySelector("figure[data-chart='s0-phases'] .plot"),
                      [{curveNumber: 0, pointNumber: 0}])""")
    text = visit.page.locator("figure[data-chart='s0-phases'] .hoverlayer").text_content() or ""
    assert "<script>window.hacked=1</script>" in text
    assert visit.js("window.hacked === undefined")
