"""The reference worker's memory: what is given up is really given up, what is moved is the same."""

from __future__ import annotations

import numpy as np

from resilience_pipelines.workers.reference.memory import Arena, resident_bytes

SIZE = 80 * 2**20 + 4096
# Other memory of this process may come and go meanwhile.
SLACK = 16 * 2**20


def filled() -> Arena:
    arena = Arena(SIZE)
    array = arena.array(0, (SIZE // 4,))
    array[:] = np.arange(SIZE // 4, dtype=np.float32)
    return arena


def test_released_pages_are_no_longer_resident_and_read_as_zeros() -> None:
    arena = filled()
    array = arena.array(0, (SIZE // 4,))
    before = resident_bytes()
    arena.release()
    assert before - resident_bytes() > SIZE - SLACK
    assert not array.any()


def test_arrays_lie_where_they_were_asked_to() -> None:
    arena = Arena(4096)
    arena.array(64, (2, 3))[:] = [[1, 2, 3], [4, 5, 6]]
    assert arena.array(0, (22,)).tolist() == [0] * 16 + [1, 2, 3, 4, 5, 6]


def test_an_arena_that_nobody_holds_is_unmapped() -> None:
    before = resident_bytes()
    filled()
    assert resident_bytes() - before < SLACK
