"""Only long runs of zeros in anonymous memory go, and what stays is where and what it was."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resilience_pipelines.snapshots.zero_pages import (
    MIN_RUN_PAGES,
    PAGE_BYTES,
    drop_zero_pages,
)

ANONYMOUS = {"status": 1 | 1 << 9, "flags": 0x22}
FILE_PRIVATE = {"status": 1 | 1 << 6, "flags": 0x02}
STACK = {"status": 1 | 1 << 9, "flags": 0x122}
VDSO = {"status": 1 | 1 << 3 | 1 << 9, "flags": 0x02}
PRESENT, IN_PARENT = 4, 1
BASE = 1 << 30


def _dump(image: dict[str, Any], stream: BinaryIO) -> None:
    stream.write(json.dumps(image).encode())


# Images as JSON stand for CRIU's own form, which is pycriu's business.
PYCRIU: Any = SimpleNamespace(images=SimpleNamespace(load=json.load, dump=_dump))


def _page(number: int) -> bytes:
    return number.to_bytes(8, "little") * (PAGE_BYTES // 8)


class Image:
    """An image of one process, or of one shared object."""

    def __init__(self, folder: Path, name: str = "7") -> None:
        self.folder, self.name = folder, name

    def write(
        self, ranges: list[tuple[int, list[int]]], areas: list[dict[str, Any]], flags: int = PRESENT
    ) -> None:
        """Write ranges (page number of the start, one number for the content of each page)."""
        entries = [
            {"vaddr": BASE + start * PAGE_BYTES, "nr_pages": len(content), "flags": flags}
            for start, content in ranges
        ]
        self._put("pagemap", {"magic": "PAGEMAP", "entries": [{"pages_id": 1}, *entries]})
        self._put("mm", {"magic": "MM", "entries": [{"vmas": areas}]})
        data = b"".join(_page(number) for _, content in ranges for number in content)
        (self.folder / "pages-1.img").write_bytes(data)

    def _put(self, kind: str, image: dict[str, Any]) -> None:
        (self.folder / f"{kind}-{self.name}.img").write_text(json.dumps(image))

    def pages(self) -> dict[int, int]:
        """Page number -> content, of all that the image holds."""
        pagemap = json.loads((self.folder / f"pagemap-{self.name}.img").read_text())
        data = (self.folder / "pages-1.img").read_bytes()
        found, at = {}, 0
        for entry in pagemap["entries"][1:]:
            for index in range(entry["nr_pages"]):
                page = data[at : at + PAGE_BYTES]
                number = int.from_bytes(page[:8], "little")
                assert page == _page(number)
                found[(entry["vaddr"] - BASE) // PAGE_BYTES + index] = number
                at += PAGE_BYTES
        assert at == len(data)
        return found


def _area(first: int, end: int, kind: dict[str, Any]) -> dict[str, Any]:
    return {"start": BASE + first * PAGE_BYTES, "end": BASE + end * PAGE_BYTES, **kind}


@pytest.fixture
def image(tmp_path: Path) -> Image:
    return Image(tmp_path)


RUN = [0] * MIN_RUN_PAGES


def test_a_long_run_of_zeros_goes_and_its_neighbours_stay(image: Image) -> None:
    image.write([(0, [1, *RUN, 2])], [_area(0, 100, ANONYMOUS)])
    assert drop_zero_pages(image.folder, PYCRIU) == len(RUN) * PAGE_BYTES
    assert image.pages() == {0: 1, len(RUN) + 1: 2}


def test_a_short_run_stays(image: Image) -> None:
    image.write([(0, [1, *RUN[1:], 2])], [_area(0, 100, ANONYMOUS)])
    before = image.pages()
    assert drop_zero_pages(image.folder, PYCRIU) == 0
    assert image.pages() == before


@pytest.mark.parametrize("kind", [FILE_PRIVATE, STACK, VDSO])
def test_zeros_elsewhere_than_in_plain_anonymous_memory_stay(
    image: Image, kind: dict[str, Any]
) -> None:
    image.write([(0, [*RUN, 1])], [_area(0, 100, kind)])
    assert drop_zero_pages(image.folder, PYCRIU) == 0


def test_a_range_over_two_areas_loses_zeros_of_the_anonymous_one_alone(image: Image) -> None:
    half = len(RUN)
    image.write([(0, [*RUN, *RUN])], [_area(0, half, FILE_PRIVATE), _area(half, 99, ANONYMOUS)])
    assert drop_zero_pages(image.folder, PYCRIU) == half * PAGE_BYTES
    assert image.pages() == dict.fromkeys(range(half), 0)


def test_an_anonymous_area_before_the_range_does_not_count(image: Image) -> None:
    image.write([(2, [*RUN, 1, 0])], [_area(0, 1, ANONYMOUS), _area(1, 99, FILE_PRIVATE)])
    assert drop_zero_pages(image.folder, PYCRIU) == 0


def test_shared_memory_loses_its_zeros_too(tmp_path: Path) -> None:
    image = Image(tmp_path, "shmem-5")
    image.write([(-BASE // PAGE_BYTES, [*RUN, 3])], [])
    assert drop_zero_pages(tmp_path, PYCRIU) == len(RUN) * PAGE_BYTES


@pytest.mark.parametrize("flags", [PRESENT | IN_PARENT, IN_PARENT, 0])
def test_an_image_that_leans_on_another_stays_as_it_is(image: Image, flags: int) -> None:
    image.write([(0, [*RUN, 1])], [_area(0, 100, ANONYMOUS)], flags)
    assert drop_zero_pages(image.folder, PYCRIU) == 0


def test_a_page_file_of_another_size_than_its_map_says_stays_as_it_is(image: Image) -> None:
    image.write([(0, [*RUN, 1])], [_area(0, 100, ANONYMOUS)])
    with (image.folder / "pages-1.img").open("ab") as stream:
        stream.write(b"x")
    assert drop_zero_pages(image.folder, PYCRIU) == 0


def test_nothing_partial_stays(image: Image) -> None:
    image.write([(0, [*RUN, 1])], [_area(0, 100, ANONYMOUS)])
    names = sorted(path.name for path in image.folder.iterdir())
    drop_zero_pages(image.folder, PYCRIU)
    assert sorted(path.name for path in image.folder.iterdir()) == names


_CONTENT = st.lists(
    st.one_of(
        st.just([0]), st.just(RUN), st.just(RUN * 2), st.lists(st.integers(1, 9), max_size=3)
    ),
    max_size=8,
).map(lambda parts: [number for part in parts for number in part])


@settings(max_examples=300)
@given(
    contents=st.lists(_CONTENT, min_size=1, max_size=4),
    gaps=st.lists(st.integers(0, 5), min_size=4, max_size=4),
    borders=st.lists(st.integers(1, 150), max_size=6),
    kinds=st.lists(st.sampled_from([ANONYMOUS, FILE_PRIVATE]), min_size=7, max_size=7),
)
def test_memory_reads_the_same_from_the_slim_image(
    contents: list[list[int]],
    gaps: list[int],
    borders: list[int],
    kinds: list[dict[str, Any]],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    image = Image(tmp_path_factory.mktemp("image"))
    ranges, at = [], 0
    for content, gap in zip(contents, gaps, strict=False):
        at += gap
        if content:
            ranges.append((at, content))
        at += len(content)
    edges = [0, *sorted(set(borders)), 10_000]
    spans = list(zip(edges, edges[1:], kinds, strict=False))
    image.write(ranges, [_area(first, end, kind) for first, end, kind in spans])
    before = image.pages()
    dropped = drop_zero_pages(image.folder, PYCRIU)
    after = image.pages()
    assert len(before) - len(after) == dropped // PAGE_BYTES
    anonymous = [(first, end) for first, end, kind in spans if kind is ANONYMOUS]
    for page, number in before.items():
        if page in after:
            assert after[page] == number
        else:
            assert number == 0
            assert any(first <= page < end for first, end in anonymous)
    assert set(after) <= set(before)
