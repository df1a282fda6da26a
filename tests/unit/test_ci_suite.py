"""A suite file: each mistake that one makes in it is told with its line and its field."""

from __future__ import annotations

from pathlib import Path

import pytest

from resilience_pipelines.ci.suite import StartupJob, read_suite, spec_of
from resilience_pipelines.ci.toml_lines import line_of
from resilience_pipelines.errors import InputError
from resilience_pipelines.job_spec import CollectiveSpec, FanoutSpec, FaultSpec, StartupSpec
from resilience_pipelines.records import Arm, CollectiveOperation, PageCache

SUITE = """\
# A gate for drivers.
name = "gate"
worker = "reference"

[[job]]
name = "comes back"
kind = "startup"
arms = [
  "warm_cache",
  "restore",
]
repeats = 2
max_median_s = { restore = 3.0 }

[[job]]
name = "survives"
kind = "fault"
faults = ["worker_killed"]
recoveries = ["restore"]
max_recover_s = 30

[compare]
baseline = "latest"
max_slowdown = 0.1
"""

MORE = """\
name = "gate"

[[job]]
name = "comes back together"
kind = "fanout"
widths = [1, 8]
page_caches = ["warm"]
repeats = 2
max_wave_s = { 8 = 20.0 }

[[job]]
name = "talks"
kind = "collectives"
arms = ["healthy", "slow_link"]
operations = ["all_reduce"]
sizes = [65536]
min_busbw_bytes_per_s = { all_reduce = 1e8 }
"""


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "suite.toml"
    path.write_text(text)
    return path


def test_a_suite_is_read_and_its_jobs_are_specifications(tmp_path: Path) -> None:
    suite = read_suite(write(tmp_path, SUITE.replace('worker = "reference"', 'worker = "vllm"')))
    first, second = suite.jobs
    assert isinstance(first, StartupJob)
    assert first.max_median_s == {Arm.RESTORE: 3.0}
    assert spec_of(first) == StartupSpec(
        worker="vllm", arms=(Arm.WARM_CACHE, Arm.RESTORE), repeats=2
    )
    assert spec_of(second) == FaultSpec(
        worker="vllm", faults=("worker_killed",), recoveries=("restore",)
    )
    assert suite.compare is not None
    assert suite.compare.max_slowdown == 0.1


def test_waves_and_collectives_are_jobs_too(tmp_path: Path) -> None:
    text = MORE.replace('name = "gate"\n', 'name = "gate"\nworker = "vllm"\n')
    waves, collectives = read_suite(write(tmp_path, text)).jobs
    assert spec_of(waves) == FanoutSpec(
        worker="vllm", widths=(1, 8), page_caches=(PageCache.WARM,), repeats=2
    )
    assert spec_of(collectives) == CollectiveSpec(
        arms=("healthy", "slow_link"), operations=(CollectiveOperation.ALL_REDUCE,), sizes=(65536,)
    )


