"""Build IDs: what tells two builds of one ELF file apart that have the same size.

What belongs here: reading the note NT_GNU_BUILD_ID of a file. What does not: what a difference
means (`compatibility`).
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Final

_MAGIC: Final = b"\x7fELF"
_PT_NOTE: Final = 4
_NT_GNU_BUILD_ID: Final = 3
_MAX_NOTES_BYTES: Final = 2**20


def read_build_id(path: Path) -> str | None:
    """The build ID of a file, in hexadecimal digits; None where it is no ELF file or has none.

    Raises:
        OSError: the file can't be read.
    """
    with path.open("rb") as file:
        header = file.read(64)
        if len(header) < 64 or not header.startswith(_MAGIC):
            return None
        wide, order = header[4] == 2, "<" if header[5] == 1 else ">"
        (table,) = struct.unpack_from(f"{order}{'Q' if wide else 'I'}", header, 32 if wide else 28)
        size, count = struct.unpack_from(f"{order}HH", header, 54 if wide else 42)
        for number in range(count):
            file.seek(table + number * size)
            entry = file.read(size)
            if len(entry) < (56 if wide else 32):
                return None  # cut short
            (kind,) = struct.unpack_from(f"{order}I", entry)
            if kind != _PT_NOTE:
                continue
            at, length = (
                struct.unpack_from(f"{order}Q16xQ", entry, 8)
                if wide
                else struct.unpack_from(f"{order}I8xI", entry, 4)
            )
            file.seek(at)
            if found := _build_id(file.read(min(length, _MAX_NOTES_BYTES)), order):
                return found
    return None


def _build_id(notes: bytes, order: str) -> str | None:
    """The build ID among the notes of a segment; each part of a note fills up four bytes."""
    at = 0
    while at + 12 <= len(notes):
        name_size, value_size, kind = struct.unpack_from(f"{order}III", notes, at)
        name = at + 12
        value = name + -(-name_size // 4) * 4
        if kind == _NT_GNU_BUILD_ID and notes[name : name + name_size] == b"GNU\0":
            return notes[value : value + value_size].hex() or None
        at = value + -(-value_size // 4) * 4
    return None
