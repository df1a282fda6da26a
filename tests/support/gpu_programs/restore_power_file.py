"""Sets the power limit of the stand-in for a GPU, which is a file."""

import os
import sys
from pathlib import Path

Path(os.environ["TEST_POWER_FILE"]).write_text(sys.argv[2])
