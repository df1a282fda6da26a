"""Pack an engine for a GPU machine that reaches no package index, in archives of a limited size.

    python benchmarks/h200/pack.py --packages benchmarks/h200/packages-vllm-0.23.0.txt OUT

Downloads the wheels that the list names, without what they need (the machine is expected to have
torch, transformers and the other large packages), unpacks them side by side, leaves out what a
start of one dense model on Hopper does not load, and writes `part-NN.tar`. `measure.py` unpacks
them there. Of CUDA code, xz leaves as little as a tenth of what a wheel has.
"""

from __future__ import annotations

import argparse
import fnmatch
import io
import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

PLATFORMS = (5, 12, 17, 24, 26, 27, 28, 31, 34, 35, 39)
"""Minor versions of glibc: pip matches each manylinux tag exactly."""

LEFT_OUT = (
    # Kernels of other model families and GPU generations.
    "vllm/vllm_flash_attn/_vllm_fa2_C*", "vllm/_moe_C*", "vllm/third_party/deep_gemm/*",
    "vllm/vllm-rs",
    # What is only linked against, or only for people.
    "*.a", "*.pyi", "*/tests/*", "*swagger-ui*", "mistral_common/data/*",
)  # fmt: skip

SLICE_BYTES = 48 * 10**6
"""Larger files travel in slices, each in an archive of its own, with its offset in its name."""
GROUP_BYTES = 96 * 10**6
"""Smaller files travel together, as many as are about so large."""


def download(packages: Path, folder: Path, python: str) -> None:
    """Fetch the wheels of a list."""
    tags = [f"--platform=manylinux_2_{minor}_x86_64" for minor in PLATFORMS]
    subprocess.run(
        [
            sys.executable, "-m", "pip", "download", "--quiet", "--no-deps",
            "--only-binary=:all:", "--implementation=cp", f"--python-version={python}", *tags,
            "--dest", str(folder), "--requirement", str(packages),
        ],
        check=True, timeout=1800,
    )  # fmt: skip


def unpack(wheels: Path, folder: Path) -> None:
    """Unpack all wheels into one folder, without what is left out."""
    for wheel in sorted(wheels.glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                if not any(fnmatch.fnmatch(name, pattern) for pattern in LEFT_OUT):
                    archive.extract(name, folder)
    for library in folder.rglob("*.so*"):
        # Debug sections; a library that strip does not understand stays as it is.
        subprocess.run(["strip", "--strip-unneeded", str(library)], check=False, timeout=300)


def archive(task: tuple[Path, Path, list[str], int | None]) -> tuple[Path, int]:
    """Write one archive of whole files, or of the slice of one at an offset; returns its size."""
    folder, target, names, offset = task
    with tarfile.open(target, "w:xz", preset=9) as tar:
        for name in names:
            if offset is None:
                tar.add(folder / name, name)
                continue
            with (folder / name).open("rb") as stream:
                stream.seek(offset)
                data = stream.read(SLICE_BYTES)
            item = tar.gettarinfo(folder / name, f"{name}.@{offset}")
            item.size = len(data)
            tar.addfile(item, io.BytesIO(data))
    return target, target.stat().st_size


def grouped(sizes: dict[str, int]) -> list[list[str]]:
    """Neighbours together, in groups of about GROUP_BYTES."""
    groups: list[list[str]] = []
    room = 0
    for name, size in sizes.items():
        if size > room:
            groups.append([])
            room = GROUP_BYTES
        groups[-1].append(name)
        room -= size
    return groups


def pack(folder: Path, out: Path, limit: int) -> list[Path]:
    """Archive slices of large files and groups of small ones, then bundle up to the limit.

    Raises:
        SystemExit: one archive alone is larger than the limit.
    """
    files = sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())
    sizes = {name: (folder / name).stat().st_size for name in files}
    slices = [
        (name, offset)
        for name, size in sizes.items()
        if size > SLICE_BYTES
        for offset in range(0, size, SLICE_BYTES)
    ]
    groups = grouped({name: size for name, size in sizes.items() if size <= SLICE_BYTES})
    with tempfile.TemporaryDirectory(dir=out) as scratch:
        tasks: list[tuple[Path, Path, list[str], int | None]] = [
            (folder, Path(scratch) / f"{i}.xz", [name], offset)
            for i, (name, offset) in enumerate(slices)
        ]
        tasks += [
            (folder, Path(scratch) / f"small-{i}.xz", names, None) for i, names in enumerate(groups)
        ]
        with ProcessPoolExecutor(os.cpu_count()) as pool:
            made = sorted(pool.map(archive, tasks), key=lambda item: -item[1])
        parts: list[tuple[int, list[Path]]] = []
        for path, size in made:
            if size > limit:
                raise SystemExit(f"{path.name} has {size} bytes, more than --part-bytes {limit}")
            fitting = next((part for part in parts if part[0] + size <= limit), None)
            if fitting is None:
                parts.append((size, [path]))
            else:
                parts.remove(fitting)
                parts.append((fitting[0] + size, [*fitting[1], path]))
        written = []
        for number, (_, paths) in enumerate(parts):
            target = out / f"part-{number:02}.tar"
            with tarfile.open(target, "w") as tar:
                for path in paths:
                    tar.add(path, path.name)
            written.append(target)
        return written


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--packages", type=Path, required=True, help="one NAME==VERSION a line")
    parser.add_argument("--python", default="3.12", help="Python of the GPU machine")
    parser.add_argument("--part-bytes", type=int, default=60 * 10**6)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=options.out) as scratch:
        wheels, tree = Path(scratch) / "wheels", Path(scratch) / "tree"
        wheels.mkdir()
        tree.mkdir()
        download(options.packages, wheels, options.python)
        unpack(wheels, tree)
        for part in pack(tree, options.out, options.part_bytes):
            print(part, part.stat().st_size)
