"""The mock interview in a notebook: which cells count, what the panel shows, who ends it."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from jupyter_client.manager import start_new_kernel

import rehearsal
from rehearsal.interviews import ending, opening
from rehearsal.interviews import widgets
from rehearsal.interviews.built import notebook_text
from rehearsal.interviews.cell_hook import CellHook, coachs_names
from rehearsal.interviews.cells import counted
from rehearsal.interviews.faces import clock_html, html_of, spoken_html
from rehearsal.interviews.scorecard import Evidence, Mark, Scorecard
from rehearsal.interviews.opening import interview
from rehearsal.interviews.session import Interview
from rehearsal.interviews.spoken import Entry

ROOT = Path(__file__).resolve().parents[1]
DEFINES = "def shard(n):\n    return n\n"
MARKUP = "<img src=x onerror=alert(1)>"


def no_job(*_: object) -> None:
    raise OSError("no job in this test")


def passes_so_far(drill: str, text: str, **_: object) -> rehearsal.Verdict:
    return rehearsal.Verdict(
        drill=drill, status="not_attempted", findings=[], stages=["config"], next_stage="data"
    )


@pytest.fixture(autouse=True)
def here(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Without the mark, no ranks start; and whatever was begun is let go of."""
    if request.node.get_closest_marker("ranks") is None:
        monkeypatch.setattr("rehearsal.interviews.checks.grade_source", passes_so_far)
        monkeypatch.setattr("rehearsal.interviews.on_call.incident_in", no_job)
    yield
    for held in [*opening._open.values()]:
        held.close()


class TestWhatCounts:
    @pytest.mark.parametrize(
        ("cell", "text"),
        [
            (DEFINES, DEFINES),
            ("import torch", "import torch"),
            ("SEED = 3", "SEED = 3"),
            ("x = torch.zeros(3)  # data", "x = torch.zeros(3)  # data"),
            ("print(1)", None),
            ("# a thought", None),
            ("", None),
            ("for n in range(3):\n    print(n)", None),
            (f"# scratch\n{DEFINES}", None),
            (f"\n#Scratch: a try\n{DEFINES}", None),
            ("held.say('hello')", None),
            ("from rehearsal import interview", None),
            ("from rehearsal.kit import observe", "from rehearsal.kit import observe"),
            (f"{DEFINES}shard(3)", f"{DEFINES}# shard(3)"),
            (f"{DEFINES}n = shard(\n  3)", f"{DEFINES}# n = shard(\n#   3)"),
            ("a = 1; print(a)", "a = 1; print(a)"),
            ("try:\n    import x\nexcept ImportError:\n    x = None",) * 2,
            ("class C: ...\nc = C()", "class C: ...\nc = C()"),
            ("if __name__ == '__main__':\n    main()", None),
            ("def broken(:", "def broken(:"),
            ("1 +", None),
            ("held = interview(15, seed=1", None),
            ("def broken(:\n    x = 1", "def broken(:\n    x = 1"),
        ],
    )
    def test_what_defines_something_and_never_what_runs_it(
        self, cell: str, text: str | None
    ) -> None:
        """The graders load the text on every rank: a training there would hang the check."""
        assert counted(cell) == text

    @pytest.mark.parametrize(
        ("cell", "text"),
        [
            (f"%%time\n{DEFINES}", f"# %%time\n{DEFINES}"),
            (f"%%writefile train.py\n{DEFINES}", f"# %%writefile train.py\n{DEFINES}"),
            (f"%%writefile notes.txt\n{DEFINES}", None),
            ("%%bash\nFOO=1", None),
            (f"%matplotlib inline\n{DEFINES}", f"# %matplotlib inline\n{DEFINES}"),
            (f"files = !ls\n{DEFINES}", f"# files = !ls\n{DEFINES}"),
            ("def f():\n    !ls\n", "def f():\n    pass  # !ls\n"),
            ("!torchrun train.py", None),
            ("torch.save?", None),
            ('TEXT = """\n%d of %d\n"""', 'TEXT = """\n%d of %d\n"""'),
        ],
    )
    def test_magics_are_comments(self, cell: str, text: str | None) -> None:
        """In a rank there is no notebook to run them."""
        assert counted(cell) == text

    def test_to_call_what_an_earlier_cell_made_is_to_run_it(self) -> None:
        assert counted("losses = run(cfg)", frozenset({"run"})) is None
        assert counted("loss = trainer.fit()[0]", frozenset({"trainer"})) is None
        assert counted("cfg = Config()", frozenset({"run"})) == "cfg = Config()"

    @pytest.mark.parametrize(
        "cell",
        [
            "held = interview(15, seed=1)",
            "held = coach.interview(15)\nheld",
            "reading = interviewer('weak')",
            "seen = held.minute",
            "def look():\n    return held.events",
            "n, text = 1, str(held)",
            "rows = [row for row in held.scorecard().rows]",
        ],
    )
    def test_what_calls_the_coach_is_no_trainer(self, cell: str) -> None:
        """In a rank there is no interview: each later check would end with a NameError."""
        names = frozenset({"interview", "interviewer", "held", "coach"})
        assert counted(cell, coachs=names) is None
        assert counted(f"{DEFINES}{cell}", coachs=names) is not None

    def test_a_local_name_may_be_one_of_the_coachs(self) -> None:
        """Names such as start, hint and check are everybody's."""
        cell = "def run():\n    start = 1\n    return start"
        assert counted(cell, coachs=frozenset({"start"})) == cell

    def test_the_coachs_names_are_what_they_hold(self) -> None:
        """Imported under another name, it is still the coach's."""
        space = {
            "r": rehearsal,
            "hold": interview,
            "kind": Interview,
            "observe": __import__("rehearsal.kit.observe").kit.observe,
            "start": 3,
            "os": os,
        }
        assert coachs_names(space) == {"r", "hold", "kind"}


