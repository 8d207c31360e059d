"""A check returns a verdict, whatever it is given."""

from __future__ import annotations

import dataclasses
import linecache
import re
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import pytest

import rehearsal
from rehearsal import grade, grade_source
from rehearsal.grading import check
from rehearsal.grading.drill import DRILLS, Drill, Scenario, UnknownDrill, load
from rehearsal.engine.reports import Failure, RankReport
from rehearsal.grading.check import attempt_of_source, grade_attempt, judge
from rehearsal.grading.in_rank import is_blank, mismatch_of
from rehearsal.engine.ranks import RUNNING_AGAIN, SERVER_ENDED, STUCK_MEETING
from rehearsal.engine.reports import Fault
from rehearsal.grading.typed import is_untouched, text_of
from rehearsal.grading.verdict import Finding, Verdict, failure_verdict, shortened

DRILL = "lift_to_distributed"
pytestmark = pytest.mark.ranks


def names_of(text: str) -> dict[str, Any]:
    """What a notebook's namespace holds after the cell ``text``."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(text, "<cell>", "exec"), namespace)
    return namespace


def names_of_a_cell(text: str, names: dict[str, Any] | None = None) -> dict[str, Any]:
    """The same, with the lines known to tracebacks; into ``names`` if there are some."""
    file = f"<cell {len(linecache.cache)}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    names = {"__name__": "__main__"} if names is None else names
    exec(compile(text, file, "exec"), names)
    return names


class TestOutcomes:
    def test_objects_of_a_namespace_are_judged_like_their_text(self) -> None:
        """The notebook and the editor must not disagree."""
        drill = load(DRILL)
        for text in (drill.solution, drill.near_misses()[0].text, drill.blank):
            from_text, from_names = grade_source(DRILL, text), grade(DRILL, names_of(text))
            assert from_names.status == from_text.status
            assert [f.code for f in from_names.findings] == [f.code for f in from_text.findings]

    def test_a_pass_asks_one_deeper_question(self) -> None:
        """In an interview, a pass is followed by a question."""
        verdict = grade_source(DRILL, load(DRILL).solution)
        assert (verdict.status, verdict.after) == ("passed", load(DRILL).deeper)
        assert list(verdict.world_sizes) == [1, 2, 3]

    def test_an_empty_namespace_is_not_attempted(self) -> None:
        """Run All in a fresh notebook must not look like a failure."""
        verdict = grade(DRILL, {})
        assert verdict.status == "not_attempted"
        assert "train is not defined" in verdict.findings[0].found

    def test_a_crash_names_the_line_and_shows_only_the_learners_frames(self) -> None:
        """Forty lines of the engine's frames hide the one that matters."""
        text = (
            "def train(model, inputs, targets, *, epochs, global_batch_size, lr):\n    1 / 0\n"
        )
        verdict = grade_source(DRILL, text)
        assert verdict.status == "crashed"
        assert "ZeroDivisionError: division by zero" in verdict.findings[0].found
        assert verdict.findings[0].look == "at line 2 in train"
        assert "1 / 0" in verdict.detail
        assert "rehearsal/" not in verdict.detail

    def test_a_syntax_error_is_a_crash_with_its_line(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It is reported at once, the way Python prints it; so is a null byte."""
        monkeypatch.setattr(check, "run_scenarios", None)  # no rank starts
        verdict = grade_source(DRILL, "x = 1\ndef train(:\n", file="mine.py")
        assert verdict.status == "crashed"
        assert "SyntaxError: invalid syntax (mine.py, line 2)" in verdict.findings[0].found
        assert verdict.findings[0].look == "at line 2"
        assert "def train(:" in verdict.detail
        assert verdict.seed is None
        assert grade_source(DRILL, "x = 1\0\n").status == "crashed"

    def test_a_text_without_code_is_not_attempted(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """An editor creates the file before anything is typed."""
        monkeypatch.setattr(check, "run_scenarios", None)
        for text in ("", "\n", "# later\n", '"""Mine."""\n...\n'):
            verdict = grade_source(DRILL, text)
            assert verdict.status == "not_attempted"
            assert [finding.code for finding in verdict.findings] == ["not-attempted"]

    @pytest.mark.parametrize(
        "drill",
        [drill for drill in rehearsal.drills() if drill.is_broken],
        ids=lambda drill: drill.id,
    )
    def test_an_untouched_bug_drill_gets_its_incident_again(
        self, drill: Drill, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A finding would name the cause before anybody has looked for it."""
        monkeypatch.setattr(check, "run_scenarios", None)
        laid_out_otherwise = "# mine\n\n" + drill.blank.replace("\n\n\n", "\n\n\n\n")
        for verdict in (
            grade_source(drill.id, drill.blank),
            grade_source(drill.id, laid_out_otherwise),
            grade(drill.id, names_of_a_cell(drill.blank)),
        ):
            assert verdict.status == "not_attempted"
            assert [finding.code for finding in verdict.findings] == ["not-attempted"]
            situation = drill.brief.partition("**Task.**")[0].replace("**", "").strip()
            assert verdict.detail == situation
            assert not any(code in str(verdict) for code in drill.codes)

    def test_a_bug_drill_with_a_changed_helper_is_touched(self) -> None:
        """The fix may be in another cell than the function that is called."""
        drill = load("samples_repeat_from_the_second_epoch")
        names = names_of_a_cell(drill.blank)
        fixed = drill.blank[drill.blank.index("@torch.no_grad()") :].replace(
            "    drawn =", "    torch.manual_seed(0)\n    drawn ="
        )
        names_of_a_cell(fixed, names)
        assert not is_untouched(drill, text_of(drill, names))
        assert grade(drill.id, names).status == "wrong"

    def test_a_text_that_is_nested_too_deeply_is_a_crash_of_the_text(self) -> None:
        """Python's parser gives up with a MemoryError, which must not end the cell."""
        bug = "samples_repeat_from_the_second_epoch"
        for drill in (DRILL, bug):
            verdict = grade_source(drill, load(drill).solution + "\nx = " + "-" * 7000 + "1\n")
            assert verdict.status == "crashed", str(verdict)
            assert "MemoryError" in str(verdict)

    def test_of_two_names_the_half_that_is_typed_gets_feedback(self) -> None:
        """Half an hour of typing deserves more than "not attempted"."""
        drill = load("happy_path")
        typed = drill.blank.replace(
            "def make_dataset(config):\n", "def make_dataset(config):\n    return []\n"
        )
        for verdict in (
            grade_source(drill.id, typed),
            grade_source(drill.id, "def make_dataset(config): return []\n"),
            grade(drill.id, names_of_a_cell("def make_dataset(config): return []\n")),
        ):
            assert verdict.status == "not_attempted"
            (finding,) = verdict.findings
            assert finding.found == (
                "make_dataset has been typed, can be loaded, and takes the right arguments; "
                "TrainConfig, make_model and run are still to be typed"
            )
        wrong = grade_source(drill.id, "def make_dataset(config, more): return []\n")
        assert wrong.status == "not_attempted"
        codes = [finding.code for finding in wrong.findings]
        assert codes == ["wrong-signature", "not-attempted"]
        assert "make_dataset takes (config, more)" in wrong.findings[0].found

    @pytest.mark.parametrize("seed", ["7", 7.0, -1, True])
    def test_a_seed_that_no_verdict_can_show_is_refused(self, seed: Any) -> None:
        """random.Random takes all of these; -1 draws what 1 draws."""
        with pytest.raises(check.BadSeed, match=f"seed={re.escape(repr(seed))}: a seed is a"):
            grade_source(DRILL, load(DRILL).solution, seed=seed)
        with pytest.raises(check.BadSeed):
            check.grade(DRILL, {}, seed=seed)

    def test_the_verdict_has_the_seed_and_the_same_seed_gives_the_same_verdict(self) -> None:
        """Whoever disputes a verdict repeats it."""
        miss = load(DRILL).near_misses()[0].text
        first, second = grade_source(DRILL, miss), grade_source(DRILL, miss)
        assert first.seed in range(1_000_000)
        assert second.seed in range(1_000_000)
        assert first.seed != second.seed, "once in a million"
        assert f"seed {first.seed}" in str(first)
        assert f"seed {first.seed}" in first._repr_html_()
        again = grade_source(DRILL, miss, seed=first.seed)
        assert (again.findings, again.seed) == (first.findings, first.seed)

    def test_a_hang_shows_where_every_rank_stands(self) -> None:
        """One rank's stack does not say whom it waits for."""
        text = textwrap.dedent(
            """
            import time
            import torch.distributed as dist

            def train(model, inputs, targets, *, epochs, global_batch_size, lr):
                if dist.get_rank() == 0:
                    time.sleep(100)
                dist.barrier()
            """
        )
        from rehearsal.grading.check import attempt_of_source, grade_attempt

        verdict = grade_attempt(load(DRILL), attempt_of_source(text), at_most_s=1.0)
        assert verdict.status == "hung"
        assert "still running after 1 s" in verdict.findings[0].found
        for rank in range(3):
            assert f"[rank {rank}]" in verdict.detail
        assert "line 7 in train" in verdict.detail
        assert "(the last: barrier, " in verdict.detail

    def test_a_file_runs_the_way_a_cell_does(self) -> None:
        """An annotation that only works with our __future__ import fails in a notebook."""
        text = "def helper(x: Undefined): ...\n\n" + load(DRILL).solution
        verdict = grade_source(DRILL, text)
        assert "name 'Undefined' is not defined" in verdict.findings[0].found

    def test_loader_workers_send_classes_of_the_notebook(self) -> None:
        """A named tuple as a batch: it pickles as __main__.Batch."""
        text = textwrap.dedent(
            """
            from typing import NamedTuple
            import torch
            from torch.utils.data import DataLoader

            class Pair(NamedTuple):
                x: object
                y: object

            def pairs(batch):
                return Pair(*map(torch.stack, zip(*batch)))

            def train(model, inputs, targets, *, epochs, global_batch_size, lr):
                data = list(zip(inputs, targets))
                for batch in DataLoader(data, 3, collate_fn=pairs, num_workers=1):
                    assert type(batch) is Pair, type(batch)
                raise ValueError("all came")
            """
        )
        verdict = grade(DRILL, names_of(text))
        assert "all came" in verdict.findings[0].found, str(verdict)

    def test_a_rank_that_kills_its_server_gets_a_verdict(self) -> None:
        """A traceback of the coach's sockets says nothing about the learner's os.kill."""
        text = textwrap.dedent(
            """
            import os

            def train(model, inputs, targets, *, epochs, global_batch_size, lr):
                os.kill(os.getppid(), 9)
            """
        )
        verdict = grade_source(DRILL, text)
        assert (verdict.status, verdict.findings[0].code) == ("crashed", "server-killed")
        assert grade_source(DRILL, load(DRILL).solution).status == "passed"

    @pytest.mark.parametrize(
        ("trouble", "said"),
        [
            ("os.kill(os.getppid(), 9)", SERVER_ENDED),
            ("dist.init_process_group = lambda *_, **__: time.sleep(60)", STUCK_MEETING),
        ],
        ids=["server", "meeting"],
    )
    @pytest.mark.parametrize("times", [1, 2])
    def test_a_check_runs_again_once_if_something_else_ended_it(
        self, tmp_path: Path, trouble: str, said: str, times: int
    ) -> None:
        """Once is bad luck; twice is a finding. Each try has its own folder."""
        prelude = f"""
            import os, time
            from pathlib import Path
            import torch.distributed as dist

            own = Path({str(tmp_path)!r}) / os.environ["RANK"]
            begun = len(own.read_text()) if own.exists() else 0
            own.write_text("x" * (begun + 1))
            # The third job of the first check, and of the second.
            if os.environ["RANK"] == "0" and begun in {[2, 5][:times]}:
                {trouble}
            """
        drill = load("run_hangs_at_its_first_log")
        attempt = attempt_of_source(textwrap.dedent(prelude) + drill.solution)
        shown: list[str] = []
        verdict = grade_attempt(drill, attempt, echo=shown.append, at_most_s=3.0)
        assert shown == [f"{said} {RUNNING_AGAIN}"]
        if times == 1:
            assert verdict.status == "passed", str(verdict)
            assert (tmp_path / "0").read_text() == "x" * (3 + len(drill.scenarios(0)))
        else:
            code = "server-killed" if said == SERVER_ENDED else "hung"
            assert [finding.code for finding in verdict.findings] == [code]

    def test_a_helper_that_is_still_blank_is_not_attempted(self) -> None:
        """NotImplementedError means: not typed yet, however deep it is raised."""
        text = textwrap.dedent(
            """
            def train(model, inputs, targets, *, epochs, global_batch_size, lr):
                share(inputs)

            def share(inputs):
                raise NotImplementedError
            """
        )
        verdict = grade_source(DRILL, text)
        assert verdict.status == "not_attempted"
        assert "share still raises NotImplementedError" in verdict.findings[0].found


class TestTwoProcesses:
    def test_the_callers_process_and_a_rank_import_nothing_of_each_other(self) -> None:
        """What one process patches, or holds open, must not reach the other."""
        code = textwrap.dedent(
            f"""
            import sys
            import rehearsal.__main__, rehearsal.grading.selftest, rehearsal.session.coach
            from rehearsal import drills, grade_source

            def ours():
                return [m for m in sorted(sys.modules) if m.startswith("rehearsal.")]

            print("BEFORE", *ours())
            typed = "import sys; print(*[m for m in sys.modules if 'rehearsal' in m])"
            grade_source({DRILL!r}, typed, echo=print)
            print("AFTER", *ours())
            """
        )
        run = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        )
        lines = {line.split()[0]: set(line.split()[1:]) for line in run.stdout.splitlines()}
        rank, before, after = lines["[0]"], lines["BEFORE"], lines["AFTER"]
        only_in_a_rank = {"rehearsal.engine.rank", "rehearsal.grading.in_rank"}
        assert only_in_a_rank <= rank
        assert not before & {*only_in_a_rank, "rehearsal.engine.forkserver"}
        # A grader imports RankContext for its bodies' types; nothing in it runs here.
        assert "rehearsal.grading.in_rank" not in after
        assert "rehearsal.grading.check" in before
        assert not {m for m in rank if m.startswith(("rehearsal.session", "rehearsal.faults"))}
        assert not rank & {
            "rehearsal.__main__",
            "rehearsal.engine.ranks",
            "rehearsal.engine.server",
            "rehearsal.grading.check",
            "rehearsal.grading.selftest",
        }


