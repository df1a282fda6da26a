"""Where a CRIU is looked for, where packages come from, and what is said when there is none."""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilience_pipelines.errors import CorruptError, InputError, StorageError
from resilience_pipelines.snapshots import criu_binary, criu_provision
from resilience_pipelines.snapshots.criu_binary import (
    ARCHITECTURES,
    MANIFEST_NAME,
    Architecture,
    CriuInstallation,
    CriuUnavailable,
    describe_prefix,
    find_criu,
    import_pycriu,
    prefix_argv,
    private_prefix,
)
from resilience_pipelines.snapshots.criu_provision import Attempt, Provisioned, can_dump, starts
from resilience_pipelines.snapshots.debian_archive import (
    MIRROR_VARIABLE,
    Archive,
    ArchiveError,
    Release,
    debian_testing_archives,
    library_closure,
    parse_deb822,
    parse_one_line,
    read_archives,
    release_archives,
    sources_stanza,
    without_credentials,
)

DEBIAN = Release("debian", "bookworm")
UBUNTU = Release("ubuntu", "noble")
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"

words = st.text("abcdefghijklmnopqrstuvwxyz0123456789-.", min_size=1, max_size=12)
uris = st.builds("{}://{}/{}".format, st.sampled_from(["http", "https"]), words, words)
archives = st.builds(
    Archive,
    uri=uris,
    suite=words,
    components=st.lists(words, min_size=1, max_size=3).map(tuple),
    signed_by=st.none() | words.map("/usr/share/keyrings/{}".format),
)


def one_line(archive: Archive) -> str:
    options = f"[arch=amd64 signed-by={archive.signed_by}] " if archive.signed_by else ""
    return f"deb {options}{archive.uri} {archive.suite} {' '.join(archive.components)}\n"


class TestAptSources:
    @given(st.lists(archives, max_size=4))
    def test_both_forms_say_the_same(self, listed: list[Archive]) -> None:
        lines = "".join(one_line(archive) for archive in listed)
        stanzas = "\n".join(sources_stanza(archive) for archive in listed)
        assert parse_one_line(lines) == listed
        assert parse_deb822(stanzas) == listed

    @given(archives)
    def test_what_is_commented_out_is_not_used(self, archive: Archive) -> None:
        line = one_line(archive)
        stanza = sources_stanza(archive)
        assert parse_one_line(f"# {line}#{line}") == []
        assert parse_deb822("".join(f"# {row}\n" for row in stanza.splitlines())) == []
        assert parse_one_line(line.rstrip() + " # why\n") == [archive]

    @given(archives, st.sampled_from(["no", "No", "false"]))
    def test_what_is_switched_off_is_not_used(self, archive: Archive, off: str) -> None:
        assert parse_deb822(f"Enabled: {off}\n{sources_stanza(archive)}") == []

    def test_a_stanza_stands_for_every_pair_of_address_and_suite(self) -> None:
        text = (
            "Types: deb deb-src\n# kept by hand\nURIs: http://a/debian\n http://b/debian\n"
            "Suites: bookworm bookworm-updates\nComponents: main contrib\n"
        )
        assert [(each.uri, each.suite) for each in parse_deb822(text)] == [
            ("http://a/debian", "bookworm"),
            ("http://a/debian", "bookworm-updates"),
            ("http://b/debian", "bookworm"),
            ("http://b/debian", "bookworm-updates"),
        ]

    def test_a_key_in_full_survives(self) -> None:
        key = (
            "-----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n mDMEY\n -----END PGP PUBLIC KEY BLOCK-----"
        )
        text = f"Types: deb\nURIs: http://a\nSuites: s\nComponents: main\nSigned-By:\n {key}\n"
        (archive,) = parse_deb822(text)
        assert parse_deb822(sources_stanza(archive)) == [archive]
        assert "mDMEY" in (archive.signed_by or "")

    @pytest.mark.parametrize(
        "line",
        [
            "deb-src http://a/debian bookworm main",
            "deb cdrom:[Debian GNU/Linux 12.0.0 _Bookworm_ - Official]/ bookworm main",
            "nonsense",
            "deb",
            "",
        ],
    )
    def test_what_is_no_archive_of_packages_is_passed_over(self, line: str) -> None:
        assert parse_one_line(line) == []

    def test_both_kinds_of_files_are_read_and_no_others(self, tmp_path: Path) -> None:
        parts = tmp_path / "sources.list.d"
        parts.mkdir()
        first, second, third = (Archive(f"http://{n}/debian", "s", ("main",)) for n in "abc")
        (tmp_path / "sources.list").write_text(one_line(first))
        (parts / "b.sources").write_text(sources_stanza(second))
        (parts / "c.list").write_text(one_line(third))
        (parts / "d.list.disabled").write_text(one_line(Archive("http://d", "s", ("main",))))
        assert read_archives(tmp_path) == [first, second, third]

    def test_a_machine_without_sources_has_no_archives(self, tmp_path: Path) -> None:
        assert read_archives(tmp_path) == []


