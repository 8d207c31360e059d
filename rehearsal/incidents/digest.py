"""Does a proof still hold? A digest of what a kind's jobs and their verdicts depend on.

    plans      the healthy, the faulty and the three fixed jobs, completely
    claims     the kind's limits, and the functions of its module
    MACHINERY  the modules that run a job, read it and judge it, and the trainer itself

Comments, docstrings and whatever a debrief says don't count. A change to one kind's plan leaves
the other kinds' proofs current.
"""

from __future__ import annotations

import ast
import hashlib
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from rehearsal.incidents.biotech.digest import BIO_MACHINERY, trainer_modules
from rehearsal.incidents.deployed import SHIPPED, module_names
from rehearsal.incidents.draw import Drawn
from rehearsal.incidents.tracks import track_of
from rehearsal.incidents.settings import apply

MACHINERY = (
    *(f"rehearsal.evidence.{name}" for name in "audit lineage run_plan run_records".split()),
    "rehearsal.faults.breaks",
    *(
        f"rehearsal.incidents.{name}"
        for name in (
            "agent alarms deployed evidence in_rank job job_records judge passing_time proof "
            "world"
        ).split()
    ),
)
# Arguments of a Kind, a Distractor or their parts that are words for a person.
WORDS = {
    *("title", "alert", "path", "chain", "prevention", "first_moves", "like"),
    *("explains", "suggests", "tempts", "sources"),
}


def digest(drawn: Drawn) -> str:
    """Of a case; equal as long as a proof of it needs no repeating."""
    rules = track_of(drawn).rules
    fixes = [drawn.reference, *drawn.wrong]
    plans = [
        drawn.healthy,
        drawn.faulty,
        *(apply(drawn.faulty, f.settings, rules) for f in fixes),
    ]
    parts = [plan.as_json() for plan in plans]
    parts += [f"{kind.id} {kind.alarm} {sorted(kind.related)}" for kind in drawn.kinds]
    parts += [measures_in(module, drawn.causes) for module in modules_of_claims(drawn)]
    parts += machinery()
    if drawn.deck.track == "biotech":
        parts += [text_of(module) for module in BIO_MACHINERY]
        parts += [text_of(module) for module in trainer_modules(drawn.faulty)]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]


def modules_of_claims(drawn: Drawn) -> list[str]:
    """The modules whose functions a case's claims or alarms may call."""
    measures = [claim.measure for kind in drawn.kinds for claim in kind.claims]
    found = {measure.__module__ for measure in measures if ".kinds." in measure.__module__}
    if drawn.deck.track != "general":
        # Its claims may all be figures of Evidence, and the limits are here all the same.
        found |= {kind.alert.__module__ for kind in drawn.kinds}
    return sorted(found) if drawn.is_faulty else ["rehearsal.incidents.distractors"]


def measures_in(module: str, kinds: list[str]) -> str:
    """A module's functions, and the claims of these kinds."""
    found = []
    for node in bare(path_of(module)).body:
        if isinstance(node, ast.FunctionDef):
            found.append(ast.unparse(node))
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in kinds:
            arguments = [each for each in ast.walk(node) if isinstance(each, ast.keyword)]
            found += [ast.unparse(each) for each in arguments if each.arg == "claims"]
    return "\n".join(found)


@cache
def machinery() -> list[str]:
    """The code that every proof depends on."""
    trainer = [SHIPPED / name for name in module_names()]
    return [ast.unparse(bare(path)) for path in [*map(path_of, MACHINERY), *trainer]]


def text_of(module: str) -> str:
    """A module's code."""
    return ast.unparse(bare(path_of(module)))


def path_of(module: str) -> Path:
    """Where a module's text is."""
    spec = find_spec(module)
    assert spec is not None, module
    return Path(str(spec.origin))


class Bare(ast.NodeTransformer):
    """Removes docstrings, and arguments that are words for a person."""

    def visit(self, node: ast.AST) -> ast.AST:
        """One node and all below it."""
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                node.body = node.body[1:] or [ast.Pass()]
        if isinstance(node, ast.Call):
            node.keywords = [each for each in node.keywords if each.arg not in WORDS]
        return self.generic_visit(node)


@cache
def bare(path: Path) -> ast.Module:
    """A module without docstrings and words."""
    tree = Bare().visit(ast.parse(path.read_text("utf-8")))
    assert isinstance(tree, ast.Module)
    return tree
