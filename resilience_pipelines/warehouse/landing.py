"""Landing folders: the one immutable folder that a job leaves behind, written and read back.

What belongs here: the folder's layout, writing it so that it is whole or absent, and verifying it
byte by byte. What does not: what a record means (`records`), and loading it (`load`).

A folder `date=YYYY-MM-DD/<run_id>/` holds `run.json`, `samples.parquet` where there were samples,
and evidence. `run.json` lists every other file with its size and SHA-256. Folders are written below
`.incoming/`, which readers ignore, and renamed when whole, so many jobs can write at once.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from glob import escape
from io import BytesIO
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import polars as pl
from pydantic import BaseModel, ValidationError

from resilience_pipelines import strict_json
from resilience_pipelines.durability import make_folder, sync
from resilience_pipelines.errors import CorruptError, InputError, StorageError
from resilience_pipelines.owned_folder import owned_folder, remove_orphans
from resilience_pipelines.plain_files import open_plain
from resilience_pipelines.records import (
    RUN_ID_PATTERN,
    SCHEMA_VERSION,
    EvidenceFile,
    RunRecord,
)
from resilience_pipelines.samples import SAMPLES_SCHEMA

RUN_FILE: Final = "run.json"
SAMPLES_FILE: Final = "samples.parquet"
INCOMING: Final = ".incoming"
MAX_RUN_FILE_BYTES: Final = 64 * 2**20
MAX_SAMPLES: Final = 100_000_000
"""Of one run: a sample of ten series every 10 ms for a day."""
LEFTOVER_AGE_S: Final = 24 * 3600.0

_CONTENT = "content"
_EVIDENCE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})
_MEND_FOLDER = "Remove the folder or copy it again from where it was written."


@dataclass(frozen=True)
class LandedRun:
    """A landing folder whose every byte was checked.

    Attributes:
        run_file_sha256: the hash of `run.json`, which by its list stands for the whole folder.
        samples: the Parquet file with columns `SAMPLES_SCHEMA`, where the run has one.
    """

    folder: Path
    record: RunRecord
    run_file_sha256: str
    run_file_bytes: int
    samples: Path | None


class LandingWriter:
    """Writes one landing folder: whole, or not at all.

    Used as a context manager. Leaving it without `finish` removes what was written.

    Args:
        landing: the landing zone; made where it is missing.
        run_id: the name of the run (`records.new_run_id`).

    Raises:
        InputError: `run_id` is no run id.
        StorageError: the folder can't be written, or this run is being written already.
    """

    def __init__(self, landing: Path, run_id: str) -> None:
        if not re.fullmatch(RUN_ID_PATTERN, run_id):
            raise InputError(
                "run_id", run_id, "it is no run id", mend="Make one with `records.new_run_id`."
            )
        self._landing = landing
        self._run_id = run_id
        self._content: Path | None = None
        self._resources = ExitStack()

    def __enter__(self) -> Self:
        incoming = self._landing / INCOMING
        with _storage_errors(f"Landing zone {self._landing} can't be written"):
            make_folder(incoming)
            # The content lies one level below the lock of its owner, so that what is renamed into
            # the landing zone never holds the lock and never is without it before.
            owned = self._resources.enter_context(owned_folder(incoming / self._run_id))
            try:
                content = owned / _CONTENT
                content.mkdir()
            except OSError:
                self._resources.close()
                raise
        self._content = content
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._content = None
        self._resources.close()
        if isinstance(error, OSError) and error.errno in _NO_SPACE:
            raise _storage_error(f"Run {self._run_id} could not be landed", error) from error

    def path(self, name: str) -> Path:
        """Where to write an evidence file of this name.

        Raises:
            InputError: the name is taken by the format, or not a plain file name.
        """
        if not _EVIDENCE_NAME.fullmatch(name) or name in (RUN_FILE, SAMPLES_FILE):
            raise InputError(
                "evidence", name, "it can't be the name of an evidence file",
                mend="Use letters, digits, dots, dashes and underscores, beginning with a letter "
                f"or digit; {RUN_FILE} and {SAMPLES_FILE} are taken.",
            )  # fmt: skip
        return self._open_content() / name

    def write_samples(self, samples: pl.DataFrame) -> None:
        """Write the samples of the run, once.

        Args:
            samples: columns as in `SAMPLES_SCHEMA`; `subject` is a measurement_id.

        Raises:
            InputError: the columns are others.
            StorageError: no space.
        """
        if samples.schema != SAMPLES_SCHEMA:
            raise InputError(
                "samples", dict(samples.schema), "these are not the columns of samples",
                mend=f"Give {dict(SAMPLES_SCHEMA)}.",
            )  # fmt: skip
        path = self._open_content() / SAMPLES_FILE
        # Polars tells a full disk as an error in the Parquet format, so it writes to memory.
        encoded = BytesIO()
        samples.write_parquet(encoded, compression="zstd")
        with _storage_errors(f"{path} could not be written"), path.open("xb") as file:
            file.write(encoded.getbuffer())

    def finish(self, record: RunRecord) -> Path:
        """Hash the evidence, write `run.json`, and make the folder visible under its final name.

        Args:
            record: its `evidence` is replaced by what lies in the folder.

        Returns:
            The landing folder.

        Raises:
            InputError: the record is another run's, or can't be read back as it is.
            StorageError: no space, or a folder of this run is there already.
        """
        content = self._open_content()
        if record.run_id != self._run_id:
            raise InputError(
                "run_id", record.run_id, f"this is the folder of {self._run_id}",
                mend="Give the record of this run.",
            )  # fmt: skip
        if problem := _repeated_measurement(record):
            field, name = problem
            raise InputError(
                field, name, "the same run has this measurement_id twice",
                mend="Number the measurements of a run.",
            )  # fmt: skip
        with _storage_errors(f"Run {self._run_id} could not be landed"):
            evidence = tuple(self._seal(path) for path in sorted(content.iterdir()))
            text = record.model_copy(update={"evidence": evidence}).model_dump_json(indent=1)
            encoded = text.encode()
            if len(encoded) > MAX_RUN_FILE_BYTES:
                raise InputError(
                    "record", f"{len(encoded)} bytes",
                    f"{RUN_FILE} may have {MAX_RUN_FILE_BYTES} bytes",
                    mend="Write the bulk of it as samples or evidence.",
                )  # fmt: skip
            with (content / RUN_FILE).open("xb") as file:
                file.write(encoded)
                file.flush()
                os.fsync(file.fileno())
            sync(content)
            final = _move_in(content, self._landing, self._run_id)
        self._content = None
        return final

    def _open_content(self) -> Path:
        if self._content is None:
            raise RuntimeError("a LandingWriter writes inside its `with` block, before `finish`")
        return self._content

    @staticmethod
    def _seal(path: Path) -> EvidenceFile:
        if path.is_symlink() or not path.is_file() or not _EVIDENCE_NAME.fullmatch(path.name):
            raise InputError(
                "evidence", path.name, "a landing folder holds plain files only",
                mend="Write evidence to the paths that `LandingWriter.path` gives.",
            )  # fmt: skip
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            os.fsync(file.fileno())
            return EvidenceFile(path=path.name, bytes=file.tell(), sha256=digest)


def copy_landing(folder: Path, landing: Path) -> Path:
    """Copy a landing folder into another landing zone, whole or not at all; returns the copy.

    Raises:
        CorruptError: the folder is not what a job wrote.
        StorageError: no space, or the other zone has a folder of this run.
    """
    run_id = read_landing(folder).record.run_id
    with _storage_errors(f"Run {run_id} could not be copied to {landing}"):
        incoming = landing / INCOMING
        make_folder(incoming)
        with owned_folder(incoming / run_id) as owned:
            content = owned / _CONTENT
            content.mkdir()
            for path in sorted(folder.iterdir()):
                shutil.copyfile(path, content / path.name)
                sync(content / path.name)
            sync(content)
            return _move_in(content, landing, run_id)


def _move_in(content: Path, landing: Path, run_id: str) -> Path:
    """Give a whole folder its final name, for good: it is found there after a power failure."""
    day = landing_folder(landing, run_id).parent
    day.mkdir(exist_ok=True)
    final = day / run_id
    content.rename(final)
    # Others may have made these folders, and not have come to sync them.
    for folder in (day, landing, landing.parent):
        sync(folder)
    return final


def landing_folder(landing: Path, run_id: str) -> Path:
    """Where a run's folder lies in a landing zone, whether it has landed or not."""
    return landing / f"date={landing_date(run_id)}" / run_id


