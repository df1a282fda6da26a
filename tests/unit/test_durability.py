"""Replacing a small file as a whole."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from resilience_pipelines.durability import replace_text


@pytest.mark.parametrize("mode", [0o600, 0o644])
def test_a_file_has_its_rights_before_anybody_can_open_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int
) -> None:
    seen: list[int] = []
    replace = Path.replace

    def watched(self: Path, target: Path) -> Path:
        seen.append(self.stat().st_mode & 0o777)
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", watched)
    umask = os.umask(0o077)
    try:
        replace_text(tmp_path / "file.json", "{}", mode=mode)
    finally:
        os.umask(umask)
    assert seen == [mode]
    assert (tmp_path / "file.json").read_text() == "{}"
