"""Edited images: what CRIU's image is changed to, as if it came from elsewhere or another hand.

What belongs here: the edits, and what a manifest of such a place would say. What does not: copying
snapshots (`copies`) and restoring them (`startup.compatibility`).

An edit that stands for another place changes the manifest too, as far as a manifest tells of it:
the gate gets what it would get there. One that stands for a tampered image changes the image alone.
"""

from __future__ import annotations

import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from resilience_pipelines.errors import CorruptError, ResilienceError
from resilience_pipelines.snapshots.image_files import load_image, replace_image
from resilience_pipelines.snapshots.manifest import Manifest, MappedFile

_Entry = dict[str, Any]


class ImageEdit(StrEnum):
    """What is changed."""

    NOTHING = "nothing"
    ARCHITECTURE = "architecture"
    CPU_STATE = "cpu_state"
    SCHEDULING_POLICY = "scheduling_policy"
    CAPABILITIES = "capabilities"
    CRIU_FORM = "criu_form"
    CRIU_PLUGIN = "criu_plugin"
    SECURITY_MODULE = "security_module"
    BOOT_TIME = "boot_time"
    NETWORK_NAMESPACE = "network_namespace"
    MOUNT_NAMESPACE = "mount_namespace"
    PROCESS_ID = "process_id"
    MISSING_MOUNT = "missing_mount"
    FILE_SIZE = "file_size"
    FILE_BUILD = "file_build"
    FILE_MODE = "file_mode"
    FILE_GONE = "file_gone"
    ADDRESS = "address"
    TCP_STATE = "tcp_state"
    REGISTERS = "registers"


class NotInImageError(ResilienceError):
    """The image has nothing that the edit could change."""


@dataclass(frozen=True)
class ImageFolder:
    """CRIU's files of a copy that is nobody else's.

    Attributes:
        root_pid: process id of the tree's root, by which its files are named.
    """

    path: Path
    root_pid: int
    pycriu: ModuleType

    def change(self, name: str, how: Callable[[list[_Entry]], None]) -> None:
        """Decode a file, change its entries and put it back.

        Raises:
            NotInImageError: there is no such file, or not what is to be changed in it.
        """
        path = self.path / name
        if not path.is_file():
            raise NotInImageError(f"The image has no {name}.")
        try:
            image = load_image(path, self.pycriu)
            how(image["entries"])
        except (CorruptError, KeyError, IndexError, TypeError, AttributeError) as error:
            raise NotInImageError(f"{name} of the image has another form ({error!r}).") from error
        replace_image(path, image, self.pycriu)

    def change_root(self, kind: str, how: Callable[[_Entry], None]) -> None:
        """Change what a kind of file says of the tree's root."""
        self.change(f"{kind}-{self.root_pid}.img", lambda entries: how(entries[0]))

    def change_file(self, path: str, **facts: object) -> None:
        """Change what is known of an open or mapped file."""
        self._change_opened("reg", lambda file: file["name"] == path, facts)

    def change_socket(self, **facts: object) -> None:
        """Change what is known of the listening TCP sockets."""
        self._change_opened("isk", lambda socket: socket["state"] == _LISTENING, facts)

    def _change_opened(
        self, kind: str, wanted: Callable[[_Entry], bool], facts: Mapping[str, object]
    ) -> None:
        def change(entries: list[_Entry]) -> None:
            found = [entry[kind] for entry in entries if kind in entry and wanted(entry[kind])]
            if not found:
                raise NotInImageError("The image has no such file or socket open.")
            for one in found:
                one.update(facts)

        self.change("files.img", change)


_LISTENING: Final = 10
_CLOSED: Final = 7
_NOWHERE: Final = "/mnt/not-mounted"
_UNKNOWN_ID: Final = 2**20
# Addresses for documentation (RFC 5737) belong to no machine.
_NOBODYS_ADDRESS: Final = int.from_bytes(bytes((192, 0, 2, 1)), "little")
_ALL_CAPABILITIES: Final = 2**63 - 1

Updates = Mapping[str, object]
"""Fields of the manifest that change with the image."""


def apply_edit(edit: ImageEdit, images: ImageFolder, manifest: Manifest) -> Manifest:
    """Change an image; returns its manifest as it would be, but for the hashes.

    Raises:
        NotInImageError: the image has nothing that this edit could change.
        OSError: it can't be written.
    """
    return manifest.model_copy(update=dict(_EDITS[edit](images, manifest)))


