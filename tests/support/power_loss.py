"""What a disk holds after the power failed, by the strictest reading of what a program synced.

What belongs here: recording the file operations of a program with strace, and replaying them into
the states that a disk may have at any moment. What does not: which program, and what must hold.

The model: a file's content is on the disk as it was when that file was last synced, and a folder's
entries as they were when that folder was last synced. Beyond that, a disk may have

- nothing more (`strict`): what was not synced is forgotten;
- every entry, as a journal keeps them in order, and of contents only what was synced (`journal`):
  files that are there under their new name, and empty or old.

A real file system lies between the two and the state without any loss. What it does not cover: a
disk that lies about a sync, and single sectors that are torn. A plain `write` counts as one at the
end of its file, which is how this product writes.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

CALLS = (
    "open,openat,creat,close,write,pwrite64,writev,pwritev,ftruncate,truncate,fsync,fdatasync,"
    "rename,renameat,renameat2,unlink,unlinkat,rmdir,mkdir,mkdirat,link,linkat,symlink,symlinkat,"
    "sendfile,copy_file_range,fallocate,sync_file_range"
)
_LINE = re.compile(r"^(?:\d+ +)?(?P<call>\w+)\((?P<arguments>.*)\) += (?P<result>-?\d+)")
_HANDLE = re.compile(r"^(?:\w+|-?\d+)<(?P<path>[^>]*)>$")
_BYTE = re.compile(rb"\\x([0-9a-f]{2})")


@dataclass
class _Node:
    """A file or a folder: what it is now, and what the disk has of it."""

    is_folder: bool
    content: bytearray = field(default_factory=bytearray)
    entries: dict[str, _Node] = field(default_factory=dict)
    synced_content: bytes = b""
    synced_entries: dict[str, _Node] = field(default_factory=dict)

    def sync(self) -> None:
        self.synced_content = bytes(self.content)
        self.synced_entries = dict(self.entries)


@dataclass(frozen=True)
class Operation:
    """One call that succeeded: its name, its paths, and what it wrote where."""

    call: str
    paths: tuple[Path, ...]
    content: bytes = b""
    offset: int | None = None
    size: int = 0


def record(command: Sequence[str], log: Path, cwd: Path) -> list[Operation]:
    """Run a program to its end and list what it did to files; skips where there is no strace."""
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("no power loss: strace is not installed")
    done = subprocess.run(
        [strace, "-f", "-qq", "-y", "-xx", "-s", str(2**24), "-e", f"trace={CALLS}",
         "-e", "signal=none", "-o", str(log), *command],
        cwd=cwd, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    if "ptrace" in done.stderr:
        pytest.skip(f"no power loss: {done.stderr.strip()}")
    assert done.returncode == 0, done.stdout + done.stderr
    return list(_parse(_whole_lines(log.read_bytes())))


class Disk:
    """The folder `root` under a list of operations; what is in it now is on the disk."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._top = _read(root)

    def apply(self, operation: Operation) -> bool:
        """Do it too; whether it was about this folder."""
        paths = [path for path in operation.paths if path.is_relative_to(self._root)]
        if not paths:
            return False
        path = paths[0]
        match operation.call:
            case "mkdir":
                self._at(path.parent).entries[path.name] = _Node(is_folder=True)
            case "create":
                self._at(path.parent).entries.setdefault(path.name, _Node(is_folder=False))
                if operation.size == 0:
                    self._at(path).content.clear()
            case "write":
                node = self._at(path)
                at = operation.offset
                if at is None:
                    at = len(node.content)
                if len(node.content) < at:
                    node.content.extend(bytes(at - len(node.content)))
                node.content[at : at + len(operation.content)] = operation.content
            case "truncate":
                node = self._at(path)
                del node.content[operation.size :]
                node.content.extend(bytes(operation.size - len(node.content)))
            case "sync":
                self._at(path).sync()
            case "rename":
                source, target = operation.paths
                node = self._at(source.parent).entries.pop(source.name)
                self._at(target.parent).entries[target.name] = node
            case "link":
                source, target = operation.paths
                self._at(target.parent).entries[target.name] = self._at(source)
            case "unlink":
                self._at(path.parent).entries.pop(path.name)
            case other:
                raise ValueError(f"this model has no {other}")
        return True

    def write(self, into: Path, *, journal: bool) -> None:
        """Make the state that the disk would have now, without what was not synced."""
        into.mkdir()
        self._write(self._top, into, journal)

    def _write(self, node: _Node, into: Path, journal: bool) -> None:
        for name, child in (node.entries if journal else node.synced_entries).items():
            if child.is_folder:
                (into / name).mkdir()
                self._write(child, into / name, journal)
            else:
                (into / name).write_bytes(child.synced_content)

    def _at(self, path: Path) -> _Node:
        node = self._top
        for part in path.relative_to(self._root).parts:
            node = node.entries[part]
        return node


