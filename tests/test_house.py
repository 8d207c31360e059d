"""The coach's rooms: who may import whom, and what never meets torch."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from fresh_interpreter import modules_loaded_by

ROOT = Path(__file__).resolve().parents[1]
HOUSE = ROOT / "rehearsal"
DRILLS = HOUSE / "drills"
TRANSCRIPTS = HOUSE / "interviews" / "transcripts"  # what recorded candidates typed
# What each room may import besides itself; a dotted entry is one module of a room.
MAY_IMPORT: dict[str, set[str]] = {
    "__main__": {
        *("__init__", "deck", "incidents", "interviews", "plan", "session", "grading"),
        "engine",
    },
    "__init__": {"deck", "incidents", "interviews", "plan", "session", "grading", "engine"},
    # Of the plan: which topic comes first, which is data.
    "deck": {"session", "engine", "plan.route"},
    "session": {"grading", "engine", "evidence"},  # of evidence: how pictures are drawn
    "grading": {"engine"},
    "handbook": {"session", "grading", "engine", "evidence", "faults", "trainer_core"},
    "drills": {"kit", "grading", "engine", "trainer_core"},
    "kit": {"grading.verdict", "engine"},
    # Of the session: where the history is kept.
    "interviews": {"deck", "incidents", "session", "grading", "engine", "evidence"},
    "incidents": {"session", "evidence", "faults", "engine", "trainer_core"},
    # What a person has done is in all of these; of the engine: how a message is shown.
    "plan": {
        *("interviews", "deck", "incidents", "session", "grading", "evidence"),
        "engine.plain_message",
    },
    "faults": {"evidence", "engine", "trainer_core"},
    "evidence": {"trainer_core"},
    "engine": set(),
}
# Judges and all that they need: plain data.
WITHOUT_TORCH = ["kit.judge", "grading.verdict", "engine.reports"]
Edge = tuple[str, str]


def is_learners(path: Path) -> bool:
    """Whether a file is a text that gets judged, not our own code."""
    if path.is_relative_to(TRANSCRIPTS):
        return True
    is_text = path.stem in ("blank", "solution") or path.stem.startswith("other_")
    return is_text and path.is_relative_to(DRILLS)


@cache
def modules() -> dict[str, Path]:
    """Dotted names below ``rehearsal`` and their files: "kit.judge.weights", "__init__"."""
    found = {}
    for path in sorted(HOUSE.rglob("*.py")):
        if is_learners(path):
            continue
        parts = path.relative_to(HOUSE).with_suffix("").parts
        is_package = parts[-1] == "__init__" and len(parts) > 1
        found[".".join(parts[:-1] if is_package else parts)] = path
    return found


def nodes_of(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes except those that only a type checker executes."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            waiting += node.orelse
        else:
            waiting += ast.iter_child_nodes(node)


@cache
def imports_of(module: str) -> frozenset[str]:
    """Dotted names that a module imports, wherever in it: "torch.nn", "rehearsal.kit.judge"."""
    path, found = modules()[module], set[str]()
    for node in nodes_of(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            source = node.module or ""
            if node.level:
                above = module.split(".")[: -node.level]
                source = ".".join(["rehearsal", *above, *filter(None, [source])])
            found |= {source, *(f"{source}.{alias.name}" for alias in node.names)}
    return frozenset(found)


@cache
def ours_in(module: str) -> frozenset[str]:
    """Our modules that a module imports."""
    found = set[str]()
    for name in imports_of(module):
        if name == "rehearsal":
            found.add("__init__")
        elif name.startswith("rehearsal."):
            found.add(name.removeprefix("rehearsal."))
    return frozenset(found & set(modules()) - {module})


def room_of(module: str) -> str:
    return module.partition(".")[0]


def reached_from(module: str) -> set[str]:
    """All of our modules that importing this one imports, itself included."""
    reached, waiting = set[str](), [module]
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached.add(name)
            waiting += ours_in(name)
    return reached


def in_room(room: str) -> list[str]:
    """A module, or all modules of a package."""
    return [name for name in modules() if name == room or name.startswith(f"{room}.")]


class TestRooms:
    def test_there_are_at_most_fourteen(self) -> None:
        """A newcomer looks for a room, not for one of forty files.

        Twelve, until the mock interview and the day's plan came: each is a way to practice of
        its own, like the deck and the incidents, and part of no other.
        """
        entries = [path.name for path in HOUSE.iterdir() if path.name != "__pycache__"]
        assert len(set(entries) - {"__init__.py"}) <= 14, entries
        assert {room_of(module) for module in modules()} == set(MAY_IMPORT)

    def test_imports_go_one_way(self) -> None:
        """A room that knows its users cannot be understood, tested or changed without them."""
        upward = []
        for module in modules():
            allowed = MAY_IMPORT[room_of(module)]
            for name in ours_in(module):
                if room_of(name) != room_of(module) and not {name, room_of(name)} & allowed:
                    upward.append((module, name))
            uses_core = any(
                name.partition(".")[0] == "trainer_core" for name in imports_of(module)
            )
            if uses_core and "trainer_core" not in allowed:
                upward.append((module, "trainer_core"))
        assert upward == []

    def test_there_is_no_cycle(self) -> None:
        """A cycle works until somebody imports the other module first."""
        cycles = [
            (module, name)
            for module in modules()
            for name in ours_in(module)
            if module in reached_from(name)
        ]
        assert cycles == []


class TestJudges:
    @pytest.mark.parametrize("room", WITHOUT_TORCH)
    def test_they_cannot_reach_torch(self, room: str) -> None:
        """A judge that sees tensors judges the process, and cannot be replayed on evidence."""
        for module in in_room(room):
            for name in reached_from(module):
                tops = {imported.partition(".")[0] for imported in imports_of(name)}
                assert not tops & {"torch", "numpy", "trainer_core"}, f"{module} reaches {name}"

    @pytest.mark.ranks
    def test_importing_them_leaves_torch_out(self) -> None:
        """Reading the imports misses one that happens by name, or in a package."""
        names = [f"rehearsal.{name}" for room in WITHOUT_TORCH for name in in_room(room)]
        assert len(names) > 6
        loaded = modules_loaded_by(f"import {', '.join(names)}")
        assert set(names) <= loaded
        assert not loaded & {"torch", "numpy"}

    def test_observers_and_judges_do_not_know_each_other(self) -> None:
        """One runs in a rank, the other here; only records pass between them."""
        for module in in_room("kit.observe"):
            assert not ours_in(module) & set(in_room("kit.judge")), module
            assert "rehearsal.grading.verdict.Finding" not in imports_of(module), module
        for module in in_room("kit.judge"):
            assert not reached_from(module) & set(in_room("kit.observe")), module


# ---------------------------------------------------------------- drill folders


def folders() -> list[str]:
    return sorted(path.parent.name for path in DRILLS.glob("*/grader.py"))


class TestDrillFolders:
    @pytest.mark.parametrize("folder", folders())
    def test_a_folder_is_complete(self, folder: str) -> None:
        """Otherwise a change in one drill could change what another one accepts."""
        for module in in_room(f"drills.{folder}"):
            others = ours_in(module) - set(in_room(f"drills.{folder}"))
            assert not [name for name in others if room_of(name) == "drills"], module
            assert not [n for n in imports_of(module) if n.startswith("rehearsal_grader")], (
                module
            )

    @pytest.mark.parametrize("folder", folders())
    def test_a_module_next_to_a_grader_observes_or_judges(self, folder: str) -> None:
        """Only the grader has both sides; a module with both can't be read as either."""
        observers = {*in_room("kit.observe"), "engine.rank"}
        for module in in_room(f"drills.{folder}"):
            if module.endswith(".grader"):
                continue
            tops = {name.partition(".")[0] for name in imports_of(module)}
            observes = "torch" in tops or ours_in(module) & observers
            makes_findings = "rehearsal.grading.verdict.Finding" in imports_of(module)
            judges = makes_findings or ours_in(module) & set(in_room("kit.judge"))
            assert not (observes and judges), module

    def test_each_file_has_a_reader(self) -> None:
        """A module that no grader imports is dead code."""
        for folder in folders():
            read = reached_from(f"drills.{folder}.grader")
            unread = set(in_room(f"drills.{folder}")) - read - {f"drills.{folder}"}
            assert not unread, unread


