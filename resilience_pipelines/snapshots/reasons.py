"""Why a snapshot or a restore failed: the reason codes that records carry.

What belongs here: the codes and the error that carries one. What does not: the checks behind them.
"""

from __future__ import annotations

from enum import StrEnum

from resilience_pipelines.errors import ResilienceError


class SnapshotReason(StrEnum):
    """One word for each way that a snapshot or a restore can fail."""

    NO_CRIU = "no_criu"
    NO_NAMESPACES = "no_namespaces"
    ORACLE_FAILED = "oracle_failed"
    SLEEP_FAILED = "sleep_failed"
    DUMP_FAILED = "dump_failed"
    DUMP_TIMEOUT = "dump_timeout"
    STORE_FULL = "store_full"
    STORE_EXPOSED = "store_exposed"
    SOURCE_LOST = "source_lost"
    MANIFEST_UNREADABLE = "manifest_unreadable"
    MANIFEST_UNTRUSTED = "manifest_untrusted"
    IMAGE_CORRUPT = "image_corrupt"
    INCOMPATIBLE = "incompatible"
    RESTORE_FAILED = "restore_failed"
    RESTORE_TIMEOUT = "restore_timeout"
    WAKE_FAILED = "wake_failed"
    NO_ANSWER = "no_answer"
    WRONG_ANSWER = "wrong_answer"
    CUDA_UNAVAILABLE = "cuda_unavailable"
    CUDA_NO_PROCESS = "cuda_no_process"
    CUDA_NOT_SUPPORTED = "cuda_not_supported"
    CUDA_NO_MEMORY = "cuda_no_memory"
    CUDA_NO_HOST_MEMORY = "cuda_no_host_memory"
    CUDA_LOCK_FAILED = "cuda_lock_failed"
    CUDA_LOCK_TIMEOUT = "cuda_lock_timeout"
    CUDA_CHECKPOINT_FAILED = "cuda_checkpoint_failed"
    CUDA_CHECKPOINT_TIMEOUT = "cuda_checkpoint_timeout"
    CUDA_RESTORE_FAILED = "cuda_restore_failed"
    CUDA_RESTORE_TIMEOUT = "cuda_restore_timeout"
    CUDA_UNLOCK_FAILED = "cuda_unlock_failed"
    CUDA_UNLOCK_TIMEOUT = "cuda_unlock_timeout"
    GPU_PROBE_FAILED = "gpu_probe_failed"


class SnapshotError(ResilienceError):
    """A step of the snapshot protocol failed.

    Args:
        code: which way.
        phase: the step of the protocol, as phases are named in records.
        reason: what happened, in words.
    """

    def __init__(self, code: SnapshotReason, phase: str, reason: str, *, mend: str = "") -> None:
        super().__init__(reason, mend=mend)
        self.code = code
        self.phase = phase
