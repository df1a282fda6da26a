"""The page as a file: whole, self-contained, safe from its data, and honest where data is thin."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Callable
from datetime import timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import duckdb
import pytest

from resilience_pipelines.dashboards import pages, tables, words, write_dashboard
from resilience_pipelines.dashboards.data import Scope, read_published
from resilience_pipelines.dashboards.headline import Status
from resilience_pipelines.errors import CorruptError, InputError, StorageError
from resilience_pipelines.stack import Stack
from tests import dashboard_fixtures as fixtures
from tests.dashboard_fixtures import plain

VOID = {"meta", "link", "br", "img", "input", "path", "rect", "circle"}


class Page(HTMLParser):
    """The elements of a page, as a browser would see them."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.scripts: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self._within: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self._within.append(tag)
        if tag == "script":
            self.scripts.append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._within
        assert self._within.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._within and self._within[-1] == "script":
            self.scripts[-1] += data
        elif not self._within or self._within[-1] != "style":
            self.words.append(data)

    @property
    def text(self) -> str:
        joined = " ".join(" ".join(self.words).split())
        return plain(joined)

    @property
    def store(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.scripts[0])
        return found

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, str]]:
    """The page of a fixture by name, made once."""
    made: dict[str, tuple[Path, str]] = {}

    def write(name: str) -> tuple[Path, str]:
        if name not in made:
            folder = tmp_path_factory.mktemp(name)
            marts = fixtures.Marts() if name == "empty" else getattr(fixtures, name)()
            report = write_dashboard(marts.write(folder / "p.duckdb"), folder / "page.html")
            made[name] = (report.path, report.path.read_text())
        return made[name]

    return write


Written = Callable[[str], tuple[Path, str]]


def test_sections_come_in_the_order_of_the_reader_s_questions(written: Written) -> None:
    page = Page(written("rich")[1])
    names = [a["data-name"] for a in page.all("section") if "data-name" in a]
    one = ["verdict", "startup", "trend", "faults", "snapshots", "quality"]
    assert names == one * 6 + ["glossary"]


def test_the_report_says_what_was_written(tmp_path: Path) -> None:
    published = fixtures.one_row().write(tmp_path / "p.duckdb")
    report = write_dashboard(published, tmp_path / "folder")
    assert report.path == tmp_path / "folder/index.html"
    assert report.bytes == report.path.stat().st_size
    assert report.sections == ("Start-up", "Trend over stacks", "Data coverage")
    assert report.path.stat().st_mode & 0o777 == 0o644


def test_the_verdict_stands_first(written: Written) -> None:
    page = Page(written("rich")[1])
    start = page.text.index("Restore brings a worker back in 0.224 s, 4.2x faster than")
    assert start < page.text.index("Faults: 40 of 42 experiments passed (2 failed)")
    assert start < page.text.index("From the decision to start a worker")


def test_every_chart_and_table_says_what_it_stands_for(written: Written) -> None:
    text = written("rich")[1]
    first = text[text.index('id="s0"') : text.index('id="s1"')]
    label = "Reference worker on CPU: stands for vLLM, not a GPU result"
    assert "Simulated" not in re.sub(r"<details.*?</details>", "", first, flags=re.S)
    for card in re.findall(r"<figure class=\"card chart\".*?</figure>", first, flags=re.S):
        assert label in card
    for title in ("Verdicts", "Who notices what", "One experiment", "Every arm in numbers",
                  "Snapshots taken", "Asked and answered", "own statistics"):  # fmt: skip
        after = first[first.index(f"{title}</h3>") :][:400]
        assert label in after, title
    other = text[text.index('id="s1"') : text.index('id="s2"')]
    assert "Simulated: put there by a shim or a generator, not a measurement" in other


def test_measured_results_carry_no_such_label(tmp_path: Path) -> None:
    marts = fixtures.one_row()
    for rows in marts.rows.values():
        for row in rows:
            if "basis" in row:
                row["basis"] = "measured"
    report = write_dashboard(marts.write(tmp_path / "p.duckdb"), tmp_path / "page.html")
    assert not [a for a in Page(report.path.read_text()).all("p") if a.get("class") == "basis"]


