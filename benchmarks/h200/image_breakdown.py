"""What a snapshot image is made of: bytes by process and kind of memory, and the largest pieces.

`python benchmarks/h200/image_breakdown.py SNAPSHOT_FOLDER` prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

from resilience_pipelines.snapshots.criu_binary import find_criu, import_pycriu

PAGE_BYTES = 4096
LARGEST = 25

_KINDS = ((6, "file_private"), (7, "file_shared"), (8, "anonymous_shared"), (9, "anonymous"))


def breakdown(images: Path) -> dict[str, Any]:
    """Sizes in bytes, read from the metadata of an image."""
    pycriu = import_pycriu(find_criu())

    def load(path: Path) -> list[dict[str, Any]]:
        with path.open("rb") as stream:
            entries: list[dict[str, Any]] = pycriu.images.load(stream)["entries"]
            return entries

    def pages(path: Path) -> list[tuple[int, int]]:
        return [
            (int(entry["vaddr"]), int(entry["nr_pages"]) * PAGE_BYTES)
            for entry in load(path)[1:]
            if "vaddr" in entry
        ]

    processes: dict[str, Any] = {}
    largest: list[tuple[int, str]] = []
    for pagemap in sorted(images.glob("pagemap-[0-9]*.img")):
        pid = pagemap.stem.removeprefix("pagemap-")
        areas = [_area(vma) for vma in load(images / f"mm-{pid}.img")[0]["vmas"]]
        sizes: dict[str, int] = defaultdict(int)
        by_area: dict[tuple[int, str], int] = defaultdict(int)
        for address, size in pages(pagemap):
            start, kind, length = next(
                ((a, kind, b - a) for a, b, kind in areas if a <= address < b), (0, "other", 0)
            )
            sizes[kind] += size
            by_area[start, f"pid {pid} {kind} of {length}"] += size
        largest += [(size, f"{name} at {start:#x}") for (start, name), size in by_area.items()]
        processes[pid] = {
            "name": load(images / f"core-{pid}.img")[0]["tc"]["comm"],
            "areas": len(areas),
            "bytes": dict(sizes),
        }
    shared = {
        path.stem.removeprefix("pagemap-shmem-"): sum(size for _, size in pages(path))
        for path in images.glob("pagemap-shmem-*.img")
    }
    return {
        "processes": processes,
        "shared_bytes": sum(shared.values()),
        "shared_objects": len(shared),
        "shared_largest": sorted(shared.values(), reverse=True)[:LARGEST],
        "largest": sorted(largest, reverse=True)[:LARGEST],
        "other_files_bytes": sum(
            path.stat().st_size
            for path in images.iterdir()
            if not re.match(r"pages-\d+\.img", path.name)
        ),
    }


def _area(vma: dict[str, Any]) -> tuple[int, int, str]:
    status = _number(vma["status"])
    kind = next((name for bit, name in _KINDS if status & 1 << bit), "other")
    return _number(vma["start"]), _number(vma["end"]), kind


def _number(value: Any) -> int:
    return int(value, 0) if isinstance(value, str) else int(value)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("snapshot", type=Path)
    print(json.dumps(breakdown(parser.parse_args().snapshot / "images"), indent=1))
