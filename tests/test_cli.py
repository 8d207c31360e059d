"""python -m rehearsal: the same verdicts for people who prefer an editor."""

from __future__ import annotations

import ast
import dataclasses
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rehearsal.engine.output import OUTPUT_SHOWN
from rehearsal.engine.programs import run as run_program
import rehearsal
from rehearsal import drills
from rehearsal.grading import drills_page, selftest
from rehearsal.__main__ import main
from rehearsal import __main__ as command_line
from rehearsal.grading.digests import selftest_digest
from rehearsal.grading.drill import Drill, UnknownDrill, load
from rehearsal.session import coach, ids
from rehearsal.session.prints import KEPT
from rehearsal.session.progress import progress
from rehearsal.session.terminal import program
from rehearsal.session.watch import saves_of
from rehearsal.grading.verdict import ENGINE_FINDINGS, Verdict

ROOT = Path(__file__).resolve().parents[1]
ID = "lift_to_distributed"
DRILL = load(ID)
Capture = pytest.CaptureFixture[str]


class TestCheck:
    @pytest.mark.ranks
    def test_exit_codes_and_verdicts_are_those_of_the_notebook(
        self, tmp_path: Path, capfd: Capture
    ) -> None:
        """An editor goes by the exit code."""
        file = tmp_path / "attempt.py"
        file.write_text(DRILL.blank)
        assert main(["check", ID, str(file)]) == 1
        assert "NOT ATTEMPTED" in capfd.readouterr().out
        miss = next(m for m in DRILL.near_misses() if m.name == "no_all_reduce")
        file.write_text(
            miss.text.replace("    rank, world", "    print('hello')\n    rank, world")
        )
        assert main(["check", ID, str(file)]) == 1
        out = capfd.readouterr().out
        assert f"code  {miss.code}" in out
        assert "[1] hello" in out
        file.write_text(DRILL.solution)
        assert main(["check", ID, str(file)]) == 0
        assert "PASSED" in capfd.readouterr().out
        statuses = [entry.status for entry in progress().entries()]
        assert statuses == ["wrong", "passed"]

    def test_advice_is_spelled_as_a_command(self, tmp_path: Path, capsys: Capture) -> None:
        """hint("x") typed into a shell is a syntax error there."""
        main(["brief", ID])
        main(["solution", ID])
        main(["status"])
        said = capsys.readouterr().out
        assert f"Then: {program()} check {ID} attempt.py." in said
        assert f"{program()} solution {ID} --give-up. The drill" in said
        assert f"Next: {program()} start" in said
        assert '("' not in said
        rehearsal.brief(ID)
        assert f'check("{ID}")' in capsys.readouterr().out

    def test_a_file_that_is_not_python_is_a_crash_with_its_line(
        self, tmp_path: Path, capsys: Capture
    ) -> None:
        """The line is what helps; and no rank has to start for it (this test may not)."""
        file = tmp_path / "attempt.py"
        file.write_text("def train(:\n")
        assert main(["check", ID, str(file)]) == 1
        said = capsys.readouterr().out
        assert "SyntaxError" in said
        assert "look  at line 1" in said
        assert "in_rank" not in said

    @pytest.mark.parametrize("text", ["", "\n\n", "# nothing yet\n", '"""Notes."""\n'])
    def test_an_empty_file_is_not_attempted(
        self, tmp_path: Path, capsys: Capture, text: str
    ) -> None:
        """Nothing was typed, so there is nothing to judge and nothing to store."""
        file = tmp_path / "attempt.py"
        file.write_text(text)
        assert main(["check", ID, str(file)]) == 1
        said = capsys.readouterr().out
        assert "NOT ATTEMPTED" in said
        assert f"{file} has no code in it" in said
        assert progress().entries() == []

    @pytest.mark.parametrize("broken", ["missing", "folder", "bytes"])
    def test_a_file_that_cannot_be_read_is_one_line_and_2(
        self, tmp_path: Path, capsys: Capture, broken: str
    ) -> None:
        """1 would say that the attempt was judged."""
        file = tmp_path / "attempt.py"
        if broken == "folder":
            file.mkdir()
        elif broken == "bytes":
            file.write_bytes(b"\xff\xfe\x00")
        assert main(["check", ID, str(file)]) == 2
        said = capsys.readouterr()
        assert said.out == ""
        assert f"{file} cannot be read" in said.err
        assert f"{program()} blank {ID} > attempt.py" in said.err
        assert said.err.count("\n") == 1