def _read(path: Path) -> _Node:
    node = _Node(is_folder=path.is_dir())
    if node.is_folder:
        node.entries = {child.name: _read(child) for child in path.iterdir()}
    else:
        node.content = bytearray(path.read_bytes())
    node.sync()
    return node


def _whole_lines(log: bytes) -> Iterator[bytes]:
    """Lines, with calls that another thread's line interrupted put together again."""
    waiting: dict[bytes, bytes] = {}
    for line in log.splitlines():
        thread = line.split(b" ", 1)[0]
        if line.endswith(b"<unfinished ...>"):
            waiting[thread] = line.removesuffix(b"<unfinished ...>").rstrip()
        elif b" resumed>" in line:
            yield waiting.pop(thread) + line.split(b" resumed>", 1)[1]
        else:
            yield line


def _parse(lines: Iterator[bytes]) -> Iterator[Operation]:
    for line in lines:
        # Everything that is text was written as \xNN, so only what strace adds is ASCII.
        found = _LINE.match(line.decode("ascii"))
        if found is None or int(found["result"]) < 0:
            continue
        call, result = found["call"], int(found["result"])
        arguments = _split(found["arguments"])
        yield from _operations(call, arguments, result, found.string)


def _operations(call: str, arguments: list[str], result: int, line: str) -> Iterator[Operation]:
    match call:
        case "openat" | "open" | "creat":
            flags = arguments[2] if call == "openat" else "|".join(arguments[1:2])
            if call == "creat" or "O_CREAT" in flags:
                # The path that the new descriptor has; 0: its content goes.
                path = Path(_text(line.rsplit("<", 1)[1].rstrip(">")))
                kept = -1 if call == "openat" and "O_TRUNC" not in flags else 0
                yield Operation("create", (path,), size=kept)
        case "write" | "pwrite64":
            path = _handle(arguments[0])
            if path is not None:
                offset = int(arguments[3]) if call == "pwrite64" else None
                yield Operation("write", (path,), _bytes(arguments[1])[:result], offset)
        case "ftruncate":
            path = _handle(arguments[0])
            if path is not None:
                yield Operation("truncate", (path,), size=int(arguments[1]))
        case "fsync" | "fdatasync":
            path = _handle(arguments[0])
            if path is not None:
                yield Operation("sync", (path,))
        case "rename":
            yield Operation("rename", (_path(arguments[0]), _path(arguments[1])))
        case "renameat" | "renameat2":
            yield Operation("rename", (_path(*arguments[:2]), _path(*arguments[2:4])))
        case "link":
            yield Operation("link", (_path(arguments[0]), _path(arguments[1])))
        case "mkdir":
            yield Operation("mkdir", (_path(arguments[0]),))
        case "mkdirat":
            yield Operation("mkdir", (_path(*arguments[:2]),))
        case "unlink" | "rmdir":
            yield Operation("unlink", (_path(arguments[0]),))
        case "unlinkat":
            yield Operation("unlink", (_path(*arguments[:2]),))
        case "close":
            return
        case "linkat":
            yield Operation("link", (_path(*arguments[:2]), _path(*arguments[2:4])))
        case "sendfile" | "copy_file_range" | "writev" | "pwritev" | "fallocate":
            yield Operation(call, tuple(filter(None, map(_handle, arguments))))
        case _:
            yield Operation(call, ())


def _split(arguments: str) -> list[str]:
    """Arguments; commas inside quotes are written as \\x2c, those in flags' braces don't occur."""
    return [part.strip() for part in arguments.split(", ")]


def _path(*parts: str) -> Path:
    """A path, or one below a folder that a descriptor or the working directory names."""
    path = Path(_text(parts[-1].strip('"')))
    if len(parts) == 1 or path.is_absolute():
        return path
    base = _handle(parts[0])
    return path if base is None else base / path


def _handle(argument: str) -> Path | None:
    found = _HANDLE.match(argument)
    return Path(_text(found["path"])) if found else None


def _text(quoted: str) -> str:
    return _bytes(quoted).decode(errors="replace")


def _bytes(quoted: str) -> bytes:
    return _BYTE.sub(lambda found: bytes([int(found[1], 16)]), quoted.strip('"').encode())
