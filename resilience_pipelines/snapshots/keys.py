"""Keys: where they come from, and manifests that are signed with them.

What belongs here: reading a key from a file, the environment or a command, and Ed25519 signatures.
What does not: encryption (`sealing`), and which keys are used (`settings`). No error, record or log
ever holds a key, nor what a command that gives one printed.
"""

from __future__ import annotations

import base64
import binascii
import os
import shlex
import stat
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import (
    Ed25519PrivateKey,
    Ed25519PublicKey,
)

from resilience_pipelines.errors import InputError
from resilience_pipelines.snapshots.reasons import SnapshotError, SnapshotReason

KEY_BYTES: Final = 32
COMMAND_DEADLINE_S: Final = 60.0

_CONTEXT: Final = b"resilience snapshot manifest 1\n"


def read_key(name: str, reference: str, *, secret: bool = True) -> bytes:
    """A key of 32 bytes, from its Base64.

    Args:
        name: the setting, for errors.
        reference: `file:PATH`, `env:NAME` or `command:PROGRAM ARGUMENTS`.
        secret: whether a file that others may read is refused.

    Raises:
        InputError: there is no such key there.
    """
    kind, _, place = reference.partition(":")
    if kind == "file":
        text = _read_file(name, Path(place).expanduser(), secret)
    elif kind == "env":
        text = os.environ.get(place, "")
    elif kind == "command":
        text = _ask(name, place)
    else:
        raise InputError(
            name, reference, "it does not say where the key is",
            mend="Give file:PATH, env:NAME or command:PROGRAM.",
        )  # fmt: skip
    try:
        key = base64.b64decode(text.strip(), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if len(key) != KEY_BYTES:
        raise InputError(
            name, reference, f"there is no Base64 of {KEY_BYTES} bytes",
            mend="`resilience snapshot keygen` makes keys.",
        )  # fmt: skip
    return key


@dataclass(frozen=True)
class Trust:
    """Who signs manifests here, and whose are believed.

    Attributes:
        signing_key: an Ed25519 private key; None signs nothing.
        trusted: Ed25519 public keys; where there are none, a manifest needs no signature.
    """

    signing_key: bytes | None = field(default=None, repr=False)
    trusted: tuple[bytes, ...] = ()

    def sign(self, manifest: bytes) -> str | None:
        """The signature of a manifest's text, in Base64; None where nothing is signed."""
        if self.signing_key is None:
            return None
        key = Ed25519PrivateKey.from_private_bytes(self.signing_key)
        return base64.b64encode(key.sign(_CONTEXT + manifest)).decode()

    def check(self, snapshot_id: str, manifest: bytes, signature: str | None) -> None:
        """Refuse a manifest that nobody signed whom we trust.

        Raises:
            SnapshotError: `manifest_untrusted`
        """
        if not self.trusted or (signature and self._is_valid(manifest, signature)):
            return
        raise SnapshotError(
            SnapshotReason.MANIFEST_UNTRUSTED,
            "gate",
            f"The manifest of {snapshot_id} "
            + (
                "was changed, or signed by somebody who is not trusted here."
                if signature
                else "is not signed."
            ),
            mend="Get the snapshot from where it was taken, or take it again with a signing key.",
        )

    def _is_valid(self, manifest: bytes, signature: str) -> bool:
        try:
            raw = base64.b64decode(signature, validate=True)
        except (binascii.Error, ValueError):
            return False
        for key in self.trusted:
            try:
                Ed25519PublicKey.from_public_bytes(key).verify(raw, _CONTEXT + manifest)
            except InvalidSignature:
                continue
            return True
        return False


NO_TRUST: Final = Trust()


def make_keys(folder: Path) -> dict[str, Path]:
    """New keys as files of a folder: `encryption.key`, `signing.key` and `trusted.pub`.

    Raises:
        InputError: one of them is there already, or can't be written.
    """
    signing = Ed25519PrivateKey.generate()
    contents = {
        "encryption.key": os.urandom(KEY_BYTES),
        "signing.key": signing.private_bytes_raw(),
        "trusted.pub": signing.public_key().public_bytes_raw(),
    }
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name, key in contents.items():
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            handle = os.open(folder / name, flags, 0o600)
            with os.fdopen(handle, "wb") as stream:
                stream.write(base64.b64encode(key) + b"\n")
    except OSError as error:
        raise InputError(
            "FOLDER", str(folder), f"keys can't be written there ({error.strerror})",
            mend="Give another folder: a key that is in use must never be overwritten.",
        ) from error  # fmt: skip
    return {name: folder / name for name in contents}


def _read_file(name: str, path: Path, secret: bool) -> str:
    try:
        mode = path.stat().st_mode
        if secret and stat.S_IMODE(mode) & 0o077:
            raise InputError(
                name, f"file:{path}", f"others may read it (mode {stat.S_IMODE(mode):04o})",
                mend="chmod 0600 it, and make a new key if somebody may have.",
            )  # fmt: skip
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            name, f"file:{path}", f"the file can't be read ({type(error).__name__})",
            mend="`resilience snapshot keygen` makes keys.",
        ) from error  # fmt: skip


def _ask(name: str, command: str) -> str:
    try:
        done = subprocess.run(
            shlex.split(command), capture_output=True, text=True, check=True,
            stdin=subprocess.DEVNULL, timeout=COMMAND_DEADLINE_S,
        )  # fmt: skip
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        # Without the cause: what it printed may be a key, or a part of one.
        raise InputError(
            name, f"command:{command}", f"it gave no key ({type(error).__name__})",
            mend="Run it by hand: it has to print the key's Base64 and exit with 0.",
        ) from None  # fmt: skip
    return done.stdout
