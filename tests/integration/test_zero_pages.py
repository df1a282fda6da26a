"""A process that comes back from an image without its zero pages finds its memory as it was."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from resilience_pipelines.snapshots.criu import Criu, InheritedPipe
from resilience_pipelines.snapshots.criu_binary import import_pycriu
from resilience_pipelines.snapshots.zero_pages import drop_zero_pages
from resilience_pipelines.workers.process import WorkerOutput
from resilience_pipelines.workers.space import Capsule, SpaceSupport, wait_until

PAGES = 4096

# Every other 32 pages of each area are zeros. Of the private view of a file they are zeros over
# something else, so that a page taken out of the image there would read as the file.
PROGRAM = f"""
import hashlib, mmap, os, sys, time
size = {PAGES} * 4096
def fill(area):
    for start in range(0, {PAGES}, 64):
        area[start * 4096 : (start + 32) * 4096] = os.urandom(32 * 4096)
        area[(start + 32) * 4096 : (start + 64) * 4096] = bytes(32 * 4096)
    return area
private = fill(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
shared = fill(mmap.mmap(-1, size))
memfd = os.memfd_create("test")
os.ftruncate(memfd, size)
in_memory = fill(mmap.mmap(memfd, size))
path = sys.argv[1]
with open(path, "wb") as stream:
    stream.write(b"x" * size)
with open(path, "rb") as stream:
    viewed = fill(mmap.mmap(stream.fileno(), size, access=mmap.ACCESS_COPY))
areas = (private, shared, in_memory, viewed)
while True:
    print(*(hashlib.sha256(area).hexdigest() for area in areas), flush=True)
    time.sleep(0.05)
"""


def test_memory_reads_the_same_after_a_restore(
    criu: Criu, support: SpaceSupport, tmp_path: Path
) -> None:
    assert support.capsule
    images, work = tmp_path / "images", tmp_path / "work"
    images.mkdir()
    work.mkdir()
    output = WorkerOutput()
    with Capsule(1000) as space:
        process = space.spawn(
            [sys.executable, "-c", PROGRAM, str(tmp_path / "file")],
            env=dict(os.environ),
            output=output.write_end,
        )
        output.close_write_end()
        wait_until(lambda: len(output.lines()) > 1, 30, "The process starts", 0.02)
        criu.dump(space, process.inner_pid, images, tmp_path / "dump.log", deadline_s=60)
        before = output.lines()[-1].text
    pages = sum(path.stat().st_size for path in images.glob("pages-*.img"))
    dropped = drop_zero_pages(images, import_pycriu(criu.installation))
    assert dropped >= 3 * PAGES // 2 * 4096
    assert sum(path.stat().st_size for path in images.glob("pages-*.img")) == pages - dropped
    again = WorkerOutput()
    with Capsule() as space:
        pid = criu.restore(
            space, images, work, tmp_path / "restore.log",
            output=InheritedPipe(f"pipe:[{output.inode}]", again.write_end), deadline_s=60,
        )  # fmt: skip
        again.close_write_end()
        restored = space.adopt(pid)
        restored.signal_tree(signal.SIGCONT)
        wait_until(lambda: len(again.lines()) > 2, 30, "The restored process works", 0.02)
        assert {line.text for line in again.lines()[1:]} == {before}
