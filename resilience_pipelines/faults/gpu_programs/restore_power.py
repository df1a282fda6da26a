"""Sets a GPU's power limit and reads it back: `python restore_power.py UUID MILLIWATTS`.

The watchdog of `faults.gpu_power` runs it, also when everything else has died. Exit status 0 says
that NVML reads the limit back as it should be.
"""

from __future__ import annotations

import sys


def main() -> int:
    """Set, read back, compare."""
    import pynvml

    uuid, limit_mw = sys.argv[1], int(sys.argv[2])
    pynvml.nvmlInit()
    try:
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        pynvml.nvmlDeviceSetPowerManagementLimit(handle, limit_mw)
        return int(pynvml.nvmlDeviceGetPowerManagementLimit(handle) != limit_mw)
    finally:
        pynvml.nvmlShutdown()


if __name__ == "__main__":
    sys.exit(main())
