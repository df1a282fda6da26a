"""A program on a small file system of its own, in a mount namespace that ends with it."""

from __future__ import annotations

import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def small_disk(
    folder: Path, size: str, code: str, *arguments: str
) -> subprocess.CompletedProcess[str]:
    """Run Python where `folder` is a file system of `size`; skips where none can be mounted."""
    unshare, mount = shutil.which("unshare"), shutil.which("mount")
    if not unshare or not mount:
        pytest.skip("no small file system: unshare or mount is not installed")
    script = f'mount -t tmpfs -o size={size} tmpfs "$0" || exit 99; exec "$@"'
    done = subprocess.run(
        [unshare, "--mount", "sh", "-c", script, str(folder),
         sys.executable, "-c", textwrap.dedent(code), *arguments],
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    if done.returncode == 99 or "unshare failed" in done.stderr:
        pytest.skip(f"no small file system: {done.stderr.strip()}")
    return done