def test_measured_results_open_first(tmp_path: Path) -> None:
    marts = fixtures.rich()
    for rows in marts.rows.values():
        for row in rows:
            if row.get("basis") == "simulated":
                row["basis"] = "measured"
    scopes = read_published(marts.write(tmp_path / "p.duckdb")).scopes
    assert [scope.basis for scope in scopes] == ["measured"] * 5 + ["reference"]
    assert scopes[0].last_measured_at > scopes[1].last_measured_at


def test_a_result_without_another_start_to_compare_with_comes_after_those_that_have_one(
    tmp_path: Path,
) -> None:
    path = fixtures.rich().write(tmp_path / "p.duckdb")
    before = [scope for scope in read_published(path).scopes if scope.basis == "simulated"]
    newest = before[0].stack.stack_key
    with duckdb.connect(str(path)) as connection:
        connection.execute("delete from restore_speedup where stack_key = ?", [newest])
    after = [scope for scope in read_published(path).scopes if scope.basis == "simulated"]
    kept = [scope.stack.stack_key for scope in before[1:] if scope.speedups]
    assert kept
    assert [scope.stack.stack_key for scope in after][: len(kept) + 1] == [*kept, newest]


def test_an_empty_warehouse_says_so_and_how_to_fill_it(written: Written) -> None:
    page = Page(written("empty")[1])
    assert "Nothing has been measured yet." in page.text
    assert "resilience demo" in page.text
    assert "Glossary" in page.text
    assert not page.scripts


def test_one_row_says_what_is_missing_and_invents_nothing(written: Written) -> None:
    page = Page(written("one_row")[1])
    for said in (
        "no other start was measured to compare", "no interval, n = 1", "One stack is no trend",
        "No fault has been injected on this stack.", "Restore can't be compared",
    ):  # fmt: skip
        assert said in page.text
    assert "unknown" in page.text
    assert "0 of 0" not in page.text
    assert "nan" not in page.text.lower().split()
    assert "None" not in page.text


def test_stages_of_a_new_name_are_shown(tmp_path: Path) -> None:
    marts = fixtures.one_row()
    scope = {name: marts.rows["runs"][0][name] for name in ("worker", "basis", "stack_key")}
    marts.add("startup_variants", **scope, arm="teleport", variant=None, n=1, median_s=1.5,
              min_s=1.5, max_s=1.5)  # fmt: skip
    marts.add("startup_phase_summary", **scope, arm="teleport", phase="beam_up", n=1, median_s=1.5,
              order_in_start=0)  # fmt: skip
    marts.add("data_quality", **scope, kind="a_new_kind", subject="thing", asked=4, ok=1, failed=0,
              unsupported=1, reasons=None)  # fmt: skip
    report = write_dashboard(marts.write(tmp_path / "p.duckdb"), tmp_path / "page.html")
    page = Page(report.path.read_text())
    assert "Teleport" in page.text
    assert "Beam up" in page.text
    assert "A new kind" in page.text


def test_what_has_no_result_is_missing_not_zero(tmp_path: Path) -> None:
    marts = fixtures.one_row()
    marts.rows["data_quality"][0] |= {"asked": 5, "ok": 1, "failed": 1, "unsupported": 1}
    scope = read_published(marts.write(tmp_path / "p.duckdb")).scopes[0]
    assert tables.quality_lines(scope.quality)[0].missing == 2