@pytest.mark.parametrize(
    ("right", "wrong", "line", "field", "words"),
    [
        ("widths = [1, 8]", "widths = [8, 8]", 6, "job[1].widths", "named once"),
        ("widths = [1, 8]", "widths = [0, 8]", 6, "job[1].widths[1]", "equal to 1"),
        ("widths = [1, 8]", 'widths = "1,8"', 6, "job[1].widths", "list"),
        ("widths = [1, 8]", "width = 8", 6, "job[1].width", "mean widths?"),
        ('["warm"]', '["mixed"]', 7, "job[1].page_caches", "cold or a warm"),
        ('["warm"]', '["warm", "warm"]', 7, "job[1].page_caches", "named once"),
        ('["warm"]', '["hot"]', 7, "job[1].page_caches[1]", "'warm'"),
        ("repeats = 2", "repeats = 0", 8, "job[1].repeats", "equal to 1"),
        ("repeats = 2", "snapshot = 3", 8, "job[1].snapshot", "string"),
        ("{ 8 = 20.0 }", "{ 4 = 20.0 }", 9, "job[1].max_wave_s", "widths does not"),
        ("{ 8 = 20.0 }", "{ 8 = 0 }", 9, "job[1].max_wave_s.8", "greater than 0"),
        ("{ 8 = 20.0 }", "{ eight = 1 }", 9, "job[1].max_wave_s.eight", "integer"),
        ("{ 8 = 20.0 }", "20.0", 9, "job[1].max_wave_s", "be a table"),
        ('"slow_link"', '"slow_lnk"', 14, "job[2].arms", "slow_link"),
        ('"healthy", ', "", 17, "job[2].min_busbw_bytes_per_s", "healthy, which arms"),
        ('["all_reduce"]', '["all_gather"]', 17, "job[2].min_busbw_bytes_per_s", "all_reduce"),
        ('["all_reduce"]', '["allreduce"]', 15, "job[2].operations[1]", "'all_reduce'"),
        ('["all_reduce"]', "[]", 15, "job[2].operations", "at least 1"),
        ('["all_reduce"]', '["all_reduce", "all_reduce"]', 15, "job[2].operations", "named once"),
        ("[65536]", "[65536, 65536]", 16, "job[2].sizes", "named once"),
        ("[65536]", "[1]", 16, "job[2].sizes[1]", "1024"),
        ("sizes = [65536]", "ranks = 0", 16, "job[2].ranks", "equal to 1"),
        ("sizes = [65536]", 'worker = "vllm"', 16, "job[2].worker", "'collectives'"),
        ("sizes = [65536]", "port = 1", 16, "job[2].port", "no such field"),
        ("= 1e8", '= "fast"', 17, "job[2].min_busbw_bytes_per_s.all_reduce", "number"),
        ("= 1e8", "= -1", 17, "job[2].min_busbw_bytes_per_s.all_reduce", "greater than 0"),
        ("{ all_", "{ al_", 17, "job[2].min_busbw_bytes_per_s.al_reduce", "'all_reduce'"),
        ("min_busbw_bytes", "max_busbw_bytes", 17, "job[2].max_busbw_bytes_per_s", "mean min_"),
    ],
)  # fmt: skip
def test_a_mistake_in_waves_and_collectives_is_told_with_line_and_field(
    tmp_path: Path, right: str, wrong: str, line: int, field: str, words: str
) -> None:
    assert right in MORE
    path = write(tmp_path, MORE.replace(right, wrong))
    with pytest.raises(InputError) as caught:
        read_suite(path)
    assert caught.value.field == f"{path}:{line}: {field}"
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("right", "wrong", "line", "field", "words"),
    [
        ('name = "gate"\n', "\n", 1, "name", "missing"),
        ('name = "gate"', 'nam = "gate"', 2, "nam", "mean name?"),
        ('name = "gate"', "name = 3", 2, "name", "string"),
        ('worker = "reference"', 'worker = "vlm"', 3, "worker", "reference, torch, vllm"),
        ('worker = "reference"', 'launcher = "k8s"', 3, "launcher", "'local' or 'kubernetes'"),
        ("[[job]]", "[[jobs]]", 5, "jobs", "mean job?"),
        ('kind = "startup"\n', "", 5, "job[1].kind", "startup, fault"),
        ('kind = "startup"', 'kind = "start"', 7, "job[1].kind", "startup, fault"),
        ('"warm_cache"', '"tepid"', 8, "job[1].arms[1]", "'warm_cache'"),
        ('"warm_cache"', '"restore"', 8, "job[1].arms", "named once"),
        ("repeats = 2", "repeats = 0", 12, "job[1].repeats", "greater than or equal to 1"),
        ("repeats = 2", 'repeats = "two"', 12, "job[1].repeats", "integer"),
        ("repeats = 2", "repeats = ", 12, "repeats", "no TOML"),
        ("repeats = 2", "repeats = 2\nrepeats = 3", 13, "repeats", "overwrite"),
        ("repeats = 2", "repaets = 2", 12, "job[1].repaets", "mean repeats?"),
        ("repeats = 2", 'worker = "vlm"', 12, "job[1].worker", "no such worker"),
        ("repeats = 2", "port = 70000", 12, "job[1].port", "65535"),
        ("restore = 3.0", "restore = -1", 13, "job[1].max_median_s.restore", "greater than 0"),
        ("restore = 3.0", "cold = 1", 13, "job[1].max_median_s", "arms does not"),
        ("restore = 3.0", "restor = 1", 13, "job[1].max_median_s.restor", "'restore'"),
        ('"survives"', '"comes back"', 16, "job[2].name", "another job"),
        ('"worker_killed"', '"earthquake"', 18, "job[2].faults", "worker_hung"),
        ('["restore"]', '["prayer"]', 19, "job[2].recoveries", "restore"),
        ("max_recover_s = 30", "max_median_s = 30", 20, "job[2].max_median_s", "no such field"),
        ("[compare]\nbaseline", "[compare]\nbase", 23, "compare.base", "mean baseline?"),
        ('baseline = "latest"\n', "", 22, "compare.baseline", "missing"),
        ("max_slowdown = 0.1", "max_slowdown = -1", 24, "compare.max_slowdown", "equal to 0"),
        ("[compare]", "[compare", 22, "[compare", "no TOML"),
        ("[compare]", "[compere]", 22, "compere", "mean compare?"),
        ("[compare]", "[[compare]]", 22, "compare", "it has to be a table"),
        ("[compare]", '[compare]\nbaseline = "a"\n[compare]', 24, "[compare]", "twice"),
        ("max_slowdown = 0.1", 'max_slowdown = "a tenth"', 24, "compare.max_slowdown", "number"),
        ("max_slowdown = 0.1", "max_slowdown = inf", 24, "compare.max_slowdown", "inf"),
        ("repeats = 2", "repeats = 2.5", 12, "job[1].repeats", "integer"),
        ("repeats = 2", "repeats = true", 12, "job[1].repeats", "integer"),
        ("repeats = 2", "cold_repeats = 0", 12, "job[1].cold_repeats", "equal to 1"),
        ("repeats = 2", 'page_cache = "hot"', 12, "job[1].page_cache", "'cold'"),
        ("repeats = 2", 'repeats = "2"', 12, "job[1].repeats", "integer"),
        ("repeats = 2", "sleep_levels = [0]", 12, "job[1].sleep_levels[1]", "equal to 1"),
        ("repeats = 2", 'sleep_levels = "1"', 12, "job[1].sleep_levels", "list"),
        ("restore = 3.0", "restore = nan", 13, "job[1].max_median_s.restore", "nan"),
        ("{ restore = 3.0 }", "3.0", 13, "job[1].max_median_s", "be a table"),
        ("faults = [", "fault = [", 18, "job[2].fault", "mean faults?"),
        ('["worker_killed"]', '"worker_killed"', 18, "job[2].faults", "it has to be a list"),
        ("max_recover_s = 30", "max_recover_s = 0", 20, "job[2].max_recover_s", "greater than 0"),
        ("max_recover_s = 30", "controls = 2", 20, "job[2].controls", "boolean"),
    ],
)  # fmt: skip
def test_a_mistake_is_told_with_line_and_field(
    tmp_path: Path, right: str, wrong: str, line: int, field: str, words: str
) -> None:
    assert right in SUITE
    path = write(tmp_path, SUITE.replace(right, wrong))
    if right == "[[job]]":
        path.write_text(SUITE.replace(right, wrong, 1))
    with pytest.raises(InputError) as caught:
        read_suite(path)
    assert caught.value.field == f"{path}:{line}: {field}"
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "name"),
        ('name = "a"\n', "job = None: it is missing"),
        ("# nothing yet\n", "name"),
        ('name = "a"\njob = []\n', "at least 1"),
        ('name = "a"\n[job]\nname = "b"\n', "[[job]]"),
        ('name = "a"\njob = [1]\n', "job[1]"),
    ],
)
def test_a_file_without_jobs_is_told(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(InputError, match=r"suite\.toml:[12]: ") as caught:
        read_suite(write(tmp_path, text))
    assert words in str(caught.value)


def test_a_file_that_is_too_large_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, "#" * 1_000_001)
    with pytest.raises(InputError, match="Split it"):
        read_suite(path)


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("missing.toml", "No such file or directory"),
        (".", "Is a directory"),
        ("suite.toml/suite.toml", "Not a directory"),
        ("/proc/self/mem", "Input/output error"),  # it can be opened, and not be read
    ],
)
def test_what_can_not_be_read_is_told(tmp_path: Path, path: str, words: str) -> None:
    write(tmp_path, SUITE)
    with pytest.raises(InputError, match=f"it can't be read \\({words}\\)") as caught:
        read_suite(tmp_path / path)
    assert caught.value.field == "SUITE"
    assert caught.value.value == str(tmp_path / path)


