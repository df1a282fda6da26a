"""What sleep saved stays byte for byte, in memory that is no longer pinned."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from resilience_pipelines.workers.vllm_extension import SnapshotExtension, trim_heap


class FakeTensor:
    def __init__(self, content: bytes, pinned: bool) -> None:
        self.content, self.pinned = content, pinned
        self.dtype = "uint8"

    def numel(self) -> int:
        return len(self.content)

    def element_size(self) -> int:
        return 1

    def copy_(self, other: FakeTensor) -> FakeTensor:
        self.content = other.content
        return self


@pytest.fixture
def allocations(monkeypatch: pytest.MonkeyPatch) -> dict[Any, Any]:
    """What vLLM's allocator holds: two saved allocations and one that sleep discarded."""
    held: dict[Any, Any] = {
        1: SimpleNamespace(cpu_backup_tensor=FakeTensor(b"weights", pinned=True)),
        2: SimpleNamespace(cpu_backup_tensor=None),
        3: SimpleNamespace(cpu_backup_tensor=FakeTensor(b"more", pinned=True)),
    }
    torch: Any = ModuleType("torch")
    torch.empty = lambda count, dtype: FakeTensor(bytes(count), pinned=False)
    torch._C = SimpleNamespace(_host_emptyCache=lambda: held.update(emptied=True))
    cumem: Any = ModuleType("vllm.device_allocator.cumem")
    cumem.CuMemAllocator = SimpleNamespace(
        get_instance=lambda: SimpleNamespace(
            pointer_to_data={key: value for key, value in held.items() if key != "emptied"}
        )
    )
    monkeypatch.setitem(sys.modules, "torch", torch)
    for name in ("vllm", "vllm.device_allocator"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "vllm.device_allocator.cumem", cumem)
    return held


def test_saved_memory_is_kept_and_no_longer_pinned(allocations: dict[Any, Any]) -> None:
    assert SnapshotExtension().release_host_memory() == len(b"weights") + len(b"more")
    saved = [allocations[key].cpu_backup_tensor for key in (1, 3)]
    assert [tensor.content for tensor in saved] == [b"weights", b"more"]
    assert not any(tensor.pinned for tensor in saved)
    assert allocations["emptied"]


def test_what_sleep_discarded_stays_discarded(allocations: dict[Any, Any]) -> None:
    SnapshotExtension().release_host_memory()
    assert allocations[2].cpu_backup_tensor is None


def test_trimming_the_heap_works_on_this_machine() -> None:
    trim_heap()
