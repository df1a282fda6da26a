"""Wording: how the page writes numbers, names and the terms of the field.

What belongs here: formats, labels and the glossary; all pure functions of their arguments. What
does not: sentences about results (`headline`), and escaping for HTML (the template does that).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import datetime
from typing import NamedTuple

from resilience_pipelines.records import Arm, Basis, Layer, Verdict

_SNAKE_CASE = re.compile(r"[a-z0-9]+(_[a-z0-9]+)*")
_SPELLINGS = {
    "api": "API", "cpu": "CPU", "criu": "CRIU", "cuda": "CUDA", "dbe": "DBE", "dcgm": "DCGM",
    "ecc": "ECC", "gpu": "GPU", "hbm": "HBM", "kv": "KV", "nccl": "NCCL", "numa": "NUMA",
    "nvlink": "NVLink", "nvml": "NVML", "oom": "OOM", "pcie": "PCIe", "sbe": "SBE",
    "sigkill": "SIGKILL", "sigstop": "SIGSTOP", "vllm": "vLLM", "xid": "XID",
}  # fmt: skip

NBSP = "\N{NO-BREAK SPACE}"
TO = "\N{WORD JOINER}\N{EN DASH}\N{WORD JOINER}"
"""Between the ends of an interval, where no line may break."""
MISSING = "\N{EM DASH}"

ARM_LABELS = {
    Arm.COLD: "Cold",
    Arm.WARM_CACHE: "Warm cache",
    Arm.SLEEP_WAKE: "Sleep and wake",
    Arm.RESTORE: "Restore",
}
ARM_ORDER = tuple(arm.value for arm in ARM_LABELS)

VERDICT_LABELS = {
    Verdict.PASS: "passed",
    Verdict.FAIL: "failed",
    Verdict.INCONCLUSIVE: "inconclusive",
    Verdict.NOT_INJECTED: "not injected",
    Verdict.NOT_APPLICABLE: "not applicable",
    Verdict.ABORTED: "aborted",
    Verdict.ROLLBACK_FAILED: "rollback failed",
}

DIMENSION_LABELS = {
    "gpu_sku": "GPU",
    "gpu_count": "GPUs",
    "gpu_memory_mib": "GPU memory (MiB)",
    "cpu_model": "CPU",
    "cpu_count": "CPUs",
    "memory_mib": "Memory (MiB)",
    "storage_kind": "Storage",
    "architecture": "Architecture",
    "driver_version": "Driver",
    "cuda_version": "CUDA",
    "kernel_version": "Kernel",
    "criu_version": "CRIU",
    "snapshot_engine": "Snapshot engine",
    "container_runtime": "Container runtime",
    "kubernetes_version": "Kubernetes",
    "engine": "Engine",
    "engine_version": "Engine version",
    "torch_version": "PyTorch",
    "nccl_version": "NCCL",
    "python_version": "Python",
    "image_digest": "Image digest",
    "model": "Model",
    "model_precision": "Model precision",
}

CRIU_LABELS = {
    "freezing_s": "Freezing the process tree",
    "frozen_s": "Process tree frozen",
    "memdump_s": "Memory dump",
    "memwrite_s": "Memory written",
    "pages_scanned": "Pages scanned",
    "pages_skipped_parent": "Pages skipped, in a parent image",
    "pages_written": "Pages written",
    "forking_s": "Forking",
    "restore_s": "Restore",
    "pages_compared": "Pages compared",
    "pages_skipped_cow": "Pages skipped, shared copy-on-write",
    "pages_restored": "Pages restored",
}


class Term(NamedTuple):
    """An entry of the glossary."""

    word: str
    meaning: str


GLOSSARY = (
    Term(
        "Arm",
        "How a worker is started. Cold: no caches. Warm cache: a new process that finds the caches "
        "of an earlier one. Sleep and wake: a live process woken from sleep. Restore: a process "
        "restored from a snapshot.",
    ),
    Term(
        "Best other start",
        "The faster of cold and warm cache. Sleep and wake keeps a live process, so it is compared "
        "too, but it is no start from nothing.",
    ),
    Term(
        "Basis",
        "What a figure stands for. Measured: the engine and hardware that the stack names. "
        "Reference: a real measurement of the reference worker, which stands for an engine. "
        "Simulated: part of it was put there by a shim or a generator. Bases are never averaged.",
    ),
    Term(
        "Phase",
        "A named part of a start. Phases never overlap; with the unaccounted time they add up to "
        "the start's total.",
    ),
    Term("Unaccounted", "Time of a start that no phase explains. It is shown, never spread."),
    Term(
        "Oracle",
        "Greedy tokens and log-probabilities recorded before the snapshot. A start that answers "
        "differently has failed, however fast; its time counts in no median.",
    ),
    Term(
        "Experiment",
        "Steady state, guards, injection, proof of the effect, detection, recovery, roll-back, "
        "proof of the roll-back.",
    ),
    Term(
        "Verdict",
        "What an experiment says: passed, failed, inconclusive, not injected, not applicable, "
        "aborted or rollback failed. No data is never a pass.",
    ),
    Term(
        "Control arm",
        "The same experiment without the injection. A detector that reports there gave a false "
        "alarm.",
    ),
    Term(
        "Layer",
        "How deep a fault reaches: cache (a monitor's cached value), log, shim, userspace, real. "
        "Results of different layers are never averaged.",
    ),
    Term(
        "Time to detect, time to recover",
        "Injection to the first report by an expected detector; injection to the first right "
        "answer after it.",
    ),
    Term(
        "Stack",
        "All hardware and software that can change a result. Its key is equal exactly when every "
        "dimension is. An unknown dimension stays empty, it is never guessed.",
    ),
    Term(
        "Change of level",
        "A moment from which the start-up times of one arm stay longer or shorter. Relevant: its "
        "95 % interval excludes no change, and it is larger than what the series does from run to "
        "run by itself. Candidates: the dimensions of the stack that differ there.",
    ),
    Term(
        "Gate",
        "What says, before any process starts, whether a snapshot fits a stack. Too strict: it "
        "refuses what always came back. Too lax: it lets pass what failed even once.",
    ),
    Term(
        "Median, CI, n",
        "The middle value of n right results, with its 95 % bootstrap confidence interval. One "
        "result has no interval.",
    ),
)


def plural(count: int, noun: str, many: str | None = None) -> str:
    """Example: `1 run`, `3 runs`."""
    return f"{count:,}{NBSP}{noun if count == 1 else many or noun + 's'}"


def seconds(value: float | None) -> str:
    """A duration with three significant figures, in ms below a tenth of a second."""
    if value is None:
        return MISSING
    if value == 0:
        return f"0{NBSP}s"
    if abs(value) < 0.09995:
        return f"{value * 1000:.{_decimals(value * 1000)}f}{NBSP}ms"
    return f"{value:,.{_decimals(value)}f}{NBSP}s"


def signed_seconds(value: float | None) -> str:
    """Seconds that may be below zero, with a true minus sign."""
    if value is None or value >= 0:
        return seconds(value)
    return f"\N{MINUS SIGN}{seconds(-value)}"


def seconds_range(low: float | None, high: float | None) -> str:
    """An interval of durations in one unit; empty where it is unknown."""
    if low is None or high is None:
        return ""
    if abs(high) < 0.09995:
        decimals = _decimals(high * 1000)
        return f"{low * 1000:.{decimals}f}{TO}{high * 1000:.{decimals}f}{NBSP}ms"
    decimals = _decimals(high)
    return f"{low:,.{decimals}f}{TO}{high:,.{decimals}f}{NBSP}s"


def _decimals(value: float) -> int:
    """Digits behind the point that make three significant figures."""
    return next((d for limit, d in ((0.9995, 3), (9.995, 2), (99.95, 1)) if abs(value) < limit), 0)


def sample(count: int) -> str:
    """How many values a figure rests on."""
    return f"n{NBSP}={NBSP}{count:,}"


def ratio(value: float | None) -> str:
    """A ratio as a plain number with about two significant figures."""
    if value is None:
        return MISSING
    decimals = next((d for limit, d in ((0.0995, 3), (0.995, 2), (99.5, 1)) if value < limit), 0)
    return f"{value:,.{decimals}f}"


def times(value: float | None) -> str:
    """A ratio with the multiplication sign."""
    return MISSING if value is None else f"{ratio(value)}\N{MULTIPLICATION SIGN}"


def ratio_range(low: float | None, high: float | None) -> str:
    """An interval of ratios; empty where it is unknown."""
    if low is None or high is None:
        return ""
    return f"{ratio(low)}{TO}{ratio(high)}"


def confidence(interval: str) -> str:
    """An interval with its level; empty for an empty one."""
    return f"95{NBSP}% CI {interval}" if interval else ""


def percent(fraction: float | None, *, signed: bool = False) -> str:
    """A fraction as per cent."""
    if fraction is None:
        return MISSING
    value = fraction * 100
    decimals = 1 if abs(value) < 9.95 else 0
    return f"{value:{'+' if signed else ''}.{decimals}f}{NBSP}%".replace("-", "\N{MINUS SIGN}")


def availability(fraction: float | None) -> str:
    """A share of time in service as per cent, with enough digits to tell nines apart.

    It is never rounded up to 100 %.
    """
    if fraction is None:
        return MISSING
    return f"{_cut_percent(fraction, _nines(fraction))}{NBSP}%"


def availability_range(low: float | None, high: float | None) -> str:
    """An interval of availabilities, with as many digits as its better end needs."""
    if low is None or high is None:
        return ""
    decimals = _nines(high)
    return f"{_cut_percent(low, decimals)}{TO}{_cut_percent(high, decimals)}{NBSP}%"


def _nines(fraction: float) -> int:
    """Decimals of a percentage that show two digits of what is missing to 100 %."""
    missing = 100 * (1 - fraction)
    return min(9, max(1, 1 - math.floor(math.log10(missing)))) if missing > 0 else 1


def _cut_percent(fraction: float, decimals: int) -> str:
    if fraction >= 1:
        return f"{100:.{decimals}f}"
    scale = 10**decimals
    return f"{math.floor(round(fraction * 100 * scale, 3)) / scale:.{decimals}f}"


def percent_range(low: float | None, high: float | None) -> str:
    """An interval of changes in per cent; empty where it is unknown."""
    if low is None or high is None:
        return ""
    # A dash between signed numbers would read as one sign more.
    return f"{percent(low, signed=True)} to {percent(high, signed=True)}"


def size(value: int | None) -> str:
    """Bytes in binary units with three significant figures."""
    if value is None:
        return MISSING
    if value < 1024:
        return f"{value}{NBSP}B"
    power = min(int(math.log(value, 1024)), 4)
    if value / 1024**power >= 1000 and power < 4:
        power += 1
    scaled, unit = value / 1024**power, ("B", "KiB", "MiB", "GiB", "TiB")[power]
    decimals = 2 if scaled < 9.995 else 1 if scaled < 99.95 else 0
    return f"{scaled:.{decimals}f}{NBSP}{unit}"


def number(value: int | float | None) -> str:
    """A count with separators."""
    return MISSING if value is None else f"{value:,.0f}"


def day(moment: datetime) -> str:
    """Example: `3 Mar 2026`."""
    return f"{moment.day}{NBSP}{moment:%b}{NBSP}{moment:%Y}"


def minute(moment: datetime) -> str:
    """Example: `3 Mar 2026, 14:05 UTC`."""
    return f"{day(moment)}, {moment:%H:%M}{NBSP}UTC"


def span(first: datetime, last: datetime) -> str:
    """The days between two moments, one if they are the same."""
    if first.date() == last.date():
        return minute(last)
    return f"{day(first)} to {day(last)}"


def spoken(name: str) -> str:
    """A snake_case name as words, any other text as it is. Example: `weight_load`."""
    if not _SNAKE_CASE.fullmatch(name):
        return name
    return " ".join(_SPELLINGS.get(part, part) for part in name.split("_"))


def label(name: str) -> str:
    """A name as it starts a line: spoken, with a capital."""
    text = spoken(name)
    return text if text.startswith("v") and text[1:2].isupper() else text[:1].upper() + text[1:]


def arm(name: str, variant: str | None = None) -> str:
    """An arm's label; an unknown one keeps its name."""
    text = ARM_LABELS[Arm(name)] if name in ARM_ORDER else label(name)
    return f"{text}, {spoken(variant)}" if variant else text


