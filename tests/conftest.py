"""Nothing here is imported by name; jobs.py holds what tests share."""

from __future__ import annotations

import os

# Several ranks on few cores: one thread each, or they fight for the cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")