class Shell:
    """An IPython shell without a kernel, and what was handed in."""

    needs = frozenset({"TrainConfig"})

    def __init__(self) -> None:
        from IPython.core.interactiveshell import InteractiveShell

        self.shell = InteractiveShell()
        self.taken = True
        self.aside: list[str] = []
        self.back: list[str] = []
        self.handed_in: list[tuple[str, str | None]] = []
        self.shell.user_ns["begin"] = self.begin
        self.hook: CellHook | None = None

    def begin(self) -> None:
        self.hook = CellHook(self.shell, self)

    @property
    def text(self) -> str:
        return notebook_text(tuple(self.texts()))

    def accepts(self) -> bool:
        return self.taken

    def hand_in(self, text: str, cell: str | None) -> None:
        self.handed_in.append((text, cell))

    def set_aside(self, text: str) -> None:
        self.aside.append(text)

    def has(self, cell: str) -> bool:
        return cell in [each for _, each in self.handed_in]

    def take_back(self, cell: str) -> None:
        self.back.append(cell)
        self.handed_in = [each for each in self.handed_in if each[1] != cell]

    def failed(self, error: Exception) -> None:
        raise error

    def run(self, source: str, cell: str | None = None) -> None:
        self.shell.run_cell(source, store_history=True, cell_id=cell)

    def texts(self) -> list[str]:
        return [text for text, _ in self.handed_in]


@pytest.fixture
def notebook(capsys: pytest.CaptureFixture[str]) -> Iterator[Shell]:
    mine = Shell()
    yield mine
    mine.shell.history_manager.end_session()


