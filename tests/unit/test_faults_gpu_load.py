"""A burn passes only when it computed, and everything right."""

from __future__ import annotations

import json

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilience_pipelines.faults.gpu_burn_tool import VARIABLE, find_gpu_burn, parse_gpu_burn
from resilience_pipelines.faults.gpu_programs import burn as burn_program
from resilience_pipelines.faults.gpu_programs.burn import NumpyMatrices, burn
from resilience_pipelines.faults.gpu_programs.take_memory import SMALLEST_BYTES, next_bytes

# As gpu-burn writes it: progress ends in a carriage return, a summary every tenth of the time.
HEAD = (
    "GPU 0: NVIDIA H200 (UUID: GPU-1)\nUsing compare file: compare.ptx\n"
    "Burning for 20 seconds.\nInitialized device 0 with 143167 MB of memory\n"
)
PROGRESS = "\r{percent:.1f}%  proc'd: {done}  errors: {errors}  temps: 61 C   power: 690 W "
SUMMARY = "\n\tSummary at:   Wed Dec  2 17:00:00 UTC 2026\n\n"
TAIL = "\nKilling processes with SIGTERM (soft kill)\ndone\n\nTested {count} GPUs:\n{verdicts}"


def output(
    done: str, errors: str, *verdicts: str, before: str = "10 (51000 Gflop/s) ", summaries: int = 2
) -> str:
    lines = [PROGRESS.format(percent=10, done=before, errors="0 ")] if before else []
    lines += [SUMMARY] * summaries
    lines.append(PROGRESS.format(percent=100, done=done, errors=errors))
    words = "".join(f"\tGPU {n}: {verdict}\n" for n, verdict in enumerate(verdicts))
    return HEAD + "".join(lines) + TAIL.format(count=len(verdicts), verdicts=words)


def test_a_gpu_that_computed_right_has_passed() -> None:
    (gpu,) = parse_gpu_burn(output("335 (52102 Gflop/s) ", "0 ", "OK"))
    assert (gpu.verdict, gpu.gflops, gpu.errors, gpu.died) == ("OK", 52102.0, 0, False)
    assert gpu.passed


@pytest.mark.parametrize(
    ("done", "errors", "verdict"),
    [
        ("335 (52102 Gflop/s) ", "7  (WARNING!) ", "FAULTY"),
        ("335 (0 Gflop/s) ", "0 ", "OK"),
        ("335 (52102 Gflop/s) ", "7  (WARNING!) ", "OK"),
        ("-1 (0 Gflop/s) ", "0  (DIED!)", "OK"),
        ("335 (inf Gflop/s) ", "0 ", "OK"),
    ],
    ids=["faulty", "ok_at_0_gflops", "errors_and_ok", "died", "infinite"],
)
def test_each_way_to_fail_is_seen(done: str, errors: str, verdict: str) -> None:
    (gpu,) = parse_gpu_burn(output(done, errors, verdict))
    assert not gpu.passed


def test_errors_before_a_summary_are_not_forgotten() -> None:
    text = output("9 (5 Gflop/s) ", "0 ", "OK", before="")
    early = PROGRESS.format(percent=5, done="4 (5 Gflop/s) ", errors="3  (WARNING!) ")
    (gpu,) = parse_gpu_burn(text.replace(HEAD, HEAD + early + SUMMARY))
    assert gpu.errors == 3
    assert not gpu.passed


def test_one_of_several_gpus_may_be_faulty() -> None:
    text = output(
        "5 (100 Gflop/s) - 7 (0 Gflop/s) - 9 (101 Gflop/s) ", "0 - 0 - 4  (WARNING!) ",
        "OK", "OK", "FAULTY", before="",
    )  # fmt: skip
    assert [gpu.passed for gpu in parse_gpu_burn(text)] == [True, False, False]


def test_a_run_without_a_verdict_has_not_passed() -> None:
    text = output("335 (52102 Gflop/s) ", "0 ", "OK").partition("Tested")[0]
    (gpu,) = parse_gpu_burn(text)
    assert gpu.verdict is None
    assert not gpu.passed


