"""Graders are tested on mechanical mistakes, and on changes that are none."""

from __future__ import annotations

import ast
import difflib
import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rehearsal import drills
from rehearsal.grading import drill as drill_module
from rehearsal.grading import digests, drills_page, mutation_record, mutation_score, new_drill
from rehearsal.grading import selftest
from rehearsal.grading.digests import judges_digest, mutants_digest, selftest_digest
from rehearsal.grading.drill import Drill, load
from rehearsal.grading.harmless import harmless
from rehearsal.grading.mutation_record import Judged, record_of, score_of, survivors_of
from rehearsal.grading.mutants import Mutant, mutants
from rehearsal.grading.pool import processes
from rehearsal.__main__ import main


def broken(source: str, given: str = "", *, keeps_given: bool = False) -> dict[str, list[str]]:
    """By operator: the lines that its mutants of a text have and the text has not."""
    found: dict[str, list[str]] = {}
    for mutant in mutants("t", source, given, keeps_given=keeps_given):
        lines = list(difflib.ndiff(source.splitlines(), mutant.source.splitlines()))
        new = [line[2:].strip() for line in lines if line.startswith("+ ")]
        found.setdefault(mutant.operator, []).append(" / ".join(new))
    return found


# A text, an operator, and every line that the operator makes of it.
EACH = [
    ("if a < b: f()", "comparison", ["if a <= b: f()"]),
    ("x = [a >= b, c == d]", "comparison", ["x = [a > b, c == d]", "x = [a >= b, c != d]"]),
    ("x = [a > b, c <= d]", "comparison", ["x = [a >= b, c <= d]", "x = [a > b, c < d]"]),
    ("x = a != b", "comparison", ["x = a == b"]),
    ("x = a is b", "comparison", ["x = a is not b"]),
    ("x = (a) is not (b)", "comparison", ["x = (a) is (b)"]),
    ("x = a not in b", "comparison", ["x = a in b"]),
    ("x = (a + b) * c", "arithmetic", ["x = (a + b) / c", "x = (a - b) * c"]),
    ("x = (a + b) * c", "operand dropped", ["x = (a + b)", "x = (a) * c"]),
    ("x //= y", "arithmetic", ["x *= y", "x = y"]),
    ("x = f(5, 0)", "constant", ["x = f(6, 0)", "x = f(4, 0)", "x = f(5, 1)"]),
    ("x = f(True)", "constant", ["x = f(False)"]),
    ("x = f(0.5)", "constant", ["x = f(1.0)"]),
    ("x = y[0]", "last for first", ["x = y[-1]"]),
    ("x = y[-1]", "first for last", ["x = y[0]"]),
    (
        "for i in range(a): f()",
        "boundary",
        ["for i in range((a) + 1): f()", "for i in range((a) - 1): f()"],
    ),
    ("def f():\n  x = s['step']", "boundary", ["x = s['step'] + 1"]),
    ("x = y[a::b]", "bound dropped", ["x = y[::b]", "x = y[a:]"]),
    ("x = y[a:b]", "bound dropped", ["x = y[:b]", "x = y[a:]"]),
    ("if a < b: f()", "condition negated", ["if not (a < b): f()"]),
    ("if a: f()", "condition always true", ["if True: f()"]),
    ("if a: f()", "condition never true", ["if False: f()"]),
    ("x = a and b", "or for and", ["x = a or b"]),
    ("x = (a or\n  b)", "and for or", ["x = (a and"]),
    ("x = a and b", "condition dropped", ["x = (b)", "x = (a)"]),
    ("x = not a", "not dropped", ["x = (a)"]),
    ("f(a, b, c)", "arguments swapped", ["f(b, a, c)", "f(a, c, b)"]),
    ("f(a, b=1, c=2)", "keyword dropped", ["f(a, c=2)", "f(a, b=1)"]),
    ("f(b=1)", "keyword dropped", ["f()"]),
    ("x = y.detach().clone()", "call dropped", ["x = (y.detach())", "x = (y).clone()"]),
    ("x = sorted(y)", "call dropped", ["x = list(y)"]),
    ("x = min(a, b)", "max for min", ["x = max(a, b)"]),
    ("x = y.sum()", "mean for sum", ["x = y.mean()"]),
    ('x = f(reduction="sum")', "mean for sum", ['x = f(reduction="mean")']),
    ("x = any(y)", "all for any", ["x = all(y)"]),
    ("f(op=dist.ReduceOp.MAX)", "MIN for MAX", ["f(op=dist.ReduceOp.MIN)"]),
    ("def f(rank): g(rank)", "0 for rank", ["def f(rank): g(0)"]),
    ("def f(rank): g(t, 0)", "rank for 0", ["def f(rank): g(t, rank)"]),
    ("x = y[self.rank :: self.world_size]", "1 for world_size", ["x = y[self.rank :: 1]"]),
    ("x = dist.get_rank()", "0 for rank", ["x = 0"]),
    ("dist.barrier()", "collective dropped", ["pass"]),
    ("dist.barrier()", "collective doubled", ["dist.barrier(); dist.barrier()"]),
    ("w = dist.all_reduce(t)", "collective doubled", []),  # at the top level of a module
    (
        "def f(): w = dist.all_reduce(t)",
        "collective doubled",
        ["def f(): w = dist.all_reduce(t); w = dist.all_reduce(t)"],
    ),
    ("save(\n  x)", "statement dropped", ["pass"]),
    ("save(x)", "statement doubled", ["save(x); save(x)"]),
    ("x += y", "statement doubled", ["x += y; x += y"]),
    ("def f(self): self.x = y", "statement dropped", ["def f(self): pass"]),
    ("def f(x): x = y", "statement dropped", ["def f(x): pass"]),
    ("raise E(1 + 2)", "statement dropped", ["pass"]),
    ("for i in x:\n  break", "continue for break", ["continue"]),
    ("for i in x:\n  continue", "break for continue", ["break"]),
    ("def f(): return x", "nothing returned", ["def f(): return None"]),
    ("def f():\n  if a: return\n  g()", "return dropped", ["if a: pass"]),
    ("with a(): f()", "context dropped", ['with __import__("contextlib").nullcontext(): f()']),
    ("try: f()\nexcept OSError: g()", "except widened", ["except Exception: g()"]),
    ("try: f()\nexcept Exception: g()", "except narrowed", ["except OSError: g()"]),
    ("try: f()\nexcept OSError: g()", "except dropped", ["except (): g()"]),
    ("@no_grad()\ndef f(): g()", "decorator dropped", [""]),
    ("x = f'step-{n:08d}.pt'", "leading zeros dropped", ["x = f'step-{n}.pt'"]),
]  # fmt: skip