def _nothing(images: ImageFolder, manifest: Manifest) -> Updates:  # noqa: ARG001
    for path in sorted(images.path.glob("*.img")):
        if not path.name.startswith("pages-"):
            images.change(path.name, lambda _: None)
    return {}


def _architecture(images: ImageFolder, manifest: Manifest) -> Updates:
    here = manifest.stack.architecture
    mark, name = ("X86_64", "x86_64") if here == "aarch64" else ("AARCH64", "aarch64")
    images.change_root("core", lambda core: core.update(mtype=mark))
    return _on(manifest, architecture=name)


def _cpu_state(images: ImageFolder, manifest: Manifest) -> Updates:
    def change(core: _Entry) -> None:
        core["thread_info"]["fpregs"]["xsave"]["xstate_bv"] |= 1 << 40

    images.change_root("core", change)
    return {"cpu_features": (*manifest.cpu_features, "of_the_next_cpu")}


def _scheduling_policy(images: ImageFolder, manifest: Manifest) -> Updates:
    images.change_root("core", lambda core: core["thread_core"].update(sched_policy=99))
    return _on(manifest, kernel_version="99.0")


def _capabilities(images: ImageFolder, manifest: Manifest) -> Updates:  # noqa: ARG001
    halves = [_ALL_CAPABILITIES & 0xFFFFFFFF, _ALL_CAPABILITIES >> 32]
    every = dict.fromkeys(("cap_prm", "cap_eff", "cap_bnd"), halves)
    images.change_root("core", lambda core: core["thread_core"]["creds"].update(every))
    return {"capabilities": _ALL_CAPABILITIES}


def _criu_form(images: ImageFolder, manifest: Manifest) -> Updates:
    def change(entries: list[_Entry]) -> None:
        entries[0]["img_version"] += 1

    images.change("inventory.img", change)
    major = manifest.criu_version.partition(".")[0]
    return {"criu_version": f"{int(major) + 1}.0"}


def _criu_plugin(images: ImageFolder, manifest: Manifest) -> Updates:  # noqa: ARG001
    plugins = {"plugins": ["cuda_plugin"]}
    images.change("inventory.img", lambda entries: entries[0].update(plugins_entry=plugins))
    return {}


def _security_module(images: ImageFolder, manifest: Manifest) -> Updates:  # noqa: ARG001
    images.change("inventory.img", lambda entries: entries[0].update(lsmtype="APPARMOR"))
    profile = {"lsm_profile": "of-another-machine"}
    images.change_root("core", lambda core: core["thread_core"]["creds"].update(profile))
    return {}


def _boot_time(images: ImageFolder, manifest: Manifest) -> Updates:  # noqa: ARG001
    def change(entries: list[_Entry]) -> None:
        for clock in ("monotonic", "boottime"):
            entries[0][clock]["tv_sec"] += 10**8

    images.change("timens-0.img", change)
    return {}


def _network_namespace(images: ImageFolder, manifest: Manifest) -> Updates:  # noqa: ARG001
    images.change_root("ids", lambda ids: ids.update(net_ns_id=_UNKNOWN_ID))
    return {}


def _mount_namespace(images: ImageFolder, manifest: Manifest) -> Updates:  # noqa: ARG001
    images.change_root("ids", lambda ids: ids.update(mnt_ns_id=_UNKNOWN_ID))
    return {}


def _process_id(images: ImageFolder, manifest: Manifest) -> Updates:
    taken = 1
    root = manifest.root_pid

    def change(entries: list[_Entry]) -> None:
        for entry in entries:
            for name in ("pid", "ppid", "pgid", "sid"):
                entry[name] = taken if entry[name] == root else entry[name]
            entry["threads"] = [taken if one == root else one for one in entry["threads"]]

    images.change("pstree.img", change)
    for path in sorted(images.path.glob(f"*-{root}.img")):
        path.rename(path.with_name(path.name.replace(f"-{root}.", f"-{taken}.")))
    return {"root_pid": taken}