def test_a_line_that_is_cut_off_is_no_news() -> None:
    text = output("335 (52102 Gflop/s) ", "0 ", "OK")
    (gpu,) = parse_gpu_burn(text + "\r100.0%  proc'd: 400 (521")
    assert gpu.gflops == 52102.0


@given(st.text(alphabet="proc'd: errors0123456789()-GflopstempsOK \r\n", max_size=200))
def test_no_output_makes_it_fail(text: str) -> None:
    assert all(gpu.verdict in (None, "OK", "FAULTY") for gpu in parse_gpu_burn(text))


def test_nothing_said_is_nothing_found() -> None:
    assert parse_gpu_burn("No CUDA devices\n") == ()


def test_the_program_may_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "/opt/gpu-burn/gpu_burn")
    assert str(find_gpu_burn()) == "/opt/gpu-burn/gpu_burn"


class Thermometer:
    def __init__(self, *values: int) -> None:
        self._values = list(values)

    def read_c(self) -> int:
        return self._values.pop(0) if len(self._values) > 1 else self._values[0]


def run(
    capsys: pytest.CaptureFixture[str], matrices: NumpyMatrices, *degrees: int, seconds: float = 0.2
) -> tuple[int, list[dict[str, object]]]:
    code = burn(
        matrices, Thermometer(*degrees), size=64, seconds=seconds, max_temperature_c=80
    )  # fmt: skip
    return code, [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_a_burn_that_computes_right_counts_and_finds_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(burn_program, "ROUND_S", 0.02)
    code, reports = run(capsys, NumpyMatrices(numpy, 64), 50)
    rounds = [report for report in reports if report["event"] == "round"]
    assert code == 0
    assert reports[0] == {"event": "reference", "rows": 4, "mismatches": 0}
    assert reports[-1] == {"event": "finished"}
    assert rounds
    assert all(report["gflops"] > 0 for report in rounds)  # type: ignore[operator]
    assert all(report["mismatches"] == 0 for report in rounds)


class Faulty(NumpyMatrices):
    """One bit of one entry is wrong from the second product on."""

    made = 0

    def multiply(self, times: int) -> None:
        super().multiply(times)
        self.made += 1
        if self.made > 1:
            self.product.view(numpy.uint32)[3, 5] ^= 1


class AlwaysFaulty(NumpyMatrices):
    """One row is wrong in every product, the first included."""

    def multiply(self, times: int) -> None:
        super().multiply(times)
        self.product[2] += 8.0


def test_one_wrong_bit_is_found(capsys: pytest.CaptureFixture[str]) -> None:
    _, reports = run(capsys, Faulty(numpy, 64), 50)
    assert {report["mismatches"] for report in reports if report["event"] == "round"} == {1}


def test_a_reference_that_is_wrong_itself_is_found(capsys: pytest.CaptureFixture[str]) -> None:
    _, reports = run(capsys, AlwaysFaulty(numpy, 64), 50)
    assert reports[0]["event"] == "reference"
    assert reports[0]["mismatches"] == 64


def test_a_burn_ends_when_it_gets_too_hot(capsys: pytest.CaptureFixture[str]) -> None:
    code, reports = run(capsys, NumpyMatrices(numpy, 64), 70, 75, 80, seconds=60)
    assert code == burn_program.EXIT_ABORTED
    assert reports[-1]["event"] == "aborted"
    assert [r["temperature_c"] for r in reports if r["event"] == "round"] == [70, 75]


def test_a_thermometer_that_fails_ends_the_burn() -> None:
    class Broken:
        def read_c(self) -> int:
            raise OSError("no temperature")

    with pytest.raises(OSError, match="no temperature"):
        burn(NumpyMatrices(numpy, 64), Broken(), size=64, seconds=60, max_temperature_c=80)


@given(free=st.integers(0, 2**38), headroom=st.integers(0, 2**30), largest=st.integers(0, 2**31))
def test_memory_is_taken_down_to_the_headroom_and_never_below(
    free: int, headroom: int, largest: int
) -> None:
    size = next_bytes(free, headroom, largest)
    assert 0 <= size <= largest
    assert size == 0 or free - size >= headroom
    if size == 0:
        assert min(free - headroom, largest) < SMALLEST_BYTES
