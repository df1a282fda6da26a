"""docs/python.md tells what is so: its examples run, one after the other, on real workers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "python.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def test_the_examples_of_the_page_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RESILIENCE_HOME", str(tmp_path / "home"))
    assert len(BLOCKS) == 4
    names: dict[str, Any] = {}
    for block in BLOCKS:
        exec(compile(block, "docs/python.md", "exec"), names)
    starts, killed, upgrade = names["starts"], names["killed"], names["upgrade"]
    assert set(starts.startups["arm"]) == {"warm_cache", "sleep_wake"}
    assert set(starts.startups["outcome"]) <= {"ok", "unsupported"}
    assert "pass" in killed.faults["verdict"].to_list()
    assert upgrade.after == starts.record.stack_key
    assert "arms" in capsys.readouterr().out
