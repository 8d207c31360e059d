"""What a call in a cell shows, stores and returns: at a terminal, in IPython, in a notebook."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import linecache
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fresh_interpreter import modules_loaded_by
from hypothesis import given, settings
from hypothesis import strategies as st

from rehearsal.engine.plain_message import PlainMessage
from rehearsal.engine.programs import run as run_program
from rehearsal.engine.server import CannotStartRanks
import rehearsal
from rehearsal.session import (
    cells,
    clock,
    coach,
    debrief,
    display,
    executions,
    next_step,
    prints,
    terminal,
    widgets,
)
from rehearsal.session.brief import brief_of
from rehearsal.session.cells import as_it_stands, texts_of, with_cell_numbers
from rehearsal.session.debrief_picture import picture
from rehearsal.grading.check import BadSeed
from rehearsal.grading.drill import Drill, UnknownDrill, load
from rehearsal.session.history import Entry, Round
from rehearsal.session.progress import progress
from rehearsal.grading.verdict import Verdict

ROOT = Path(__file__).resolve().parents[1]
ID = "lift_to_distributed"
DRILL = load(ID)
BUG = load("weights_turn_nan")
DEBUG = load("debug_a_transformer")
Shown = Callable[[], str]


@pytest.fixture
def shown(capsys: pytest.CaptureFixture[str]) -> Shown:
    """What was shown since it was last asked."""
    return lambda: capsys.readouterr().out


@pytest.fixture(autouse=True)
def no_clock_left() -> Iterator[None]:
    yield
    coach._clock = None


@pytest.fixture(autouse=True)
def no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """``start`` warms the server up; a check starts it anyway, where a test makes one."""
    monkeypatch.setattr(coach, "warm_up", lambda: None)


@pytest.fixture
def verdict_is(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Checks return this status at once: the ranks are tested elsewhere."""

    def come_to(status: Any) -> None:
        def grade(drill: str, *_: object, **__: object) -> Verdict:
            return Verdict(drill=drill, status=status, seconds=0.2, after="next?")

        monkeypatch.setattr(coach, "grade", grade)
        monkeypatch.setattr(coach, "grade_source", grade)

    return come_to