class TestBadInput:
    def test_an_unknown_drill_offers_the_nearest(self) -> None:
        """A typo must not end in a traceback of the coach."""
        with pytest.raises(UnknownDrill, match="nearest is 'lift_to_distributed'"):
            grade("lift_to_distibuted", {})

    @pytest.mark.parametrize("name", ["../drills", "", "lift to", "/etc/passwd"])
    def test_no_name_leads_out_of_the_folder(self, name: str) -> None:
        """A drill's name becomes a path."""
        with pytest.raises(UnknownDrill):
            grade(name, {})

    def test_a_wrong_signature_is_shown_next_to_the_expected_one(self) -> None:
        """An "unexpected keyword argument" from inside the grader helps nobody."""
        verdict = grade(DRILL, names_of("def train(model, data):\n    return 1\n"))
        (finding,) = verdict.findings
        assert (verdict.status, finding.code) == ("wrong", "wrong-signature")
        assert "takes (model, data)" in finding.found
        assert load(DRILL).needs["train"] in finding.found

    def test_a_needed_name_that_is_not_a_function_is_a_wrong_signature(self) -> None:
        """train = 3 is a slip, not a crash."""
        verdict = grade(DRILL, {"train": 3})
        assert verdict.findings[0].code == "wrong-signature"
        assert "train is of type int, not a function" in verdict.findings[0].found

    def test_an_object_that_cannot_be_pickled_is_named(self) -> None:
        """Locks and open files do not pickle."""
        text = (
            "import threading\nlock = threading.Lock()\n"
            "def train(model, inputs, targets, *, epochs, global_batch_size, lr):\n"
            "    lock.acquire()\n"
        )
        verdict = grade(DRILL, names_of(text))
        assert verdict.findings[0].code == "cannot-travel"
        assert "lock" in verdict.findings[0].found

    def test_without_cloudpickle_the_text_is_executed_again(
        self,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
        tmp_path: Path,
    ) -> None:
        """A silent fallback looks like a bug in the learner's code."""
        path = tmp_path / "cell.py"
        path.write_text(load(DRILL).solution)
        namespace: dict[str, Any] = {"__name__": "__main__"}
        exec(compile(path.read_text(), str(path), "exec"), namespace)
        monkeypatch.setitem(sys.modules, "cloudpickle", None)
        assert grade(DRILL, namespace).status == "passed"
        assert "cloudpickle is not installed" in capsys.readouterr().out

    def test_a_patched_notebook_judges_as_before(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A cell may have replaced what a grader would compare with."""
        import torch

        monkeypatch.setattr(torch, "allclose", lambda *_: True)
        monkeypatch.setattr(torch, "equal", lambda *_: True)
        miss = load(DRILL).near_misses()[0]
        assert grade(DRILL, names_of(miss.text)).findings[0].code == miss.code

    def test_nothing_of_the_attempt_runs_in_the_caller(self, tmp_path: Path) -> None:
        """check FILE must not execute the file in the process that keeps the history."""
        mark = tmp_path / "mark"
        text = f"import os\nopen({str(mark)!r}, 'a').write(f'{{os.getpid()}} ')\n"
        grade_source(DRILL, text + load(DRILL).blank)
        import os

        assert mark.read_text().split()
        assert str(os.getpid()) not in mark.read_text().split()


class TestPieces:
    def test_blanks_are_recognized_without_calling_them(self) -> None:
        """Calling a blank may need things that do not exist yet."""
        names = names_of(
            "def f(x):\n    'doc'\n    raise NotImplementedError\n"
            "class C:\n    def a(self): raise NotImplementedError\n"
            "    def b(self): raise NotImplementedError\n"
            "class D:\n    def a(self): raise NotImplementedError\n    def b(self): return 1\n"
            "def g(x):\n    return x\n"
        )
        assert [is_blank(names[n]) for n in "fCDg"] == [True, True, False, False]

    @pytest.mark.parametrize(
        ("text", "fits"),
        [
            ("def f(a, b, *, c): ...", True),
            ("def f(a, b, c): ...", True),
            ("def f(*args, **kwargs): ...", True),
            ("def f(a, b, *, c, d=1): ...", True),
            ("def f(a, b): ...", False),
            ("def f(a, *, b, c): ...", False),
            ("def f(a, b, *, c, d): ...", False),
            ("class f:\n    def __init__(self, a, b, *, c): ...", True),
            ("class f:\n    def __init__(self, a): ...", False),
            ("f = 3", False),
        ],
    )
    def test_a_signature_fits_if_the_call_would_work(self, text: str, fits: bool) -> None:
        """Other parameter names and further defaults are up to the learner."""
        assert (mismatch_of(names_of(text)["f"], "(x, y, *, c)") == "") is fits

    def test_a_need_that_passes_settings_on_asks_for_no_third_argument(self) -> None:
        """**settings in the expected signature is not a positional argument."""
        names = names_of("def f(path, **settings): ...")
        assert mismatch_of(names["f"], "(path, **settings)") == ""

    def test_the_first_cause_is_reported_not_its_echo(self) -> None:
        """For a bug on rank 1, rank 0 reports only a closed connection."""
        gloo = Failure(
            kind="RuntimeError", message="[gloo/transport/tcp/pair.cc] closed", traceback=""
        )
        real = Failure(kind="KeyError", message="'x'", traceback="", where="line 3 in f")
        reports = [
            RankReport(rank=0, exitcode=1, failure=gloo),
            RankReport(rank=1, exitcode=1, failure=real),
        ]
        outcome = failure_verdict(reports, 5.0)
        assert outcome is not None
        assert outcome[1][0].found == "rank 1: KeyError: 'x'"

    def test_a_peer_that_returned_early_is_named(self) -> None:
        """Otherwise the rank that waited gets the blame."""
        gloo = Failure(
            kind="RuntimeError", message="gloo/transport", traceback="", where="line 9 in f"
        )
        reports = [
            RankReport(rank=0, exitcode=1, failure=gloo),
            RankReport(rank=1, exitcode=0, has_answer=True),
        ]
        outcome = failure_verdict(reports, 5.0)
        assert outcome is not None
        assert outcome[1][0].code == "peer-returned"
        assert "rank 1 of 2 had returned while rank 0" in outcome[1][0].found

    def test_ranks_that_all_lost_their_peers_are_named(self) -> None:
        """None of them is the cause, and a check that raises here would hide that."""
        gloo = Failure(kind="RuntimeError", message="gloo/transport", traceback="")
        reports = [RankReport(rank=rank, exitcode=1, failure=gloo) for rank in (0, 1)]
        outcome = failure_verdict(reports, 5.0)
        assert outcome is not None
        assert outcome[1][0].code == "peer-returned"
        assert "ranks 0 and 1 lost the connection" in outcome[1][0].found

    @pytest.mark.parametrize(
        ("exitcode", "ended", "look"),
        [
            (3, "rank 0 exited with code 3 before it returned", "calls to exit"),
            (-6, "rank 0 was ended by SIGABRT before it returned", "calls to exit"),
            (-9, "rank 0 was ended by SIGKILL before it returned", "memory"),
        ],
    )
    def test_a_signal_that_ended_a_rank_is_named(
        self, exitcode: int, ended: str, look: str
    ) -> None:
        """Nobody exits "with code -6", and out of memory is no call of exit."""
        outcome = failure_verdict([RankReport(rank=0, exitcode=exitcode)], 5.0)
        assert outcome is not None
        (finding,) = outcome[1]
        assert (finding.code, finding.found) == ("left", ended)
        assert look in finding.look

    def test_an_exception_of_the_check_is_not_called_the_learners(self) -> None:
        """A check that fails on what was returned finds no line of the learner's to show."""
        failure = Failure(kind="TypeError", message="None is\n   no list", traceback="")
        outcome = failure_verdict([RankReport(rank=0, exitcode=1, failure=failure)], 5.0)
        assert outcome is not None
        (finding,) = outcome[1]
        assert finding.found == "rank 0: TypeError: None is no list"
        assert "returns" in finding.rule
        assert "returns" in finding.look

    def test_a_long_message_is_cut_where_the_reader_sees_it(self) -> None:
        """A message that ends in the middle of a word looks complete."""
        assert shortened("a  b\nc") == "a b c"
        assert shortened("word " * 9, 12) == "word word..."

    def test_a_verdict_shows_found_rule_look_and_next(self) -> None:
        """In text and in HTML, where the learner's text is escaped."""
        verdict = Verdict(
            drill="d",
            status="wrong",
            seconds=0.31,
            world_sizes=[1, 2],
            after="hint",
            findings=[Finding("c", "a < b", "a rule", "there")],
        )
        lines = str(verdict).splitlines()
        assert lines[0] == "d   NOT YET   1, 2 ranks, 0.3 s"
        assert [line.split()[0] for line in lines[1:]] == [
            "code",
            "found",
            "rule",
            "look",
            "next",
        ]
        assert "a &lt; b" in verdict._repr_html_()

    def test_a_signal_other_than_the_faults_is_a_crash(self) -> None:
        """A segfault, or a kill of the wrong rank, is not part of the experiment."""
        fault = Fault(rank=1, at="optimizer_step", count=1)
        scenario = Scenario(name="s", body=lambda *_: None, judge=lambda *_: [], fault=fault)
        spared = RankReport(rank=0, exitcode=0, has_answer=True)
        for rank, code, status in [(1, -9, "passed"), (1, -11, "crashed"), (0, -9, "crashed")]:
            struck = RankReport(rank=rank, exitcode=code)
            other = RankReport(rank=1 - rank, exitcode=0, has_answer=True)
            assert judge(scenario, [struck, other], {})[0] == status
        assert judge(scenario, [spared], {})[0] == "passed"

    def test_a_hang_that_a_judge_explains_is_still_a_hang(self) -> None:
        """The stacks of all ranks are promised for every hang."""
        finding = Finding("one-rank-saves", "f", "r", "l")
        scenario = Scenario(
            name="s", body=lambda *_: None, judge=lambda *_: [finding], judges_failures=True
        )
        status, findings, detail = judge(scenario, [RankReport(rank=0, exitcode=None)], {})
        assert (status, findings) == ("hung", [finding])
        assert "[rank 0]" in detail

    def test_a_hang_names_the_exception_that_others_wait_behind(self) -> None:
        """Rank 1 polls for a file of rank 0's: only the exception is the cause."""
        failure = Failure(kind="KeyError", message="'step'", where="your.py:7", traceback="T")
        scenario = Scenario(name="s", body=lambda *_: None, judge=lambda *_: [])
        reports = [
            RankReport(rank=0, exitcode=1, failure=failure),
            RankReport(rank=1, exitcode=None),
        ]
        result = judge(scenario, reports, {})
        assert result is not None
        status, (finding,), detail = result
        assert (status, finding.code) == ("hung", "hung")
        assert finding.found.endswith("rank 0 had raised KeyError: 'step'")
        assert (finding.look, detail.splitlines()[-1]) == ("at your.py:7", "T")

    def test_a_judge_that_raises_is_reported_as_our_defect(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A traceback of the grader in the learner's notebook blames the learner."""

        def broken(*_: object) -> list[Finding]:
            raise KeyError("weights")

        scenario = dataclasses.replace(load(DRILL).scenarios(0)[0], judge=broken)
        monkeypatch.setattr(
            load(DRILL).grader, "scenarios", lambda seed: [scenario], raising=False
        )
        verdict = grade_source(DRILL, load(DRILL).solution)
        assert verdict.findings[0].code == "grader-failed"
        assert "KeyError: 'weights'" in verdict.findings[0].found

    def test_drills_are_listed_with_what_they_need(self) -> None:
        """The contract: id, title, minutes, names with signatures."""
        listed = {drill.id: drill for drill in rehearsal.drills()}
        assert set(listed) == {path.parent.name for path in DRILLS.glob("*/drill.toml")}
        assert listed[DRILL].needs["train"].startswith("(model, inputs")
        assert all(drill.minutes > 0 and drill.title for drill in listed.values())

    def test_a_check_works_from_a_thread(self) -> None:
        """A widget's button runs in one."""
        verdicts: list[Verdict] = []
        thread = threading.Thread(target=lambda: verdicts.append(grade(DRILL, {})))
        thread.start()
        thread.join()
        assert verdicts[0].status == "not_attempted"