class TestMistakes:
    @pytest.mark.parametrize(("source", "operator", "lines"), EACH)
    def test_an_operator_makes_the_mistake_that_it_is_named_for(
        self, source: str, operator: str, lines: list[str]
    ) -> None:
        """An operator that edits the wrong place leaves a hole where it seems to look."""
        assert sorted(broken(source).get(operator, [])) == sorted(lines)

    def test_every_operator_is_in_this_table(self) -> None:
        """An operator that nothing tests may do nothing."""
        made = {mutant.operator for drill in drills() for mutant in mutants_of(drill.id)}
        tested = {operator for _, operator, _ in EACH}
        # One of "max for min" and its like is enough: they come from one table.
        assert {name for name in made - tested if " for " not in name} == set()

    def test_what_says_nothing_about_behavior_is_left_alone(self) -> None:
        """Each of these would be a survivor that somebody has to argue away."""
        source = '''
def f(a: int = 1, *, b: "Literal[0]" = 0) -> tuple[int, 3]:
    """Returns 1 + 2."""
    if a:
        raise ValueError(f"{a + 1} is not {b - 1}" % 2)
    optimizer.zero_grad()
    return zip(a, b, strict=True)
'''
        given = "def f(a: int = 1, *, b=0): ..."
        found = broken(source, given)
        made = {line for lines in found.values() for line in lines}
        assert made == {
            "if not (a):", "if True:", "if False:", "pass", "return None",
        }  # fmt: skip

    def test_what_the_blank_gives_is_edited_only_in_a_bug_drill(self) -> None:
        """Nobody can make a mistake in code they do not type."""
        given = "LIMIT = 3\n\n\ndef helper(a):\n    return a + 1\n\n\ndef f(a):\n    ...\n"
        source = given.replace("    ...", "    return helper(a) * 2")
        assert broken(source, given, keeps_given=True)["arithmetic"] == ["return helper(a) / 2"]
        assert broken(source, given)["arithmetic"] == ["return a - 1", "return helper(a) / 2"]
        assert "LIMIT = 4" in broken(source, given)["constant"]

    def test_a_name_that_would_be_missing_is_no_mutant(self) -> None:
        """Any run fails with NameError, so refusing it proves nothing about a grader."""
        assert "statement dropped" not in broken("def f():\n    x = g()\n    return x")
        assert "statement dropped" in broken(
            "def f():\n    x = g()\n    x = h(x)\n    return x"
        )

    @pytest.mark.parametrize("drill", drills(), ids=lambda drill: drill.id)
    def test_mutants_of_real_answers_differ(self, drill: Drill) -> None:
        """Two equal mutants count one mistake twice; one that is the answer is no mistake."""
        for name, source in drill.solutions().items():
            found = [
                mutant for mutant in mutants_of(drill.id) if mutant.id.startswith(f"{name}")
            ]
            trees = {ast.dump(ast.parse(mutant.source)) for mutant in found}
            assert ast.dump(ast.parse(source)) not in trees
            assert len(trees) == len(found) == len({mutant.id for mutant in found})

    def test_they_are_the_same_every_time(self) -> None:
        """An entry in survivors.toml names a mutant of another day."""
        source = load("lift_to_distributed").solution
        assert list(mutants("solution", source)) == list(mutants("solution", source))


