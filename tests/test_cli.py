"""python -m rehearsal: the same verdicts for people who prefer an editor."""

from __future__ import annotations

import ast
import dataclasses
import re
from pathlib import Path

import pytest

from rehearsal.engine.programs import run as run_program
import rehearsal
from rehearsal import drills
from rehearsal.grading import drills_page, selftest
from rehearsal.__main__ import main
from rehearsal.grading.drill import Drill, load
from rehearsal.session.progress import progress
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
        assert f"Then: python -m rehearsal check {ID} FILE." in said
        assert f"python -m rehearsal solution {ID} --give-up. The drill" in said
        assert "Next: python -m rehearsal start" in said
        assert '("' not in said
        rehearsal.brief(ID)
        assert f'check("{ID}")' in capsys.readouterr().out

    @pytest.mark.ranks
    def test_a_file_that_is_not_python_is_a_crash_with_its_line(
        self, tmp_path: Path, capfd: Capture
    ) -> None:
        """A syntax error is part of the attempt, and the line is what helps."""
        file = tmp_path / "attempt.py"
        file.write_text("def train(:\n")
        assert main(["check", ID, str(file)]) == 1
        said = capfd.readouterr().out
        assert "SyntaxError" in said
        assert "look  at line 1" in said
        assert "in_rank" not in said

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
        assert f"python -m rehearsal blank {ID} > attempt.py" in said.err
        assert said.err.count("\n") == 1


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
        assert main([command, "lift_to_distribute", *more]) == 2
        said = capsys.readouterr()
        assert f"The nearest is '{ID}'" in said.err
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
        assert "usage: python -m rehearsal" in capsys.readouterr().err

    def test_list_has_a_line_for_each_drill(self, capsys: Capture) -> None:
        """A drill that is not listed is never found."""
        assert main(["list"]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert [line.split()[0] for line in lines] == [drill.id for drill in drills()]

    def test_each_of_the_others_shows_its_own(self, capsys: Capture) -> None:
        """The commands are wired by a table; one wrong row shows another's text."""
        for arguments, text in [
            (["brief", ID], "12 minutes"),
            (["start", ID], "The clock is running: 12:00."),
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

    @pytest.mark.ranks
    def test_it_runs_as_a_module(self) -> None:
        """-m starts differently from a call to main."""
        run = run_program("-m", "rehearsal", "hint", "nothing")
        assert run.returncode == 2
        assert run.stderr.startswith("rehearsal: 'nothing': no such drill.")


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
            if d.id in scores and scores[d.id].digest != drills_page.digest_of(d)
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
        page.write_text(page.read_text().replace(drills_page.digest_of(DRILL), "0" * 12))
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
            ID: drills_page.Score(drills_page.digest_of(DRILL), 0, 1, {})
        }
        assert said[1] == "  near miss sly: expected code, got passed"

    def test_outside_a_clone_it_says_so(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
    ) -> None:
        """An installed package has no docs folder."""
        monkeypatch.setattr(drills_page, "PATH", tmp_path / "docs" / "drills.md")
        assert main(["docs"]) == 2
        assert "there is no page to write" in capsys.readouterr().err