class TestTheHook:
    def test_cells_are_handed_in_from_the_one_after_the_beginning(
        self, notebook: Shell
    ) -> None:
        """What was typed before the prompt wasn't typed in the interview."""
        notebook.run("def before(): ...")
        notebook.run("mine = begin()")
        assert notebook.texts() == []
        notebook.run("def after(): ...", "a")
        notebook.run("after", "b")
        notebook.run("def fails(): ...\n1 / 0", "c")
        notebook.run("def broken(:", "d")
        assert notebook.handed_in == [
            ("def after(): ...", "a"),
            ("def fails(): ...\n# 1 / 0", "c"),
            ("def broken(:", "d"),
        ]

    def test_a_cell_that_runs_again_unchanged_was_not_typed_again(
        self, notebook: Shell
    ) -> None:
        """Unless nobody took it, as in a pause."""
        notebook.run("begin()")
        notebook.taken = False
        notebook.run("def f(): ...", "a")
        assert notebook.texts() == []
        notebook.taken = True
        notebook.run("def f(): ...", "a")
        notebook.run("def f(): ...", "a")
        notebook.run("def f(): 1", "a")
        assert notebook.texts() == ["def f(): ...", "def f(): 1"]

    def test_what_calls_the_interview_is_not_code(self, notebook: Shell) -> None:
        notebook.shell.user_ns["held"] = interview(15, 1, clock=lambda: 0.0)
        notebook.run("begin()")
        notebook.run("line = held.next()")
        notebook.run("import rehearsal")
        notebook.run("from rehearsal import interviewer as reads, replay, compare")
        notebook.run("reading = reads('weak')\nreading")
        notebook.run("held = rehearsal.interview(15, 1)\nheld")
        notebook.run("shown = replay('weak')")
        notebook.run("both = rehearsal.compare('weak', 'strong')")
        assert notebook.texts() == notebook.aside == []

    def test_no_cell_of_the_notebook_counts_but_the_learner_s_own(
        self, notebook: Shell
    ) -> None:
        """Run All runs them all; each later check would crash, and the scorecard say so."""
        page = nbformat.read(ROOT / "notebooks/05_interview.ipynb", 4)
        cells = [cell.source for cell in page.cells if cell.cell_type == "code"]
        assert any("interview(45" in cell for cell in cells)
        notebook.shell.user_ns["held"] = interview(45, 1, clock=lambda: 0.0)
        notebook.run("begin()")
        uncommented = [re.sub(r"(?m)^# (held|interview)", r"\1", cell) for cell in cells]
        for number, cell in enumerate(uncommented):
            if "held.end" not in cell and "export" not in cell:
                notebook.run(cell, f"cell {number}")
        notebook.run("import sys\ndef quits():\n    sys.exit()", "mine")
        notebook.run(cells[0], "cell 0")  # it imports sys as well
        assert notebook.texts() == ["import sys\ndef quits():\n    sys.exit()"]

    def test_imports_and_constants_count_once_something_uses_them(
        self, notebook: Shell
    ) -> None:
        """An experiment isn't shown; a trainer without its imports can't be loaded."""
        notebook.run("begin()")
        notebook.run("import math", "a")
        notebook.run("TRIED = 3", "b")
        notebook.run("HALF = math.pi / 2", "c")
        assert notebook.aside == ["import math", "TRIED = 3", "HALF = math.pi / 2"]
        assert notebook.texts() == []
        notebook.run("def angle():\n    return HALF", "d")
        assert [cell for _, cell in notebook.handed_in] == ["a", "c", "d"]
        notebook.run("HALF = 2", "c")
        assert notebook.texts()[-1] == "HALF = 2", "used by now"
        notebook.run("TrainConfig = 1", "e")
        assert notebook.texts()[-1] == "TrainConfig = 1", "the graders use it"

    def test_a_waiting_cell_counts_as_it_was_last(self, notebook: Shell) -> None:
        notebook.run("begin()")
        notebook.run("SEED = 1", "a")
        notebook.run("SEED = 2", "a")
        notebook.run("def f(): return SEED", "b")
        assert notebook.texts() == ["SEED = 2", "def f(): return SEED"]

    @pytest.mark.parametrize(
        "now", ["shard(3)", f"# scratch\n{DEFINES}", "x = 1", "# gone", "%time 1"]
    )
    def test_what_a_cell_no_longer_defines_is_taken_back(
        self, now: str, notebook: Shell
    ) -> None:
        """Code is graded as it stands; and a cell that counted by mistake must not stay."""
        notebook.run("begin()")
        notebook.run(DEFINES, "a")
        notebook.run("def other(): ...", "b")
        notebook.run("other()", "c")
        assert notebook.back == []
        notebook.run(now, "a")
        assert notebook.back == ["a"]
        notebook.run(DEFINES, "a")
        assert notebook.texts() == ["def other(): ...", DEFINES]

    def test_what_ran_is_a_comment_in_the_next_cell_too(self, notebook: Shell) -> None:
        notebook.run("begin()")
        notebook.run("def train(n):\n    return n")
        notebook.run("losses = train(3)")
        assert notebook.texts() == ["def train(n):\n    return n"]

    def test_nothing_is_handed_in_after_it_is_closed(self, notebook: Shell) -> None:
        """The next exercise in this notebook isn't part of the interview."""
        notebook.run("begin()")
        assert notebook.hook is not None
        notebook.hook.close()
        notebook.hook.close()
        notebook.run("def f(): ...")
        assert notebook.texts() == []
        assert notebook.hook.ended not in notebook.shell.events.callbacks["post_run_cell"]