@cache
def mutants_of(drill_id: str) -> list[Mutant]:
    """The mutants of all correct texts of a drill."""
    drill = load(drill_id)
    texts, keeps_given = drill.solutions().items(), not drill.is_broken
    return [
        mutant
        for name, source in texts
        for mutant in mutants(name, source, drill.blank, keeps_given=keeps_given)
    ]


class TestIds:
    SOURCE = "def f(a):\n    a += 1\n    if a < 3:\n        g(a)\n    a += 1\n    return a\n"

    def ids(self, source: str) -> set[str]:
        return {mutant.id for mutant in mutants("solution", source)}

    def test_they_show_the_edit(self) -> None:
        """Whoever classifies survivors reads ids, hundreds of them."""
        assert "solution.f: comparison: if a < 3: => if a <= 3:" in self.ids(self.SOURCE)

    @pytest.mark.parametrize(
        "edit",
        [
            lambda s: "import os\n\n\n" + s,
            lambda s: s.replace("    if", "    # A reason.\n    if"),
            lambda s: s.replace("if a < 3:", "if a < 3:  # a reason"),
            lambda s: s.replace("g(a)", "g(a, 7)"),
            lambda s: s + "\n\ndef h(a):\n    a += 1\n    return a\n",
        ],
    )
    def test_they_survive_edits_elsewhere(self, edit: Callable[[str], str]) -> None:
        """Else every change of an answer would make its survivors' entries stale."""
        before = {i for i in self.ids(self.SOURCE) if "g(a)" not in i}
        assert before <= self.ids(edit(self.SOURCE))

    def test_equal_lines_are_counted(self) -> None:
        """Two mutants with one id cannot both be classified."""
        ids = self.ids(self.SOURCE)
        assert "solution.f: statement dropped: a += 1 => pass" in ids
        assert "solution.f: statement dropped: a += 1 => pass #2" in ids

    def test_a_long_line_is_cropped_around_the_edit(self) -> None:
        """An id has to fit on a screen, with the edit in it."""
        (found,) = [
            i
            for i in self.ids(f"x = f({'a, ' * 60}b < c, {'d, ' * 60})")
            if ": comparison:" in i
        ]
        assert len(found) < 240
        assert "b < c" in found
        assert "b <= c" in found


# ---------------------------------------------------------------- harmless changes

SAMPLE = """
from math import floor

LIMIT = 3


def helper(a, b):
    return a * LIMIT + b


def run(n, m):
    first = n
    second = m
    count = 0
    total = 7
    seen = [floor(k / 2) for k in range(n) if k != m]
    pairs = []
    for item in seen:
        pairs.append((item, m))
    scaled = helper(n, m)
    for index in range(m):
        count += 1
        if index > first:
            total -= helper(index, 2)
        else:
            total += second
    doubled = first + second
    result = (doubled, scaled)
    return result, count, total, seen, pairs, [-k if k < m else k for k in seen]
"""
# What shows that each kind of change was made to the sample.
MARKS = {
    "plain": "LIMIT = 3",
    "renamed": "the_count",
    "reordered": "second = m\n    first = n",
    "looped": "seen.append(floor(each_k / 2))",
    "comprehended": "pairs = [(item, m) for item in seen]",
    "extracted": "def compute_it(m, n):\n    return [",
    "inlined": "result = (first + second, scaled)",
    "inlined_helpers": "scaled = n * LIMIT + m",
    "spelled_out": "count = count + 1",
    "turned": "if not index > first:\n            total += second",
    "documented": '"""Does what its name says."""',
    "parenthesized": "first = (n)",
}