class TestSeed:
    def test_it_is_passed_on_and_must_be_a_number(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
    ) -> None:
        """A verdict that cannot be repeated cannot be argued with."""
        seen: list[Any] = []

        def grade(drill: str, *_: object, seed: int | None, **__: object) -> Verdict:
            seen.append(seed)
            return Verdict(drill=drill, status="wrong", seed=seed)

        monkeypatch.setattr(coach, "grade_source", grade)
        file = tmp_path / "attempt.py"
        file.write_text("x = 1\n")
        assert main(["check", ID, str(file), "--seed", "482913"]) == 1
        assert "seed 482913" in capsys.readouterr().out
        assert main(["check", ID, str(file)]) == 1
        assert seen == [482913, None]
        with pytest.raises(SystemExit) as left:
            main(["check", ID, str(file), "--seed", "many"])
        assert left.value.code == 2


class TestWatch:
    def test_it_checks_now_and_at_each_save(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
    ) -> None:
        """Going back to the terminal for every edit takes you out of it."""
        file = tmp_path / "attempt.py"
        file.write_text("first = 1\n")
        seen: list[str] = []

        def saves(path: Path) -> Iterator[None]:
            assert path == file
            yield
            file.write_bytes(b"\xff")
            yield
            file.write_text("third = 3\n")
            yield
            raise KeyboardInterrupt

        def check_text(drill: str, text: str, *_: object, **__: object) -> Verdict:
            seen.append(text)
            status: Any = "passed" if "third" in text else "wrong"
            return Verdict(drill=drill, status=status)

        monkeypatch.setattr(command_line, "saves_of", saves)
        monkeypatch.setattr(coach, "check_text", check_text)
        assert main(["check", "lift_to_dis", str(file), "--watch"]) == 0
        assert seen == ["first = 1\n", "third = 3\n"]
        said = capsys.readouterr()
        assert said.out.count(f"Watching {file}") == 3
        assert "cannot be read" in said.err, "a save that is no text ends nothing"

    def test_a_missing_file_is_reported_instead_of_watched(
        self, tmp_path: Path, capsys: Capture
    ) -> None:
        """A typo in its name would wait forever."""
        assert main(["check", ID, str(tmp_path / "attmpt.py"), "--watch"]) == 2
        assert "cannot be read" in capsys.readouterr().err

    def test_it_sees_what_editors_do_when_they_save(self, tmp_path: Path) -> None:
        """Written in place, replaced by a rename, deleted and written again."""
        file, other = tmp_path / "attempt.py", tmp_path / "other"
        file.write_text("1")
        saves = saves_of(file)
        next(saves)
        file.write_text("12")
        next(saves)
        other.write_text("21")
        os.replace(other, file)
        next(saves)
        file.unlink()
        file.write_text("123")
        next(saves)
        assert file.read_text() == "123"


class TestInterrupted:
    def test_ctrl_c_is_one_line_and_130(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
    ) -> None:
        """A traceback into the engine looks like a fault of the suite."""

        def interrupted(*_: object, **__: object) -> Verdict:
            raise KeyboardInterrupt

        monkeypatch.setattr(coach, "grade_source", interrupted)
        file = tmp_path / "attempt.py"
        file.write_text("x = 1\n")
        for more in ([], ["--watch"]):
            assert main(["check", ID, str(file), *more]) == 130
            said = capsys.readouterr().err
            assert said.startswith(f"rehearsal: {ID}: the check was interrupted.")
            assert said.count("\n") == 1
        assert progress().entries() == []


