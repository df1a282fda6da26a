"""Settings of the snapshot stores: what an operator says about keys, the repository and retention.

What belongs here: the settings, their defaults, reading them from `snapshots.toml` in the data
home, and opening the stores that they describe. What does not: any key; settings name where keys
are.
"""

from __future__ import annotations

import tomllib
from typing import TYPE_CHECKING, Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from resilience_pipelines.errors import InputError
from resilience_pipelines.home import Home
from resilience_pipelines.snapshots.keys import Trust, read_key
from resilience_pipelines.snapshots.retention import Policy
from resilience_pipelines.snapshots.store import SnapshotStore

if TYPE_CHECKING:
    from resilience_pipelines.snapshots.repository import Repository
    from resilience_pipelines.snapshots.storage import Storage

FILE: Final = "snapshots.toml"
TUNED: Final = "tuned"

Text = Annotated[str, Field(min_length=1)]


class _Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class RepositorySettings(_Settings):
    """Where snapshots are shared."""

    address: Text
    """A folder, or a URL such as `s3://bucket/prefix`."""
    options: dict[str, Any] = Field(default_factory=dict)
    """For fsspec's file system of the URL's protocol, e.g. `endpoint_url`."""
    compression: Text = "tuned"
    """`none`, `lz4` or `zstd-LEVEL`; `tuned` is what `resilience snapshot tune` found for this
    address, and `none` before that."""
    encryption_key: Text | None = None
    """Where the key is: `file:PATH`, `env:NAME` or `command:PROGRAM`."""


class SigningSettings(_Settings):
    """Who signs manifests here, and whose are believed."""

    key: Text | None = None
    trusted: tuple[Text, ...] = ()


class RetentionSettings(_Settings):
    """What stays of each worker and stack; see `retention.Policy`."""

    keep: int | None = 3
    max_age_days: float | None = None
    max_bytes: int | None = None


class SnapshotSettings(_Settings):
    """All of `snapshots.toml`."""

    repository: RepositorySettings | None = None
    signing: SigningSettings = SigningSettings()
    retention: RetentionSettings = RetentionSettings()

    @property
    def policy(self) -> Policy:
        """The retention policy."""
        return Policy(**self.retention.model_dump())

    def trust(self) -> Trust:
        """The keys for manifests."""
        own = self.signing.key
        return Trust(
            None if own is None else read_key("signing.key", own),
            tuple(read_key("signing.trusted", ref, secret=False) for ref in self.signing.trusted),
        )


def read_settings(home: Home) -> SnapshotSettings:
    """The settings of a data home; the defaults where it has no `snapshots.toml`.

    Raises:
        InputError: it can't be read, or names the first setting that is wrong.
    """
    path = home.root / FILE
    try:
        return SnapshotSettings.model_validate(tomllib.loads(path.read_text()))
    except FileNotFoundError:
        return SnapshotSettings()
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(
            "snapshot settings", str(path), f"they can't be read ({error})",
            mend="docs/snapshots.md shows them.",
        ) from error  # fmt: skip
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise InputError(
            f"{path}: {'.'.join(map(str, first['loc']))}", first.get("input"),
            first["msg"].lower(), mend="docs/snapshots.md lists the settings.",
        ) from error  # fmt: skip


def open_store(home: Home) -> SnapshotStore:
    """The local store of a data home, with the keys of its settings."""
    return SnapshotStore(home.snapshots, read_settings(home).trust())


def open_repository(home: Home, address: str | None = None) -> Repository:
    """The repository of the settings.

    Args:
        address: another one, with the same options and keys; a folder gets no options.

    Raises:
        InputError: there is none, or it can't be used.
    """
    # Every job opens the local store, and few a repository, whose libraries take time to load.
    from resilience_pipelines.snapshots.repository import Repository
    from resilience_pipelines.snapshots.sealing import Sealing, parse_compression
    from resilience_pipelines.snapshots.tuning import kept_tuning

    settings = read_settings(home)
    storage, chosen, key = open_repository_storage(home, settings, address)
    compression = chosen.compression
    if compression == TUNED:
        tuning = kept_tuning(home, storage.address)
        compression = tuning.chosen if tuning else "none"
    sealing = Sealing(parse_compression(compression), key)
    return Repository(storage, sealing, trust=settings.trust())


def open_repository_storage(
    home: Home, settings: SnapshotSettings, address: str | None = None
) -> tuple[Storage, RepositorySettings, bytes | None]:
    """Where a repository lies, its settings, and the key that it is encrypted with.

    Args:
        address: see `open_repository`.

    Raises:
        InputError: there is none, or it can't be used.
    """
    from resilience_pipelines.snapshots.storage import open_storage

    found = settings.repository
    if found is None and address is None:
        raise InputError(
            "--repository", None, "no repository is set up",
            mend=f"Give a folder or URL, or write {home.root / FILE} as docs/snapshots.md shows.",
        )  # fmt: skip
    if found is None or (address is not None and "://" not in address):
        options: dict[str, Any] = {}
    else:
        options = found.options
    chosen = found or RepositorySettings(address=str(address))
    named = chosen.encryption_key
    key = None if named is None else read_key("repository.encryption_key", named)
    return open_storage(address or chosen.address, options), chosen, key