class TestMirrorChoice:
    def test_the_release_itself_comes_before_third_parties_that_use_its_name(self) -> None:
        third_party = Archive("http://x/tools", "bookworm", ("main",), "/k/x.gpg")
        by_name = Archive("http://m/debian", "bookworm", ("main",))
        by_key = Archive("mirror+file:/etc/m.list", "bookworm", ("main",), KEYRING)
        listed = [
            third_party,
            by_name,
            Archive("http://m/debian-security", "bookworm-security", ("main",), KEYRING),
            Archive("http://d/linux/debian", "bookworm", ("stable",)),
            by_key,
        ]
        assert release_archives(listed, DEBIAN) == [by_key, by_name, third_party]

    @given(st.lists(archives, max_size=6))
    def test_testing_is_asked_for_at_addresses_of_the_machine_only(
        self, listed: list[Archive]
    ) -> None:
        listed = [*listed, Archive("http://m/debian", "bookworm", ("main", "contrib"), KEYRING)]
        found = debian_testing_archives(listed, DEBIAN, {})
        assert found[0] == Archive("http://m/debian", "testing", ("main",), KEYRING)
        assert {each.uri for each in found} <= {each.uri for each in listed}
        assert len(set(found)) == len(found)

    def test_another_distribution_is_told_to_name_a_debian_mirror(self) -> None:
        listed = [Archive("http://m/ubuntu", "noble", ("main", "universe"))]
        with pytest.raises(ArchiveError) as caught:
            debian_testing_archives(listed, UBUNTU, {})
        assert "ubuntu" in caught.value.reason
        assert MIRROR_VARIABLE in caught.value.mend

    @pytest.mark.parametrize("release", [DEBIAN, UBUNTU, Release("linux", None)])
    def test_a_mirror_that_is_named_wins_everywhere(self, release: Release) -> None:
        listed = [Archive("http://m/debian", "bookworm", ("main",), KEYRING)]
        found = debian_testing_archives(listed, release, {MIRROR_VARIABLE: " https://n/debian "})
        assert found == [Archive("https://n/debian", "testing", ("main",))]

    @pytest.mark.parametrize(
        "value",
        ["mirror", "ftp://m/debian", "http://", "http://m/debian\nSigned-By: x", "http://a b"],
    )
    def test_what_is_no_address_is_refused_by_name(self, value: str) -> None:
        with pytest.raises(InputError) as caught:
            debian_testing_archives([], UBUNTU, {MIRROR_VARIABLE: value})
        assert caught.value.field == MIRROR_VARIABLE

    @given(words, words)
    def test_credentials_are_not_shown(self, user: str, password: str) -> None:
        shown = without_credentials(f"E: http://{user}:{password}@mirror.test/debian failed")
        assert shown == "E: http://mirror.test/debian failed"


class TestLibraryClosure:
    @given(
        st.dictionaries(
            st.sampled_from(["criu", "python3", "liba", "libb", "libc", "libd", "gcc-base"]),
            st.lists(st.sampled_from(["python3", "liba", "libb", "libc", "libd", "gcc-base"])),
        )
    )
    def test_it_is_what_repeated_looking_finds(self, graph: dict[str, list[str]]) -> None:
        graph = {"criu": [], **graph}
        listing = "".join(
            f"{name}\n" + "".join(f"  Depends: {need}\n" for need in needs)
            for name, needs in graph.items()
        )
        expected = {"criu"}
        for _ in graph:
            expected |= {
                need
                for name in expected
                for need in graph[name]
                if need.startswith("lib") and need in graph
            }
        found = library_closure(listing, ["criu"])
        assert set(found) == expected
        assert len(found) == len(expected)

    def test_alternatives_and_virtual_packages_are_read_as_apt_writes_them(self) -> None:
        listing = (
            "criu\n  PreDepends: liba\n |Depends: libb\n  Depends: <libvirtual>\n    libc\n"
            "  Depends: python3:any\n    python3\nliba\nlibb\n  Depends: libd:any\nlibd\nlibc\n"
        )
        assert library_closure(listing, ["criu"]) == ["criu", "liba", "libb", "libd"]