class TestPrintedCommands:
    @pytest.mark.ranks
    @pytest.mark.parametrize("where", ["project", "elsewhere"])
    def test_what_is_printed_runs_where_it_is_printed(self, tmp_path: Path, where: str) -> None:
        """python is often another Python, and without torch."""
        folder = ROOT if where == "project" else tmp_path
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        run = subprocess.run(
            [sys.executable, "-m", "rehearsal", "solution", "lift_to_dis"],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        found = re.search(r"For the next hint: (.+? hint \S+)\. To", run.stdout)
        assert found, run.stdout
        hint = subprocess.run(
            found[1], shell=True, cwd=folder, env=environment, capture_output=True, text=True
        )
        assert hint.returncode == 0, hint.stderr
        assert "Hint 1 of 3" in hint.stdout

    def test_a_python_that_is_on_the_path_goes_by_its_name(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """In an activated environment, nobody types its path."""
        python = tmp_path / "my folder" / "python"
        python.parent.mkdir()
        python.write_text("")
        python.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(python))
        monkeypatch.chdir(tmp_path)
        assert program() == "'my folder/python' -m rehearsal"
        monkeypatch.chdir(python.parent)
        assert program() == "./python -m rehearsal"
        (tmp_path / "x").mkdir()
        monkeypatch.chdir(tmp_path / "x")
        assert program() == f"'{python}' -m rehearsal"
        monkeypatch.setenv("PATH", str(python.parent))
        assert program() == "python -m rehearsal"

    def test_a_check_in_advice_names_the_file_that_was_checked(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
    ) -> None:
        """FILE, typed as it is printed, is a file that does not exist."""
        file = tmp_path / "my attempt.py"
        file.write_text("")
        assert main(["check", ID, str(file)]) == 1
        last = capsys.readouterr().out.splitlines()[-1]
        assert last == f"  next  write it, then run {program()} check {ID} '{file}'"


class TestCommands:
    @pytest.mark.parametrize(
        "command",
        [
            "brief",
            "start",
            "hint",
            "narration",
            "diff",
            "blank",
            "solution",
            "selftest",
            "check",
        ],
    )
    def test_an_unknown_drill_is_2_with_the_nearest(
        self, capsys: Capture, command: str
    ) -> None:
        """A traceback for a typo is rude."""
        more = ["nofile.py"] if command == "check" else []
        assert main([command, "lift_to_distibute", *more]) == 2
        said = capsys.readouterr()
        assert f"The nearest is '{ID}'" in said.err
        assert said.err.endswith(f"To see all of them: {program()} status\n")
        assert "Traceback" not in said.err
        assert said.out == ""

    @pytest.mark.parametrize(
        "arguments", [[], ["chek", ID, "x.py"], ["check", ID], ["brief"], ["status", "--all"]]
    )
    def test_a_wrong_call_is_2_with_the_usage(
        self, capsys: Capture, arguments: list[str]
    ) -> None:
        """argparse reports it; 2 stands for every mistake that you can fix."""
        with pytest.raises(SystemExit) as left:
            main(arguments)
        assert left.value.code == 2
        assert f"usage: {program()}" in capsys.readouterr().err

    def test_list_has_a_line_for_each_drill_with_your_progress(self, capsys: Capture) -> None:
        """A drill that is not listed is never found; what has passed need not be opened."""
        progress().add(ID, "start")
        verdict = Verdict(drill=ID, status="passed")
        progress().add_attempt(verdict, "")
        progress().add("happy_path", "start")
        assert main(["list"]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert [line.split()[0] for line in lines] == [drill.id for drill in drills()]
        states = {line.split()[0]: re.split(r"\s{3,}", line)[2:4] for line in lines}
        assert states[ID][0].startswith("passed, due in")
        assert states[ID][1] == "0:00", "the best time"
        assert states["happy_path"][0] == "started"
        assert states["live_trainer"][0] == "new"

    @pytest.mark.parametrize("command", ["brief", "start", "hint", "narration", "blank"])
    def test_the_beginning_of_an_id_is_enough(self, capsys: Capture, command: str) -> None:
        """Ids are long, and typed by hand."""
        assert main([command, ID]) == 0
        said = capsys.readouterr().out
        progress().forget()
        assert main([command, "lift_to_dis"]) == 0
        assert capsys.readouterr().out == said

    @pytest.mark.ranks
    def test_a_reader_that_has_had_enough_is_no_error(self) -> None:
        """`list | head` printed its lines and then a traceback."""
        reading, writing = os.pipe()
        os.close(reading)
        command = [sys.executable, "-m", "rehearsal", "list"]
        done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True)
        os.close(writing)
        assert (done.returncode, done.stderr) == (141, "")

    @pytest.mark.ranks
    @pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, as on Linux")
    @pytest.mark.parametrize("words", [["list"], ["blank", "live_trainer"], ["--help"]])
    def test_output_that_cannot_be_written_is_one_line_and_2(self, words: list[str]) -> None:
        """A traceback with 1 would say that an attempt didn't pass."""
        command = [sys.executable, "-m", "rehearsal", *words]
        with open("/dev/full", "w") as full:
            done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
        assert done.returncode == 2
        assert "stdout can't be written ([Errno 28]" in done.stderr
        assert done.stderr.count("\n") == 1

    def test_a_broken_pipe_to_something_else_is_not_taken_for_the_reader(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A check whose server has died would end without a word."""

        def lose_a_connection() -> None:
            raise BrokenPipeError("the server is gone")

        monkeypatch.setattr(command_line, "show_list", lose_a_connection)
        with pytest.raises(BrokenPipeError, match="the server is gone"):
            main(["list"])

    def test_the_beginning_of_several_lists_them(self, capsys: Capture) -> None:
        """A guess among eight cells would start the wrong clock."""
        assert main(["start", "cell_"]) == 2
        said = capsys.readouterr().err
        cells = [drill.id for drill in drills() if drill.id.startswith("cell_")]
        assert f"{len(cells)} ids begin with 'cell_': {', '.join(cells)}." in said
        assert progress().entries() == []

    def test_a_complete_id_is_never_ambiguous(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """One id may be the beginning of another."""
        monkeypatch.setattr(ids, "drill_ids", lambda: [ID, f"{ID}_again"])
        assert ids.drill_named(ID).id == ID
        with pytest.raises(UnknownDrill, match="2 ids begin with 'lift'"):
            ids.drill_named("lift")
        assert ids.drill_named("mend_the_crash_loop").id == "every_restart_crashes"

    def test_each_of_the_others_shows_its_own(self, capsys: Capture) -> None:
        """The commands are wired by a table; one wrong row shows another's text."""
        for arguments, text in [
            (["brief", ID], "12 minutes"),
            (["start", ID], "The clock is running: budget 12:00, started "),
            (["hint", ID], "Hint 1 of 3"),
            (["hint", ID], "Hint 2 of 3"),
            (["narration", ID], DRILL.narration.follow_up),
            (["diff", ID], "a diff needs two"),
            (["blank", ID], DRILL.blank),
            (["solution", ID], "You haven't passed"),
            (["solution", ID, "--give-up"], DRILL.solution),
            (["status"], f"of {len(drills())} passed"),
            (["debrief"], "Nothing to debrief"),
            (["forget"], "Deleted "),
        ]:
            assert main(arguments) == 0, arguments
            assert text in capsys.readouterr().out, arguments
        assert progress().entries() == []

    def test_the_help_says_how_many_lines_are_shown_at_most(
        self, monkeypatch: pytest.MonkeyPatch, capsys: Capture
    ) -> None:
        """The number was written in three places, and was the bound of one job only."""
        monkeypatch.setenv("COLUMNS", "200")
        with pytest.raises(SystemExit):
            main(["check", "--help"])
        most = f"up to {OUTPUT_SHOWN} lines of each rank in each job, {KEPT} in all"
        assert most in capsys.readouterr().out

    @pytest.mark.ranks
    def test_it_runs_as_a_module(self) -> None:
        """-m starts differently from a call to main."""
        run = run_program("-m", "rehearsal", "hint", "nil")
        assert run.returncode == 2
        assert run.stderr.startswith("rehearsal: 'nil': no such drill.")


class TestSelftest:
    def test_a_wrong_judgment_is_shown_and_exits_with_1(
        self, capsys: Capture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A score is useless without the text that was misjudged."""

        def run(drill: object) -> list[selftest.Row]:
            good = Verdict(drill=ID, status="passed", seconds=0.5)
            bad = Verdict(drill=ID, status="passed", seconds=0.5, after="?")
            return [
                selftest.Row(ID, "solution", "solution", "passed", "passed", good),
                selftest.Row(ID, "near miss", "sly", "some-code", "passed", bad),
            ]

        monkeypatch.setattr(selftest, "run", run)
        assert main(["selftest", ID]) == 1
        lines = capsys.readouterr().out.splitlines()
        assert lines[0] == f"{ID}: 1 of 2 judgments correct; a solution takes 0.50 s"
        assert lines[1] == "  near miss sly: expected some-code, got passed"


class TestDocs:
    def test_the_page_is_current(self) -> None:
        """People look codes up there; a missing one looks like a bug in the coach."""
        scores = drills_page.kept_scores()
        stale = [d.id for d in drills() if d.id not in scores]
        stale += [
            d.id
            for d in drills()
            if d.id in scores and scores[d.id].digest != selftest_digest(d)
        ]
        assert stale == [], "run: python -m rehearsal docs"
        assert drills_page.PATH.read_text("utf-8") == drills_page.render(drills(), scores)
        assert all(score.ok == score.of for score in scores.values())
        assert set(scores) == {drill.id for drill in drills()}

    def test_the_page_counts_texts_and_explains_every_code(self) -> None:
        """A reader trusts the graders because of these numbers."""
        page = drills_page.render(drills(), {})
        for drill in drills():
            row = f"| {len(drill.solutions())} | {len(drill.near_misses())} | not run |"
            assert re.search(rf"\[{drill.id}\].*{re.escape(row)}", page)
            for code, meaning in drill.codes.items():
                assert f"| `{code}` | {meaning} |" in page
            for miss in drill.near_misses():
                assert miss.code in {**drill.codes, **ENGINE_FINDINGS.codes}, miss

    def test_the_engine_lists_each_code_that_it_finds_and_no_other(self) -> None:
        """A code without a meaning is noise; a meaning without a code is an empty promise."""
        found = set()
        for path in (ROOT / "rehearsal" / "grading").glob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
                    continue
                if node.func.id == "Finding":  # only the table itself makes one
                    assert ast.unparse(node.args[0]) == "code", ast.unparse(node)
                elif node.func.id == "ENGINE_FINDINGS":
                    first = node.args[0]
                    assert isinstance(first, ast.Constant), ast.unparse(node)
                    found.add(first.value)
        assert found == set(ENGINE_FINDINGS.codes)

    def test_only_drills_that_have_changed_are_judged_again(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Judging all drills takes minutes, and nobody keeps a page current at that price."""
        judged: list[str] = []

        def run(drill: object) -> list[selftest.Row]:
            judged.append(ID)
            verdict = Verdict(drill=ID, status="passed")
            return [selftest.Row(ID, "solution", "solution", "passed", "passed", verdict)]

        monkeypatch.setattr(selftest, "run", run)
        page, said = tmp_path / "drills.md", list[str]()
        assert drills_page.write([DRILL], said.append, page)
        assert drills_page.write([DRILL], said.append, page)
        assert judged == [ID]
        assert said == [f"{ID}: 1 of 1 judgments correct"]
        page.write_text(page.read_text().replace(selftest_digest(DRILL), "0" * 12))
        assert drills_page.write([DRILL], said.append, page)
        assert judged == [ID, ID]

    def test_what_was_judged_before_an_interruption_is_kept(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The whole page takes minutes, so somebody will interrupt it."""
        other, said = dataclasses.replace(DRILL, id="other"), list[str]()

        def run(drill: Drill) -> list[selftest.Row]:
            if drill.id == "other":
                raise KeyboardInterrupt
            verdict = Verdict(drill=ID, status="passed")
            return [selftest.Row(ID, "near miss", "sly", "code", "passed", verdict)]

        monkeypatch.setattr(selftest, "run", run)
        page = tmp_path / "drills.md"
        with pytest.raises(KeyboardInterrupt):
            drills_page.write([DRILL, other], said.append, page)
        assert drills_page.kept_scores(page) == {
            ID: drills_page.Score(selftest_digest(DRILL), 0, 1, {})
        }
        assert said[1] == "  near miss sly: expected code, got passed"

    def test_outside_a_clone_it_says_so(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
    ) -> None:
        """An installed package has no docs folder."""
        monkeypatch.setattr(drills_page, "PATH", tmp_path / "docs" / "drills.md")
        assert main(["docs"]) == 2
        assert "there is no page to write" in capsys.readouterr().err