def verdict(name: str) -> str:
    """A verdict's label; an unknown one keeps its name."""
    known = {item.value: text for item, text in VERDICT_LABELS.items()}
    return known.get(name, spoken(name))


def dimension(name: str) -> str:
    """A stack dimension's label; an unknown one keeps its name."""
    return DIMENSION_LABELS.get(name, spoken(name))


def versus(name: str) -> str:
    """What restore is compared with."""
    return "Best other start" if name == "best_other_start" else arm(name)


def layer(name: str) -> str:
    """A layer's label, with what it reaches."""
    reaches = {
        Layer.CACHE: "cache: a monitor's cached value",
        Layer.LOG: "log: a line in a log",
        Layer.SHIM: "shim: a library between program and device",
        Layer.USERSPACE: "userspace: a process or file",
        Layer.REAL: "real: the device itself",
    }
    known = {item.value: text for item, text in reaches.items()}
    return known.get(name, spoken(name))


def worker(name: str, basis: str) -> str:
    """A worker with its basis, which is said once."""
    return f"{spoken(name)} worker" if name == basis else f"{spoken(name)}, {spoken(basis)}"


def hardware(dimensions: Mapping[str, str | int | None]) -> str:
    """A machine as a person names it."""
    gpu, cpu = dimensions.get("gpu_sku"), dimensions.get("cpu_model")
    count = dimensions.get("gpu_count" if gpu else "cpu_count")
    what = gpu or (f"CPU, {cpu}" if cpu else "CPU of unknown model")
    return str(what) if count is None else f"{count}\N{MULTIPLICATION SIGN}{NBSP}{what}"


def software(dimensions: Mapping[str, str | int | None]) -> str:
    """The versions that a person looks for first."""
    named = (
        (spoken(str(dimensions.get("engine"))), dimensions.get("engine_version")),
        ("driver", dimensions.get("driver_version")),
        ("CRIU", dimensions.get("criu_version")),
    )
    return ", ".join(
        f"{name}{NBSP}{'unknown' if version is None else version}"
        for place, (name, version) in enumerate(named)
        if version is not None or place == 0
    )


def basis_label(basis: str, *, gpu: str | None) -> str:
    """The sentence that every chart of this basis carries; empty for measured results."""
    if basis == Basis.MEASURED:
        return ""
    if basis == Basis.REFERENCE:
        where = "on CPU" if gpu is None else f"on {gpu}"
        return f"Reference worker {where}: stands for vLLM, not a GPU result"
    if basis == Basis.SIMULATED:
        return "Simulated: put there by a shim or a generator, not a measurement"
    return f"Basis {spoken(basis)}: not a measurement of the engine that the stack names"