def test_an_empty_cell_of_the_matrix_says_why(tmp_path: Path) -> None:
    marts = fixtures.rich()
    rows = marts.rows["detector_coverage"]
    cell = next(r for r in rows if r["planned_fault"] == "xid_79_log" and r["n_expected"])
    rows.remove(next(r for r in rows if r is not cell and r["planned_fault"] == "xid_79_log"))
    cell |= {"n": 0, "n_expected": 0, "n_detected": 0, "n_missed": 0}
    bonus = next(r for r in rows if r["planned_fault"] == "worker_hang" and not r["n_expected"])
    bonus |= {"n_detected": 2}
    scope = read_published(marts.write(tmp_path / "p.duckdb")).scopes[0]
    found = {
        (line.fault, name): shown
        for matrix in [tables.coverage(scope.coverage)]
        for line in matrix.lines
        for name, shown in zip(matrix.detectors, line.cells, strict=True)
    }
    assert found["XID 79 log", "DCGM health"].detail == "took no part"
    assert found["XID 79 log", "Kernel log"].detail == "only control arms"
    assert found["Worker hang", "DCGM health"].text == "2 of 6"
    assert found["Worker hang", "Worker health"].kind == "all"
    assert found["ECC DBE cache", "DCGM health"].text == "4 of 6"
    assert found["Worker hang", "NVML poll"].alarm == "1 of 1 false"
    controls = tables.coverage(scope.coverage).controls
    assert [cell.kind for cell in controls].count("alarm") == 1


def engine_scopes(folder: Path) -> list[Scope]:
    """The scopes of the engine in `rich`, the newest stack first."""
    published = read_published(fixtures.rich().write(folder / "p.duckdb"))
    return [scope for scope in published.scopes if scope.worker == "vllm"]


def test_changes_of_level_are_listed_with_what_changed_and_what_was_decided(
    tmp_path: Path,
) -> None:
    published = read_published(fixtures.rich().write(tmp_path / "p.duckdb"))
    scope = next(scope for scope in published.scopes if scope.worker == "vllm")
    found = {
        (line.arm, plain(line.change.value)): line
        for line in tables.change_lines(scope.change_points, published.stacks)
    }
    criu = found["Restore", "-15 %"]
    assert criu.changed == words.minute(fixtures.START + timedelta(days=24))
    assert plain(criu.change.interval) == "-19 % to -12 %"
    assert plain(criu.before) == "10.0 s, n = 14"
    assert plain(criu.after) == "8.50 s, n = 7"
    assert criu.what_changed == "CRIU 4.1.1 \N{RIGHTWARDS ARROW} 4.2.1"
    assert criu.decision == "accepted: fewer copies"
    assert criu.relevant == "yes"
    several = found["Restore", "-36 %"]
    assert several.what_changed.startswith("one or more of: CUDA 12.9 ")
    assert several.decision == "none"
    assert found["Cold", "-9.0 %"].relevant == "no"
    within = found["Cold", "+7.0 %"]
    assert (within.what_changed, within.relevant) == ("nothing that is known", "not known")
    assert ("Sleep and wake, level 2", "+50 %") in found


def test_what_is_not_significant_is_not_called_irrelevant(tmp_path: Path) -> None:
    scope = engine_scopes(tmp_path)[0]
    row = scope.change_points[0].model_copy(update={"significant": False, "relevant": False})
    assert tables.change_lines([row], {})[0].relevant == "not significant"


def test_a_muted_change_is_nowhere_on_the_page(written: Written) -> None:
    text = written("rich")[1]
    assert "fewer copies" in text
    assert "a noisy neighbour" not in text
    assert not re.search(rf"[^\d.]77{words.NBSP}%", text)


def test_changes_of_level_belong_to_their_series(tmp_path: Path) -> None:
    published = read_published(fixtures.rich().write(tmp_path / "p.duckdb"))
    counts = {(s.worker, len(s.change_points)) for s in published.scopes}
    assert counts == {("reference", 0), ("vllm", 5)}


def test_restores_across_stacks_are_listed_on_both_sides(tmp_path: Path) -> None:
    listed = [
        tables.compatibility_lines(scope.compatibility, scope.stack.stack_key)
        for scope in engine_scopes(tmp_path)
    ]
    assert [len(lines) for lines in listed] == [1, 3, 1, 0, 0]
    (lax,), (strict,) = listed[0], listed[2]
    assert "this stack" not in lax.source
    assert lax.target == "this stack"
    assert lax.differs == "Driver, Engine version, PyTorch"
    assert lax.came_back == tables.Chip(Status.WARN, "1 of 3")
    assert lax.reason == "restore failed"
    assert lax.gate == tables.Chip(Status.BAD, "too lax")
    assert lax.prediction == "lets it pass"
    assert plain(lax.wasted) == "8.40 s"
    home = next(line for line in listed[1] if line.differs == "nothing")
    assert (home.source, home.target) == ("this stack", "this stack")
    assert home.came_back.status == home.gate.status == Status.GOOD
    assert (home.reason, home.wasted) == (words.MISSING, words.seconds(0))
    assert (strict.gate.text, strict.prediction) == ("too strict", "refuses it")


