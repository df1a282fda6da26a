"""The detector `nvml_events`: XID errors as the driver reports them to NVML.

What belongs here: waiting for events of one GPU. What does not: what an XID asks for (`xids`).
"""

from __future__ import annotations

from resilience_pipelines.detectors.base import Detector
from resilience_pipelines.detectors.xids import describe
from resilience_pipelines.nvml import Gpu, Nvml, XidListener

_WAKE_S = 0.05


class NvmlEvents(Detector):
    """Raises an alarm for each XID. The driver wakes it: it does not poll."""

    name = "nvml_events"

    def __init__(self, gpu: Gpu) -> None:
        super().__init__()
        self._gpu = gpu
        self._nvml: Nvml | None = None
        self._listener: XidListener | None = None

    def _open(self) -> None:
        self._nvml = Nvml()
        self._listener = self._nvml.listen(self._gpu)

    def _close(self) -> None:
        listener, self._listener = self._listener, None
        nvml, self._nvml = self._nvml, None
        if listener is not None:
            listener.close()
        if nvml is not None:
            nvml.close()

    def _watch(self) -> None:
        assert self._listener is not None
        while not self._stopping.is_set():
            code = self._listener.wait(_WAKE_S)
            if code is not None:
                self._alarm(describe(code))
