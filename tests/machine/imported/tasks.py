"""A file named after each process that imports this, in the folder that IMPORTED names."""

import os
from pathlib import Path

Path(os.environ["IMPORTED"], str(os.getpid())).touch()
