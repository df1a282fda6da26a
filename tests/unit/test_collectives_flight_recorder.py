"""Flight recorders' dumps are read strictly, and say which rank is behind, silent or slow."""

from __future__ import annotations

import json
import pickle
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilience_pipelines.collectives.flight_recorder import (
    MAX_BYTES,
    Collective,
    Dump,
    dump_path,
    read_dump,
)
from resilience_pipelines.detectors.flight_recorder import (
    LATE_S,
    LATE_TIMES,
    PATIENCE_S,
    FlightRecorder,
    trouble,
)

NOW_NS = 10**15
SECOND_NS = 10**9


def entry(sequence: int, *, created_ns: int = NOW_NS, state: str = "scheduled", **more: Any) -> Any:
    """One entry as torch 2.13 writes it for gloo."""
    return {
        "record_id": sequence, "pg_id": 0, "process_group": ["0", "default_pg"],
        "collective_seq_id": sequence, "p2p_seq_id": 0, "op_id": sequence,
        "profiling_name": "gloo:all_reduce", "time_created_ns": created_ns, "state": state,
        "retired": False, "timeout_ms": 5000, "is_p2p": False, **more,
    }  # fmt: skip


def write(
    folder: Path, rank: int, entries: Sequence[Any], more: dict[str, Any] | None = None
) -> Path:
    path = dump_path(folder, rank)
    content = {
        "rank": rank, "written_ns": time.monotonic_ns(), "realtime_ns": NOW_NS, "final": False,
        "trace": {"version": "2.10", "entries": list(entries)}, **(more or {}),
    }  # fmt: skip
    path.write_text(json.dumps(content))
    return path


def dump(
    rank: int,
    sequence: int,
    *,
    waited_s: float = 0.0,
    done: bool = False,
    final: bool = False,
    written_ns: int = NOW_NS,
) -> Dump:
    last = Collective(sequence, "all_reduce", NOW_NS - round(waited_s * SECOND_NS), done)
    return Dump(rank, written_ns, NOW_NS, final, (last,))


def test_a_dump_is_read_in_the_order_of_its_collectives(tmp_path: Path) -> None:
    found = read_dump(
        write(tmp_path, 1, [entry(4), entry(3, retired=True), entry(2, state="completed")])
    )
    assert [(each.sequence, each.done) for each in found.collectives] == [
        (2, True), (3, True), (4, False),
    ]  # fmt: skip
    assert (found.rank, found.sequence, found.final) == (1, 4, False)


def test_other_groups_and_messages_between_two_are_left_out(tmp_path: Path) -> None:
    path = write(tmp_path, 0, [entry(1), entry(9, process_group=["1", ""]), entry(8, is_p2p=True)])
    assert read_dump(path).sequence == 1


class Trap:
    """Would leave a mark if it were unpickled."""

    def __init__(self, mark: Path) -> None:
        self._mark = mark

    def __reduce__(self) -> Any:
        return (Path.touch, (self._mark,))


def test_a_pickle_is_never_opened(tmp_path: Path) -> None:
    path = dump_path(tmp_path, 0)
    path.write_bytes(pickle.dumps(Trap(tmp_path / "mark")))
    with pytest.raises(ValueError, match="no dump of a flight recorder"):
        read_dump(path)
    assert not (tmp_path / "mark").exists()


@pytest.mark.parametrize(
    "spoilt",
    [
        {"trace": []}, {"trace": {}}, {"trace": {"entries": {}}}, {"rank": "0"}, {"rank": True},
        {"written_ns": None}, {"trace": {"entries": [[]]}},
        {"trace": {"entries": [entry(1, collective_seq_id="1")]}},
        {"trace": {"entries": [entry(1, process_group=[])]}},
    ],
)  # fmt: skip
def test_what_is_no_dump_is_refused_with_its_name(tmp_path: Path, spoilt: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"flight-0\.json is no dump"):
        read_dump(write(tmp_path, 0, [entry(1)], spoilt))