def run_of(source: str) -> Callable[[int, int], object]:
    """The function ``run`` of a text."""
    names: dict[str, Any] = {}
    exec(compile(source, "text", "exec", dont_inherit=True), names)
    found: Callable[[int, int], object] = names["run"]
    return found


CHANGED = {change.id.removeprefix("s: "): change.source for change in harmless("s", SAMPLE)}


class TestHarmless:
    def test_each_kind_is_made(self) -> None:
        """A change that is never made passes every grader."""
        assert set(CHANGED) == set(MARKS)
        for kind, mark in MARKS.items():
            assert mark in CHANGED[kind], CHANGED[kind]
            assert (mark in SAMPLE) == (kind == "plain"), kind

    @given(st.integers(0, 12), st.integers(0, 12))
    def test_they_compute_the_same(self, n: int, m: int) -> None:
        """If they did not, a grader would be right to refuse them."""
        expected = run_of(SAMPLE)(n, m)
        for kind, source in CHANGED.items():
            assert run_of(source)(n, m) == expected, kind

    @pytest.mark.parametrize(
        ("kind", "body"),
        [
            ("reordered", "a = x\n    b = a"),  # needs the one before
            ("reordered", "a = f(x)\n    b = g(y)"),  # calls may depend on each other
            ("reordered", "a, b = x, y\n    a = z"),  # the later one wins
            ("looped", "x = [x for x in x]"),
            ("looped", "a = [(yield k) for k in x]"),
            ("comprehended", "a = []\n    for k in x:\n        a.append(k)\n    print(k)"),
            ("comprehended", "a = []\n    for k in x:\n        a.append(len(a))"),
            ("extracted", "a = b() if x else c"),  # c may be unbound
            ("extracted", "a = super().f()"),
            ("extracted", "import io\n    a = io.f(x)"),  # the helper has no io
            ("inlined", "a = x\n    f(lambda: a)"),  # read later
            ("inlined", "a = x.b\n    f(g(), a)"),  # g may change x
            ("spelled_out", "a += 1"),  # a tensor would be changed in place
            ("spelled_out", "a = f()\n    a += 1"),
        ],
    )
    def test_no_change_is_made_where_it_might_matter(self, kind: str, body: str) -> None:
        """A change that is not harmless makes a grader that refuses it look bad."""
        source = f"def f(x, y, z, a):\n    {body}\n"
        assert f"s: {kind}" not in [change.id for change in harmless("s", source)]

    def test_what_others_know_keeps_its_name(self) -> None:
        """Arguments are passed by name, attributes read from outside, globals shared."""
        source = (
            "STATE = 0\n\n\ndef f(a, *, b):\n    global STATE\n    STATE = a\n    c = b\n"
            "    try:\n        pass\n    except E as error:\n        print(error)\n"
            "    class D:\n        e = c\n    return D.e\n"
        )
        (changed,) = [c.source for c in harmless("s", source) if c.id == "s: renamed"]
        wanted = source.replace("c = b", "the_c = b").replace("e = c", "e = the_c")
        assert ast.dump(ast.parse(changed)) == ast.dump(ast.parse(wanted))

    @pytest.mark.parametrize("drill", drills(), ids=lambda drill: drill.id)
    def test_real_answers_keep_what_they_define(self, drill: Drill) -> None:
        """A grader calls the needed names with the arguments in the brief."""
        for name, source in drill.solutions().items():
            for change in harmless(name, source):
                compile(change.source, name, "exec", dont_inherit=True)
                assert signatures(source).items() <= signatures(change.source).items(), (
                    change.id
                )


def signatures(source: str) -> dict[str, str]:
    """The top-level functions and classes of a text, with the names of their parameters."""
    found = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef):
            for argument in ast.walk(node.args):
                if isinstance(argument, ast.arg):
                    argument.annotation = None
            found[node.name] = ast.unparse(node.args)
        elif isinstance(node, ast.ClassDef):
            found[node.name] = "class"
    return found


# ---------------------------------------------------------------- scores


def is_passed(*ids: str) -> list[Judged]:
    return [Judged(each, "passed") for each in ids]


@pytest.fixture
def own_drill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Drill]:
    """A drill of its own: the template, with one of its two scenarios taken away."""
    monkeypatch.setattr(drill_module, "DRILLS", tmp_path)
    for cached in (load, drill_module.drill_ids, drill_module.former_ids):
        cached.cache_clear()
    folder = new_drill.create("average_over_ranks", tmp_path)
    (folder / "survivors.toml").unlink()
    grader = folder / "grader.py"
    text = grader.read_text()
    both = '(("several ranks", several), ("one rank", one))'
    assert text.count(both) == 1
    grader.write_text(text.replace(both, '(("one rank", one),)'))
    yield load("average_over_ranks")
    for cached in (load, drill_module.drill_ids, drill_module.former_ids):
        cached.cache_clear()