def test_a_snapshot_that_saves_time_says_when_it_has_paid_off(tmp_path: Path) -> None:
    scope = engine_scopes(tmp_path)[0]
    cold, warm = tables.economics_lines(scope.economics)
    assert (cold.versus, warm.versus) == ("Cold", "Warm cache")
    assert plain(cold.break_even.text) == "1 restore"
    row = scope.economics[0]
    assert cold.net == cold.net_gpu == words.seconds(row.net_saved_s)
    assert plain(cold.take) == "3.40 s, n = 3"


def test_a_snapshot_that_saves_no_time_never_pays_off(tmp_path: Path) -> None:
    row = engine_scopes(tmp_path)[0].economics[0]
    slow = row.model_copy(
        update={"saved_median_s": -2.0, "restores_to_break_even": None, "net_saved_s": -13.4,
                "net_saved_gpu_s": None, "n_snapshots_failed": 2}
    )  # fmt: skip
    (line,) = tables.economics_lines([slow])
    assert line.break_even == tables.Chip(Status.BAD, "never: a restore saves no time")
    assert plain(line.saved.value) == "-2.00 s"
    assert plain(line.net) == "-13.4 s"
    assert line.net_gpu == words.MISSING
    assert line.take.endswith("2 failed")


def test_restores_at_once_stand_beside_what_the_disk_gives(tmp_path: Path) -> None:
    scope = engine_scopes(tmp_path)[0]
    cold, four_cold, warm, four_warm = tables.fanout_lines(scope.fanout)
    assert [line.width for line in (cold, four_cold)] == ["1", "4"]
    assert (cold.page_cache, warm.page_cache) == ("cold", "warm")
    assert four_cold.failed == (tables.Chip(Status.BAD, "1 failed"),)
    assert four_warm.failed == ()
    assert plain(four_warm.n) == "12 in 3 waves"
    assert plain(four_warm.slowest) == "2.47 s"
    assert "at 1.86 GiB/s, in 2.95 s at most" in plain(tables.fanout_note(scope.fanout))
    assert tables.fanout_note(()) == ""


def test_another_machine_is_named_where_a_snapshot_moved(tmp_path: Path) -> None:
    (row,) = engine_scopes(tmp_path)[0].compatibility
    moved = row.model_copy(update={"source_hardware_label": "2x-nvidia-h100", "n_ok": 0})
    (line,) = tables.compatibility_lines([moved], moved.stack_key)
    assert line.source.endswith(" on 2x-nvidia-h100")
    edited = row.model_copy(update={"image_edit": "tcp_state", "differing_dimensions": ()})
    (line_of_edited,) = tables.compatibility_lines([edited], edited.stack_key)
    assert line_of_edited.differs == "edited copy: tcp state"
    assert line.came_back.status == Status.BAD


def test_without_changes_or_trials_the_page_says_how_to_get_them(written: Written) -> None:
    text = Page(written("one_row")[1]).text
    assert "No change of level to show" in text
    assert "resilience run compatibility restores them here" in text
    assert "Changes of level" not in text
    assert "Compatibility with other stacks" not in text


def test_long_lists_of_changes_and_pairs_say_what_they_leave_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "MOST_CHANGE_POINTS", 2)
    monkeypatch.setattr(pages, "MOST_COMPATIBILITY", 1)
    published = fixtures.rich().write(tmp_path / "p.duckdb")
    report = write_dashboard(published, tmp_path / "page.html")
    text = plain(Page(report.path.read_text()).text)
    assert "3 older ones beyond these: see table change_points" in text
    assert "2 older pairs beyond these: see table compatibility_matrix" in text