def test_a_file_that_is_no_utf8_is_told_with_line_and_field(tmp_path: Path) -> None:
    path = tmp_path / "suite.toml"
    path.write_bytes(SUITE.replace('"gate"', '"gâte"').encode("latin-1"))
    with pytest.raises(InputError, match="Save the file as UTF-8") as caught:
        read_suite(path)
    assert caught.value.field == f"{path}:2: name"
    path.write_bytes(SUITE.encode("utf-16"))
    with pytest.raises(InputError, match="Save the file as UTF-8") as caught:
        read_suite(path)
    assert caught.value.field == f"{path}:1: the file"


@pytest.mark.parametrize(("mark", "end"), [("", "\r\n"), ("\u2028", "\n"), ("\x85", "\n")])
@pytest.mark.parametrize(
    ("right", "wrong", "field"),
    [("repeats = 2", "repaets = 2", "job[1].repaets"), ("repeats = 2", "repeats = = 2", "repeats")],
)
def test_lines_are_counted_as_editors_count_them(
    tmp_path: Path, mark: str, end: str, right: str, wrong: str, field: str
) -> None:
    path = tmp_path / "suite.toml"
    text = SUITE.replace(right, wrong).replace("for drivers.", f"for {mark} drivers.")
    path.write_bytes(text.replace("\n", end).encode())
    with pytest.raises(InputError) as caught:
        read_suite(path)
    assert caught.value.field == f"{path}:12: {field}"


