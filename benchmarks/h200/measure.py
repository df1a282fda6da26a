"""Measure starts on a GPU machine and bring the landing folders back as one archive.

    python benchmarks/h200/measure.py --parts DIR [DIR ...] --criu DIR --home DIR --out FILE.tgz

Run it from a checkout, with the Python that has torch. Parts made by `pack.py` are unpacked beside
the data home (in `packages`), each folder of parts into one of its own, and put on PYTHONPATH in
the order given; a part that was unpacked before is skipped, so that parts which arrive one after
the other can be given as they come. Without `--spec` nothing is measured.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
DEFAULT_SPEC = {
    "kind": "startup", "worker": "vllm", "repeats": 5, "cold_repeats": 2, "sleep_levels": [1, 2],
}  # fmt: skip


def unpack(part: Path, packages: Path) -> None:
    """Unpack one part, once."""
    done = packages / f".{part.name}.done"
    if done.exists():
        return
    with tarfile.open(part) as bundle:
        inner = [member for member in bundle.getmembers() if member.isfile()]
        for member in inner:
            stream = bundle.extractfile(member)
            assert stream is not None
            with tarfile.open(fileobj=stream, mode="r|xz") as tar:
                for item in tar:
                    _extract(tar, item, packages)
    done.touch()


def _extract(tar: tarfile.TarFile, item: tarfile.TarInfo, packages: Path) -> None:
    # Parts are unpacked side by side and share folders: whoever comes first makes one.
    (packages / item.name).parent.mkdir(parents=True, exist_ok=True)
    name, mark, offset = item.name.rpartition(".@")
    if not mark:
        tar.extract(item, packages, filter="data")
        return
    # A slice of a large file; the others may be there already, or come later.
    stream = tar.extractfile(item)
    assert stream is not None
    handle = os.open(packages / name, os.O_CREAT | os.O_WRONLY, 0o755)
    with os.fdopen(handle, "wb") as target:
        target.seek(int(offset))
        shutil.copyfileobj(stream, target, 1 << 20)


def run(spec: dict[str, object], home: Path, environment: dict[str, str], limit_s: float) -> int:
    """Run one job and show its events; returns its exit code."""
    begin = time.monotonic()
    job = subprocess.Popen(
        [sys.executable, "-m", "resilience_pipelines.job", "--home", str(home)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
    )  # fmt: skip
    assert job.stdin is not None
    assert job.stdout is not None
    job.stdin.write(json.dumps(spec))
    job.stdin.close()
    for line in job.stdout:
        print(f"{time.monotonic() - begin:7.1f} s {line.rstrip()[:1000]}", flush=True)
        if time.monotonic() - begin > limit_s:
            job.terminate()
    return job.wait(60)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", type=Path, nargs="+", required=True, help="with part-*.tar")
    parser.add_argument("--criu", type=Path, required=True, help="private prefix of CRIU")
    parser.add_argument("--home", type=Path, required=True, help="data home, on a real disk")
    parser.add_argument("--out", type=Path, required=True, help="archive of landing folders")
    parser.add_argument("--spec", nargs="?", const=json.dumps(DEFAULT_SPEC))
    parser.add_argument("--limit-s", type=float, default=3600.0)
    options = parser.parse_args()
    root = options.home.absolute().with_name("packages")
    folders = [root / parts.name for parts in options.parts]
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
    tasks = [
        (part, folder)
        for parts, folder in zip(options.parts, folders, strict=True)
        for part in sorted(parts.glob("part-*.tar"))
    ]
    with ProcessPoolExecutor() as pool:
        for done in [pool.submit(unpack, *task) for task in tasks]:
            done.result()
    if options.spec is not None:
        # As an installer does: else the first start alone would compile every module that it loads.
        subprocess.run(
            [sys.executable, "-m", "compileall", "-q", "-j", "0", *folders], check=False,
            stdout=subprocess.DEVNULL, timeout=600,
        )  # fmt: skip
    print(f"{len(tasks)} parts are unpacked in {root}")
    if options.spec is None:
        sys.exit(0)
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(map(str, (CHECKOUT, *folders))),
        "RESILIENCE_CRIU_PREFIX": str(options.criu.absolute()),
    }
    code = run(json.loads(options.spec), options.home, environment, options.limit_s)
    with tarfile.open(options.out, "w:gz") as tar:
        for folder in sorted((options.home / "landing").glob("date=*/*")):
            tar.add(folder, str(folder.relative_to(options.home / "landing")))
    sys.exit(code)