def test_hostile_text_is_only_text(written: Written) -> None:
    text = written("hostile")[1]
    page = Page(text)
    assert len(page.scripts) == 3
    assert not page.all("img")
    assert not [a for _, a in page.tags if any(name.startswith("on") for name in a)]
    assert "<script>window.hacked=1</script>" in page.text
    assert "{{7*7}}" in page.text
    # Controls that reorder text are gone, the rest of the text is whole.
    assert "\u202e" not in text
    facts = next(iter(page.store["experiments"].values()))["facts"]
    assert any("<script>" in value for _, value in facts)


LOG_LINES = [
    "]]></script><svg onload=alert(1)>", "<iframe srcdoc='<script>1</script>'>",
    "javascript:alert(1)//<a href='javascript:x'>", "&lt;script&gt;&#60;img src=x onerror=1&#62;",
    "<style>*{display:none}</style><base href='//evil.example'><meta http-equiv=refresh content=0>",
    "\x1b[31m\x00\x07red</title></head><body onload=1>", "<!--", "`${window.hacked=1}`",
]  # fmt: skip


@pytest.mark.parametrize("line", LOG_LINES)
def test_a_line_of_a_log_or_a_field_of_a_stack_makes_no_element(tmp_path: Path, line: str) -> None:
    def elements(marts: fixtures.Marts, name: str) -> dict[str, int]:
        published = marts.write(tmp_path / f"{name}.duckdb")
        page = Page(write_dashboard(published, tmp_path / f"{name}.html").path.read_text())
        risky = ("script", "iframe", "img", "object", "embed", "base", "meta", "style", "form")
        assert not [
            (tag, attributes)
            for tag, attributes in page.tags
            if any(name.startswith("on") or name == "srcdoc" for name in attributes)
            or str(attributes.get("href") or "").startswith(("javascript:", "data:text", "//"))
        ]
        return {tag: len(page.all(tag)) for tag in risky}

    assert elements(fixtures.hostile(line), "bad") == elements(fixtures.hostile("plain"), "good")


def test_inline_data_can_not_leave_its_element(written: Written) -> None:
    data = Page(written("hostile")[1]).scripts[0]
    assert "<" not in data
    assert ">" not in data
    assert "\u2028" not in data


def test_numbers_that_json_lacks_are_refused() -> None:
    with pytest.raises(ValueError, match="JSON"):
        pages.inline_json({"x": float("nan")})


def test_the_page_asks_nothing_of_a_network(written: Written) -> None:
    text = written("rich")[1]
    page = Page(text)
    for _, attributes in page.tags:
        for name in ("src", "href", "srcset", "action", "poster"):
            value = attributes.get(name) or "#"
            assert value.startswith(("#", "data:")), value
    styles = "".join(re.findall(r"<style>(.*?)</style>", text, flags=re.S))
    assert "url(" not in styles
    assert "@import" not in styles


def test_only_the_page_s_own_scripts_may_run(written: Written) -> None:
    page = Page(written("rich")[1])
    policy = next(a["content"] for a in page.all("meta") if a.get("http-equiv")) or ""
    allowed = set(re.findall(r"'sha256-([^']+)'", policy))
    assert "default-src 'none'" in policy
    assert "unsafe-eval" not in policy
    # The first script element holds JSON, which no browser runs.
    assert page.all("script")[0]["type"] == "application/json"
    for script in page.scripts[1:]:
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        assert digest in allowed
    assert len(allowed) == 2


def test_every_chart_has_its_figure_its_words_and_its_data(written: Written) -> None:
    page = Page(written("rich")[1])
    keys = {a["data-chart"] for a in page.all("figure") if "data-chart" in a}
    assert keys == set(page.store["charts"])
    for stored in page.store["charts"].values():
        assert stored["rows"]
        assert {"worker", "basis", "stack_key"} <= set(stored["columns"])
        assert all(len(row) == len(stored["columns"]) for row in stored["rows"])
    plots = [a for a in page.all("div") if a.get("role") == "img"]
    assert all(plot["aria-label"] for plot in plots)


def test_every_experiment_can_be_linked_to(written: Written) -> None:
    page = Page(written("rich")[1])
    options = {a["value"] for a in page.all("option")}
    assert options == set(page.store["experiments"])
    linked = [a["href"] for a in page.all("a") if (a["href"] or "").startswith("#experiment=")]
    assert len(linked) == 2 * 2 * len(fixtures.FAULTS)


