"""What NVIDIA says has to be done at once after an XID.

What belongs here: the codes that the platform meets or injects, from NVIDIA's XID catalogue. What
does not: hearing of an XID (`nvml_events`, `kernel_log`). Consumers of XIDs disagree with the
catalogue and with each other, and the catalogue changes: `READ` says of when this is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

SOURCE: Final = "https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html"
READ: Final = "2026-12"


@dataclass(frozen=True)
class Xid:
    """One code.

    Attributes:
        mnemonic: its name in the driver.
        action: NVIDIA's bucket for the immediate action on H100-class GPUs.
    """

    code: int
    mnemonic: str
    action: str


XIDS: Final[Mapping[int, Xid]] = {
    xid.code: xid
    for xid in (
        Xid(13, "ROBUST_CHANNEL_GR_EXCEPTION", "RESTART_APP"),
        Xid(31, "ROBUST_CHANNEL_FIFO_ERROR_MMU_ERR_FLT", "RESTART_APP"),
        Xid(43, "ROBUST_CHANNEL_RESETCHANNEL_VERIF_ERROR", "IGNORE"),
        Xid(45, "ROBUST_CHANNEL_PREEMPTIVE_REMOVAL", "WORKFLOW_XID_45"),
        Xid(48, "ROBUST_CHANNEL_GPU_ECC_DBE", "WORKFLOW_XID_48"),
        Xid(62, "PMU_HALT_ERROR", "RESET_GPU"),
        Xid(63, "INFOROM_DRAM_RETIREMENT_EVENT", "IGNORE"),
        Xid(64, "INFOROM_DRAM_RETIREMENT_FAILURE", "RESET_GPU"),
        Xid(74, "NVLINK_ERROR", "WORKFLOW_NVLINK_ERR"),
        Xid(79, "ROBUST_CHANNEL_GPU_HAS_FALLEN_OFF_THE_BUS", "RESTART_BM"),
        Xid(92, "EXCESSIVE_SBE_INTERRUPTS", "IGNORE"),
        Xid(94, "ROBUST_CHANNEL_CONTAINED_ERROR", "RESTART_APP"),
        Xid(95, "ROBUST_CHANNEL_UNCONTAINED_ERROR", "RESET_GPU"),
        Xid(109, "ROBUST_CHANNEL_CTXSW_TIMEOUT_ERROR", "RESET_GPU"),
        Xid(119, "GSP_RPC_TIMEOUT", "RESET_GPU"),
        Xid(120, "GSP_ERROR", "RESET_GPU"),
        Xid(140, "UNRECOVERABLE_ECC_ERROR_ESCAPE", "RESET_GPU"),
    )
}


def describe(code: int) -> str:
    """An XID in words, with NVIDIA's immediate action where it is known here."""
    known = XIDS.get(code)
    return f"XID {code}" if known is None else f"XID {code} {known.mnemonic}: {known.action}"