def test_a_dump_without_end_and_a_link_are_refused(tmp_path: Path) -> None:
    path = dump_path(tmp_path, 0)
    with path.open("wb") as stream:
        stream.truncate(MAX_BYTES + 1)
    with pytest.raises(ValueError, match="more than"):
        read_dump(path)
    dump_path(tmp_path, 1).symlink_to(write(tmp_path, 2, [entry(1)]))
    with pytest.raises(OSError):
        read_dump(dump_path(tmp_path, 1))


@given(st.binary(max_size=300))
def test_bytes_from_anywhere_are_no_dump(content: bytes) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = dump_path(Path(folder), 0)
        path.write_bytes(content)
        with pytest.raises(ValueError, match="no dump"):
            read_dump(path)


def test_a_rank_that_did_not_come_is_named() -> None:
    assert trouble([dump(0, 7, waited_s=PATIENCE_S + 1), dump(1, 6, done=True)], NOW_NS) == (
        "rank 1 (at 6) is behind: rank 0 has waited 3.000 s in collective 7 (all_reduce)"
    )


def test_whoever_comes_in_time_is_not_behind() -> None:
    assert trouble([dump(0, 7, waited_s=PATIENCE_S / 2), dump(1, 6, done=True)], NOW_NS) is None


def test_a_last_word_needs_no_patience() -> None:
    found = trouble([dump(0, 7, waited_s=0.5, final=True), dump(1, 6, done=True)], NOW_NS)
    assert found is not None
    assert found.startswith("rank 1 (at 6) is behind")


def test_where_all_wait_in_the_same_collective_none_is_behind() -> None:
    found = trouble([dump(rank, 7, waited_s=PATIENCE_S + 1) for rank in range(2)], NOW_NS)
    assert found is not None
    assert found.startswith("no rank is behind")


def test_a_recorder_that_writes_nothing_any_more_is_named() -> None:
    old_ns = NOW_NS - round((PATIENCE_S + 1) * SECOND_NS)
    found = trouble([dump(0, 7, done=True), dump(1, 7, done=True, written_ns=old_ns)], NOW_NS)
    assert found == "the recorder of rank 1 (at 7) is silent"


def steps(rank: int, behind_s: float) -> Dump:
    entered = tuple(
        Collective(number, "all_reduce", NOW_NS + number * SECOND_NS + round(behind_s * SECOND_NS),
                   done=True)
        for number in range(1, 9)
    )  # fmt: skip
    return Dump(rank, NOW_NS, NOW_NS, False, entered)


def test_a_rank_that_is_late_again_and_again_is_named() -> None:
    assert trouble([steps(0, 0), steps(1, 2 * LATE_S)], NOW_NS) == (
        f"rank 1 entered 8 of 8 collectives {LATE_S:g} s late or more"
    )
    assert trouble([steps(0, 0), steps(1, LATE_S / 2)], NOW_NS) is None
    few = Dump(1, NOW_NS, NOW_NS, False, steps(1, 2 * LATE_S).collectives[: LATE_TIMES - 1])
    assert trouble([steps(0, 0), few], NOW_NS) is None


def test_the_detector_reads_the_dumps_of_the_job_s_ranks(tmp_path: Path) -> None:
    job = SimpleNamespace(
        flight=tmp_path, ranks=[SimpleNamespace(number=number) for number in range(2)]
    )
    detector = FlightRecorder(cast("Any", job))
    write(tmp_path, 0, [entry(5, created_ns=NOW_NS)])
    write(tmp_path, 1, [entry(5, created_ns=NOW_NS)])
    assert detector._look() is None
    write(tmp_path, 0, [entry(6, created_ns=NOW_NS - 3 * SECOND_NS)])
    found = detector._look()
    assert found is not None
    assert found.startswith("rank 1 (at 5) is behind")
