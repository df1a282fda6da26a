"""Sealing: how an object of a repository is written, compressed and encrypted.

What belongs here: the bytes of one object, and its name. What does not: what objects hold
(`repository`), where they lie (`storage`) and where keys come from (`keys`).

An object is a header, which says how the rest is written, and the content. Encrypted content is a
row of AES-256-GCM segments under a key of that object's own, derived from the repository's. A
segment's nonce is its number and whether it is the last, so that segments left out, swapped or
added are found; the header and the object's name are authenticated with each. Encrypted chunks are
named by a keyed hash: a name tells nobody what is in a chunk. An object that is not encrypted has a
CRC-32 instead, which finds what a disk or a line did to it, and nothing that somebody did.
"""

from __future__ import annotations

import hmac
import os
import struct
import zlib
from dataclasses import dataclass, field
from typing import Final

import pyarrow
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from resilience_pipelines.errors import CorruptError, InputError
from resilience_pipelines.snapshots.keys import KEY_BYTES

SEGMENT_BYTES: Final = 1 << 20

_HEADER: Final = struct.Struct(">4sBBBQ")
"""Magic, version, codec, cipher and the content's bytes before compression."""
_MAGIC: Final = b"RSNP"
_VERSION: Final = 1
_CODECS: Final = {0: "none", 1: "lz4", 2: "zstd"}
_CODEC_NUMBERS: Final = {name: number for number, name in _CODECS.items()}
_PLAIN, _AES_256_GCM = 0, 1
_CHECKSUM_BYTES: Final = 4
_SALT_BYTES: Final = 16
_TAG_BYTES: Final = 16
_MAX_PLAIN_BYTES: Final = 256 * 2**20
"""No object is larger; a header that says so is damaged."""


@dataclass(frozen=True)
class Compression:
    """How content is compressed.

    Attributes:
        codec: `none`, `lz4` or `zstd`.
        level: of zstd; None for the others.
    """

    codec: str = "none"
    level: int | None = None

    def __str__(self) -> str:
        return self.codec if self.level is None else f"{self.codec}-{self.level}"

    def compress(self, content: bytes) -> bytes:
        """The content, compressed."""
        if self.codec == "none":
            return content
        compressed: bytes = _codec(self.codec, self.level).compress(content, asbytes=True)
        return compressed

    def decompress(self, content: bytes, plain_bytes: int) -> bytes:
        """The content again; of a longer one no more than a byte beyond `plain_bytes`.

        Raises:
            OSError: it is not what `compress` gave.
        """
        if self.codec == "none":
            return content
        # A codec told the size would fill up with whatever was in memory where there is less.
        with pyarrow.CompressedInputStream(pyarrow.py_buffer(content), self.codec) as stream:
            plain: bytes = stream.read(plain_bytes + 1)
        return plain


NO_COMPRESSION: Final = Compression()


def parse_compression(text: str) -> Compression:
    """`none`, `lz4` or `zstd-LEVEL`.

    Raises:
        InputError: it is none of these.
    """
    codec, _, level = text.partition("-")
    if codec in ("none", "lz4") and not level:
        return Compression(codec)
    if codec == "zstd" and level.isdecimal() and 1 <= int(level) <= 19:
        return Compression(codec, int(level))
    raise InputError(
        "compression", text, "no such compression", mend="Give none, lz4, or zstd-1 to zstd-19."
    )