Digest = Callable[[Drill], str]
DIGESTS: list[Digest] = [judges_digest, selftest_digest, mutants_digest]


def load_again(drill: Drill) -> Drill:
    """The drill as its files are now."""
    load.cache_clear()
    return load(drill.id)


ENTRY = '[[survivor]]\nmutant = "{}"\nis = "{}"\nbecause = "{}"\n'


class TestScore:
    def test_survivors_are_equivalent_outside_or_holes(self, own_drill: Drill) -> None:
        """Only a mutant that breaks what the brief asks for counts against a grader."""
        (own_drill.folder / "survivors.toml").write_text(
            ENTRY.format("a", "equivalent", "x") + ENTRY.format("b", "outside", "y")
        )
        judged = [*is_passed("a", "b", "c"), Judged("d", "wrong-sum"), Judged("e", "hung")]
        score = score_of(own_drill, record_of(judged, digest="", seeds=3))
        assert (score.mutants, score.refused, score.counted) == (5, 2, 3)
        assert (score.equivalent, score.outside, score.holes) == (1, 1, ["c"])
        assert score.fraction == 2 / 3
        assert not score.ok

    def test_97_percent_is_enough(self, own_drill: Drill) -> None:
        """The bound that is promised."""
        refused = [Judged(f"r{i}", "hung") for i in range(97)]
        for holes, ok in ((3, True), (4, False)):
            judged = refused + is_passed(*(f"h{i}" for i in range(holes)))
            assert score_of(own_drill, record_of(judged, digest="", seeds=1)).ok is ok

    def test_an_entry_that_no_survivor_has_is_stale(self, own_drill: Drill) -> None:
        """The grader refuses it by now, or the text has changed: the argument is void."""
        (own_drill.folder / "survivors.toml").write_text(ENTRY.format("d", "equivalent", "x"))
        record = record_of([Judged("d", "wrong-sum")], digest="", seeds=3)
        score = score_of(own_drill, record)
        assert score.stale == ["d"]
        assert not score.ok
        assert score_of(own_drill, record, partial=True).stale == []

    def test_a_harmless_change_that_is_refused_is_never_enough(self, own_drill: Drill) -> None:
        """Refusing a right answer costs more trust than passing a wrong one."""
        judged = [Judged("c", "crashed", True), Judged("p", "passed", True)]
        score = score_of(own_drill, record_of(judged, digest="", seeds=3))
        assert (score.harmless, score.rejected, score.ok) == (2, ["c"], False)
        assert "1 of 2 harmless changes passed" in mutation_record.line_of(own_drill, score)

    def test_a_grader_that_fails_has_refused_nothing(self, own_drill: Drill) -> None:
        """Else a grader that raises on everything would score 100 %."""
        judged = [Judged("a", "grader-failed"), Judged("b", "hung")]
        score = score_of(own_drill, record_of(judged, digest="", seeds=3))
        assert (score.refused, score.unjudged, score.ok) == (1, ["a"], False)

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("[[survivor", "survivors.toml"),
            (
                '[[survivor]]\nmutant = "a"\nis = "equivalent"\n',
                "exactly mutant, is and because",
            ),
            (ENTRY.format("a", "hole", "x"), "A hole gets no entry"),
            (ENTRY.format("a", "outside", " "), "its reason in `because`"),
            (2 * ENTRY.format("a", "outside", "x"), "there twice"),
            ('[survivor]\nmutant = "a"\n', r"Begin it with \[\[survivor\]\]"),
            ("survivor = [1]\n", "1 is not an entry of texts"),
            (ENTRY.format("a", "outside", "x") + "because_of = 1\n", "not an entry of texts"),
        ],
    )
    def test_a_mistake_in_survivors_toml_is_explained(
        self, own_drill: Drill, text: str, message: str
    ) -> None:
        """An entry that is silently ignored would show as a hole that somebody has argued."""
        (own_drill.folder / "survivors.toml").write_text(text)
        with pytest.raises(mutation_record.BadSurvivors, match=message):
            survivors_of(own_drill)

    @pytest.mark.parametrize(
        ("file", "old"),
        [
            ("survivors.toml", set()),
            ("drill.toml", set()),
            ("grader.py", {judges_digest, selftest_digest, mutants_digest}),
            ("solution.py", {selftest_digest, mutants_digest}),
            ("blank.py", {selftest_digest, mutants_digest}),
        ],
    )
    def test_a_verdict_is_old_once_something_that_it_depends_on_changes(
        self, own_drill: Drill, file: str, old: set[Digest]
    ) -> None:
        """Arguing a survivor or editing a sentence must not cost an hour of judging."""
        before = {digest: digest(own_drill) for digest in DIGESTS}
        path = own_drill.folder / file
        text = path.read_text() if path.exists() else ""
        end = "\nEDITED = 1\n" if path.suffix == ".py" else "\n# edited\n"
        path.write_text(text.replace("**Situation.**", "**The situation.**") + end)
        changed = load_again(own_drill)
        assert {digest for digest in DIGESTS if digest(changed) != before[digest]} == old

    def test_a_comment_or_docstring_in_a_grader_makes_no_verdict_old(
        self, own_drill: Drill
    ) -> None:
        """Wording a sentence better must not cost an hour of judging."""
        path = own_drill.folder / "grader.py"
        before = judges_digest(own_drill)
        text = path.read_text()
        path.write_text(text.replace('"""Every rank', '"""Each rank', 1) + "\n# a comment\n")
        assert path.read_text() != text
        assert judges_digest(load_again(own_drill)) == before

    @pytest.mark.parametrize(
        ("line", "new", "is_old"),
        [
            ('class Odd(Exception): """One."""', 'class Odd(Exception): """Another."""', False),
            ('class Odd(Exception): """One."""', 'class Even(Exception): """One."""', True),
            ('async def odd():\n    """One."""', 'async def odd():\n    """Another."""', False),
            ('x = "a\x0cb"  # one', 'x = "a\x0cb"  # another', False),
        ],
    )
    def test_only_the_docstring_is_left_out(
        self, own_drill: Drill, line: str, new: str, is_old: bool
    ) -> None:
        """A class on one line with its docstring was left out as a whole."""
        path = own_drill.folder / "grader.py"
        text = path.read_text()
        path.write_text(f"{text}\n{line}\n")
        before = judges_digest(load_again(own_drill))
        path.write_text(f"{text}\n{new}\n")
        assert (judges_digest(load_again(own_drill)) != before) == is_old

    def test_more_seeds_make_the_self_test_old(
        self, own_drill: Drill, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The page says with how many seeds each text was judged."""
        before = selftest_digest(own_drill)
        monkeypatch.setattr(selftest, "SEEDS", range(30))
        assert selftest_digest(own_drill) != before

    def test_a_new_near_miss_is_judged_and_makes_no_mutant(self, own_drill: Drill) -> None:
        """Its text is one of those that the page counts."""
        before = selftest_digest(own_drill), mutants_digest(own_drill)
        path = own_drill.folder / "drill.toml"
        path.write_text(path.read_text().replace("count.item()", "count.item() + 0"))
        changed = load_again(own_drill)
        assert selftest_digest(changed) != before[0]
        assert mutants_digest(changed) == before[1]

    def test_a_verdict_depends_on_what_the_grader_uses(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A kept verdict of another observer would be believed."""
        read = digests.code_of
        seen: set[str] = set()

        def noted(path: Path) -> str:
            seen.add(path.relative_to(digests.ROOT).as_posix())
            return read(path)

        monkeypatch.setattr(digests, "code_of", noted)
        judges_digest(load("cell_train"))
        wanted = (
            "drills/cell_train/grader.py drills/cell_train/watch.py kit/observe/anti_cheat.py"
        )
        assert {f"rehearsal/{name}" for name in wanted.split()} <= seen
        assert "trainer_core/collectives.py" in seen  # only the answers import it
        assert not [name for name in seen if name.endswith(("solution.py", "drill.toml"))]

    def test_the_page_shows_the_score_and_whether_it_is_old(self, own_drill: Drill) -> None:
        """A score of a grader that has changed since says nothing about the new one."""
        digest = mutants_digest(own_drill)
        record = record_of([Judged("a", "hung")], digest=digest, seeds=3)
        assert drills_page.mutants_refused(own_drill, record) == "1 of 1 (100.0%)"
        old = {**record, "digest": "0"}
        assert drills_page.mutants_refused(own_drill, old) == "1 of 1 (100.0%, old)"
        assert drills_page.mutants_refused(own_drill, None) == "not run"


# ---------------------------------------------------------------- a run


class Here(Executor):
    """Judges in this process, so that a drill in a temporary folder can be found."""

    def __init__(self) -> None:
        self.tasks = 0

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Call it now."""
        self.tasks += 1
        future: Future[Any] = Future()
        future.set_result(function(*args, **kwargs))
        return future


def mutation_run(
    drill: Drill, tmp_path: Path, pool: Executor | None = None, **options: Any
) -> tuple[bool, str, Executor]:
    """Whether all was well, what was said, and the pool."""
    said: list[str] = []
    pool = pool or Here()
    judging = mutation_score.Judging(pool, tmp_path / "verdicts", options.pop("again", False))
    options = {"seeds": 1, "path": tmp_path / "scores.json", **options}
    ok = mutation_score.run([drill], judging, said.append, **options)
    return ok, "\n".join(said), pool


class TestRun:
    @pytest.mark.ranks
    def test_a_known_hole_is_found_and_a_known_scenario_closes_it(
        self, own_drill: Drill, tmp_path: Path
    ) -> None:
        """With one rank, nobody can tell whether anything was reduced at all."""
        hole = "solution.mean_over_ranks: collective dropped: dist.all_reduce(total) => pass"
        ok, said, _ = mutation_run(own_drill, tmp_path, shows=True)
        assert not ok
        assert f"mutant = {json.dumps(hole)}" in said
        assert "-    dist.all_reduce(total)" in said
        record = mutation_record.records(tmp_path / "scores.json")[own_drill.id]
        assert hole in record["survived"]
        assert record["harmless"] > 0
        assert record["rejected"] == {}
        # A hole that is known is no news for a sample; a new one is.
        assert mutation_run(own_drill, tmp_path, only=hole)[0]
        assert not mutation_run(own_drill, tmp_path, only=hole, path=tmp_path / "none.json")[0]

        grader = own_drill.folder / "grader.py"
        only_one = '(("one rank", one),)'
        both = '(("several ranks", several), ("one rank", one))'
        grader.write_text(grader.read_text().replace(only_one, both))
        drill_module.module_at.cache_clear()
        _, said, _ = mutation_run(own_drill, tmp_path, only="collective dropped")
        assert "3 of 3" in said or "2 of 2" in said
        assert hole not in said

    @pytest.mark.ranks
    def test_verdicts_are_kept_until_something_they_depend_on_changes(
        self, own_drill: Drill, tmp_path: Path
    ) -> None:
        """A run takes an hour or two; an interrupted one must not begin again."""
        only = "solution.mean_over_ranks: nothing returned"
        _, said, pool = mutation_run(own_drill, tmp_path, only=only)
        assert isinstance(pool, Here)
        assert pool.tasks == 2  # the mutant, and the answer that it was made from
        assert "1 of 1 mutants refused" in said
        _, again, pool = mutation_run(own_drill, tmp_path, only=only)
        assert isinstance(pool, Here)
        assert (pool.tasks, again) == (0, said)
        _, _, pool = mutation_run(own_drill, tmp_path, only=only, again=True)
        assert isinstance(pool, Here)
        assert pool.tasks == 2
        kept = tmp_path / "verdicts" / f"{own_drill.id}.jsonl"
        kept.write_text(kept.read_text()[:-20])  # a kill cuts the last line
        assert mutation_run(own_drill, tmp_path, only=only)[1] == said
        grader = own_drill.folder / "grader.py"
        grader.write_text(grader.read_text() + "\nCHANGED = 1\n")
        _, _, pool = mutation_run(own_drill, tmp_path, only=only)
        assert isinstance(pool, Here)
        assert pool.tasks == 2

    @pytest.mark.ranks
    def test_what_was_the_machines_fault_is_judged_again(
        self, own_drill: Drill, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Out of memory once, a mutant would stay without a verdict for good."""
        only = "solution.mean_over_ranks: nothing returned"
        real = mutation_score.judge

        def dies(drill_id: str, source: str, *rest: Any) -> tuple[str, float]:
            code, seconds = real(drill_id, source, *rest)
            return (code if code == mutation_record.PASSED else "server-killed"), seconds

        with monkeypatch.context() as patch:
            patch.setattr(mutation_score, "judge", dies)
            assert "the grader failed on 1" in mutation_run(own_drill, tmp_path, only=only)[1]
        assert "1 of 1 mutants refused" in mutation_run(own_drill, tmp_path, only=only)[1]

    @pytest.mark.ranks
    def test_a_drill_that_refuses_its_own_answer_is_no_score(
        self, own_drill: Drill, tmp_path: Path
    ) -> None:
        """Every mutant would be refused, and the score perfect."""
        answer = own_drill.folder / "solution.py"
        answer.write_text(answer.read_text().replace("/ dist.get_world_size()", "* 2"))
        with pytest.raises(
            mutation_score.CannotScore, match="the correct text solution is refused"
        ):
            mutation_run(own_drill, tmp_path, only="solution.mean_over_ranks: nothing returned")

    @pytest.mark.ranks
    def test_processes_judge_what_this_one_would(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The real command judges in processes of its own, two at a time."""
        drill, said = load("lift_to_distributed"), list[str]()
        only = "solution.train: collective dropped"
        with processes(2) as pool:
            judging = mutation_score.Judging(pool, tmp_path)
            path = tmp_path / "scores.json"
            assert mutation_score.run([drill], judging, said.append, only=only, path=path)
        assert said[0].startswith("lift_to_distributed: 2 of 2 mutants refused")
        assert not path.exists()  # a part of the mutants is no score

    def test_a_sample_is_drawn_over_all_drills_and_can_be_repeated(
        self, tmp_path: Path
    ) -> None:
        """A failure in CI that nobody can repeat helps nobody."""
        drawn: list[Sequence[mutation_score.Task]] = []

        class Records(mutation_score.Judging):
            def judge(
                self, drill: Drill, tasks: Sequence[mutation_score.Task]
            ) -> Iterator[Judged]:
                drawn.append(tasks)
                return iter(())

        two = [load("lift_to_distributed"), load("production_lift")]
        for _ in range(2):
            mutation_score.run(
                two, Records(Here()), lambda _: None, sample=40, path=tmp_path / "none"
            )
        assert drawn[:2] == drawn[2:]
        assert sum(map(len, drawn[:2])) == 40

    @pytest.mark.parametrize(("code", "ok"), [("hung", True), ("grader-failed", False)])
    def test_a_sample_fails_if_the_grader_does(
        self, code: str, ok: bool, tmp_path: Path
    ) -> None:
        """Nothing passed, yet nothing was refused either."""

        class Fails(mutation_score.Judging):
            def judge(
                self, drill: Drill, tasks: Sequence[mutation_score.Task]
            ) -> Iterator[Judged]:
                return (
                    Judged(t.id, "passed" if t.harmless else code, t.harmless) for t in tasks
                )

        drill, path = load("production_lift"), tmp_path / "none"
        run = mutation_score.run([drill], Fails(Here()), lambda _: None, sample=20, path=path)
        assert run is ok


class TestCommandLine:
    def test_outside_a_clone_it_says_so(
        self,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        """An installed package has no docs folder, and site-packages is no place for scores."""
        monkeypatch.setattr(mutation_score, "SCORES", tmp_path / "docs" / "scores.json")
        assert main(["mutants", "lift_to_distributed"]) == 2
        assert "Run this in a clone of the project" in capsys.readouterr().err

    @pytest.mark.parametrize("option", ["--seeds", "--jobs", "--sample"])
    def test_none_at_all_is_refused(
        self, option: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """With no seed, every mutant would pass; with no sample, nothing would fail."""
        with pytest.raises(SystemExit) as ended:
            main(["mutants", option, "0"])
        assert ended.value.code == 2
        assert "0 is not a number of at least 1" in capsys.readouterr().err

    def test_a_text_that_no_id_has_is_refused(self, capsys: pytest.CaptureFixture[str]) -> None:
        """A typo judged nothing, printed nothing and exited with 0."""
        assert main(["mutants", "lift_to_distributed", "--only", "colective"]) == 2
        message = capsys.readouterr().err
        assert "No mutant or harmless change has 'colective' in its id" in message
        assert "An id looks like this one: solution" in message


class TestTheRecord:
    def test_no_score_is_older_than_its_drill(self) -> None:
        """A score that was measured on another grader is a claim about nothing."""
        held = mutation_record.records()
        old = [
            name for name, record in held.items()
            if record["digest"] != mutants_digest(load(name))
            or record["seeds"] < mutation_score.NUM_SEEDS
        ]  # fmt: skip
        assert old == [], f"run: python -m rehearsal mutants {' '.join(old)}"

    def test_every_drill_refuses_97_percent(self) -> None:
        """The promise. A new drill has no score until its mutants are judged."""
        held = mutation_record.records()
        every = drills()
        missing = [drill.id for drill in every if drill.id not in held]
        assert missing == [], f"run: python -m rehearsal mutants {' '.join(missing)}"
        scores = {drill.id: score_of(drill, held[drill.id]) for drill in every}
        assert {name: s for name, s in scores.items() if not s.ok} == {}