def judging(tree: ast.Module) -> list[ast.FunctionDef]:
    """A grader's functions that are given reports, and those that they call."""
    own = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    found = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and takes_reports(n)]
    for function in found:  # grows
        names = [node for node in ast.walk(function) if isinstance(node, ast.Name)]
        local = {node.id for node in names if isinstance(node.ctx, ast.Store)}
        local |= {node.arg for node in ast.walk(function) if isinstance(node, ast.arg)}
        called = {node.id for node in names} & set(own) - local
        found += [own[name] for name in sorted(called) if own[name] not in found]
    return found


def takes_reports(function: ast.FunctionDef) -> bool:
    return any(argument.arg in ("reports", "report") for argument in function.args.args)


def names_of_ranks(tree: ast.Module) -> set[str]:
    """What a grader imports for its bodies: torch, the trainer, observers."""
    found = set()
    for node in tree.body:
        if isinstance(node, ast.Import):
            found |= {(a.asname or a.name).partition(".")[0] for a in node.names}
        elif isinstance(node, ast.ImportFrom):
            source = node.module or ""
            if source.startswith(("torch", "trainer_core", "numpy", "rehearsal.kit.observe")):
                found |= {alias.asname or alias.name for alias in node.names}
    return found - set(sys.stdlib_module_names)


