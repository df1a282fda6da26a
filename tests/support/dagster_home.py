"""Importing the definitions in tests: into which data home, and with which variables."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from functools import cache
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from dagster import Definitions


@cache
def load_definitions() -> Definitions:
    """The product's definitions. dbt's manifest is made once, in a folder of its own."""
    os.environ["DAGSTER_DISABLE_TELEMETRY"] = "yes"
    folder = tempfile.mkdtemp(prefix="resilience-definitions-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RESILIENCE_HOME", folder)
        from resilience_pipelines.definitions import defs
    return defs