class Seat:
    """A panel whose thread does nothing, so that a test takes its turns."""

    def __init__(self, notebook: Shell, seed: int = 1, mode: Any = "real") -> None:
        self.minute, self.notebook = 0.0, notebook
        self.held = interview(15, seed, mode=mode, clock=lambda: 60 * self.minute)
        widgets.show_panel(self.held)
        self.panel = widgets._panels[self.held.name]

    def press(self, name: str) -> None:
        self.panel._buttons[name].click()

    def say(self, text: str) -> None:
        self.panel._text.value = text
        self.press("Say")

    def wait(self, minutes: float = 0.0) -> None:
        self.minute += minutes
        self.panel._guarded(self.panel._turn)()

    @property
    def told(self) -> str:
        return str(self.panel._told.value)

    @property
    def noted(self) -> str:
        return html_text(str(self.panel._noted.value))

    def did(self, what: str) -> list[dict[str, Any]]:
        return [event for event in self.held.events if event["did"] == what]


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch, notebook: Shell) -> list[Any]:
    """What was displayed, and later updated."""
    found: list[Any] = []
    monkeypatch.setattr(widgets, "shell", lambda: notebook.shell)
    monkeypatch.setattr(widgets, "_panels", {})
    monkeypatch.setattr(widgets.Panel, "_run", lambda _: None)
    monkeypatch.setattr("IPython.display.display", lambda what, **_: found.append(what))
    monkeypatch.setattr("IPython.display.update_display", lambda what, **_: found.append(what))
    return found


@pytest.fixture
def seat(shown: list[Any], notebook: Shell) -> Seat:
    return Seat(notebook)


