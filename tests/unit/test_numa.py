"""Nodes as sysfs tells them; what it does not tell is not guessed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilience_pipelines import numa
from resilience_pipelines import nvml as nvml_module
from resilience_pipelines.faults.fault import ObstacleError
from resilience_pipelines.faults.numa_placement import near_node
from resilience_pipelines.numa import Node, node_of_device, parse_cpus, read_nodes
from resilience_pipelines.nvml import Nvml
from tests.support.fake_nvml import FakeNvml

CPUS = sorted(os.sched_getaffinity(0))


def write_nodes(root: Path, cpus: Mapping[int, str]) -> Path:
    for number, text in cpus.items():
        (root / f"node{number}").mkdir(parents=True)
        (root / f"node{number}/cpulist").write_text(f"{text}\n")
        far = " ".join("10" if other == number else "21" for other in cpus)
        (root / f"node{number}/distance").write_text(f"{far}\n")
    return root


@given(st.frozensets(st.integers(0, 300), min_size=1))
def test_a_list_of_cpus_is_read_as_the_kernel_writes_it(numbers: frozenset[int]) -> None:
    assert parse_cpus(",".join(str(number) for number in numbers)) == numbers
    low, high = min(numbers), max(numbers)
    assert parse_cpus(f"{low}-{high}\n") == frozenset(range(low, high + 1))


def test_a_node_without_cpus_of_ours_is_left_out(tmp_path: Path) -> None:
    write_nodes(tmp_path, {0: str(CPUS[0]), 1: "", 2: "4000-4010"})
    (node,) = read_nodes(tmp_path)
    assert (node.number, node.cpus) == (0, frozenset({CPUS[0]}))
    assert node.distances == {0: 10, 1: 21, 2: 21}


def test_this_machines_nodes_have_its_cpus() -> None:
    if not numa.NODES.exists():
        pytest.skip("this kernel tells of no NUMA nodes")
    assert frozenset().union(*(node.cpus for node in read_nodes())) == frozenset(CPUS)


@pytest.mark.parametrize(("text", "wanted"), [("-1\n", None), ("0\n", 0), ("3\n", 3)])
def test_a_device_without_a_node_has_none(tmp_path: Path, text: str, wanted: int | None) -> None:
    (tmp_path / "0000:3b:00.0").mkdir()
    (tmp_path / "0000:3b:00.0/numa_node").write_text(text)
    assert node_of_device("0000:3b:00.0", tmp_path) == wanted
    assert node_of_device("0000:99:00.0", tmp_path) is None


def test_moving_memory_to_a_node_that_is_not_there_is_an_error() -> None:
    with pytest.raises(OSError):
        numa.move_memory(os.getpid(), 0, 63)


NEAR = Node(0, frozenset({0}), {0: 10, 1: 21})
FAR = Node(1, frozenset({1}), {0: 21, 1: 10})


@pytest.mark.parametrize(
    ("memory", "cpus", "sysfs", "wanted"),
    [
        ((0b10,), (0b01,), None, FAR),  # memory affinity counts first
        ((0b11,), (0b01,), 1, FAR),  # it names both: sysfs
        ((0b00,), (0b01,), None, NEAR),  # nothing but the CPUs
        ((0b00,), (0b11,), None, None),
        ((0b100,), (0b11,), None, None),  # a node without CPUs
    ],
)
def test_the_node_of_a_gpu_is_told_or_unknown(
    monkeypatch: pytest.MonkeyPatch, memory: tuple[int, ...], cpus: tuple[int, ...],
    sysfs: int | None, wanted: Node | None,
) -> None:  # fmt: skip
    fake = FakeNvml()
    fake.gpu.nodes, fake.gpu.cpus = memory, cpus
    monkeypatch.setattr(nvml_module, "library", lambda: fake)
    monkeypatch.setattr(numa, "node_of_device", lambda _: sysfs)
    with Nvml() as nvml:
        (gpu,) = nvml.gpus()
        if wanted is None:
            with pytest.raises(ObstacleError, match="not known"):
                near_node(gpu, nvml, (NEAR, FAR))
        else:
            assert near_node(gpu, nvml, (NEAR, FAR)) == wanted