def test_mean_times_and_availability_stand_with_their_denominators(tmp_path: Path) -> None:
    published = many_stacks(1).write(tmp_path / "p.duckdb")
    (scope,) = read_published(published).scopes
    lines = tables.score_lines(scope.fault_scores)
    assert len(lines) == len(scope.fault_scores) > 1
    text = Page(write_dashboard(published, tmp_path / "page.html").path.read_text()).text
    for row, line in zip(
        sorted(scope.fault_scores, key=lambda r: (r.planned_fault, r.recovery or "")),
        sorted(lines, key=lambda item: (item.fault, item.recovery)),
        strict=True,
    ):
        assert line.detected == f"{row.n_detected} of {row.n}"
        recovered = row.n_recovered == row.n
        assert (plain(line.daily.value) == "--") is not recovered
        assert plain(line.fleet.value) == "--", "no cause of the fleet's in these rows"
        assert plain(line.mttr.value) in plain(text)
    assert "Mean times and availability" in text


def test_failed_experiments_open_first(written: Written) -> None:
    page = Page(written("rich")[1])
    first = page.all("option")[0]["value"]
    assert ["Verdict", "failed"] in page.store["experiments"][first]["facts"]


def many_stacks(count: int) -> fixtures.Marts:
    marts = fixtures.Marts()
    for place in range(count):
        stack = Stack(engine="vllm", engine_version=f"0.{place}", model="m")
        fixtures.add_faults(
            marts, stack, fixtures.START + timedelta(days=place), basis="simulated", seed=place,
        )  # fmt: skip
    return marts


def test_a_page_of_many_stacks_stays_small_and_names_what_it_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "DATA_BUDGET_BYTES", 700_000)
    published = many_stacks(5).write(tmp_path / "p.duckdb")
    report = write_dashboard(published, tmp_path / "page.html")
    page = Page(report.path.read_text())
    shown = len(page.store["scopes"])
    assert 1 <= shown < 5
    assert len(page.scripts[0].encode()) < 900_000
    assert f"{5 - shown} older result" in page.text
    # The newest are the ones that stay.
    assert "vLLM 0.4" in plain(page.store["scopes"][0]["stackLabel"])


def test_the_page_is_well_below_ten_megabytes(written: Written) -> None:
    assert written("hostile")[0].stat().st_size < 9_000_000


def test_the_published_file_is_only_read(tmp_path: Path) -> None:
    published = fixtures.one_row().write(tmp_path / "p.duckdb")
    before = hashlib.sha256(published.read_bytes()).hexdigest()
    published.chmod(0o444)
    write_dashboard(published, tmp_path / "page.html")
    assert hashlib.sha256(published.read_bytes()).hexdigest() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["p.duckdb", "page.html"]


def test_a_failed_write_leaves_the_old_page_and_no_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    published = fixtures.one_row().write(tmp_path / "p.duckdb")
    page = tmp_path / "out/page.html"
    page.parent.mkdir()
    page.write_text("the old one")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(StorageError, match="No space left"):
        write_dashboard(published, page)
    assert page.read_text() == "the old one"
    assert list(page.parent.iterdir()) == [page]


def test_no_published_file_says_how_to_get_one(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="resilience publish"):
        write_dashboard(tmp_path / "none.duckdb", tmp_path / "page.html")