class TestThePanel:
    def test_it_shows_the_clock_the_box_and_what_was_said(self, seat: Seat) -> None:
        seat.wait()
        assert "15:00 left of 15:00" in seat.panel._clock.value
        assert seat.held.prompt in seat.panel._spoken.value
        seat.wait(2.0)
        assert "13:00 left of 15:00" in seat.panel._clock.value
        assert "<b>sketch</b>, until" in seat.panel._clock.value

    def test_what_somebody_types_is_text(self, seat: Seat) -> None:
        """A page that somebody shares must not run what was typed."""
        seat.wait()
        seat.say(MARKUP)
        seat.wait()
        assert MARKUP not in seat.panel._spoken.value
        assert "&lt;img" in seat.panel._spoken.value
        assert seat.panel._text.value == ""
        seat.panel._tell(MARKUP)
        assert MARKUP not in seat.told

    def test_nothing_to_say_is_said_to_be_nothing(self, seat: Seat) -> None:
        seat.say("  ")
        assert "Type what you'd say" in html_text(seat.told)
        assert seat.did("say") == []

    def test_cells_count_while_it_runs(self, seat: Seat, notebook: Shell) -> None:
        notebook.run(DEFINES, "a")
        notebook.run(f"{DEFINES}\n# edited", "a")
        assert len(seat.did("type")) == 2
        assert seat.held._state.text.count("def shard") == 1
        seat.wait()
        assert "You typed shard (2 lines)." in seat.panel._spoken.value

    def test_in_a_pause_nothing_counts_and_it_says_so(
        self, seat: Seat, notebook: Shell
    ) -> None:
        seat.press("Pause")
        assert seat.panel._buttons["Pause"].description == "Resume"
        assert seat.panel._buttons["Say"].disabled
        notebook.run(DEFINES, "a")
        assert "that cell isn't handed in" in seat.noted
        assert seat.did("type") == []
        seat.press("Pause")
        notebook.run(DEFINES, "a")
        assert len(seat.did("type")) == 1

    def test_the_time_ends_it_and_a_draft_counts(
        self, seat: Seat, shown: list[Any], notebook: Shell
    ) -> None:
        """The last sentence, in the field and not yet said."""
        seat.wait()
        seat.panel._text.value = "The hole is the disk."
        seat.wait(15.0)
        assert [event["text"] for event in seat.did("say")] == ["The hole is the disk."]
        assert seat.did("end")[0]["why"] == "time"
        assert "The three weakest" in shown[-1]["text/html"]
        assert "over" in seat.panel._clock.value
        assert all(button.disabled for button in seat.panel._buttons.values())
        assert seat.panel._stopped.is_set()
        before = len(seat.held.events)
        notebook.run(DEFINES)
        assert len(seat.held.events) == before

    def test_one_click_does_not_end_it(self, seat: Seat, shown: list[Any]) -> None:
        """There is no way back."""
        seat.wait()
        seat.press("End")
        assert seat.panel._buttons["End"].description == "Sure? End"
        seat.wait()
        assert not seat.held.is_over
        seat.panel._ending_since -= widgets.SURE_S  # type: ignore[operator]
        seat.wait()
        assert seat.panel._buttons["End"].description == "End"
        seat.press("End")
        seat.press("End")
        assert not seat.held.is_over, "it's ended where it can wait for the graders"
        seat.wait()
        assert seat.held.is_over
        assert "The three weakest" in shown[-1]["text/html"]

    def test_after_the_end_no_button_asks_whether_it_is_sure(self, seat: Seat) -> None:
        """It looks as if the end were still to be confirmed."""
        seat.wait()
        seat.press("End")
        seat.press("End")
        seat.wait()
        assert seat.held.is_over
        end = seat.panel._buttons["End"]
        assert (end.description, end.button_style, end.disabled) == ("End", "", True)
        assert "export" in seat.told, "and nothing that was told is lost"

    def test_an_end_that_is_asked_and_then_comes_from_a_cell_asks_no_more(
        self, seat: Seat
    ) -> None:
        seat.wait()
        seat.press("End")
        seat.held.end()
        seat.wait()
        assert seat.panel._buttons["End"].description == "End"

    def test_an_end_can_be_called_back_while_the_graders_work(
        self, seat: Seat, monkeypatch: pytest.MonkeyPatch, notebook: Shell
    ) -> None:
        """Nobody can interrupt a thread; a minute and a half is long to regret a click."""
        seat.wait()
        end = seat.panel._buttons["End"]
        seen: list[str] = []

        def waits(graders: Any, at_most_s: float) -> bool:
            if at_most_s == ending.LAST_CHECK_S:
                seat.panel._refresh()
                seen.append(end.description)
                seat.press("End")
                assert graders.nobody_waits.is_set()
            return False

        with monkeypatch.context() as slow:
            slow.setattr("rehearsal.interviews.checks.Graders.wait", waits)
            seat.press("End")
            seat.press("End")
            seat.wait()
        assert seen == [widgets.DONT_END]
        assert not seat.held.is_over
        assert seat.held.is_paused
        assert "Not ended: " in seat.told
        assert seat.panel._buttons["Pause"].description == "Resume"
        assert end.description == "End"
        seat.press("Pause")
        notebook.run(DEFINES, "a")
        assert len(seat.did("type")) == 1
        seat.press("End")
        seat.press("End")
        seat.wait()
        assert seat.held.is_over

    def test_an_end_can_be_called_back_before_it_began(self, seat: Seat) -> None:
        seat.wait()
        for _ in range(3):
            seat.press("End")
        seat.wait()
        assert seat.panel._state == "running"
        assert seat.panel._buttons["End"].description == "End"

    def test_once_the_time_is_up_there_is_nothing_to_call_back(
        self, seat: Seat, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The clock has ended it, and would again."""
        seat.wait()
        seen: list[bool] = []

        def waits(_: object, at_most_s: float) -> bool:
            if at_most_s == ending.LAST_CHECK_S:
                seat.panel._refresh()
                seen.append(seat.panel._buttons["End"].disabled)
            return at_most_s == ending.LAST_CHECK_S

        monkeypatch.setattr("rehearsal.interviews.checks.Graders.wait", waits)
        seat.wait(15.0)
        assert seen == [True]
        assert seat.held.is_over

    def test_the_panel_s_cell_and_the_coach_s_calls_count_as_nothing(
        self, seat: Seat, notebook: Shell
    ) -> None:
        """One cell more, and each later check ends with "NameError: interview"."""
        notebook.shell.user_ns["held"] = seat.held
        notebook.run("from rehearsal import interview, interviewer, compare", "a")
        notebook.run(f"held = interview(15, seed={seat.held.seed})\nheld", "b")
        notebook.run("reading = interviewer('weak')\nrows = reading.form", "c")
        notebook.run("both = compare('weak', 'strong')", "d")
        notebook.run(DEFINES, "e")
        assert [seat.held.cells[event["file"]] for event in seat.did("type")] == [DEFINES]
        assert seat.held.text == DEFINES.strip()

    def test_a_name_from_before_the_interview_is_named(
        self, seat: Seat, notebook: Shell
    ) -> None:
        """In the notebook it works, and on the ranks nothing loads: nobody would see why."""
        notebook.shell.user_ns["Base"] = object
        notebook.run("class Net(Base): ...", "a")
        assert "Base isn't defined in any cell that counts" in seat.noted
        notebook.run("Base = object", "b")
        assert seat.noted == ""
        assert seat.held.text.index("Base = object") < seat.held.text.index("class Net")

    def test_a_cell_that_waits_and_one_that_is_taken_back_are_told(
        self, seat: Seat, notebook: Shell
    ) -> None:
        notebook.run("import math", "a")
        assert "No function or class of yours uses math yet" in seat.noted
        notebook.run(DEFINES, "b")
        assert seat.noted == ""
        notebook.run(f"# scratch\n{DEFINES}", "b")
        seat.wait()
        assert "You took shard back" in seat.panel._spoken.value
        assert seat.held.text == ""
        assert seat.did("checked")[-1]["stages"] == []

    def test_it_says_which_cells_count(self, seat: Seat) -> None:
        assert "# scratch" in seat.panel.box.children[-1].value
        assert ".type(In[9])" in seat.panel.box.children[-1].value

    def test_a_cell_can_be_handed_in_all_the_same(self, seat: Seat, notebook: Shell) -> None:
        """As the panel says."""
        notebook.shell.user_ns["held"] = seat.held
        notebook.run("LIMIT = 3", "a")
        notebook.run(f"held.type(In[{notebook.shell.execution_count - 1}])", "b")
        assert seat.held.text == "LIMIT = 3"

    def test_an_end_in_a_cell_is_noticed(self, seat: Seat, shown: list[Any]) -> None:
        seat.held.end()
        seat.wait()
        assert "The three weakest" in shown[-1]["text/html"]
        assert seat.panel._stopped.is_set()

    def test_an_end_in_a_cell_shows_here_that_it_waits(
        self, seat: Seat, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The cell may be far below the panel, and the panel out of view."""

        def waits(_: object, at_most_s: float) -> bool:
            if at_most_s == ending.LAST_CHECK_S:
                seat.wait()
                seen.append((seat.panel._clock.value, html_text(seat.told)))
            return at_most_s == ending.LAST_CHECK_S

        seen: list[tuple[str, str]] = []
        monkeypatch.setattr("rehearsal.interviews.checks.Graders.wait", waits)
        seat.held.end()
        ((clock, told),) = seen
        assert 'data-state="ending"' in clock
        assert ending.GRADING in told
        assert ending.GRADING in capsys.readouterr().out

    def test_an_end_by_the_panel_prints_below_no_cell(
        self, seat: Seat, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """What a thread prints appears below whatever cell ran last."""
        other = threading.Thread(target=seat.panel._told_by_interview, args=[ending.GRADING])
        seat.panel._thread = other
        other.start()
        other.join()
        assert widgets.GRADING in html_text(seat.told)
        assert "Ctrl-C" not in seat.told
        assert capsys.readouterr().out == ""

    def test_a_failure_is_told_and_the_interview_goes_on(
        self, seat: Seat, monkeypatch: pytest.MonkeyPatch, notebook: Shell
    ) -> None:
        """A traceback from a thread ends up below some cell that has nothing to do with it."""
        with monkeypatch.context() as broken:
            broken.setattr(Interview, "next", lambda _: 1 / 0)
            broken.setattr(Interview, "type", lambda *_, **__: 1 / 0)
            seat.wait()
            assert "ZeroDivisionError" in seat.told
            notebook.run(DEFINES)
            assert "ZeroDivisionError" in seat.noted
        seat.wait()
        assert seat.held.prompt in seat.panel._spoken.value

    def test_hints_are_for_study_mode(self, shown: list[Any], notebook: Shell) -> None:
        names = [
            button.description for button in Seat(notebook, 2).panel.box.children[3].children
        ]
        assert "Hint" not in names
        study = Seat(notebook, 3, "study")
        study.press("Hint")
        assert "clarify:" in study.told
        assert len(study.did("hint")) == 1

    def test_the_cell_that_runs_again_shows_the_same_panel(
        self, seat: Seat, shown: list[Any]
    ) -> None:
        """Two threads would say everything twice."""
        boxes = [what for what in shown if what is seat.panel.box]
        widgets.show_panel(seat.held)
        assert [what for what in shown if what is seat.panel.box] == [*boxes, seat.panel.box]
        assert len(widgets._panels) == 1

    def test_of_two_interviews_only_one_runs(self, seat: Seat, notebook: Shell) -> None:
        """A cell counts for one of them, and two clocks can't both be right."""
        seat.wait()
        other = Seat(notebook, 2)
        assert seat.held.is_paused
        assert "another interview goes on" in seat.told
        notebook.run(DEFINES, "a")
        assert (len(seat.did("type")), len(other.did("type"))) == (0, 1)
        seat.press("Pause")
        assert (seat.held.is_paused, other.held.is_paused) == (False, True)

    def test_one_that_is_over_shows_its_scorecard(self, seat: Seat, shown: list[Any]) -> None:
        seat.held.end()
        shown.clear()
        widgets.show_panel(seat.held)
        assert "The three weakest" in shown[-1]["text/html"]


def html_text(text: str) -> str:
    return text.replace("&#x27;", "'")


class TestFaces:
    CARD = Scorecard(
        MARKUP,
        (Mark("builds", 1, (Evidence(3.0, MARKUP, False),)),),
        ("builds",),
        (
            {"do": 'ask(topic="data")', "why": MARKUP},
            {"do": 'start("happy_path")', "why": "w"},
            {"do": "notebooks/handbook/13_checkpointing.ipynb", "why": "w"},
            {"do": 'start("gone")', "why": "w"},
        ),
        15.0,
        1,
    )

    def test_nothing_of_a_scorecard_is_markup(self) -> None:
        shown = html_of(self.CARD, ROOT / "notebooks")
        assert "<img" not in shown
        assert shown.count("&lt;img") == 3
        assert "with 1 hint." in shown

    @pytest.mark.parametrize("folder", ["notebooks", "notebooks/handbook"])
    def test_its_links_lead_to_notebooks(self, folder: str) -> None:
        """A dead link is the end of "what to do next"."""
        shown = html_of(self.CARD, ROOT / folder)
        links = re.findall(r'href="([^"]+)"', shown)
        assert len(links) == 3
        assert all((ROOT / folder / link).is_file() for link in links)

    def test_tables_keep_their_columns_and_nothing_said_is_markup(self) -> None:
        shown = spoken_html([Entry(1, "interviewer", f"a  b\n{MARKUP}", True)])
        assert "white-space:pre;" in shown
        assert "<img" not in shown

    def test_the_clock_says_which_state_it_is_in(self) -> None:
        held = interview(15, 1, clock=lambda: 0.0)
        assert 'data-state="paused"' in clock_html(held, "paused")
        assert "15:00 left of 15:00, paused" in clock_html(held, "paused")


def test_two_threads_take_turns() -> None:
    """The panel's thread asks for the next line while a cell ends the interview."""
    held = interview(15, 1, clock=lambda: 0.0)
    other = threading.Thread(target=held.end)
    with held._turn:
        other.start()
        time.sleep(0.05)
        assert not held.is_over
    other.join(10)
    assert held.is_over


class Kernel:
    """A real kernel."""

    def __init__(self, home: Path) -> None:
        env = {**os.environ, "PYTHONPATH": str(ROOT), "REHEARSAL_HOME": str(home)}
        self.manager, self.client = start_new_kernel(
            kernel_name="python3", cwd=str(ROOT / "notebooks"), env=env
        )

    def run(self, source: str) -> str:
        """Run a cell; what it printed or raised."""
        shown: list[str] = []

        def hear(message: dict[str, Any]) -> None:
            content = message["content"]
            if message["msg_type"] == "stream":
                shown.append(content["text"])
            elif message["msg_type"] == "execute_result":
                shown.append(content["data"]["text/html"])
            elif message["msg_type"] == "error":
                shown.append(f"{content['ename']}: {content['evalue']}")

        self.client.execute_interactive(source, timeout=90, output_hook=hear, allow_stdin=False)
        return "".join(shown)

    def close(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


WAIT = """
import time
until = time.monotonic() + 60
while not ({}) and time.monotonic() < until: time.sleep(0.1)
print({})
"""


@pytest.mark.ranks
@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_it_goes_on_while_a_cell_runs_and_after_the_kernel_died(tmp_path: Path) -> None:
    """The interviewer's thread, the cells' hook and the files on disk, in a real kernel."""
    begin = "import rehearsal\nheld = rehearsal.interview(15, seed=1)\nheld"
    said = "len([e for e in held.events if e['did'] == 'line'])"
    typed = "sum('def shard' in cell for cell in held.cells.values())"
    first = Kernel(tmp_path)
    try:
        assert first.run(begin) == ""
        # The cell blocks the kernel, and the prompt comes all the same.
        assert first.run(WAIT.format(said, said)).strip() == "1"
        assert first.run("held.say('How many GPUs do we have?')") == ""
        assert first.run(DEFINES) == ""
        assert first.run(f"print({typed})").strip() == "1"
        assert first.run(WAIT.format(f"{said} > 1", said)).strip() == "2"
    finally:
        first.manager.shutdown_kernel(now=True)
        first.close()
    second = Kernel(tmp_path)
    try:
        assert "Continuing the interview" in second.run(begin)
        look = "from rehearsal.interviews.widgets import _panels\n"
        look += "print(_panels[held.name]._spoken.value)"
        assert "How many GPUs do we have?" in second.run(look)
        assert "You typed shard" in second.run(look)
        # The graders may still have the cell.
        assert second.run("held.end()") in ("", f"{ending.GRADING}\n")
        assert "The three weakest" in second.run("held.scorecard()")
        over = (
            "_panels[held.name]._stopped.is_set() and not _panels[held.name]._thread.is_alive()"
        )
        assert second.run(WAIT.format(over, over)).strip() == "True"
    finally:
        second.close()
