"""What the learner typed: the names of the notebook, and the cells that define them.

What's on the screen is what gets graded. A name that is only left over in the kernel, from a
cell that has since been edited and run again or has failed, is not.
"""

from __future__ import annotations

import linecache
import re
import sys
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rehearsal.grading import typed
from rehearsal.grading.attempt import codes_of
from rehearsal.grading.drill import Drill
from rehearsal.grading.verdict import ENGINE_FINDINGS, Finding
from rehearsal.session.display import shell
from rehearsal.session.executions import Execution, executions_of


class Standing(NamedTuple):
    """What a notebook's cells now define for a drill."""

    cells: Sequence[int] = ()  # the numbers of the cells that define the needed names
    finding: Finding | None = None  # why they cannot be graded
    number: int = 0  # the cell to run first


def learners_namespace(depth: int = 2) -> Mapping[str, object]:
    """The notebook's names; outside of one, those of the module that called the coach.

    Args:
        depth: how many calls lie between that module and here.
    """
    running = shell()
    if running is not None:
        names: Mapping[str, object] = running.user_ns
        return names
    return sys._getframe(depth).f_globals


def as_it_stands(drill: Drill, namespace: Mapping[str, object]) -> Standing:
    """Which cells define the needed names now, or why a check would grade something else."""
    ran = executions_of(namespace)
    needs = frozenset(drill.needs)
    numbers: set[int] = set()
    for name in drill.needs:
        defining = [execution for execution in ran if name in execution.binds]
        if not defining:
            continue  # not from a cell, or not there at all
        last = defining[-1]
        now = current_of(last, ran, needs)
        if now.error:
            return refused(f"cell [{now.number}] {now.error}, so its {name} is not graded", now)
        if now is not last and name in namespace:
            return refused(
                f"cell [{now.number}] does not define {name}, as cell [{last.number}] did"
                if now.cell is None
                else f"cell [{now.number}] no longer defines {name}, as it did when it ran as "
                f"[{last.number}]",
                now,
            )
        if name in namespace:
            numbers.add(last.number)
    for name, functions in typed.functions_run(drill, namespace).items():
        for function in functions:
            text = "".join(linecache.getlines(function.__code__.co_filename)).rstrip("\n")
            same = [execution for execution in ran if execution.source.rstrip("\n") == text]
            states = [(execution, current_of(execution, ran, needs)) for execution in same]
            if not states or any(now is then and not now.error for then, now in states):
                continue
            then, now = states[-1]
            why = f"your code uses {name}, which cell [{now.number}] no longer defines"
            if now.error:
                why = f"cell [{now.number}] {now.error}, and your code uses its {name}"
            return refused(
                f"{why}; the kernel still has the one that ran as [{then.number}]", now
            )
    return Standing(sorted(numbers))


def refused(found: str, execution: Execution) -> Standing:
    """Nothing to grade, because of what became of one cell."""
    look = f"at cell [{execution.number}]: what it defines now, and whether it ran to the end"
    finding = ENGINE_FINDINGS("not-attempted", found, look)
    return Standing((), finding, execution.number)


def current_of(
    execution: Execution, ran: Sequence[Execution], needs: frozenset[str]
) -> Execution:
    """The execution that counts for the same cell now.

    Where the front end gives no ids, a cell counts as replaced once a later one binds a needed
    name that it bound.
    """
    later = ran[ran.index(execution) + 1 :]
    if execution.cell is not None:
        again = [each for each in later if each.cell == execution.cell]
    else:
        again = [each for each in later if each.binds & execution.binds & needs]
    return again[-1] if again else execution


def texts_of(drill: Drill, namespace: Mapping[str, object]) -> str:
    """The source of the cells that define the needed names; data without a cell: its repr."""
    ran = executions_of(namespace)
    found: list[tuple[int, str]] = []
    for name in drill.needs:
        if name not in namespace:
            continue
        value = namespace[name]
        files = dict.fromkeys(code.co_filename for code in codes_of(value))
        sources = ["".join(linecache.getlines(file)) for file in files]
        if not any(sources):
            defining = [execution.source for execution in ran if name in execution.binds]
            sources = defining[-1:] or [f"{name} = {value!r}\n"]
        # In the order in which the cells were run, whatever the order of the names.
        found += [(place(source, ran), source.rstrip("\n")) for source in sources if source]
    return "\n\n".join(dict.fromkeys(source for _, source in sorted(found))) + "\n"


def place(source: str, ran: Sequence[Execution]) -> int:
    """The index of the last run of a cell with this source; -1 if there is none."""
    runs = [i for i, each in enumerate(ran) if each.source.rstrip("\n") == source.rstrip("\n")]
    return runs[-1] if runs else -1


def with_cell_numbers(text: str) -> str:
    """A stack or traceback as IPython writes it: ``Cell In[9], line 3`` instead of a file."""
    name_of = getattr(getattr(shell(), "compile", None), "format_code_name", None)

    def named(file: re.Match[str]) -> str:
        found = name_of(file[1]) if name_of else None
        return " ".join(found) if found else file[0]

    return re.sub(r'File "([^"]+)"', named, text)
