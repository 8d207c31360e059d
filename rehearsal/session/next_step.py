"""What to do after a verdict: fix it, take a hint, compare, move on to the next drill."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rehearsal.grading.drill import Drill
from rehearsal.grading.verdict import Verdict
from rehearsal.session.addresses import is_colab, notebook_of, online
from rehearsal.session.history import Round


def with_next_step(
    verdict: Verdict, drill: Drill, after: Drill | None, rounds: Sequence[Round]
) -> Verdict:
    """The verdict, which ends with what to do next.

    Args:
        after: the next drill; None if every one has been passed.
        rounds: the history of all drills, with this attempt.
    """
    if verdict.status == "passed":
        then = [
            ("compare", f'diff("{drill.id}", "solution")'),
            ("say", f'narration("{drill.id}")'),
            ("next", f'start("{after.id}")' if after else "status()"),
        ]
        return replace(verdict, then=then)
    own = [one for one in rounds if one.drill == drill.id]
    has_seen_all = bool(own) and len(own[-1].of("hint")) >= len(drill.hints)
    if has_seen_all and verdict.after == f'hint("{drill.id}")':
        return replace(verdict, after=f'solution("{drill.id}", give_up=True)')
    return verdict


def drill_after(drill: Drill, drills: Sequence[Drill], rounds: Sequence[Round]) -> Drill | None:
    """The next in order that was never passed; after the last, from the first again."""
    passed = {one.drill for one in rounds if one.passed} | {drill.id}
    here = [each.id for each in drills].index(drill.id)
    left = [each for each in [*drills[here:], *drills[:here]] if each.id not in passed]
    return next(iter(left), None)


def link_to(drill: Drill, folder: Path) -> tuple[str, str] | None:
    """The title and the address of a drill's notebook, relative to a notebook in ``folder``.

    To the file, not to its folder: JupyterLab answers a link to a folder with an error. On
    Colab, where no notebook is a file, to the repository's. None if there is none to open.
    """
    title = f"open the next drill: {drill.title}"
    if is_colab():
        address = online(f"notebooks/drills/{notebook_of(drill.id, drill.order)}")
        return (title, address) if address else None
    for beside in ("", "drills/", "../drills/"):
        for path in sorted((folder / beside).glob(f"*_{drill.id}.ipynb")):
            if re.fullmatch(rf"\d+_{drill.id}\.ipynb", path.name):
                return title, f"{beside}{path.name}"
    return None


def link_to_notebook(notebook: str, folder: Path) -> str | None:
    """The address of a notebook, relative to a notebook or a shell in ``folder``.

    On Colab, the repository's. None if there is none to open.

    Args:
        notebook: its path under notebooks/, such as "handbook/12_data_correctness.ipynb".
    """
    if is_colab():
        return online(f"notebooks/{notebook}")
    for beside in ("", "../", "notebooks/", "../notebooks/", "../../notebooks/"):
        if (folder / beside / notebook).is_file():
            return f"{beside}{notebook}"
    return None