class TestPrivatePrefix:
    @pytest.fixture(autouse=True)
    def no_criu_starts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(criu_binary, "_version", lambda argv: "4.2.1")

    @pytest.fixture(params=ARCHITECTURES, ids=lambda each: each.machine)
    def architecture(
        self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
    ) -> Architecture:
        assert isinstance(request.param, Architecture)
        monkeypatch.setattr(platform, "system", lambda: "Linux")
        monkeypatch.setattr(platform, "machine", lambda: request.param.machine)
        return request.param

    def unpacked(self, prefix: Path, architecture: Architecture, libraries: str) -> Path:
        for name in ("usr/sbin/criu", f"{libraries}/{architecture.triplet}/{architecture.loader}"):
            (prefix / name).parent.mkdir(parents=True, exist_ok=True)
            (prefix / name).touch()
        return prefix

    @pytest.mark.parametrize("libraries", ["usr/lib", "lib"])
    def test_it_starts_through_its_own_loader(
        self, tmp_path: Path, architecture: Architecture, libraries: str
    ) -> None:
        prefix = self.unpacked(tmp_path / "p", architecture, libraries)
        found = find_criu(prefix)
        folder = prefix / libraries / architecture.triplet
        program = str(prefix / "usr/sbin/criu")
        loader = str(folder / architecture.loader)
        assert found.argv == (loader, "--library-path", str(folder), program)
        assert (found.origin, found.pycriu_path) == ("private", None)

    def test_one_for_another_architecture_is_refused(
        self, tmp_path: Path, architecture: Architecture
    ) -> None:
        (other,) = (each for each in ARCHITECTURES if each != architecture)
        prefix = self.unpacked(tmp_path, other, "usr/lib")
        with pytest.raises(CriuUnavailable, match=architecture.loader):
            prefix_argv(prefix, architecture)

    def test_its_manifest_says_where_it_came_from(
        self, tmp_path: Path, architecture: Architecture
    ) -> None:
        prefix = self.unpacked(tmp_path, architecture, "usr/lib")
        (prefix / MANIFEST_NAME).write_text('{"origin": "distribution"}')
        assert describe_prefix(prefix, architecture).origin == "distribution"

    @pytest.mark.parametrize("manifest", ["", "{}", "[]", '{"origin": "elsewhere"}', "{"])
    def test_a_manifest_that_is_broken_is_named(
        self, tmp_path: Path, architecture: Architecture, manifest: str
    ) -> None:
        prefix = self.unpacked(tmp_path, architecture, "usr/lib")
        (prefix / MANIFEST_NAME).write_text(manifest)
        with pytest.raises(CorruptError, match=MANIFEST_NAME):
            describe_prefix(prefix, architecture)

    def test_the_environment_chooses_the_place(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("RESILIENCE_CRIU_PREFIX", str(tmp_path))
        assert private_prefix() == tmp_path
        monkeypatch.delenv("RESILIENCE_CRIU_PREFIX")
        assert private_prefix().name == ".criu"

    @pytest.mark.parametrize(("system", "machine"), [("Darwin", "arm64"), ("Linux", "riscv64")])
    def test_other_machines_are_told_what_still_works(
        self, monkeypatch: pytest.MonkeyPatch, system: str, machine: str
    ) -> None:
        monkeypatch.setattr(platform, "system", lambda: system)
        monkeypatch.setattr(platform, "machine", lambda: machine)
        with pytest.raises(CriuUnavailable, match=machine):
            find_criu()
        outcome = criu_provision.provision()
        assert outcome.installation is None
        assert machine in outcome.attempts[0].reason

    def test_without_any_criu_the_reason_and_the_mend_are_given(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, architecture: Architecture
    ) -> None:
        monkeypatch.setattr("shutil.which", lambda name, path: None)
        with pytest.raises(CriuUnavailable) as caught:
            find_criu(tmp_path)
        assert str(tmp_path) in caught.value.reason
        assert "criu_provision" in caught.value.mend
        assert caught.value.exit_code == 3


class TestPycriu:
    @pytest.fixture(autouse=True)
    def no_pycriu_loaded(self) -> Iterator[None]:
        before = {name: sys.modules.pop(name) for name in list(sys.modules) if is_pycriu(name)}
        yield
        for name in [name for name in sys.modules if is_pycriu(name)]:
            del sys.modules[name]
        sys.modules.update(before)

    def installation(self, folder: Path, source: str, version: str = "4.2.1") -> CriuInstallation:
        (folder / "pycriu").mkdir()
        (folder / "pycriu" / "__init__.py").write_text(source)
        return CriuInstallation(("/usr/sbin/criu",), version, "system", folder)

    def test_only_pycriu_becomes_importable(self, tmp_path: Path) -> None:
        (tmp_path / "numpy.py").write_text("raise AssertionError('of the distribution')")
        source = "import sys\nsys.path.append('/nowhere')\n__version__ = '4.2.1'\n"
        installation = self.installation(tmp_path, source)
        before = list(sys.path)
        module = import_pycriu(installation)
        assert module.__version__ == "4.2.1"
        assert sys.path == before
        assert import_pycriu(installation) is module

    @pytest.mark.parametrize("version", ["4.1.1", "3.17", "4"])
    def test_one_of_another_version_is_refused_and_forgotten(
        self, tmp_path: Path, version: str
    ) -> None:
        installation = self.installation(tmp_path, f"__version__ = '{version}'\n")
        with pytest.raises(CriuUnavailable, match=version):
            import_pycriu(installation)
        assert "pycriu" not in sys.modules

    def test_one_that_does_not_say_its_version_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(CriuUnavailable, match="unknown"):
            import_pycriu(self.installation(tmp_path, ""))

    def test_a_version_beside_it_counts(self, tmp_path: Path) -> None:
        information = tmp_path / "pycriu-4.2.0.dist-info"
        information.mkdir()
        (information / "METADATA").write_text(
            "Metadata-Version: 2.1\nName: pycriu\nVersion: 4.2.0\n"
        )
        assert import_pycriu(self.installation(tmp_path, "")).__name__ == "pycriu"

    def test_one_that_does_not_fit_protobuf_is_named_with_both_versions(
        self, tmp_path: Path
    ) -> None:
        installation = self.installation(tmp_path, "raise TypeError('Descriptors')")
        with pytest.raises(CriuUnavailable, match=r"protobuf \d.*Descriptors"):
            import_pycriu(installation)
        assert "pycriu" not in sys.modules

    def test_without_bindings_the_reason_says_so(self) -> None:
        with pytest.raises(CriuUnavailable, match="Python bindings"):
            import_pycriu(CriuInstallation(("/usr/sbin/criu",), "4.2.1", "system", None))

    def test_two_in_one_process_are_refused(self, tmp_path: Path) -> None:
        (tmp_path / "a").mkdir()
        (tmp_path / "b").mkdir()
        import_pycriu(self.installation(tmp_path / "a", "__version__ = '4.2.1'"))
        with pytest.raises(CriuUnavailable, match="already imported"):
            import_pycriu(self.installation(tmp_path / "b", "__version__ = '4.2.1'"))


class TestProvisioning:
    @given(st.integers(0, 2**41 - 1))
    def test_dumping_takes_ptrace_and_one_of_two_more(self, capabilities: int) -> None:
        names = {bit for bit in range(41) if capabilities >> bit & 1}
        assert can_dump(capabilities) == ({19} <= names and bool(names & {21, 40}))

    def test_an_old_release_is_not_taken_unproved(self, tmp_path: Path) -> None:
        old = CriuInstallation(("/usr/sbin/criu",), "4.1.1", "system", None)
        assert "4.2" in starts(old, tmp_path).reason

    def test_what_others_put_there_is_not_replaced(self, tmp_path: Path) -> None:
        prefix = tmp_path / "mine"
        prefix.mkdir()
        (prefix / "thesis.tex").write_text("x")
        with pytest.raises(StorageError, match="mine"):
            criu_provision._discard(prefix)
        assert (prefix / "thesis.tex").read_text() == "x"

    def test_what_a_killed_run_left_behind_is_cleared_away(self, tmp_path: Path) -> None:
        stale = tmp_path / "p.partial" / "prefix" / "usr"
        stale.mkdir(parents=True)
        with criu_provision._partial(tmp_path / "p") as (partial, scratch):
            assert list(partial.iterdir()) == []
            assert list(scratch.iterdir()) == []
        assert list(tmp_path.iterdir()) == []

    def test_the_outcome_as_json_says_none_where_there_is_none(self) -> None:
        content = json.loads(Provisioned(None, (Attempt("a", "b"),), 0.5).to_json())
        assert content["installation"] is None
        assert content["attempts"] == [{"way": "a", "reason": "b"}]


def is_pycriu(name: str) -> bool:
    return name.partition(".")[0] == "pycriu"
