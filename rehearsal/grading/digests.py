"""Is a verdict that was kept still true? Digests of what verdicts depend on.

Not of the engine and of the rest of the grading: after changing those, judge everything again.
"""

from __future__ import annotations

import ast
import hashlib
from pathlib import Path

from rehearsal.grading import selftest
from rehearsal.grading.drill import Drill
from rehearsal.grading.plain_code import plain_lines

ROOT = Path(__file__).resolve().parents[2]


def judges_digest(drill: Drill) -> str:
    """A digest of what usually changes a verdict on a text, apart from the text.

    The grader and the modules beside it, what they and the answers use of the kit and of
    trainer_core, and the needed names; not the brief, the near misses or the answers.
    """
    found = hashlib.sha256(repr((drill.needs, drill.stages)).encode())
    waiting = sorted(drill.folder.glob("*.py"))
    for path in waiting:  # grows
        if not is_answer(path):
            found.update(code_of(path).encode())
        for module in imported_modules(path):
            if module.startswith(("rehearsal.kit.", "trainer_core.")):
                file = ROOT.joinpath(*module.split(".")).with_suffix(".py")
                if file.exists() and file not in waiting:
                    waiting.append(file)
    return found.hexdigest()[:12]


def code_of(path: Path) -> str:
    """A file's text without docstrings, comments and blank lines: they change no verdict.

    Not a dump of its syntax tree, which another version of Python writes differently.
    """
    lines = plain_lines(path.read_text("utf-8"))
    return "\n".join(line.rstrip() for line in lines if line.strip())


def imported_modules(path: Path) -> list[str]:
    """The modules that a file imports, and what might be one: ``from a import b`` gives a.b."""
    nodes = list(ast.walk(ast.parse(path.read_text("utf-8"))))
    sources = [n for n in nodes if isinstance(n, ast.ImportFrom) and n.module]
    found = [str(n.module) for n in sources]
    found += [f"{n.module}.{alias.name}" for n in sources for alias in n.names]
    found += [alias.name for n in nodes if isinstance(n, ast.Import) for alias in n.names]
    return sorted(set(found))


def is_answer(path: Path) -> bool:
    """Whether a file in a drill's folder is a text that gets judged."""
    return path.stem in ("blank", "solution") or path.stem.startswith("other_")


def selftest_digest(drill: Drill) -> str:
    """A digest of all texts that a drill's grader is tested on, and of what judges them."""
    return digest_with(judges_digest(drill), ([*selftest.SEEDS], [*selftest.texts(drill)]))


def mutants_digest(drill: Drill) -> str:
    """A digest of what mutants are made from, the correct texts, and of what judges them.

    Of the blank, too: what a learner is given isn't mutated.
    """
    return digest_with(judges_digest(drill), (drill.kind, drill.blank, drill.solutions()))


def digest_with(digest: str, facts: object) -> str:
    """A digest of another one and of more facts."""
    return hashlib.sha256(f"{digest} {facts!r}".encode()).hexdigest()[:12]