class TestGraders:
    @pytest.mark.parametrize("folder", folders())
    def test_its_judges_touch_no_tensor(self, folder: str) -> None:
        """A verdict is a function of what was recorded, so it can be reproduced from that."""
        path = DRILLS / folder / "grader.py"
        tree = ast.parse(path.read_text("utf-8"))
        forbidden = names_of_ranks(tree)
        judges = judging(tree)
        assert judges or "judge=" in path.read_text("utf-8")
        for function in judges:
            for node in ast.walk(function):
                assert not isinstance(node, ast.Import | ast.ImportFrom), function.name
                assert not (isinstance(node, ast.Name) and node.id in forbidden), (
                    f"{function.name} uses {ast.unparse(node)}"
                )


# ---------------------------------------------------------------- the shared kit


@cache
def definitions() -> dict[tuple[str, str], frozenset[tuple[str, str]]]:
    """Each name that a module of the kit defines, and the kit's names that it uses."""
    found = {}
    for module in in_room("kit"):
        tree = ast.parse(modules()[module].read_text("utf-8"))
        own: dict[str, ast.AST] = {}
        known: dict[str, tuple[str, str]] = {}
        for node in tree.body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                own[node.name] = node
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                own |= {
                    n.id: node for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)
                }
            elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith(
                "rehearsal.kit."
            ):
                source = (node.module or "").removeprefix("rehearsal.")
                known |= {a.asname or a.name: (source, a.name) for a in node.names}
        known |= {name: (module, name) for name in own}
        for name, node in own.items():
            used = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
            uses = {known[n] for n in used & set(known)} - {(module, name)}
            found[module, name] = frozenset(uses)
    return found


def used_by(folder: str) -> set[tuple[str, str]]:
    """The kit's names that a drill imports, and those that these use."""
    waiting = [
        (name.rpartition(".")[0].removeprefix("rehearsal."), name.rpartition(".")[2])
        for module in in_room(f"drills.{folder}")
        for name in imports_of(module)
        if name.startswith("rehearsal.kit.")
    ]
    reached = set[tuple[str, str]]()
    while waiting:
        pair = waiting.pop()
        if pair in definitions() and pair not in reached:
            reached.add(pair)
            waiting += definitions()[pair]
    return reached


class TestSharedKit:
    def test_each_name_serves_two_drills(self) -> None:
        """What only one drill needs belongs in its folder, where its reader looks for it."""
        users = {folder: used_by(folder) for folder in folders()}
        lonely = {}
        for pair in definitions():
            names = [folder for folder, used in users.items() if pair in used]
            if len(names) < 2 and not pair[1].startswith("_"):
                lonely[".".join(pair)] = names
        assert lonely == {}

    def test_a_name_has_one_meaning(self) -> None:
        """Nobody who reads a grader can tell two helpers of one name apart."""
        names = [name for _, name in definitions() if not name.startswith("_")]
        shared = {"CODES"}  # of each module its own, as in a grader
        assert sorted({n for n in names if names.count(n) > 1} - shared) == []

    def test_no_grader_defines_what_the_kit_has(self) -> None:
        """A second copy drifts from the first."""
        kit = {name for _, name in definitions() if not name.startswith("_")} - {"CODES"}
        again = set()
        for folder in folders():
            for module in in_room(f"drills.{folder}"):
                tree = ast.parse(modules()[module].read_text("utf-8"))
                own = {
                    n.name for n in tree.body if isinstance(n, ast.FunctionDef | ast.ClassDef)
                }
                again |= {f"{module}.{name}" for name in own & kit}
        assert sorted(again) == []