@dataclass(frozen=True)
class Sealing:
    """How all objects of one repository are written.

    Attributes:
        compression: of what is written; what is read says itself how it was compressed.
        key: of `KEY_BYTES`; None leaves objects unencrypted.
    """

    compression: Compression = NO_COMPRESSION
    key: bytes | None = field(default=None, repr=False)

    def name(self, sha256: str) -> str:
        """What a chunk of this SHA-256 is called, as 64 hexadecimal digits."""
        if self.key is None:
            return sha256
        return hmac.digest(_derive(self.key, b"", b"names"), bytes.fromhex(sha256), "sha256").hex()

    def seal(self, name: str, content: bytes) -> bytes:
        """The object of this name that holds the content."""
        codec, body = self.compression.codec, self.compression.compress(content)
        if len(body) >= len(content):
            codec, body = "none", content
        cipher = _PLAIN if self.key is None else _AES_256_GCM
        header = _HEADER.pack(_MAGIC, _VERSION, _CODEC_NUMBERS[codec], cipher, len(content))
        if self.key is None:
            return header + _checksum(header, name, body) + body
        return header + _encrypt(self.key, header, name, body)

    def open(self, name: str, sealed: bytes) -> bytes:
        """What the object of this name holds.

        Raises:
            CorruptError: it was damaged or changed, or has another key.
            InputError: it is encrypted and there is no key, or the other way round.
        """
        try:
            magic, version, codec, cipher, plain_bytes = _HEADER.unpack_from(sealed)
        except struct.error as error:
            raise _corrupt(name, "is too short") from error
        known = codec in _CODECS and cipher in (_PLAIN, _AES_256_GCM)
        if magic != _MAGIC or version != _VERSION or not known:
            raise _corrupt(name, "has a header that is not known")
        if plain_bytes > _MAX_PLAIN_BYTES:
            raise _corrupt(name, f"says that it holds {plain_bytes} bytes")
        header, body = sealed[: _HEADER.size], sealed[_HEADER.size :]
        if (cipher == _AES_256_GCM) != (self.key is not None):
            raise InputError(
                "encryption.key", "none" if self.key is None else "a key",
                f"{name} is {'' if cipher else 'not '}encrypted",
                mend="Use the key that this repository was begun with, or another repository.",
            )  # fmt: skip
        if self.key is not None:
            body = _decrypt(self.key, header, name, body)
        else:
            checksum, body = body[:_CHECKSUM_BYTES], body[_CHECKSUM_BYTES:]
            if checksum != _checksum(header, name, body):
                raise _corrupt(name, "does not have its checksum")
        try:
            plain = Compression(_CODECS[codec]).decompress(body, plain_bytes)
        except (OSError, pyarrow.ArrowException) as error:
            raise _corrupt(name, f"can't be decompressed ({error})") from error
        if len(plain) != plain_bytes:
            raise _corrupt(name, f"holds {len(plain)} bytes instead of {plain_bytes}")
        return plain


UNSEALED: Final = Sealing()


def _checksum(header: bytes, name: str, body: bytes) -> bytes:
    return zlib.crc32(body, zlib.crc32(header + name.encode())).to_bytes(_CHECKSUM_BYTES, "big")


def _encrypt(key: bytes, header: bytes, name: str, body: bytes) -> bytes:
    salt = os.urandom(_SALT_BYTES)
    cipher = AESGCM(_derive(key, salt, b"object"))
    bound = header + name.encode()
    parts = [salt]
    view = memoryview(body)
    count = max(1, -(-len(body) // SEGMENT_BYTES))
    for index in range(count):
        segment = view[index * SEGMENT_BYTES : (index + 1) * SEGMENT_BYTES]
        parts.append(cipher.encrypt(_nonce(index, index == count - 1), segment, bound))
    return b"".join(parts)


def _decrypt(key: bytes, header: bytes, name: str, body: bytes) -> bytes:
    cipher = AESGCM(_derive(key, body[:_SALT_BYTES], b"object"))
    bound = header + name.encode()
    view = memoryview(body)[_SALT_BYTES:]
    size = SEGMENT_BYTES + _TAG_BYTES
    count = max(1, -(-len(view) // size))
    try:
        return b"".join(
            cipher.decrypt(
                _nonce(index, index == count - 1), view[index * size : (index + 1) * size], bound
            )
            for index in range(count)
        )
    except InvalidTag as error:
        raise _corrupt(name, "was changed, or is encrypted with another key") from error


def _nonce(index: int, last: bool) -> bytes:
    return index.to_bytes(11, "big") + bytes([last])


def _derive(key: bytes, salt: bytes, use: bytes) -> bytes:
    return HKDF(hashes.SHA256(), KEY_BYTES, salt, b"resilience snapshot " + use).derive(key)


def _codec(name: str, level: int | None = None) -> pyarrow.Codec:
    return pyarrow.Codec(name, compression_level=level)


def _corrupt(name: str, problem: str) -> CorruptError:
    return CorruptError(f"The object {name} {problem}.")
