"""How fast this machine hashes, compresses and encrypts a chunk of an image. Prints JSON.

    python benchmarks/snapshot_hashes.py [--file PAGES] [--repeats 5]

Each figure is the median of `--repeats`, in GB/s of plain content on one core. Without a file the
content is half random, half zeros: hashes and ciphers don't care, compression does. BLAKE3 is
measured where it is installed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305

from resilience_pipelines.snapshots.manifest import CHUNK_BYTES
from resilience_pipelines.snapshots.sealing import parse_compression

SEGMENT = 1 << 20


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--file", type=Path)
    parser.add_argument("--repeats", type=int, default=5)
    asked = parser.parse_args()
    if asked.file:
        with asked.file.open("rb") as stream:
            content = stream.read(CHUNK_BYTES)
    else:
        content = os.urandom(CHUNK_BYTES // 2) + bytes(CHUNK_BYTES // 2)
    figures: dict[str, float] = {}
    hashes: dict[str, Callable[[], object]] = {
        name: (lambda name=name: hashlib.new(name, content).digest())  # type: ignore[misc]
        for name in ("sha256", "sha512", "blake2b", "sha1")
    }
    try:
        from blake3 import blake3

        hashes["blake3"] = lambda: blake3(content).digest()
    except ImportError:
        pass
    for cipher in (AESGCM(bytes(32)), ChaCha20Poly1305(bytes(32))):
        hashes[type(cipher).__name__] = (
            lambda cipher=cipher: [  # type: ignore[misc]
                cipher.encrypt(bytes(12), content[at : at + SEGMENT], b"")
                for at in range(0, len(content), SEGMENT)
            ]
        )
    ratios = {}
    for text in ("lz4", "zstd-1", "zstd-3", "zstd-9"):
        compression = parse_compression(text)
        small = compression.compress(content)
        ratios[text] = round(len(content) / len(small), 2)
        hashes[f"{text} compress"] = lambda c=compression: c.compress(content)  # type: ignore[misc]
        hashes[f"{text} decompress"] = lambda c=compression, s=small: (  # type: ignore[misc]
            c.decompress(s, len(content))
        )
    for name, act in hashes.items():
        figures[name] = round(len(content) / 1e9 / median_s(act, asked.repeats), 2)
    print(json.dumps({"gb_per_s": figures, "ratio": ratios, "bytes": len(content)}, indent=1))


def median_s(act: Callable[[], object], repeats: int) -> float:
    """Seconds that an act takes, the median of several times."""
    act()
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        act()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


if __name__ == "__main__":
    main()
