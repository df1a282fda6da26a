"""Which CRIU this machine has, how to start it, and how to import the pycriu that came with it.

What belongs here: finding a CRIU and describing it. What does not: getting one
(`criu_provision`), proving that it works (`criu_probe`), and using it (`criu`).

Two places are looked at. A private prefix, which `criu_provision` makes only where the machine's
own CRIU is of no use, wins; then comes the `criu` on PATH. A private prefix brings its own C
library, so its CRIU is started through the prefix's own dynamic loader and leaves the machine's
libraries alone.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Final, Literal, cast, get_args

from resilience_pipelines.errors import CorruptError, UnsupportedError

PREFIX_VARIABLE: Final = "RESILIENCE_CRIU_PREFIX"
MANIFEST_NAME: Final = "resilience-criu.json"
"""The file in a private prefix that says what was unpacked there. A prefix without one was made
by hand, is used all the same, and is never deleted."""
VERSION_TIMEOUT_S: Final = 10.0

Origin = Literal["system", "distribution", "private"]


class CriuUnavailable(UnsupportedError):  # noqa: N818 - a state of the machine, not a mistake
    """No CRIU that can be used; `reason` says why and `mend` what would help."""


@dataclass(frozen=True)
class Architecture:
    """Where Debian puts libraries and the dynamic loader for one instruction set."""

    machine: str
    """As `uname -m` spells it."""
    triplet: str
    loader: str


ARCHITECTURES: Final = (
    Architecture("x86_64", "x86_64-linux-gnu", "ld-linux-x86-64.so.2"),
    Architecture("aarch64", "aarch64-linux-gnu", "ld-linux-aarch64.so.1"),
)


@dataclass(frozen=True)
class CriuInstallation:
    """A CRIU that starts, and where its Python bindings lie."""

    argv: tuple[str, ...]
    """How to start it; options and commands are appended."""
    version: str
    origin: Origin
    """`system`: found on PATH. `distribution`: packages of the running release in a private prefix.
    `private`: packages of another release (Debian testing) in a private prefix."""
    pycriu_path: Path | None
    """The folder that holds the `pycriu` package; None where there is none."""


def current_architecture() -> Architecture:
    """The layout for this machine.

    Raises:
        CriuUnavailable: not Linux on x86-64 or aarch64.
    """
    system, machine = platform.system(), platform.machine()
    for architecture in ARCHITECTURES:
        if system == "Linux" and machine == architecture.machine:
            return architecture
    raise CriuUnavailable(
        f"Snapshots are not supported on {system} {machine}.",
        mend="Use Linux on x86_64 or aarch64; every arm but restore works elsewhere too.",
    )


def private_prefix() -> Path:
    """RESILIENCE_CRIU_PREFIX, else `.criu` in the checkout, else the user's data folder."""
    given = os.environ.get(PREFIX_VARIABLE)
    if given:
        return Path(given).expanduser().absolute()
    checkout = Path(__file__).resolve().parents[2]
    if (checkout / "pyproject.toml").is_file():
        return checkout / ".criu"
    data_home = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(data_home).expanduser().absolute() / "resilience-pipelines" / "criu"


def find_criu(prefix: Path | None = None) -> CriuInstallation:
    """The CRIU to use on this machine.

    Args:
        prefix: the private prefix to look into first; None means `private_prefix()`.

    Raises:
        CriuUnavailable: there is none, or the one there does not start.
    """
    architecture = current_architecture()
    prefix = (prefix or private_prefix()).absolute()
    if holds_criu(prefix):
        return describe_prefix(prefix, architecture)
    return find_system_criu(
        f"There is no criu on PATH and none in the private prefix {prefix}.",
    )


