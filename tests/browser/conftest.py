"""A page in a real browser, for the tests beside this file."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from resilience_pipelines.dashboards import write_dashboard
from tests import dashboard_fixtures as fixtures

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
ARGUMENTS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip
DESKTOP, PHONE = {"width": 1440, "height": 900}, {"width": 390, "height": 844}
TIMEOUT_MS = 60_000


class Visit:
    """A page opened on its own, with all that it said and asked for."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.said: list[str] = []
        self.asked: list[str] = []
        page.set_default_timeout(TIMEOUT_MS)
        page.on("console", lambda message: self.said.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: self.said.append(f"error: {error}"))
        page.on("request", lambda request: self.asked.append(request.url))

    def open(self, path: Path, anchor: str = "") -> Visit:
        self.page.goto(f"{path.as_uri()}{anchor}")
        self.until("document.querySelectorAll('.plot .main-svg').length > 0")
        self.settled()
        return self

    def settled(self) -> None:
        """Every plot that is visible is drawn."""
        self.until(
            "[...document.querySelectorAll('.plot')].every("
            "p => p.clientWidth === 0 || p.querySelector('.main-svg'))"
        )

    def until(self, expression: str) -> None:
        """Wait for a condition. Playwright's own wait evaluates text in the page, which the page's
        policy forbids."""
        deadline = time.monotonic() + TIMEOUT_MS / 1000
        while not self.js(expression):
            assert time.monotonic() < deadline, f"never came true: {expression}"
            self.page.wait_for_timeout(50)

    def js(self, expression: str) -> Any:
        return self.page.evaluate(expression)

    def hash(self) -> str:
        return str(self.js("decodeURIComponent(location.hash)"))

    def heading(self) -> str:
        return str(self.page.locator("h1:visible").inner_text())


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    made = {"rich": fixtures.rich(), "hostile": fixtures.hostile(), "one_row": fixtures.one_row(),
            "troubled": fixtures.troubled()}  # fmt: skip
    return {
        name: write_dashboard(marts.write(folder / f"{name}.duckdb"), folder / f"{name}.html").path
        for name, marts in made.items()
    }


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium with a new and empty profile, which Playwright makes and removes."""
    playwright_api = pytest.importorskip(
        "playwright.sync_api", reason="the Python package playwright is not installed"
    )
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine: apt-get install chromium")
    with playwright_api.sync_playwright() as api:
        started = api.chromium.launch(executable_path=CHROMIUM, headless=True, args=ARGUMENTS)
        yield started
        started.close()


@pytest.fixture
def visits(browser: Any) -> Iterator[Any]:
    """Opens pages that share nothing with one another, and closes them all."""
    opened: list[Any] = []

    def visit(*, scheme: str = "light", viewport: dict[str, int] = DESKTOP) -> Visit:
        context = browser.new_context(viewport=viewport, color_scheme=scheme, accept_downloads=True)
        opened.append(context)
        return Visit(context.new_page())

    yield visit
    for context in opened:
        context.close()