@pytest.fixture
def printing(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Checks fail at once, after two ranks have printed so many lines."""

    def set_count(count: int) -> None:
        def grade(drill: str, *_: object, echo: Callable[[str], None], **__: object) -> Verdict:
            for number in range(count):
                echo(f"[{number % 2}] line {number}")
            echo("news")  # of the coach, who waits for another check
            return Verdict(drill=drill, status="wrong", after="next?", seed=5)

        monkeypatch.setattr(coach, "grade", grade)
        monkeypatch.setattr(coach, "grade_source", grade)

    return set_count


class Notebook:
    """An IPython shell without a kernel, which gives its cells ids as JupyterLab does."""

    def __init__(self) -> None:
        from IPython.core.interactiveshell import InteractiveShell

        self.shell = InteractiveShell()
        self.recorder = executions.Recorder(self.shell)

    def run(self, source: str, cell: str | None = None) -> Any:
        return self.shell.run_cell(source, store_history=True, cell_id=cell)

    def stands(self, drill: Drill = DRILL) -> cells.Standing:
        return as_it_stands(drill, self.shell.user_ns)


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> Iterator[Notebook]:
    mine = Notebook()
    monkeypatch.setattr(executions, "_recorder", mine.recorder)
    yield mine
    mine.shell.history_manager.end_session()


def names_from(text: str) -> dict[str, object]:
    """A namespace in which ``text`` was executed, with its lines known to tracebacks."""
    file = f"<cell {len(linecache.cache)}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    names: dict[str, object] = {"__name__": "__main__"}
    exec(compile(text, file, "exec"), names)
    return names


class TestImport:
    @pytest.mark.ranks
    def test_it_loads_neither_torch_nor_ipython_nor_widgets_nor_pictures(self) -> None:
        """A hint would come two seconds later; CI and a terminal have no front end."""
        loaded = modules_loaded_by("import rehearsal")
        assert "rehearsal" in loaded
        assert not loaded & {"torch", "IPython", "matplotlib", "fsrs"}

    def test_every_exported_name_is_there_and_is_no_module(self) -> None:
        """A module of the same name would hide a function as soon as it is imported."""
        for name in rehearsal.__all__:
            assert callable(getattr(rehearsal, name)), name

    @pytest.mark.parametrize(
        "call", ["start", "check", "hint", "solution", "debrief", "diff", "narration", "brief"]
    )
    def test_an_unknown_drill_is_refused_with_the_nearest(self, call: str) -> None:
        """Ids are typed by hand."""
        with pytest.raises(rehearsal.UnknownDrill, match=f"nearest is '{ID}'"):
            getattr(rehearsal, call)("lift_to_distibute")
        assert progress().entries() == []

    @pytest.mark.parametrize(
        ("typed", "meant"),
        [
            ("lfit", "lift_to_ddp"),
            ("weights_trun_nan", "weights_turn_nan"),
            ("cell_trian", "cell_train"),
        ],
    )
    def test_the_nearest_is_near_to_what_was_typed_of_it(self, typed: str, meant: str) -> None:
        """Of an id, the beginning is enough, so a typo is often one in a beginning."""
        with pytest.raises(rehearsal.UnknownDrill, match=f"nearest is '{meant}'"):
            rehearsal.brief(typed)

    def test_in_a_notebook_it_says_what_to_type_in_a_cell(self) -> None:
        """A command for a terminal is no help there."""
        with pytest.raises(rehearsal.UnknownDrill) as refused:
            rehearsal.brief("lfit")
        assert str(refused.value).endswith("To see all of them: rehearsal.status()")
        assert "python" not in str(refused.value)

    @pytest.mark.ranks
    def test_a_notebook_shows_one_line_for_an_unknown_drill(self) -> None:
        """Twenty lines of traceback hide the suggestion."""
        code = (
            "from IPython.core.interactiveshell import InteractiveShell\n"
            "shell = InteractiveShell.instance()\n"
            "shell.run_cell('import rehearsal; rehearsal.hint(\"lfit\")')"
        )
        run = run_program("-c", code)
        assert run.returncode == 0, run.stderr
        (line,) = run.stdout.splitlines()
        assert line.startswith("'lfit': no such drill. The nearest is")


class TestStart:
    def test_it_shows_the_brief_with_names_and_minutes(self, shown: Shown) -> None:
        """Nobody can guess a needed name that is not in the brief."""
        rehearsal.start(ID)
        text = shown()
        assert DRILL.title in text
        assert "12 minutes" in text
        assert "train(model, inputs, targets, *, epochs, global_batch_size, lr)" in text
        assert "The clock is running: budget 12:00" in text
        (entry,) = progress().entries()
        assert entry.kind == "start"

    def test_the_server_warms_up_after_the_brief_but_not_for_a_command(
        self, shown: Shown, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The brief must not wait, and a command at a terminal ends before any check."""
        shown_before: list[str] = []
        monkeypatch.setattr(coach, "warm_up", lambda: shown_before.append(shown()))
        rehearsal.start(ID)
        assert [DRILL.title in text for text in shown_before] == [True]
        with terminal.spelled_for_a_shell():
            rehearsal.start(ID)
        assert len(shown_before) == 1

    def test_a_second_start_stops_the_first_clock(self) -> None:
        """Two running clocks would both be wrong."""
        rehearsal.start(ID)
        first = coach._clock
        rehearsal.start(ID)
        assert first is not None
        assert not first.is_running
        assert coach._clock is not None
        assert coach._clock.is_running


class TestClock:
    @pytest.mark.parametrize(
        ("seconds", "text"),
        [
            (0, "0:00 of 12:00"),
            (192.9, "3:12 of 12:00"),
            (720, "12:00 of 12:00"),
            (760, "12:40 of 12:00, 0:40 over"),
            (3725, "1:02:05 of 12:00, 50:05 over"),
        ],
    )
    def test_it_shows_time_and_budget_and_the_excess(self, seconds: float, text: str) -> None:
        """A clock that ends at the budget hides by how much it was missed."""
        assert clock.pace(seconds, 12) == text

    def test_a_notebook_gets_a_page_that_ticks_and_a_text_with_the_start(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """tests/browser looks at what the page shows; here, at what it is given."""
        import IPython.display

        displayed: list[dict[str, str]] = []
        updated: list[dict[str, str]] = []
        monkeypatch.setattr(display, "has_front_end", lambda: True)
        monkeypatch.setattr(widgets, "has_front_end", lambda: True)
        monkeypatch.setattr(
            IPython.display,
            "display",
            lambda data, raw, display_id: displayed.append({"id": display_id, **data}),
        )
        monkeypatch.setattr(
            IPython.display,
            "update_display",
            lambda data, display_id, raw: updated.append({"id": display_id, **data}),
        )
        clock = widgets.TickingClock(DRILL)
        clock.show()
        (shown,) = displayed
        started = time.strftime("%d %b %H:%M", time.localtime(clock.began))
        assert shown["text/plain"] == f"The clock is running: budget 12:00, started {started}."
        static = shown["text/html"].partition("<script>")[0]
        assert f"started {started}" in static, "for a page that runs no scripts"
        assert updated == []
        clock.began -= 61
        clock.stop()
        clock.stop()
        (last,) = updated
        assert last["id"] == shown["id"] == clock.key
        assert "1:01 of 12:00" in last["text/html"].partition("<script>")[0]
        assert "stopped" in last["text/html"].partition("<script>")[0]
        assert last["text/plain"] == "The clock has stopped: 1:01 of 12:00."

    def test_a_pass_stops_the_clock_of_a_kernel_that_is_gone(
        self, verdict_is: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """After a restart of the kernel, the page still ticks."""
        scripts: list[str] = []
        rehearsal.start(ID)
        coach._clock = None
        monkeypatch.setattr(coach, "has_front_end", lambda: True)
        monkeypatch.setattr(coach, "show", lambda text, rich: scripts.append(rich["text/html"]))
        verdict_is("wrong")
        rehearsal.check(ID, {})
        assert scripts == []
        verdict_is("passed")
        rehearsal.check(ID, {})
        (script,) = scripts
        assert f'{{"drill": "{ID}", "at": ' in script


BRIEF = """\
**Situation.** The mean of `2**13` losses
is off.

**Task.** Write `mean`.

**What must hold**

- Every rank calls `mean(x, **more)`.
- It returns the same **number** on all ranks,
  even if one has none.

Example:

```python
mean([1.0])  # **1.0**
| not | a table |
```

| rank | share |
|---|---|
| 0 | 3, 2 |
"""


class TestBrief:
    drill = dataclasses.replace(DRILL, brief=BRIEF, needs={"mean": "(x)"})

    def test_signatures_come_after_the_task_and_before_the_requirements(self) -> None:
        """Somebody under a clock reads what to write, how it is called, then the rules."""
        text = brief_of(self.drill)
        places = [text.index(part) for part in ("Task.", "mean(x)\n```", "What must hold")]
        assert places == sorted(places)
        assert text.index("mean(x)\n```") < text.index("- Every rank") < text.index("Then: ")
        # A brief without that heading has them at its end.
        short = brief_of(dataclasses.replace(self.drill, brief="Write `mean`."))
        assert short.index("Write `mean`.") < short.index("mean(x)\n```") < short.index("Then:")

    def test_a_notebook_gets_the_markdown_as_it_was_written(self) -> None:
        """A list that is joined into its paragraph is not a list."""
        before, after = BRIEF.strip().split("**What must hold**")
        assert before in brief_of(self.drill)
        assert after in brief_of(self.drill)

    def test_a_terminal_shows_bullets_code_and_tables_as_plain_text(self) -> None:
        """Stars, fences and ragged pipes are noise; a reflowed list is worse."""
        assert terminal.plain(BRIEF).splitlines() == [
            "Situation. The mean of `2**13` losses",
            "is off.",
            "",
            "Task. Write `mean`.",
            "",
            "What must hold",
            "",
            "- Every rank calls `mean(x, **more)`.",
            "- It returns the same number on all ranks,",
            "  even if one has none.",
            "",
            "Example:",
            "",
            "    mean([1.0])  # **1.0**",
            "    | not | a table |",
            "",
            "rank   share",
            "----   -----",
            "0      3, 2",
        ]

    def test_every_brief_reads_well_in_a_terminal(self) -> None:
        """A very long line wraps in the middle of a word; a fence is noise."""
        for drill in rehearsal.drills():
            *lines, _ = terminal.plain(brief_of(drill)).splitlines()  # the last names the id
            # In code, two stars are Python: run(**settings).
            marks = [
                line
                for line in lines
                if re.search(
                    "```" if line.startswith("    ") else r"```|\*\*",
                    re.sub("`[^`]+`", "", line),
                )
            ]
            assert not marks, drill.id
            # Code may be wider: a signature stays on its line.
            wide = [line for line in lines if len(line) > 100 and not line.startswith("    ")]
            assert not wide, drill.id


class TestCheck:
    @pytest.mark.ranks
    def test_a_wrong_and_a_right_attempt_are_shown_stored_and_returned(
        self, capfd: pytest.CaptureFixture[str]
    ) -> None:
        """Once from end to end: names, ranks, verdict, history."""
        rehearsal.start(ID)
        wrong = next(m for m in DRILL.near_misses() if m.name == "no_all_reduce")
        text = wrong.text.replace("    rank, world", "    print('I am here')\n    rank, world")
        verdict = rehearsal.check(ID, names_from(text))
        assert verdict.status == "wrong"
        out = capfd.readouterr().out
        assert "[0] I am here" in out
        assert "[2] I am here" in out
        assert str(verdict) in out
        assert out.index("[0] I am here") > out.index(str(verdict))
        assert "time  0:" in out
        assert rehearsal.check(ID, names_from(DRILL.solution)).status == "passed"
        first, second = [entry for entry in progress().entries() if entry.kind == "attempt"]
        assert (first.status, second.status) == ("wrong", "passed")
        assert first.findings[0][0] == wrong.code
        assert first.text == text
        assert second.text == DRILL.solution

    @pytest.mark.parametrize("count", [1, 10, 11, 40, 1002])
    def test_prints_come_after_the_verdict_and_fold_beyond_ten_lines(
        self, count: int, printing: Callable[[int], None], shown: Shown
    ) -> None:
        """A forgotten print in a loop would push the verdict out of the window."""
        printing(count)
        verdict = rehearsal.check(ID, {})
        first, *lines = shown().removeprefix("news\n" + str(verdict) + "\n").splitlines()
        assert first == "Your code printed:"
        assert lines[:10] == [f"[{n % 2}] line {n}" for n in range(min(count, 10))]
        if count <= 10:
            assert len(lines) == count
        else:
            kept = count if count <= 1000 else 1001
            more = f"{kept - 10} more line{'s' if count > 11 else ''}"
            call = f'check("{ID}", seed=5, prints=True)'
            assert lines[10:] == [f"({more}. To see them: {call})"]
        rehearsal.check(ID, {}, seed=5, prints=True)
        full = shown().splitlines()
        assert (f"[{(count - 1) % 2}] line {count - 1}" in full) == (count <= 1000)
        assert ("(2 more lines; only the first 1000 are kept)" in full) == (count == 1002)

    def test_at_a_terminal_the_folded_lines_have_a_command(
        self, printing: Callable[[int], None], shown: Shown, tmp_path: Path
    ) -> None:
        """A call typed into a shell is a syntax error."""
        file = tmp_path / "my try.py"
        file.write_text("")
        printing(12)
        from rehearsal.__main__ import main

        arguments = ["check", ID, str(file), "--no-server"]
        assert main(arguments) == 1
        command = f"check {ID} '{file}' --seed 5 --prints)"
        last = shown().splitlines()[-1]
        assert last.startswith("(2 more lines. To see them: ")
        assert last.endswith(command)
        assert main([*arguments, "--seed", "5", "--prints"]) == 1
        assert shown().splitlines()[-1] == "[1] line 11"

    def test_a_notebook_folds_them_and_keeps_their_characters(
        self, printing: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """HTML would swallow what looks like a tag, such as a tensor's <NllLossBackward0>."""
        html = prints.folded("Your code printed:", ["<b>", *"abcdefghijk"])
        inside, outside = html.partition("<details>")[2], html.partition("<details>")[0]
        assert "&lt;b&gt;\na\nb\nc\nd\ne\nf\ng\nh\ni</pre>" in outside
        assert "<summary>2 more lines</summary>" in inside
        assert "j\nk</pre></details>" in inside
        assert "<details" not in prints.folded("", list("abcdefghij"))
        order: list[str] = []
        monkeypatch.setattr(coach, "show_verdict", lambda _: order.append("verdict"))
        monkeypatch.setattr(prints, "has_front_end", lambda: True)
        monkeypatch.setattr(
            prints, "show", lambda text, rich, is_code: order.append(rich["text/html"])
        )
        printing(12)
        rehearsal.check(ID, {})
        assert order[0] == "verdict"
        assert order[1].count("<details>") == 1

    def test_an_interrupted_check_shows_what_was_printed(
        self, monkeypatch: pytest.MonkeyPatch, shown: Shown
    ) -> None:
        """Somebody who stops an endless loop has printed where it is."""

        def grade(*_: object, echo: Callable[[str], None], **__: object) -> Verdict:
            for number in range(20):
                echo(f"[0] spinning {number}")
            raise KeyboardInterrupt

        monkeypatch.setattr(coach, "grade", grade)
        with pytest.raises(coach.CheckInterrupted):
            rehearsal.check(ID, {})
        assert shown().splitlines()[-1] == "[0] spinning 19"

    @pytest.mark.ranks
    def test_a_blank_is_no_attempt(self, shown: Shown) -> None:
        """Running all cells of a notebook must not fill the history."""
        assert rehearsal.check(ID, names_from(DRILL.blank)).status == "not_attempted"
        assert rehearsal.check(ID, {}).status == "not_attempted"
        assert "NOT ATTEMPTED" in shown()
        assert progress().entries() == []

    def test_outside_a_notebook_the_callers_names_are_judged(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A script has no shell whose names could be judged."""
        seen: list[Any] = []

        def grade(drill: str, names: Any, **_: object) -> Verdict:
            seen.append(names)
            return Verdict(drill=drill, status="not_attempted")

        monkeypatch.setattr(coach, "grade", grade)
        rehearsal.check(ID)
        assert seen == [globals()]

    def test_a_pass_stops_the_clock_and_says_what_to_do_next(
        self, verdict_is: Callable[[str], None], shown: Shown
    ) -> None:
        """The narration is what the interview asks for next."""
        rehearsal.start(ID)
        verdict_is("wrong")
        rehearsal.check(ID, {})
        assert coach._clock is not None
        assert coach._clock.is_running
        verdict_is("passed")
        shown()
        rehearsal.check(ID, {})
        assert not coach._clock.is_running
        assert f'narration("{ID}")' in shown()


class TestNextStep:
    def last(self, verdict: Verdict) -> str:
        return str(verdict).splitlines()[-1]

    def test_after_a_pass_it_is_the_next_drill_that_was_never_passed(
        self, verdict_is: Callable[[str], None]
    ) -> None:
        """The path has no dead end, and no step twice."""
        names = [drill.id for drill in rehearsal.drills()]
        verdict_is("passed")
        assert self.last(rehearsal.check(names[0], {})) == f'  next  start("{names[1]}")'
        rehearsal.check(names[2], {})
        assert self.last(rehearsal.check(names[1], {})) == f'  next  start("{names[3]}")'
        assert self.last(rehearsal.check(names[-1], {})) == f'  next  start("{names[3]}")'
        for name in names:
            rehearsal.check(name, {})
        assert self.last(rehearsal.check(names[4], {})) == "  next  status()"

    def test_a_pass_offers_the_comparison_and_what_to_say(
        self, verdict_is: Callable[[str], None]
    ) -> None:
        """Both are only worth something now."""
        verdict_is("passed")
        said = str(rehearsal.check(ID, {}))
        assert f'diff("{ID}", "solution")' in said
        assert f'narration("{ID}")' in said

    def test_otherwise_it_is_a_hint_and_after_the_last_the_solution(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A fourth hint does not exist."""

        def grade(drill: str, *_: object, **__: object) -> Verdict:
            return Verdict(drill=drill, status="wrong", after=f'hint("{drill}")')

        monkeypatch.setattr(coach, "grade", grade)
        for _ in range(3):
            assert self.last(rehearsal.check(ID, {})) == f'  next  hint("{ID}")'
            rehearsal.hint(ID)
        assert self.last(rehearsal.check(ID, {})) == f'  next  solution("{ID}", give_up=True)'

    def test_every_advice_is_a_command_at_a_terminal(
        self, verdict_is: Callable[[str], None], shown: Shown
    ) -> None:
        """A call typed into a shell is a syntax error."""
        verdict_is("passed")
        with terminal.spelled_for_a_shell("mine.py"):
            rehearsal.check(ID, {})
        said = shown()
        assert f"{terminal.program()} diff {ID} solution\n" in said
        assert said.splitlines()[-1].startswith(f"  next  {terminal.program()} start ")
        assert "(" not in said.splitlines()[-1]

    def test_a_link_leads_from_a_notebook_to_a_file(self, tmp_path: Path) -> None:
        """From the notebooks' folder, from the drills', and from a copy of either."""
        drills = tmp_path / "drills"
        drills.mkdir()
        (drills / f"020_{ID}.ipynb").write_text("")
        (drills / f"010_copy of 020_{ID}.ipynb").write_text("")
        (tmp_path / "handbook").mkdir()
        for folder, address in [
            (tmp_path, f"drills/020_{ID}.ipynb"),
            (drills, f"020_{ID}.ipynb"),
            (tmp_path / "handbook", f"../drills/020_{ID}.ipynb"),
        ]:
            link = next_step.link_to(DRILL, folder)
            assert link is not None
            assert DRILL.title in link[0]
            assert link[1] == address
            assert (folder / address).is_file()
        assert next_step.link_to(BUG, tmp_path) is None


class TestAfterARestart:
    def test_a_notebook_says_which_cell_to_run(
        self, notebook: Notebook, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Everything is on the screen, and nothing in the kernel."""
        monkeypatch.setattr(coach, "shell", lambda: notebook.shell)
        verdict = rehearsal.check("happy_path", notebook.shell.user_ns)
        assert verdict.status == "not_attempted"
        names = "TrainConfig, make_dataset, make_model and run"
        assert verdict.findings[0].found == f"{names} are not defined"
        assert verdict.after.startswith(f"run the cell above that defines {names}, then check(")


class TestTexts:
    def test_the_cells_that_define_the_names_are_stored_in_their_order(self) -> None:
        """Two cells make one attempt; a third that only calls them is not part of it."""
        two = dataclasses.replace(DRILL, needs={"second": "()", "first": "()"})
        cells = ["def first():\n    return 1\n", "def second():\n    return first()\n"]
        names = {**names_from(cells[0]), **names_from(cells[1])}
        names["In"] = ["", "import os", *cells, "second()"]
        assert texts_of(two, names) == "\n\n".join(c.rstrip() for c in cells) + "\n"

    def test_data_is_found_in_the_cell_that_assigned_it_last(self) -> None:
        """The answer to a whiteboard drill is a list, which knows no file."""
        cells = ["train = [1]", "train = [2]  # better", "%time train", "print(train)"]
        names = {"train": [2], "In": cells}
        assert texts_of(DRILL, names) == "train = [2]  # better\n"

    def test_data_without_a_cell_is_stored_as_its_repr(self) -> None:
        """A script has no cells."""
        assert texts_of(DRILL, {"train": [2]}) == "train = [2]\n"


class TestHint:
    def test_the_last_of_three_repeats_until_a_new_start(self, shown: Shown) -> None:
        """A repeated drill must not begin with its last hint."""
        for number in (1, 2, 3, 3):
            rehearsal.hint(ID)
            text = shown()
            assert f"Hint {number} of 3" in text
            assert DRILL.hints[number - 1] in text
        assert "give_up=True" in text
        assert len(progress().entries()) == 3, "the last again is no fourth"
        rehearsal.start(ID)
        rehearsal.hint(ID)
        assert "Hint 1 of 3" in shown()


class TestSolution:
    def test_it_opens_after_a_pass_or_on_request_and_the_history_says_which(
        self, verdict_is: Callable[[str], None], shown: Shown
    ) -> None:
        """A solution that opens by accident ends the rehearsal."""
        rehearsal.solution(ID)
        text = shown()
        assert DRILL.solution not in text
        assert "give_up=True" in text
        assert progress().entries() == []
        rehearsal.solution(ID, give_up=True)
        assert DRILL.solution in shown()
        verdict_is("passed")
        rehearsal.check(ID, {})
        rehearsal.solution(ID)
        assert DRILL.solution in shown()
        kept = [entry.status for entry in progress().entries() if entry.kind == "solution"]
        assert kept == ["gave_up", "earned"]


class TestStatusDiffNarration:
    def test_status_says_what_passed_and_what_is_next(
        self, verdict_is: Callable[[str], None], shown: Shown
    ) -> None:
        """It is what you ask first after a week away."""
        rehearsal.status()
        text = shown()
        assert f"0 of {len(rehearsal.drills())} passed" in text
        assert f'Next: start("{rehearsal.drills()[0].id}")' in text
        rehearsal.start(ID)
        verdict_is("passed")
        rehearsal.check(ID, {})
        shown()
        rehearsal.status()
        text = shown()
        assert f"1 of {len(rehearsal.drills())} passed" in text
        (row,) = [line for line in text.splitlines() if line.startswith(ID)]
        assert "passed, due in" in row

    def test_status_has_the_title_of_every_drill(self, shown: Shown) -> None:
        """Ids alone don't tell a newcomer what a drill is about."""
        rehearsal.status()
        rows = {line.partition(" ")[0]: line for line in shown().splitlines()}
        for drill in rehearsal.drills():
            assert rows[drill.id].endswith(drill.title)
            assert f" {drill.minutes:g} " in rows[drill.id]

    def test_in_a_notebook_each_title_opens_the_drills_notebook(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """To the file: JupyterLab answers a link to a folder with an error."""
        drawn: list[str] = []
        folder = Path(__file__).parents[1] / "notebooks"
        monkeypatch.setattr(coach, "has_front_end", lambda: True)
        monkeypatch.setattr(coach, "notebooks_folder", lambda: folder)
        monkeypatch.setattr(coach, "show_markdown", drawn.append)
        rehearsal.status()
        links = dict(re.findall(r"\[([^]]+)\]\((drills/[^)]+\.ipynb)\)", drawn[0]))
        assert list(links) == [drill.title for drill in rehearsal.drills()]
        assert all((folder / address).is_file() for address in links.values())
        # A call would show the task in a notebook that has no blank for it.
        first = rehearsal.drills()[0]
        assert drawn[0].endswith(f"Next: [{first.title}]({links[first.title]})")

    def test_diff_shows_what_changed_between_the_last_two(
        self, verdict_is: Callable[[str], None], shown: Shown
    ) -> None:
        """The change that made it pass is the lesson."""
        rehearsal.diff(ID)
        assert "a diff needs two" in shown()
        verdict_is("wrong")
        for value in (1, 2, 3):
            rehearsal.check(ID, {"train": value})
        shown()
        rehearsal.diff(ID)
        lines = shown().splitlines()
        assert "-train = 2" in lines
        assert "+train = 3" in lines
        rehearsal.check(ID, {"train": 3})
        shown()
        rehearsal.diff(ID)
        assert "are identical" in shown()

    def test_diff_with_the_solution_opens_after_a_pass(
        self, verdict_is: Callable[[str], None], shown: Shown
    ) -> None:
        """After a pass, the other way to write it is what you learn from."""
        rehearsal.diff(ID, "solution")
        assert "opens after a pass" in shown()
        verdict_is("passed")
        rehearsal.check(ID, {"train": 3})
        verdict_is("wrong")
        rehearsal.check(ID, {"train": 4})
        shown()
        rehearsal.diff(ID, "solution")
        lines = shown().splitlines()
        assert "-train = 3" in lines, "the newest pass, not the newest attempt"
        assert "+import torch" in lines
        with pytest.raises(ValueError, match="against='mine'"):
            rehearsal.diff(ID, "mine")  # type: ignore[arg-type]

    @pytest.mark.parametrize("drill", [BUG, DEBUG], ids=lambda drill: drill.id)
    def test_the_narration_of_a_broken_program_opens_after_a_pass(
        self, drill: Drill, verdict_is: Callable[[str], None], shown: Shown
    ) -> None:
        """It says what the bugs are."""
        rehearsal.solution(drill.id, give_up=True)
        shown()
        rehearsal.narration(drill.id)
        text = shown()
        assert "opens after a pass" in text
        assert not any(part in text for part in drill.narration)
        verdict_is("passed")
        rehearsal.check(drill.id, {})
        rehearsal.narration(drill.id)
        assert drill.narration.strong in shown()

    def test_what_to_explain_is_asked_at_once_and_answered_after_a_pass(
        self, verdict_is: Callable[[str], None], shown: Shown
    ) -> None:
        """Whoever reads the answer first never looks for their own."""
        drill = load("resume_after_failure")
        rehearsal.brief(drill.id)
        asked = shown()
        rehearsal.narration(drill.id)
        before = shown()
        verdict_is("passed")
        rehearsal.check(drill.id, {})
        shown()
        rehearsal.narration(drill.id)
        after = shown()
        for asks, _, strong in drill.explanations:
            assert asks in asked
            assert strong not in before
            assert strong in after
        assert "answered here after a pass" in before

    def test_narration_shows_all_four_parts(self, shown: Shown) -> None:
        """The follow-up is what decides an interview."""
        rehearsal.narration(ID)
        text = shown()
        for part in DRILL.narration:
            assert part in text


def round_of(*entries: tuple[float, str, str], drill: str = ID) -> Round:
    return Round(
        entries=[
            Entry(at, drill, kind, status, [["code-" + status, "found", "", ""]])  # type: ignore[arg-type]
            for at, kind, status in entries
        ]
    )


EASY = round_of((0, "start", ""), (100, "hint", "1"), (400, "attempt", "passed"))
LATE = round_of(
    (500, "start", ""),
    (600, "attempt", "wrong"),
    (700, "attempt", "wrong"),
    (1500, "attempt", "passed"),
    drill="b",
)
BROKEN = round_of((1600, "start", ""), (1700, "attempt", "hung"), drill="c")
DRILLS = dict.fromkeys((ID, "b", "c"), DRILL)


class TestDebrief:
    def test_a_long_pause_ends_a_run(self) -> None:
        """Yesterday's pace is not today's."""
        old = round_of((-90_000, "start", ""), (-89_000, "attempt", "passed"))
        untimed = round_of((450, "attempt", "wrong"))
        nothing = round_of((1550, "start", ""))
        run = debrief.run_of([old, EASY, untimed, LATE, nothing, BROKEN])
        assert run == [EASY, LATE, BROKEN]

    def test_the_text_has_pace_findings_and_what_repeats(self) -> None:
        """In a terminal there is no picture."""
        text = debrief.as_text(debrief.rows_of_run([EASY, LATE, BROKEN], DRILLS))
        lines = text.splitlines()
        assert lines[0] == "debrief   25:00 of 36:00 for 3 rounds"
        assert "6:40 of 12:00, 1 attempt, 1 hint" in lines[1]
        assert "16:40 of 12:00, 4:40 over, 3 attempts" in lines[2]
        assert "code-wrong (2 times): found" in lines[3]
        assert "hung" in lines[4]
        assert "furthest over budget: b" in text
        assert "most common: code-wrong, 2 times" in text

    def test_the_picture_draws_what_the_text_says(self) -> None:
        """A bar without a unit, or without its budget, says nothing."""
        rows = debrief.rows_of_run([EASY, LATE, BROKEN], DRILLS)
        figure = picture(rows)
        (axes,) = figure.axes
        assert axes.get_xlabel() == "minutes since the start"
        assert [label.get_text() for label in axes.get_yticklabels()] == [ID, "b", "c"]
        widths = [round(patch.get_width(), 3) for patch in axes.patches]  # type: ignore[attr-defined]
        assert widths == [round(400 / 60, 3), 12, round(280 / 60, 3), round(100 / 60, 3)]
        lefts = [patch.get_x() for patch in axes.patches]  # type: ignore[attr-defined]
        assert lefts == [0, 0, 12, 0], "what is over begins where the budget ends"
        assert [bool(patch.get_hatch()) for patch in axes.patches] == [
            False,
            False,
            True,
            False,
        ]
        budgets = [line.get_xdata() for line in axes.lines if line.get_linewidth() == 2.5]
        assert [list(xs) for xs in budgets] == [[12, 12]] * 3  # type: ignore[arg-type]
        markers = [line.get_marker() for line in axes.lines if len(line.get_xdata()) == 1]  # type: ignore[arg-type]
        assert sorted(map(str, markers)) == ["X", "X", "X", "o", "o", "v"]
        words = [text.get_text() for text in axes.texts]
        assert words == ["passed", "passed", "hung: code-hung"]
        assert len(figure.legends[0].get_texts()) == 6

    def test_one_drill_over_its_starts(self) -> None:
        """Is it getting faster? That is the question after a week."""
        rows = debrief.rows_of_drill([EASY, EASY], DRILL)
        assert [row.label for row in rows] == [f"{ID}, start 1", f"{ID}, start 2"]

    def test_without_a_timed_run_it_says_how_to_get_one(self, shown: Shown) -> None:
        """An empty picture would look like a fault."""
        rehearsal.debrief()
        rehearsal.debrief(ID)
        assert shown().count("Nothing to debrief yet. Run start(") == 2
        rehearsal.start(ID)
        shown()
        rehearsal.debrief()
        assert f'{ID} has no graded attempt. Run check("{ID}").' in shown()

    def test_from_the_history_in_a_terminal(
        self, verdict_is: Callable[[str], None], shown: Shown
    ) -> None:
        """The text form needs no matplotlib."""
        rehearsal.start(ID)
        verdict_is("crashed")
        rehearsal.check(ID, {})
        shown()
        rehearsal.debrief()
        assert f"{ID}   crashed" in shown()


class TestCellsWithoutIds:
    """``In`` alone: a script's namespace, or cells that ran before the import."""

    def found(self, *cells: str) -> str:
        finding = as_it_stands(DRILL, {"In": ["", *cells], "train": 1}).finding
        return finding.found if finding else ""

    def test_a_syntax_error_is_not_answered_with_the_code_it_replaced(self) -> None:
        """IPython keeps the old train, and its verdict would be about code nobody sees."""
        broken = "def train():\n    for x in range(3) print(x)\n"
        found = self.found("def train():\n    pass\n", broken, "check('x')")
        assert "cell [2] has a syntax error" in found
        assert "its train is not graded" in found
        assert "(line 2)" in found
        assert self.found("train = [1\n").startswith("cell [1] has a syntax error")

    def test_a_cell_that_replaced_the_broken_one_counts(self) -> None:
        """Whoever fixed the typo must be graded."""
        fixed = "def train():\n    pass\n"
        assert not self.found("def train(:\n", fixed, "print(train")
        in_magic = f"get_ipython().run_cell_magic('time', '', {fixed!r})"
        assert not self.found("def train(:\n", in_magic)
        assert not self.found("x = train(\n", "print(train")

    def test_a_cell_is_replaced_by_one_that_redefines_part_of_it(self) -> None:
        """Of two names, one was renamed; the other's new cell must not vouch for it."""
        two = dataclasses.replace(DRILL, needs={"first": "()", "second": "()"})
        both = "def first(): ...\ndef second(): ...\n"
        names = {"In": ["", both, "def first(): ...\ndef secnd(): ...\n"]}
        stands = as_it_stands(two, {**names, "first": 1, "second": 2})
        assert stands.finding is not None
        assert stands.finding.found == "cell [2] does not define second, as cell [1] did"
        names["In"].append("def second(): ...\n")
        assert as_it_stands(two, {**names, "first": 1, "second": 2}).cells == [2, 3]

    @pytest.mark.parametrize(
        "cell",
        [
            "train = make()",
            "from trainer import train",
            "import train",
            "from x import y as train",
            "class train:\n    pass",
            "async def train():\n    pass",
            "a, (train, *b) = parts()",
            "with open(x) as train:\n    pass",
            "for train in trains:\n    pass",
            "try:\n    def train(): ...\nexcept ValueError:\n    pass",
            "(train := make())",
        ],
    )
    def test_whatever_binds_the_name_is_the_cell_that_is_graded(self, cell: str) -> None:
        """A drill may be answered by an import or an assignment as well as by a def."""
        stands = as_it_stands(DRILL, {"In": ["", "def train(): ...", cell], "train": 1})
        assert stands.cells == [2]

    @pytest.mark.parametrize(
        "cell", ["train()", "def f(train):\n    train = 1", "train: int", "x.train = 1"]
    )
    def test_a_cell_that_only_mentions_the_name_is_not(self, cell: str) -> None:
        """The demo below the definition is not the answer."""
        stands = as_it_stands(DRILL, {"In": ["", "def train(): ...", cell], "train": 1})
        assert stands.cells == [1]

    def test_check_says_so_and_stores_no_attempt(
        self, verdict_is: Callable[[str], None], shown: Shown
    ) -> None:
        """A typo is not an attempt, and a rank has nothing to run."""
        verdict_is("passed")  # as the old train would
        names = {**names_from(DRILL.solution), "In": ["", DRILL.solution, "def train(:\n"]}
        verdict = rehearsal.check(ID, names)
        assert verdict.status == "not_attempted"
        assert "cell [2] has a syntax error" in shown()
        assert progress().entries(ID) == []


class TestCells:
    """Contract 7: what is on the screen is what gets graded."""

    def refused(self, notebook: Notebook, drill: Drill = DRILL) -> str:
        finding = notebook.stands(drill).finding
        assert finding is not None
        assert finding.code == "not-attempted"
        return finding.found

    def test_the_latest_cell_that_defines_the_name_is_graded(self, notebook: Notebook) -> None:
        """With two drafts in two cells, it must be clear which one was judged."""
        notebook.run("def train(): return 1", "a")
        notebook.run("def train(): return 2", "b")
        assert notebook.stands().cells == [2]
        notebook.run("def train(): return 1", "a")
        assert notebook.stands().cells == [3]
        notebook.run("train()", "c")
        assert notebook.stands().cells == [3]

    def test_a_renamed_function_is_not_graded_under_its_old_name(
        self, notebook: Notebook
    ) -> None:
        """The old one is still in the kernel, and would pass."""
        notebook.run("def train(): return 1", "a")
        notebook.run("def train2(): return 1", "a")
        assert "cell [2] no longer defines train, as it did when it ran as [1]" in self.refused(
            notebook
        )
        notebook.run("def train(): return 3", "b")
        assert notebook.stands().cells == [3]

    @pytest.mark.parametrize(
        ("source", "why"),
        [
            ("def train(:", "cell [2] has a syntax error"),
            ("import os\n  x = 1", "cell [2] has a syntax error"),
            ("def train(): return 2\n1 / 0", "cell [2] raised ZeroDivisionError"),
            ("missing\ndef train(): return 2", "cell [2] raised NameError"),
            ("raise KeyboardInterrupt", "cell [2] raised KeyboardInterrupt"),
            ("%%time\ndef train(:", "cell [2] has a syntax error"),
        ],
    )
    def test_a_cell_that_failed_is_not_graded_as_it_was_before(
        self, notebook: Notebook, source: str, why: str
    ) -> None:
        """What is on the screen has never run to its end."""
        notebook.run("def train(): return 1", "a")
        notebook.run(source, "a")
        assert why in self.refused(notebook)
        assert "train" in self.refused(notebook)

    def test_a_failed_cell_elsewhere_that_would_define_it_counts(
        self, notebook: Notebook
    ) -> None:
        """The newest draft is the one that the learner means."""
        notebook.run("def train(): return 1", "a")
        notebook.run("def train(:", "b")
        assert "cell [2] has a syntax error" in self.refused(notebook)

    def test_a_failed_cell_that_has_nothing_to_do_with_it_does_not(
        self, notebook: Notebook
    ) -> None:
        """An exploration that went wrong must not lock the check."""
        notebook.run("def train(): return 1", "a")
        notebook.run("train() + nothing", "b")
        assert notebook.stands().cells == [1]

    def test_a_magic_that_runs_the_cell_defines_and_one_that_writes_it_does_not(
        self, notebook: Notebook, tmp_path: Path
    ) -> None:
        """%%writefile leaves the old function in the kernel."""
        notebook.run("%%time\ndef train(): return 1", "a")
        assert notebook.stands().cells == [1]
        notebook.run(f"%%writefile {tmp_path}/x.py\ndef train(): return 2", "a")
        assert "cell [2] no longer defines train" in self.refused(notebook)

    def test_names_that_no_parser_sees_are_seen_when_they_appear(
        self, notebook: Notebook
    ) -> None:
        """``from x import *`` and ``exec`` define as well as a def does."""
        notebook.run("exec('def train(): return 1')", "a")
        assert notebook.stands().cells == [1]
        notebook.run("exec('def other(): return 1')", "a")
        assert "no longer defines train" in self.refused(notebook)

    def test_a_definition_in_a_branch_that_was_not_taken_is_none(
        self, notebook: Notebook
    ) -> None:
        """Its text has the name, the kernel has the old function."""
        notebook.run("def train(): return 1", "a")
        notebook.run("if False:\n    def train(): return 2", "a")
        assert "no longer defines train" in self.refused(notebook)

    def test_a_helper_is_code_too(self, notebook: Notebook) -> None:
        """A leftover helper makes the answer pass that is not on the screen."""
        notebook.run("def share(): return 1", "a")
        notebook.run("def train(): return share()", "b")
        assert notebook.stands().cells == [2]
        notebook.run("def shares(): return 1", "a")
        found = self.refused(notebook)
        assert "your code uses share, which cell [3] no longer defines" in found
        notebook.run("def share(: return 1", "a")
        assert "cell [4] has a syntax error" in self.refused(notebook)
        notebook.run("def share(): return 1", "a")
        assert notebook.stands().cells == [2]

    def test_a_class_that_grows_over_cells_needs_all_of_them(self, notebook: Notebook) -> None:
        """Methods that are added later come from cells of their own."""
        notebook.run("class train:\n    pass", "a")
        notebook.run("def forward(self): return 1\ntrain.forward = forward", "b")
        assert notebook.stands().cells == [1]
        notebook.run("train.forward = forward +", "b")
        assert "cell [3] has a syntax error" in self.refused(notebook)

    def test_a_name_that_a_drill_needs_may_come_from_several_cells(
        self, notebook: Notebook
    ) -> None:
        """Each name is graded from its own cell."""
        two = dataclasses.replace(DRILL, needs={"first": "()", "second": "()"})
        notebook.run("def first(): ...\ndef second(): ...", "a")
        notebook.run("def first(): return 1", "b")
        assert notebook.stands(two).cells == [1, 2]
        notebook.run("def first(): ...", "a")
        assert "cell [3] no longer defines second" in self.refused(notebook, two)

    def test_the_cell_that_calls_check_may_define_it_first(self, notebook: Notebook) -> None:
        """Definition and check in one cell; but not the check before the definition."""
        seen: list[cells.Standing] = []
        notebook.shell.user_ns["look"] = lambda: seen.append(notebook.stands())
        notebook.run("def train(): return 1\nlook()", "a")
        notebook.run("look()\ndef train(): return 2", "a")
        notebook.run("def trains(): return 1\nlook()", "a")
        assert seen[0].cells == [1]
        assert seen[1].finding is not None
        assert seen[2].finding is not None

    def test_cells_from_before_the_import_count_without_ids(
        self, notebook: Notebook, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Whoever runs the setup cell last is still graded."""
        monkeypatch.setattr(executions, "_recorder", None)

        def import_it() -> None:
            monkeypatch.setattr(executions, "_recorder", executions.Recorder(notebook.shell))

        notebook.shell.user_ns["import_it"] = import_it
        notebook.run("def train(): return 1")
        notebook.run("import_it()", "setup")
        assert notebook.stands().cells == [1]
        notebook.run("def train(:", "a")
        assert "cell [3] has a syntax error" in self.refused(notebook)

    def test_the_cell_with_the_import_is_recorded_as_well(
        self, notebook: Notebook, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Import and definition in one cell, which is then edited."""
        monkeypatch.setattr(executions, "_recorder", None)
        seen: list[cells.Standing] = []

        def import_it() -> None:
            mine = executions.Recorder(notebook.shell)
            monkeypatch.setattr(executions, "_recorder", mine)

        notebook.shell.user_ns.update(import_it=import_it)
        notebook.shell.user_ns["look"] = lambda: seen.append(notebook.stands())
        notebook.shell.get_parent = lambda: {"metadata": {"cellId": "a"}}
        notebook.run("import_it()\ndef train(): return 1\nlook()", "a")
        assert [each.cells for each in seen] == [[1]]
        assert notebook.stands().cells == [1]
        notebook.run("def trains(): return 1", "a")
        assert "cell [2] no longer defines train" in self.refused(notebook)

    def test_what_is_not_from_a_cell_is_graded_without_a_number(
        self, notebook: Notebook
    ) -> None:
        """A startup file, or a program that drives the shell."""
        notebook.shell.user_ns["train"] = len
        assert notebook.stands() == cells.Standing([])

    def test_ids_come_from_the_kernels_message_where_ipython_has_none(
        self, notebook: Notebook, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """IPython 7.34, which Colab has, knows no cell ids."""
        metadata: dict[str, Any] = {"cellId": "from-the-message"}
        notebook.shell.get_parent = lambda: {"metadata": metadata}
        old = SimpleNamespace(raw_cell="x = 1", store_history=True, silent=False)
        notebook.recorder.begin(old)
        assert notebook.recorder.running[-1][1] == "from-the-message"
        metadata.clear()
        notebook.recorder.begin(old)
        assert notebook.recorder.running[-1][1] is None
        notebook.recorder.running.clear()

    @settings(max_examples=25)
    @given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("defgx")), max_size=8))
    def test_what_is_graded_is_always_a_cells_last_and_successful_text(
        self, steps: list[tuple[str, str]]
    ) -> None:
        """Over all orders of editing, renaming and breaking three cells."""
        texts = {
            "d": "def train(): return 1",
            "e": "def train(): return 2",
            "f": "def other(): return 3",
            "g": "def train(: return 4",
            "x": "def train(): return 5\n1 / 0",
        }
        mine = Notebook()
        with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()):
            patch.setattr(executions, "_recorder", mine.recorder)
            for cell, text in steps:
                mine.run(texts[text], cell)
            stands = mine.stands()
            mine.shell.history_manager.end_session()
        on_screen = {cell: (number, text) for number, (cell, text) in enumerate(steps, 1)}
        drafts = [(n, cell, text) for n, (cell, text) in enumerate(steps, 1) if text != "f"]
        if not drafts:
            assert stands == cells.Standing([])
            return
        number, cell, text = drafts[-1]
        may = text in "de" and on_screen[cell] == (number, text)
        assert list(stands.cells) == ([number] if may else [])
        if may:
            assert mine.shell.user_ns["train"]() == {"d": 1, "e": 2}[text]
        elif "train" in mine.shell.user_ns:
            # Otherwise it was never defined, and the check says that.
            reason = stands.finding.found if stands.finding else ""
            assert f"cell [{on_screen[cell][0]}]" in reason


@pytest.mark.parametrize("error", [CannotStartRanks, BadSeed, UnknownDrill])
def test_a_slip_needs_no_traceback(error: type[PlainMessage]) -> None:
    """Sixty lines of our frames would hide the one line that says what to do."""
    assert error("what to do")._render_traceback_() == ["what to do"]


class TestInterrupted:
    def test_it_says_what_became_of_the_check(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Sixty lines of the engine's frames look like a fault of the suite."""

        def interrupted(*_: object, **__: object) -> Verdict:
            raise KeyboardInterrupt

        monkeypatch.setattr(coach, "grade", interrupted)
        with pytest.raises(KeyboardInterrupt, match="doesn't count as an attempt") as raised:
            rehearsal.check(ID, {})
        assert raised.value._render_traceback_() == [str(raised.value)]  # type: ignore[attr-defined]
        assert progress().entries() == []


def test_a_stack_names_the_cell_as_ipython_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """/tmp/ipykernel_7/195.py isn't a file that anybody can open."""
    from IPython.core.compilerop import CachingCompiler

    compiler = CachingCompiler()
    file = compiler.cache("x = 1\n", 9)
    monkeypatch.setattr(cells, "shell", lambda: SimpleNamespace(compile=compiler))
    text = f'[rank 0] stuck, at\nFile "{file}", line 3 in train\nFile "/lib/a.py", line 1'
    shown = '[rank 0] stuck, at\nCell In[9], line 3 in train\nFile "/lib/a.py", line 1'
    assert with_cell_numbers(text) == shown