def _missing_mount(images: ImageFolder, manifest: Manifest) -> Updates:
    folder: list[int] = []
    images.change_root("fs", lambda fs: folder.append(fs["cwd_id"]))

    def change(entries: list[_Entry]) -> None:
        for entry in entries:
            if entry["id"] in folder:
                entry["reg"]["name"] = _NOWHERE

    images.change("files.img", change)
    return {"open_paths": (*manifest.open_paths, _NOWHERE)}


def _file_size(images: ImageFolder, manifest: Manifest) -> Updates:
    file = _any_library(manifest)
    images.change_file(file.path, size=file.bytes + 1)
    return _with_file(manifest, file, bytes=file.bytes + 1)


def _file_build(images: ImageFolder, manifest: Manifest) -> Updates:
    file = _any_library(manifest)
    other = bytes(byte ^ 0xFF for byte in bytes.fromhex(file.build_id or ""))
    words = [int.from_bytes(other[at : at + 4], "little") for at in range(0, len(other), 4)]
    images.change_file(file.path, build_id=words)
    return _with_file(manifest, file, build_id=other.hex())


def _file_mode(images: ImageFolder, manifest: Manifest) -> Updates:
    file = _any_library(manifest)
    # Manifests of before modes were read have none, and then the image alone is changed.
    mode = 0o644 if file.mode is None else file.mode
    images.change_file(file.path, mode=stat.S_IFREG | (mode ^ stat.S_IXOTH))
    return {} if file.mode is None else _with_file(manifest, file, mode=mode ^ stat.S_IXOTH)


def _file_gone(images: ImageFolder, manifest: Manifest) -> Updates:
    file = _any_library(manifest)
    images.change_file(file.path, name=f"{_NOWHERE}/library.so")
    return _with_file(manifest, file, path=f"{_NOWHERE}/library.so")


def _address(images: ImageFolder, manifest: Manifest) -> Updates:  # noqa: ARG001
    images.change_socket(src_addr=[_NOBODYS_ADDRESS])
    return {}


def _tcp_state(images: ImageFolder, manifest: Manifest) -> Updates:  # noqa: ARG001
    images.change_socket(state=_CLOSED)
    return {}


def _registers(images: ImageFolder, manifest: Manifest) -> Updates:  # noqa: ARG001
    def change(core: _Entry) -> None:
        registers = core["thread_info"]["gpregs"]
        registers["ip" if "ip" in registers else "pc"] = 16

    images.change_root("core", change)
    return {}


def _on(manifest: Manifest, **stack: object) -> Updates:
    return {"stack": manifest.stack.model_copy(update=stack)}


def _any_library(manifest: Manifest) -> MappedFile:
    """A mapped file of which the image knows a size and a build ID.

    Raises:
        NotInImageError: there is none.
    """
    for file in manifest.mapped_files:
        if file.build_id is not None:
            return file
    raise NotInImageError("The image maps no file that has a build ID.")


def _with_file(manifest: Manifest, file: MappedFile, **facts: object) -> Updates:
    changed = file.model_copy(update=facts)
    return {"mapped_files": tuple(changed if one is file else one for one in manifest.mapped_files)}


_EDITS: Final[Mapping[ImageEdit, Callable[[ImageFolder, Manifest], Updates]]] = {
    ImageEdit.NOTHING: _nothing,
    ImageEdit.ARCHITECTURE: _architecture,
    ImageEdit.CPU_STATE: _cpu_state,
    ImageEdit.SCHEDULING_POLICY: _scheduling_policy,
    ImageEdit.CAPABILITIES: _capabilities,
    ImageEdit.CRIU_FORM: _criu_form,
    ImageEdit.CRIU_PLUGIN: _criu_plugin,
    ImageEdit.SECURITY_MODULE: _security_module,
    ImageEdit.BOOT_TIME: _boot_time,
    ImageEdit.NETWORK_NAMESPACE: _network_namespace,
    ImageEdit.MOUNT_NAMESPACE: _mount_namespace,
    ImageEdit.PROCESS_ID: _process_id,
    ImageEdit.MISSING_MOUNT: _missing_mount,
    ImageEdit.FILE_SIZE: _file_size,
    ImageEdit.FILE_BUILD: _file_build,
    ImageEdit.FILE_MODE: _file_mode,
    ImageEdit.FILE_GONE: _file_gone,
    ImageEdit.ADDRESS: _address,
    ImageEdit.TCP_STATE: _tcp_state,
    ImageEdit.REGISTERS: _registers,
}