def landing_date(run_id: str) -> str:
    """The date, YYYY-MM-DD in UTC, of the partition that a run's folder lies in."""
    return f"{run_id[:4]}-{run_id[4:6]}-{run_id[6:8]}"


def clean_incoming(landing: Path, older_than_s: float = LEFTOVER_AGE_S) -> list[Path]:
    """Remove what killed jobs left below `.incoming/`; returns it.

    A folder goes when it is old and its owner's lock is gone: on a file system shared between
    machines a lock may be invisible from here, so its absence alone is no proof.

    Raises:
        StorageError: something can't be removed.
    """
    incoming = landing / INCOMING
    removed: list[Path] = []
    with _storage_errors(f"Leftovers in {incoming} can't be removed"):
        if not incoming.is_dir():
            return []
        for folder in sorted(incoming.iterdir()):
            try:
                age_s = time.time() - folder.lstat().st_mtime
            except FileNotFoundError:
                continue
            if age_s > older_than_s:
                removed += remove_orphans(incoming, escape(folder.name))
    return removed


def find_landings(source: Path) -> Iterator[Path]:
    """Landing folders below a folder, in the order of their paths, whole or not.

    A folder counts as one when it is named like a run or holds a `run.json`; so does one that can't
    be looked into, for `read_landing` to say why. Names that begin with a dot are skipped.

    Args:
        source: a landing zone, a tree of them, or one landing folder.
    """
    if re.fullmatch(RUN_ID_PATTERN, source.name):
        yield source
        return
    try:
        with os.scandir(source) as entries:
            found = sorted(entries, key=lambda entry: entry.name)
    except OSError:
        yield source
        return
    if any(entry.name == RUN_FILE for entry in found):
        yield source
        return
    for entry in found:
        if entry.name.startswith("."):
            continue
        # A link that is named like a run is found, so that it is refused aloud.
        if entry.is_dir(follow_symlinks=False) or re.fullmatch(RUN_ID_PATTERN, entry.name):
            yield from find_landings(Path(entry.path))


