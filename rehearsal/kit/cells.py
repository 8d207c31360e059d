"""What the graders of the walkthrough's cells share: was it typed, how does it refuse, does it
hold in another interpreter?
"""

from __future__ import annotations

import base64
import inspect
import itertools
import os
import signal
import subprocess
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from rehearsal.engine.reports import RankReport
from rehearsal.grading.verdict import Finding

CHILD = """
import base64, sys
import cloudpickle
function, learner = cloudpickle.loads(base64.b64decode(sys.stdin.read()))
print(function(learner))
"""


IMPORTED = (
    "a needed name comes from the walkthrough's module",
    "a rehearsal is of what you can write; solution() shows it when you ask",
    "at the imports",
)
Judge = Callable[[Sequence[RankReport], Mapping[str, Sequence[RankReport]]], Iterable[Finding]]

# ---------------------------------------------------------------- in the ranks


def imported(learner: SimpleNamespace, cell: str) -> list[str]:
    """Needed names that come from the walkthrough's module ``cell`` instead of being typed."""
    module = f"trainer_core.{cell}"
    names = [
        name
        for name, value in vars(learner).items()
        if module in [getattr(part, "__module__", "") for part in _ancestry(value)]
    ]
    # Or called from within. No grader of a cell imports the module itself.
    return names or (["something"] if module in sys.modules else [])


def _ancestry(value: Any) -> Sequence[Any]:
    return value.__mro__ if inspect.isclass(value) else [value]


def refusal(
    make: Callable[..., Any], *, into: list[Any] | None = None, **arguments: Any
) -> list[Any] | None:
    """How ``make`` refuses: class, whether it is a ValueError, message. None if it does not.

    Args:
        into: a list to which what it makes is added.
    """
    try:
        made = make(**arguments)
        if into is not None:
            into.append(made)
    except NotImplementedError:
        raise
    except Exception as error:
        return [type(error).__name__, isinstance(error, ValueError), str(error)]
    return None


class OtherInterpreter:
    """``function(learner)`` in a Python of its own, started now, with other environment.

    The ranks are forks of one process and share its hash seed; restarted jobs do not.
    """

    def __init__(
        self, function: Callable[[Any], Any], learner: Any, environment: Mapping[str, str]
    ) -> None:
        import cloudpickle

        for name in (
            "attempt",
            function.__module__,
        ):  # modules that no other process can import
            if isinstance(module := sys.modules.get(name), types.ModuleType):
                cloudpickle.register_pickle_by_value(module)
        root = str(Path(__file__).parents[2])
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
        self.process.stdin = None  # written: it works while we do

    def answer(self) -> str:
        """What it returned, as text; an exception's last line where there was one."""
        printed, errors = self.process.communicate()
        return printed.rstrip("\n") or errors.strip().splitlines()[-1]


@contextmanager
def at_most(cpu_seconds: float) -> Iterator[None]:
    """Raise TimeoutError in a block that computes for longer. A busy machine does not count."""

    def late(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGVTALRM, late)
    signal.setitimer(signal.ITIMER_VIRTUAL, cpu_seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


# ---------------------------------------------------------------- in the judges


class Told:
    """Makes findings from a table: what each code means, its rule, and where to look."""

    def __init__(self, table: Mapping[str, tuple[str, str, str]]) -> None:
        self.table = {"imported-not-typed": IMPORTED, **table}
        self.codes = {code: meaning for code, (meaning, _, _) in self.table.items()}

    def __call__(self, code: str, found: str) -> Finding:
        _, rule, look = self.table[code]
        return Finding(code, found, rule, look)


def first_of(cell: str, findings: Callable[[Sequence[RankReport]], Iterable[Finding]]) -> Judge:
    """A judge that stops at the first finding, since the next ones often follow from it."""

    def judge(
        reports: Sequence[RankReport], earlier: Mapping[str, Sequence[RankReport]]
    ) -> Iterable[Finding]:
        if names := reports[0].answer["imported"]:
            found = f"{', '.join(names)} from trainer_core.{cell}, the walkthrough's own cell"
            yield Told({})("imported-not-typed", found)
        else:
            yield from itertools.islice(findings(reports), 1)

    return judge


def said(settings: Mapping[str, Any]) -> str:
    """As a call has it."""
    texts = {n: repr(str(v) if isinstance(v, Path) else v) for n, v in settings.items()}
    return ", ".join(f"{name}={text}" for name, text in texts.items())