def test_a_file_that_is_no_database_is_named(tmp_path: Path) -> None:
    broken = tmp_path / "p.duckdb"
    broken.write_bytes(b"not a database" * 1000)
    with pytest.raises(CorruptError, match=re.escape(str(broken))):
        write_dashboard(broken, tmp_path / "page.html")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ("drop table fault_events", "fault_events"),
        ("drop table change_points", "change_points"),
        ("drop table compatibility_matrix", "compatibility_matrix"),
        ("alter table restore_speedup drop column ci_low", "restore_speedup"),
        ("alter table startup_variants alter n type text using 'many'", "startup_variants"),
        ("update restore_speedup set speedup = 'nan'", "speedup"),
        ("delete from stacks", "is not in table `stacks`"),
    ],
)
def test_a_table_of_another_shape_is_named(tmp_path: Path, change: str, named: str) -> None:
    published = fixtures.rich().write(tmp_path / "p.duckdb")
    with duckdb.connect(str(published)) as connection:
        connection.execute(change)
    with pytest.raises(CorruptError, match=re.escape(named)):
        write_dashboard(published, tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()


@pytest.mark.parametrize(
    "value", ["driver_version, cuda_version", '["driver_version", "cuda_version"]',
              "[driver_version, cuda_version]"],
)  # fmt: skip
def test_changed_dimensions_are_read_however_a_list_is_written(tmp_path: Path, value: str) -> None:
    marts = fixtures.one_row()
    marts.rows["startup_trend"][0]["changed_dimensions"] = value
    scope = read_published(marts.write(tmp_path / "p.duckdb")).scopes[0]
    assert scope.trend[0].changed_dimensions == ("driver_version", "cuda_version")


def test_parameters_that_are_no_object_stay_readable(tmp_path: Path) -> None:
    marts = fixtures.rich()
    marts.rows["fault_runs"][0]["parameters"] = "not json"
    faults = read_published(marts.write(tmp_path / "p.duckdb")).scopes[0].faults
    changed = next(row for row in faults if "" in row.parameters)
    assert dict(tables.experiment_facts(changed))["Parameters"].endswith("not json")


def test_escaped_once_is_escaped_enough(written: Written) -> None:
    """`&amp;` in data is shown as `&amp;`, not as `&`, and is not escaped twice."""
    assert html.escape("&amp;") in written("hostile")[1]
    assert "&amp;amp;amp;" not in written("hostile")[1]


def multiplied(published: Path, times: int) -> Path:
    """Each run as often as told, under other names."""
    with duckdb.connect(str(published)) as connection:
        for table in (
            "runs", "startup_measurements", "snapshots", "snapshot_phases", "fault_runs",
            "fault_detections", "fault_events",
        ):  # fmt: skip
            connection.execute(
                f"insert into {table} select {table}.* replace (run_id || '-' || copy as run_id) "
                f"from {table}, range(1, {times}) as copies(copy)"
            )
    return published


def test_what_is_read_is_bounded_and_what_is_counted_is_all(tmp_path: Path) -> None:
    once = read_published(fixtures.rich().write(tmp_path / "once.duckdb"))
    few, many = (
        read_published(multiplied(fixtures.rich().write(tmp_path / f"{n}.duckdb"), n))
        for n in (150, 300)
    )
    for one, less, more in zip(once.scopes, few.scopes, many.scopes, strict=True):
        for name in ("runs", "startups", "snapshots", "faults"):
            assert len(getattr(less, name)) == len(getattr(more, name)), name
        assert more.n_runs == 300 * one.n_runs
        assert more.n_experiments == 300 * one.n_experiments
        assert more.clean_controls == 300 * one.clean_controls
        assert sum(row.n for row in more.start_counts) == 300 * len(one.startups)
        assert more.dump_phases == tuple(
            row.model_copy(update={"n": 300 * row.n}) for row in one.dump_phases
        )
    assert len(few.events) == len(many.events)
    assert len(few.detections) == len(many.detections)


def test_a_chart_that_draws_only_the_newest_starts_says_so(tmp_path: Path) -> None:
    published = multiplied(fixtures.one_row().write(tmp_path / "p.duckdb"), 150)
    write_dashboard(published, tmp_path / "page.html")
    page = Page((tmp_path / "page.html").read_text())
    assert "the newest 100 starts; 50 older ones" in page.text
    assert "150 runs behind these figures" in page.text


def test_the_report_has_what_the_page_says_first(tmp_path: Path) -> None:
    published = fixtures.rich().write(tmp_path / "p.duckdb")
    report = write_dashboard(published, tmp_path / "page.html")
    text = Page(report.path.read_text()).text
    assert len(report.results) == len(read_published(published).scopes)
    for result in report.results:
        assert plain(result.start_up) in text
        assert plain(result.faults) in text