def read_run(source: Path, run_id: str) -> LandedRun:
    """Read the landing folder of a run below a folder, and verify all of it.

    Raises:
        InputError: there is none.
        CorruptError, StorageError: as `read_landing`.
    """
    for folder in find_landings(source):
        if folder.name == run_id:
            return read_landing(folder)
    raise InputError(
        "run_id", run_id, "no such run has landed here", mend='`resilience query "from runs"`.'
    )


def read_landing(folder: Path) -> LandedRun:
    """Read a landing folder and verify all of it.

    Raises:
        CorruptError: it is not what a job wrote; names the folder and the field.
        StorageError: it can't be read.
    """
    with _storage_errors(f"{folder} can't be read"):
        names = _plain_files(folder)
        encoded = _read_run_file(folder)
        record = _parse(folder, encoded)
        if record.run_id != folder.name:
            raise _corrupt(folder, "run_id", f"it is {record.run_id}, not the folder's name")
        if problem := _repeated_measurement(record):
            field, name = problem
            raise _corrupt(folder, field, f"measurement_id {name} is there twice")
        _verify_evidence(folder, record.evidence, names)
        samples = folder / SAMPLES_FILE if SAMPLES_FILE in names else None
        if samples is not None:
            _verify_samples(folder, samples)
    return LandedRun(folder, record, hashlib.sha256(encoded).hexdigest(), len(encoded), samples)


def run_file_sha256(folder: Path) -> str:
    """The hash of a landing folder's `run.json`, without a look at anything else.

    Raises:
        CorruptError: it has none, or one that is too large or no plain file.
        StorageError: it can't be read.
    """
    with _storage_errors(f"{folder} can't be read"):
        _plain_files(folder)
        return hashlib.sha256(_read_run_file(folder)).hexdigest()


def _plain_files(folder: Path) -> frozenset[str]:
    if folder.is_symlink():
        raise _corrupt(folder, "folder", "it is a symbolic link")
    try:
        with os.scandir(folder) as entries:
            found = list(entries)
    except (FileNotFoundError, NotADirectoryError):
        raise _corrupt(folder, "folder", "there is no such folder") from None
    for entry in found:
        if not entry.is_file(follow_symlinks=False):
            what = "a symbolic link" if entry.is_symlink() else "not a plain file"
            raise _corrupt(folder, entry.name, f"it is {what}")
    return frozenset(entry.name for entry in found)