def find_system_criu(reason_if_none: str = "There is no criu on PATH.") -> CriuInstallation:
    """The `criu` on PATH, or in a folder for administrators' programs that PATH leaves out.

    Raises:
        CriuUnavailable: there is none, or it does not start.
    """
    search = [*os.get_exec_path(), "/usr/local/sbin", "/usr/sbin", "/sbin"]
    found = shutil.which("criu", path=os.pathsep.join(search))
    if found is None:
        raise CriuUnavailable(
            reason_if_none,
            mend="Run `python -m resilience_pipelines.snapshots.criu_provision` as root, "
            "or install CRIU 4.2 or newer with its Python bindings.",
        )
    argv = (str(Path(found).absolute()),)
    return CriuInstallation(argv, _version(argv), "system", _system_pycriu_path())


def holds_criu(prefix: Path) -> bool:
    """Whether a CRIU was unpacked into this folder. Does not say that it works."""
    return (prefix / "usr" / "sbin" / "criu").is_file()


def prefix_argv(prefix: Path, architecture: Architecture) -> tuple[str, ...]:
    """How to start the CRIU that was unpacked into `prefix`.

    Raises:
        CriuUnavailable: the prefix holds no dynamic loader for this architecture.
    """
    # Releases before the merge of /lib into /usr/lib ship the loader in /lib.
    candidates = [prefix / "usr/lib" / architecture.triplet, prefix / "lib" / architecture.triplet]
    folders = [folder for folder in candidates if folder.is_dir()]
    loaders = [folder / architecture.loader for folder in folders]
    loader = next((path for path in loaders if path.exists()), None)
    if loader is None:
        raise CriuUnavailable(
            f"The private prefix {prefix} holds no {architecture.loader} for "
            f"{architecture.machine}.",
            mend=f"Delete {prefix} and provision again on this machine.",
        )
    library_path = ":".join(str(folder) for folder in folders)
    return (str(loader), "--library-path", library_path, str(prefix / "usr" / "sbin" / "criu"))


def describe_prefix(prefix: Path, architecture: Architecture) -> CriuInstallation:
    """The CRIU that was unpacked into `prefix`.

    Raises:
        CriuUnavailable: a part is missing, or it does not start.
        CorruptError: the prefix's manifest can't be read.
    """
    argv = prefix_argv(prefix, architecture)
    packages = prefix / "usr" / "lib" / "python3" / "dist-packages"
    return CriuInstallation(
        argv=argv,
        version=_version(argv),
        origin=_prefix_origin(prefix),
        pycriu_path=packages if (packages / "pycriu").is_dir() else None,
    )


def import_pycriu(installation: CriuInstallation) -> ModuleType:
    """Import the `pycriu` of this installation and return it.

    Only that package is loaded: its folder, where a distribution keeps all of its Python
    packages, does not get onto `sys.path`.

    Raises:
        CriuUnavailable: there is none, it is of another version than CRIU, it does not fit the
            installed protobuf, or another pycriu was imported before.
    """
    folder = installation.pycriu_path
    if folder is None:
        raise CriuUnavailable(
            f"CRIU {installation.version} ({installation.argv[-1]}) came without its Python "
            "bindings (pycriu).",
            mend="Install the distribution's python3-pycriu, or provision a private CRIU.",
        )
    source = folder / "pycriu" / "__init__.py"
    loaded = sys.modules.get("pycriu")
    if loaded is not None:
        if Path(loaded.__file__ or "").resolve() != source.resolve():
            raise CriuUnavailable(
                f"pycriu was already imported from {loaded.__file__}, wanted {source}.",
                mend="Use one CRIU installation per process.",
            )
        return loaded
    module = _load_pycriu(source, folder)
    version = getattr(module, "__version__", None) or _distribution_version(folder)
    if version is None or _major_minor(version) != _major_minor(installation.version):
        _forget_pycriu()
        raise CriuUnavailable(
            f"pycriu in {folder} is of version {version or 'unknown'}, "
            f"CRIU is {installation.version}.",
            mend="Install both from one source; the first two numbers have to agree.",
        )
    return module