def test_the_mark_that_editors_begin_a_file_with_is_no_mistake(tmp_path: Path) -> None:
    path = tmp_path / "suite.toml"
    path.write_bytes(SUITE.encode("utf-8-sig"))
    assert read_suite(path) == read_suite(write(tmp_path, SUITE))


def test_lines_are_those_of_the_value_whatever_stands_around_it() -> None:
    text = (
        'a = """\nb = 1\n"""\n\n# b = 2\nb = [\n 1,\n]\n[c]\n[c.d]\ne.f = 1\n[[g]]\n[[g]]\nh = 1\n'
    )
    found = {
        path: line_of(text, path)
        for path in (
            ("a",), ("b",), ("b", 0), ("c",), ("c", "d"), ("c", "d", "e", "f"), ("g", 1),
            ("g", 1, "h"), ("g", 1, "missing"), ("missing",),
        )
    }  # fmt: skip
    assert list(found.values()) == [1, 6, 6, 9, 10, 11, 13, 14, 13, 1]


def test_a_mistake_in_a_long_file_is_told_in_a_moment() -> None:
    text = "".join(f"a{number} = 1\n" for number in range(20_000))
    assert line_of(text, ("a19999",)) == 20_000
    assert line_of('s = """\n' + "x\n" * 20_000 + '"""\n[c]\nd = 1\n', ("s",)) == 1


def test_only_line_feeds_end_a_line() -> None:
    assert line_of('a = "\u2028\x85"\nb = 1\n', ("b",)) == 2
