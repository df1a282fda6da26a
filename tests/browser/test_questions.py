"""Each question of docs/questions.md is answered by the clicks that stand beside it."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Any

import pytest

from tests.browser.conftest import Visit

pytestmark = pytest.mark.browser

PAGE = Path(__file__).parents[2] / "docs" / "questions.md"
SCOPE = ".scope:not([hidden])"
CARD = SCOPE + " .card:has(h3:text-is('{}'))"
FAULT_ROW = SCOPE + " tr:has-text('failed') a:has-text('timeline')"

# Where the answer is, as a place on the page, and what has to be read there.
ANSWERS: dict[str, tuple[str, str]] = {
    "How much faster does a restore bring a worker back?": (
        f"{SCOPE} h1",
        r"Restore brings a worker back in .+ s, .+ faster than",
    ),
    "Does anything need attention, and why?": (f"{SCOPE} .findings", r"Needs attention.+\w"),
    "Is the answer still right after a restore?": (
        f"{SCOPE} .kpi:has-text('Wrong answers')",
        r"\d+ .*of \d+ answers checked",
    ),
    "Where does the time of a start go?": (
        f"{SCOPE} figure[data-chart$='-phases']",
        r"Where the time goes, in seconds.*Restore",
    ),
    "How sure is the figure of each arm?": (
        CARD.format("Every arm in numbers"),
        r"95.% CI.*Restore \d+ .+ s .*\d.* to \d",
    ),
    "What did the last upgrade change, and by how much?": (
        CARD.format("Changes of level"),
        r"[+-]\d+ %.*(yes|no|not known).*\u2192",
    ),
    "How was another stack?": (f"{SCOPE} h1", r"Restore brings a worker back"),
    "Which faults fail?": (CARD.format("Verdicts"), r"\d+ failed"),
    "Who notices a fault, and who does not?": (
        CARD.format("Who notices what"),
        r"\d+ of \d+.*(not expected|not run|never seen)",
    ),
    "What happened in the experiment that failed?": (
        CARD.format("One experiment"),
        r"Verdict failed.*Reason",
    ),
    "What does a snapshot cost?": (CARD.format("Snapshots taken"), r"\d (MB|GB|MiB|GiB).* s "),
    "Do snapshots of the old stack come back on the new one?": (
        CARD.format("Compatibility with other stacks"),
        r"\d+ of \d+",
    ),
    "What is missing, and why?": (CARD.format("Asked and answered"), r"Missing.*Reasons.*\w"),
    "Which runs are behind these figures?": (
        f"{SCOPE} details[open]:has-text('behind these figures')",
        r"\d{8}T\d{6}Z-",
    ),
    "What does a word on this page mean?": ("section[data-name=glossary]", r"Oracle.*Greedy"),
    "Can I have the numbers?": (CARD.format("Every arm in numbers"), r"Every arm"),
}


def questions() -> list[tuple[str, list[str]]]:
    found = []
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| ") and len(cells) == 3 and cells[0] not in ("question", "---"):
            clicks = [] if cells[1] == "none" else cells[1].split(", then ")
            found.append((cells[0], clicks))
    return found


def click(visit: Visit, what: str) -> None:
    page = visit.page
    nav = page.locator("header nav a", has_text=re.compile(f"^{re.escape(what)}$"))
    if what == "the filter Stack":
        chosen = page.input_value("#filter-stack")
        options = page.locator("#filter-stack option").evaluate_all("all => all.map(o => o.value)")
        page.select_option("#filter-stack", next(o for o in options if o != chosen))
        visit.until(f"document.querySelector('#filter-stack').value !== '{chosen}'")
    elif what == "timeline in its row":
        page.locator(FAULT_ROW).first.click()
    elif what == "CSV":
        return  # the test takes the download
    elif nav.count():
        nav.click()
    else:
        page.locator(f"{SCOPE} summary", has_text=what).click()


def test_every_question_has_its_check_and_takes_two_clicks_at_most() -> None:
    listed = questions()
    assert len(listed) >= 15
    assert {question for question, _ in listed} == set(ANSWERS)
    assert [question for question, clicks in listed if len(clicks) > 2] == []


@pytest.mark.parametrize(("question", "clicks"), questions())
def test_a_question_is_answered_by_its_clicks(
    visits: Any, pages: dict[str, Path], tmp_path: Path, question: str, clicks: list[str]
) -> None:
    visit = visits().open(pages["troubled" if "fail" in question else "rich"], START)
    before = visit.heading()
    for what in clicks:
        click(visit, what)
    visit.settled()
    place, pattern = ANSWERS[question]
    answer = visit.page.locator(place).first
    answer.wait_for(state="visible")
    if clicks and place != f"{SCOPE} h1":
        # The click brought the section there; what is left is scrolling within it.
        section = answer.locator("xpath=ancestor-or-self::section[1]")
        top = section.evaluate("s => s.getBoundingClientRect().top")
        assert top < visit.page.viewport_size["height"]
    assert re.search(pattern, " ".join(answer.inner_text().split())), answer.inner_text()
    if "the filter Stack" in clicks:
        assert visit.heading() != before
    if "CSV" in clicks:
        with visit.page.expect_download() as waiting:
            answer.get_by_role("button", name="CSV").click()
        waiting.value.save_as(tmp_path / "data.csv")
        with (tmp_path / "data.csv").open(newline="", encoding="utf-8") as stream:
            assert all(row["median_s"] or row["n"] == "0" for row in csv.DictReader(stream))
    assert visit.said == []


START = "#worker=vllm.simulated"
