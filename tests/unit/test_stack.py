"""Stack keys: equal exactly when the stacks are."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from resilience_pipelines.stack import Stack, read_host, storage_kind

FIELDS = sorted(set(Stack.model_fields) - {"engine"})
NUMBERS = {"gpu_count", "gpu_memory_mib", "cpu_count", "memory_mib"}


@given(st.sampled_from(FIELDS))
def test_every_dimension_changes_the_key_and_one_half_of_it(field: str) -> None:
    plain = Stack(engine="vllm")
    changed = plain.model_copy(update={field: 7 if field in NUMBERS else "7"})
    assert changed.key != plain.key
    assert (changed.hardware_key != plain.hardware_key) == (field in Stack.HARDWARE)
    assert (changed.software_key != plain.software_key) == (field not in Stack.HARDWARE)
    assert list(changed.differences(plain)) == [field]


def test_a_missing_value_is_not_an_empty_one() -> None:
    with pytest.raises(ValidationError):
        Stack(engine="vllm", driver_version="")


def test_the_key_survives_json() -> None:
    stack = Stack.model_validate({**read_host(Path()), "engine": "reference"})
    assert Stack.model_validate_json(stack.model_dump_json()).key == stack.key


def test_labels_are_usable_as_partition_keys() -> None:
    stack = Stack(
        engine="vllm", engine_version="0.23.0", gpu_sku="NVIDIA H200", gpu_count=1,
        driver_version="580.159.04", criu_version="4.2.1",
    )  # fmt: skip
    assert stack.hardware_label == "1x-nvidia-h200"
    assert stack.software_label == "vllm-0.23.0-driver-580.159.04-criu-4.2.1"
    assert Stack(engine="x").hardware_label == "cpu-x-unknown"


def test_the_storage_of_a_folder_is_that_of_its_mount() -> None:
    assert storage_kind(Path("/proc/self")) == "proc"
    assert storage_kind(Path("/")) is not None
