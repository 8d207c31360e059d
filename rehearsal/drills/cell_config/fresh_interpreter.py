"""What does the learner's code say in a Python that was not forked from this one?"""

from __future__ import annotations

import base64
import os
import subprocess
import sys
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

CHILD = """
import base64, contextlib, sys
import cloudpickle
function, learner = cloudpickle.loads(base64.b64decode(sys.stdin.read()))
with contextlib.redirect_stdout(sys.stderr):
    answer = function(learner)
print(answer)
"""


class FreshInterpreter:
    """``function(learner)`` in a new Python, with another environment.

    The ranks are forks of one process and share its hash seed; restarted jobs do not.
    """

    def __init__(
        self, function: Callable[[Any], Any], learner: Any, environment: Mapping[str, str]
    ) -> None:
        import cloudpickle

        # Modules that no other process can import.
        for name in ("attempt", function.__module__):
            if isinstance(module := sys.modules.get(name), types.ModuleType):
                cloudpickle.register_pickle_by_value(module)
        root = str(Path(__file__).parents[3])
        paths = {"PYTHONPATH": os.pathsep.join([root, *sys.path])}
        payload = base64.b64encode(cloudpickle.dumps((function, learner))).decode()
        self.process = subprocess.Popen(
            [sys.executable, "-S", "-c", CHILD],
            env={**os.environ, **paths, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdin is not None
        with self.process.stdin as pipe:
            pipe.write(payload)
        self.process.stdin = None  # written: it works while this process does

    def answer(self) -> list[str]:
        """What it returned, as text; and the last line of the exception, if it raised one."""
        printed, errors = self.process.communicate()
        if self.process.returncode:
            return ["", (errors.strip().splitlines() or ["an exit without a message"])[-1]]
        return [printed.removesuffix("\n"), ""]
