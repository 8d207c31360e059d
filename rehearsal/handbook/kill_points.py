"""A SIGKILL at each system call of a save, and what a restart then finds.

The calls come from tracing one save (``rehearsal.faults.tracer``), so a save that is written
differently has other kill points, and nobody keeps a list of them.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rehearsal.engine.ranks import run_ranks
from rehearsal.evidence.pictures import BLUE, GREEN, INK, VERMILLION, Style, on_any_theme
from rehearsal.faults.tracer import Kill, Point, fork, read_trace, trace_this_rank, why_not
from rehearsal.handbook.on_ranks import answers_of
from rehearsal.session.primer import source_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from rehearsal.engine.rank import RankContext

Save = Callable[[Path, int], object]
Newest = Callable[[Path], int | None]

OLD, NEW = 1, 2  # the steps of the checkpoint before the kill, and of the one being saved
DEADLINE_S = 120.0


class Found(NamedTuple):
    """What a restart found after a kill."""

    call: str  # "write 3 of step-2.pt": the kill came just before it; "" after the last one
    newest: int | None  # the step that loads; None if the restart would crash


def found_after_each_kill(save: Save, newest: Newest) -> list[Found]:
    """Kill ``save(folder, 2)`` just before each of its system calls, and after the last.

    A call is a point if it's on a file below ``folder``. Each kill hits a process of its own,
    in a folder in which ``save(folder, 1)`` has finished.

    Args:
        newest: given the folder after a kill, the step that a restart would load. It may raise,
            as a restart would.

    Returns:
        One entry per kill. None at all where one process may not trace another, after a line
        that says so.

    Raises:
        RankFailed: if the save fails without any kill.
    """
    return [Found(call, step) for call, step in in_a_process(save, newest)]


def calls_of(save: Save) -> list[str]:
    """The system calls of ``save(folder, 2)`` on files below the folder, without any kill.

    Returns:
        None at all where one process may not trace another, after a line that says so.

    Raises:
        RankFailed: if the save fails.
    """
    return [call for call, _ in in_a_process(save, None)]


def in_a_process(save: Save, newest: Newest | None) -> list[tuple[str, int | None]]:
    """``kill_at_each_call`` in a process with torch loaded."""
    reports = run_ranks(
        kill_at_each_call,
        save,
        newest,
        world_size=1,
        deadline_s=DEADLINE_S,
        lines=source_of(save),
    )
    (answer,) = answers_of(reports, kill_at_each_call.__name__, DEADLINE_S)
    if isinstance(answer, str):
        print(f"No kills: {answer}. The rest of the chapter doesn't need them.")
        return []
    return [(call, step) for call, step in answer]


def kill_at_each_call(
    context: RankContext, save: Save, newest: Newest | None
) -> list[tuple[str, int | None]] | str:
    """Fork one child per kill: each call and what loads after it; or why nothing is traced.

    Args:
        newest: None to trace the calls without a kill.
    """
    root = context.folder / "kills"
    (root / "trial").mkdir(parents=True)
    if reason := why_not(root / "trial"):
        return reason
    points = trace_a_save(root / "traced", save, None)
    if not (root / "traced" / "saved").exists():
        raise RuntimeError("the save failed; what it printed is above")
    if newest is None:
        return [(str(point), None) for point in points]
    found: list[tuple[str, int | None]] = []
    for number, point in enumerate(points):
        folder = root / f"kill-{number}"
        trace_a_save(folder, save, Kill("before", point))
        found.append((str(point), step_that_loads(folder / "run", newest)))
        shutil.rmtree(folder)
    return [*found, ("", step_that_loads(root / "traced" / "run", newest))]


def trace_a_save(folder: Path, save: Save, kill: Kill | None) -> list[Point]:
    """Save the old step, then the new one in a traced child; its calls, in order."""
    (folder / "run").mkdir(parents=True)
    save(folder / "run", OLD)
    child = fork()
    if child == 0:
        try:
            trace_this_rank(folder / "run", folder / "trace", kill)
            save(folder / "run", NEW)
            (folder / "saved").touch()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    return read_trace(folder / "trace")[0]


def step_that_loads(folder: Path, newest: Newest) -> int | None:
    """The step that a restart would continue from; None if it would crash."""
    try:
        return newest(folder)
    except BaseException:  # not Exception: DCP's own isn't one
        return None


def unsynced_when_published(calls: list[str]) -> list[str]:
    """Files that a power loss may leave empty although their checkpoint has its final name.

    A write reaches the disk at the file's next fsync. This reads a save's calls in order, and
    names the files whose last write before the rename has no fsync after it.

    Args:
        calls: none if the save wasn't traced, and then the answer says so.
    """
    if not calls:
        return ["(unknown: not traced)"]
    dirty: dict[str, None] = {}
    for call in calls:
        name, _, rest = call.partition(" ")
        path = rest.partition(" of ")[2]
        if name == "write":
            dirty[path] = None
        elif name == "fsync":
            dirty.pop(path, None)
        elif name == "rename":
            return [Path(path).name for path in dirty]
    return [Path(path).name for path in dirty]


# The picture ----------------------------------------------------------------------------------


LOOKS: dict[int | None, tuple[str, str, Style]] = {
    OLD: ("the old checkpoint loads", BLUE, {}),
    NEW: ("the new checkpoint loads", GREEN, {}),
    None: ("nothing loads: the restart crashes", VERMILLION, {"hatch": "xxx"}),
}


def kill_picture(saves: Mapping[str, list[Found]]) -> Figure:
    """One row per way to save, one cell per kill: what the restart finds afterward.

    Args:
        saves: name -> what ``found_after_each_kill`` returned.
    """
    import matplotlib.pyplot as plt
    from matplotlib.patches import Patch, Rectangle

    rows = {name: found for name, found in saves.items() if found}
    longest = max((len(found) for found in rows.values()), default=1)
    figure, axes = plt.subplots(
        figsize=(10, 0.8 + 0.85 * max(1, len(rows))), dpi=100, layout="constrained"
    )
    plt.close(figure)  # a notebook shows it as its cell's value, and must not show it twice
    for row, (name, found) in enumerate(rows.items()):
        axes.text(0, row - 0.31, name, fontsize=10, fontweight="bold", va="bottom")
        for column, (call, newest) in enumerate(found):
            _, color, style = LOOKS[newest]
            box = (column, row - 0.26), 0.94, 0.36
            axes.add_patch(Rectangle(*box, facecolor=color, edgecolor="white", **style))
            label = call.partition(" ")[0] or "(done)"
            axes.text(column + 0.47, row + 0.28, label, fontsize=8.5, ha="center")
    axes.set(xlim=(0, longest), ylim=(len(rows) - 0.55, -0.7))
    axes.axis("off")
    handles = [Patch(facecolor=c, label=text, **style) for text, c, style in LOOKS.values()]
    figure.legend(handles=handles, loc="outside lower left", ncols=3, frameon=False, fontsize=9)
    figure.suptitle(
        "What a restart finds after a SIGKILL just before each system call",
        x=0.01, ha="left", fontsize=12, fontweight="bold", color=INK,
    )  # fmt: skip
    return on_any_theme(figure)