def _read_run_file(folder: Path) -> bytes:
    try:
        with open_plain(folder / RUN_FILE) as file:
            encoded = file.read(MAX_RUN_FILE_BYTES + 1)
    except FileNotFoundError:
        raise _corrupt(folder, RUN_FILE, "it is missing") from None
    if len(encoded) > MAX_RUN_FILE_BYTES:
        raise _corrupt(folder, RUN_FILE, f"it has more than {MAX_RUN_FILE_BYTES} bytes")
    return encoded


class _Envelope(BaseModel):
    """The one field that every version of `run.json` has."""

    schema_version: int


def _parse(folder: Path, encoded: bytes) -> RunRecord:
    try:
        value = strict_json.loads(encoded)
        version = _Envelope.model_validate(value, strict=True).schema_version
        if version > SCHEMA_VERSION:
            raise CorruptError(
                f"{folder}: schema_version: it is {version}, and this release reads up to "
                f"{SCHEMA_VERSION}.",
                mend="Upgrade resilience-pipelines.",
            )
        # Strict: a text is no number and a number no truth, even where one could be made of it.
        return RunRecord.model_validate_json(encoded, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        field = ".".join(str(part) for part in first["loc"]) or RUN_FILE
        raise _corrupt(folder, field, first["msg"].rstrip(".")) from error
    except ValueError as error:
        raise _corrupt(folder, RUN_FILE, f"it is no JSON ({error})") from error


def _repeated_measurement(record: RunRecord) -> tuple[str, str] | None:
    """The field and name of a measurement that a record holds twice."""
    for field, measurements in (
        ("startups", record.startups),
        ("snapshots", record.snapshots),
        ("faults", record.faults),
        ("compatibility", record.compatibility),
        ("collectives", record.collectives),
    ):
        for name, count in Counter(item.measurement_id for item in measurements).items():
            if count > 1:
                return field, name
    return None


def _verify_evidence(
    folder: Path, evidence: tuple[EvidenceFile, ...], names: frozenset[str]
) -> None:
    listed = Counter(file.path for file in evidence)
    for name, count in listed.items():
        if count > 1 or name == RUN_FILE:
            raise _corrupt(folder, "evidence", f"{name} can't be listed, or not twice")
    if unlisted := sorted(names - listed.keys() - {RUN_FILE}):
        raise _corrupt(folder, unlisted[0], "it is not listed in the evidence")
    for expected in evidence:
        path = folder / expected.path
        try:
            with open_plain(path) as file:
                size = os.fstat(file.fileno()).st_size
                if size != expected.bytes:
                    raise _corrupt(
                        folder, expected.path, f"it has {size} bytes, not {expected.bytes}"
                    )
                digest = hashlib.file_digest(file, "sha256").hexdigest()
        except FileNotFoundError:
            raise _corrupt(folder, expected.path, "it is listed and missing") from None
        if digest != expected.sha256:
            raise _corrupt(folder, expected.path, f"its SHA-256 is {digest}, not {expected.sha256}")


def _verify_samples(folder: Path, samples: Path) -> None:
    # Imported here: most folders have no samples.
    import pyarrow
    from pyarrow import parquet

    try:
        with open_plain(samples) as file:  # a path would be taken for a pattern
            found = parquet.ParquetFile(file)
            schema, rows = pl.Schema(found.schema_arrow), found.metadata.num_rows
    except (
        pl.exceptions.PolarsError, pl.exceptions.PanicException, pyarrow.ArrowException,
        OSError, ValueError,
    ) as error:  # fmt: skip
        raise _corrupt(folder, SAMPLES_FILE, f"it is no Parquet file ({error})") from error
    if rows > MAX_SAMPLES:
        # A file of a few bytes can say that it holds any number of equal rows.
        raise _corrupt(folder, SAMPLES_FILE, f"it has {rows} rows, more than {MAX_SAMPLES}")
    if dict(schema) != dict(SAMPLES_SCHEMA):
        raise _corrupt(folder, SAMPLES_FILE, f"its columns are {dict(schema)}")


def _corrupt(folder: Path, field: str, problem: str) -> CorruptError:
    return CorruptError(f"{folder}: {field}: {problem}.", mend=_MEND_FOLDER)


def _storage_error(what: str, error: OSError) -> StorageError:
    full = error.errno in _NO_SPACE
    return StorageError(
        f"{what} ({error.strerror or error}).",
        mend="Free space on this file system." if full else "Check the path and its rights.",
    )


@contextmanager
def _storage_errors(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _storage_error(what, error) from error
