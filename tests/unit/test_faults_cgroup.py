"""Where a memory cgroup can be made: as the kernel's own files say, whatever the container."""

from __future__ import annotations

from pathlib import Path

import pytest

from resilience_pipelines.errors import UnsupportedError
from resilience_pipelines.faults.cgroup import find_place


def machine(tmp_path: Path, cgroup: str, mounts: list[tuple[str, str, str, str]]) -> Path:
    """A /proc/self; mounts are (root, folder below tmp_path, type, options)."""
    proc = tmp_path / "proc"
    proc.mkdir()
    (proc / "cgroup").write_text(cgroup)
    lines = [
        f"30 20 0:26 {root} {tmp_path / folder} rw,nosuid - {kind} {kind} {options}"
        for root, folder, kind, options in mounts
    ]
    (proc / "mountinfo").write_text("\n".join(lines) + "\n")
    return proc


def make(tmp_path: Path, folder: str, passes_on: str | None = None) -> Path:
    path = tmp_path / folder
    path.mkdir(parents=True, exist_ok=True)
    if passes_on is not None:
        (path / "cgroup.subtree_control").write_text(passes_on)
    return path


def test_version_1_is_taken_below_the_own_cgroup(tmp_path: Path) -> None:
    own = make(tmp_path, "mem/jobs/a")
    proc = machine(
        tmp_path, "4:memory:/jobs/a\n1:cpu:/\n0::/\n", [("/", "mem", "cgroup", "rw,memory")]
    )
    place = find_place(proc)
    assert (place.folder, place.version) == (own, 1)


def test_a_controller_mounted_together_with_others_is_found(tmp_path: Path) -> None:
    own = make(tmp_path, "mem/a")
    proc = machine(tmp_path, "4:cpu,memory:/a\n", [("/", "mem", "cgroup", "rw,cpu,memory")])
    assert find_place(proc).folder == own


def test_a_container_that_sees_its_own_part_of_the_hierarchy(tmp_path: Path) -> None:
    own = make(tmp_path, "mem")
    proc = machine(
        tmp_path, "4:memory:/docker/abc\n", [("/docker/abc", "mem", "cgroup", "rw,memory")]
    )
    assert find_place(proc).folder == own


def test_version_2_is_taken_where_the_controller_is_passed_on(tmp_path: Path) -> None:
    own = make(tmp_path, "cg/job", passes_on="cpu memory")
    proc = machine(tmp_path, "0::/job\n", [("/", "cg", "cgroup2", "rw")])
    place = find_place(proc)
    assert (place.folder, place.version) == (own, 2)


def test_version_2_is_taken_beside_the_own_cgroup_where_only_that_is_possible(
    tmp_path: Path,
) -> None:
    make(tmp_path, "cg/slice/job", passes_on="")
    above = make(tmp_path, "cg/slice", passes_on="memory pids")
    proc = machine(tmp_path, "0::/slice/job\n", [("/", "cg", "cgroup2", "rw")])
    assert find_place(proc).folder == above


def test_nothing_above_the_mount_point_is_looked_at(tmp_path: Path) -> None:
    make(tmp_path, "outer", passes_on="memory")
    make(tmp_path, "outer/cg", passes_on="")
    proc = machine(tmp_path, "0::/\n", [("/", "outer/cg", "cgroup2", "rw")])
    with pytest.raises(UnsupportedError, match="does not pass the memory controller on"):
        find_place(proc)


def test_a_machine_without_the_controller_is_refused(tmp_path: Path) -> None:
    proc = machine(tmp_path, "1:cpu:/\n", [("/", "cpu", "cgroup", "rw,cpu")])
    with pytest.raises(UnsupportedError, match="no memory controller"):
        find_place(proc)


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    proc = machine(tmp_path, "4:memory:/gone\n", [("/", "mem", "cgroup", "rw,memory")])
    with pytest.raises(UnsupportedError, match="can't be written"):
        find_place(proc)