def _load_pycriu(source: Path, folder: Path) -> ModuleType:
    try:
        import google.protobuf as protobuf
    except ImportError as error:
        raise CriuUnavailable(
            f"pycriu needs protobuf, which {sys.executable} does not have.",
            mend="pip install protobuf",
        ) from error
    spec = importlib.util.spec_from_file_location(
        "pycriu", source, submodule_search_locations=[str(source.parent)]
    )
    if spec is None or spec.loader is None or not source.is_file():
        raise CriuUnavailable(f"{source} is missing.", mend="Provision CRIU again.")
    module = importlib.util.module_from_spec(spec)
    path_before = list(sys.path)
    sys.modules["pycriu"] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        # Generated code fails in many ways on a protobuf that it does not fit.
        _forget_pycriu()
        raise CriuUnavailable(
            f"pycriu in {folder} can't be imported with protobuf "
            f"{protobuf.__version__} on Python {platform.python_version()}: "
            f"{type(error).__name__}: {error}",
            mend="Install a protobuf release that the generated code in pycriu accepts.",
        ) from error
    finally:
        # pycriu.images appends its own folder, whose modules have names like `time_pb2`. They
        # import each other by those names while pycriu is imported, and never later.
        sys.path[:] = path_before
    return module


def _forget_pycriu() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "pycriu"]:
        del sys.modules[name]


def _version(argv: tuple[str, ...]) -> str:
    """What `criu --version` says.

    Raises:
        CriuUnavailable: it does not start, or says nothing that is a version.
    """
    try:
        done = subprocess.run(
            [*argv, "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=VERSION_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CriuUnavailable(f"{argv[-1]} does not start: {error}.", mend=_MEND_START) from error
    match = re.search(r"^Version:\s*v?(\d+(?:\.\d+)+)", done.stdout, re.MULTILINE)
    if done.returncode != 0 or match is None:
        said = (done.stderr or done.stdout).strip()[-500:] or "nothing"
        raise CriuUnavailable(
            f"{argv[-1]} --version ended with exit status {done.returncode} and said: {said}",
            mend=_MEND_START,
        )
    return match.group(1)


_MEND_START: Final = "Remove it, or provision a private CRIU that this machine can run."


def _prefix_origin(prefix: Path) -> Origin:
    manifest = prefix / MANIFEST_NAME
    if not manifest.exists():
        return "private"
    try:
        origin = json.loads(manifest.read_text(encoding="utf-8"))["origin"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CorruptError(
            f"{manifest} can't be read: {type(error).__name__}: {error}.",
            mend=f"Delete {prefix} and provision again.",
        ) from error
    if origin not in get_args(Origin):
        raise CorruptError(
            f"{manifest}: origin = {origin!r} is not one of {get_args(Origin)}.",
            mend=f"Delete {prefix} and provision again.",
        )
    return cast("Origin", origin)


def _system_pycriu_path() -> Path | None:
    """Where the bindings of a CRIU on PATH lie: this Python's own, else the machine's."""
    spec = None if "pycriu" in sys.modules else importlib.util.find_spec("pycriu")
    if spec is not None and spec.origin is not None:
        return Path(spec.origin).parents[1]
    patterns = (
        "local/lib/python3*/dist-packages",
        "local/lib/python3*/site-packages",
        "lib/python3*/dist-packages",
        "lib/python3*/site-packages",
    )
    for pattern in patterns:
        for folder in sorted(Path("/usr").glob(pattern), reverse=True):
            if (folder / "pycriu" / "__init__.py").is_file():
                return folder
    return None


def _distribution_version(folder: Path) -> str | None:
    """The version that package metadata beside `pycriu` names, for releases without one inside."""
    for distribution in importlib.metadata.distributions(name="pycriu", path=[str(folder)]):
        return distribution.version
    return None


def _major_minor(version: str) -> tuple[str, ...]:
    return tuple(version.split(".")[:2])
