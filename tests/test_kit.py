"""What graders share: ordering findings, counting samples, ways to clip, closing answers."""

from __future__ import annotations

import glob
import math
import os
import random
import shutil
import sys
import types
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest
import torch

from rehearsal.engine import server
from rehearsal.engine.rank import RankContext
from rehearsal.engine.ranks import run_ranks
from rehearsal.engine.reports import Fault, RankReport
from rehearsal.grading.check import grade_source, warm_up
from rehearsal.grading.drill import load
from rehearsal.grading.verdict import ENGINE_FINDINGS, Finding, FindingTable, cheat_findings
from rehearsal.kit.judge.aligned import aligned
from rehearsal.kit.judge.clipping import norm, ways_to_clip
from rehearsal.kit.judge.coverage import coverage_findings, miscounted, samples_by_step
from rehearsal.kit.judge.findings import first_of, only_first
from rehearsal.kit.judge.one_writer import one_rank_changes, one_writer
from rehearsal.kit.judge.saves import (
    Kill,
    SavedRun,
    ended_start,
    kills_in_saves,
    resumed_after,
    start_after_kill,
)
from rehearsal.kit.judge.steps import (
    Steps,
    newest_of,
    one_order,
    resumption_findings,
    sgd_findings,
    weights_by_step,
)
from rehearsal.kit.judge.weights import largest_difference, ranks_differ
from rehearsal.kit.observe.anti_cheat import close_the_answer
from rehearsal.kit.observe.listings import list_backward
from rehearsal.kit.observe.moments import Moment
from rehearsal.kit.observe.random_state import global_changes
from rehearsal.kit.observe.samples import OddNet, before_forward, ids_of, marked_samples
from rehearsal.kit.observe.saves import Keep, moments_to_keep
from rehearsal.kit.observe.steps import WatchedSteps

# Ranks cannot import a test module; its functions travel by value, as a notebook's do.
cloudpickle.register_pickle_by_value(sys.modules[__name__])
KIT = Path(__file__).resolve().parents[1] / "rehearsal" / "kit"
MODULE = "answer_of_a_test"
ANSWER = """
from dataclasses import dataclass


def train_step(rate):
    return rate


class Base:
    def __init__(self):
        self.ready = True


class Net(Base):
    def __init__(self):
        super().__init__()

    @property
    def size(self):
        return 1

    @staticmethod
    def of(size):
        return size


@dataclass(frozen=True)
class Config:
    seed: int


def helper():
    return "free to use"
"""


@dataclass
class Notebook:
    """Stands for a rank's context: it takes notes."""

    notes: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def record(self, kind: str, **facts: Any) -> None:
        self.notes.append((kind, facts))


@pytest.fixture
def answer() -> Iterator[types.ModuleType]:
    module = types.ModuleType(MODULE)
    sys.modules[MODULE] = module
    exec(ANSWER, vars(module))
    yield module
    del sys.modules[MODULE]


class TestClosedAnswers:
    @pytest.mark.parametrize(
        ("name", "call"),
        [
            ("train_step", lambda held: held(0.1)),
            ("Net", lambda held: held()),  # its constructor has a free variable, for super()
            ("Net", lambda held: held.size.fget(None)),
            ("Net", lambda held: held.of(3)),
            ("Net", lambda held: type("Mine", (held,), {})()),
            ("Config", lambda held: held(3)),  # its constructor is generated
        ],
    )
    def test_calling_one_is_recorded_and_raises(
        self, answer: types.ModuleType, name: str, call: Any
    ) -> None:
        """If you call the answer, you rehearse nothing, and you may not even notice."""
        held = getattr(answer, name)
        if name == "Net":
            held.size = vars(answer.Net)["size"]
        context = Notebook()
        close_the_answer(context, MODULE, ["train_step", "Net", "Config"])  # type: ignore[arg-type]
        with pytest.raises(RuntimeError, match=f"{MODULE}.{name} is the answer to this drill"):
            call(held if name != "Net" else answer.Net)
        assert context.notes == [("answer", {"module": MODULE, "name": name})]

    def test_the_rest_of_the_module_stays_open(self, answer: types.ModuleType) -> None:
        """A drill on one name may use the others."""
        context = Notebook()
        close_the_answer(context, MODULE, ["train_step"])  # type: ignore[arg-type]
        assert answer.helper() == "free to use"
        assert context.notes == []

    def test_a_name_that_is_gone_is_an_error(self, answer: types.ModuleType) -> None:
        """A rename in trainer_core would open the answer, and nobody would notice."""
        with pytest.raises(AttributeError, match="gone"):
            close_the_answer(Notebook(), MODULE, ["gone"])  # type: ignore[arg-type]

    def test_the_check_names_what_was_called(self) -> None:
        """In any drill, and whatever its own judge says."""
        event = {"kind": "answer", "module": "trainer_core.train", "name": "train_step"}
        reports = [
            RankReport(rank=0, exitcode=0),
            RankReport(rank=1, exitcode=1, events=[event]),
        ]
        (finding,) = cheat_findings(reports)
        assert finding.code == "imported-not-typed"
        assert finding.found.startswith("rank 1 called trainer_core.train.train_step")
        assert cheat_findings(reports[:1]) == []


class TestFindings:
    def test_a_table_makes_findings_and_lists_their_meanings(self) -> None:
        """docs/drills.md shows the meanings; a learner sees the rest."""
        table = FindingTable({"lost": ("a sample is lost", "each counts", "at the end")})
        assert table.codes == {"lost": "a sample is lost"}
        assert table("lost", "3 samples") == Finding(
            "lost", "3 samples", "each counts", "at the end"
        )
        assert table("lost", "3 samples", "at line 7").look == "at line 7"
        with pytest.raises(KeyError):
            table("unlisted", "")

    def test_every_common_finding_is_complete(self) -> None:
        """An empty `look` helps nobody."""
        for code in ENGINE_FINDINGS.codes:
            assert all(ENGINE_FINDINGS(code, "found"))

    def test_only_the_first_part_with_findings_is_reported(self) -> None:
        """A consequence is not a second fault."""
        one, two, three = (Finding(code, "", "", "") for code in ("one", "two", "three"))
        assert list(first_of([], [one, two], [three])) == [one, two]
        assert list(first_of([], [])) == []

    def test_a_judge_stops_at_its_first_finding(self) -> None:
        """The lines after it may rely on what the finding says is missing."""

        def judge(reports: object, earlier: object) -> Iterator[Finding]:
            yield Finding("one", "", "", "")
            raise AssertionError("not reached")

        assert [f.code for f in only_first(judge)([], {})] == ["one"]


def rank(number: int, *steps: list[int], **facts: Any) -> RankReport:
    """A rank that trained these samples, step by step."""
    pairs = ([{"kind": "forward", "samples": s}, {"kind": "optimizer_step"}] for s in steps)
    return RankReport(
        rank=number, exitcode=0, events=list(chain(*pairs)), has_answer=True, **facts
    )


def weights(value: float) -> dict[str, str]:
    """The weights of a model with one parameter, as ``weights_of`` writes them down."""
    return {"w": array("f", [value]).tobytes().hex()}


class TestCounts:
    def test_samples_that_come_too_often_or_too_rarely(self) -> None:
        """Both can happen together, and different judges need each of them."""
        assert miscounted([0, 1, 1, 3], 4) == ([1], [2])
        assert miscounted([0, 0, 1, 2, 2], 3, times=2) == ([], [1])
        assert miscounted([], 2) == ([], [0, 1])

    def test_a_step_joins_the_samples_of_all_ranks(self) -> None:
        """A rank may take fewer steps than another."""
        reports = [rank(0, [3, 1], [0]), rank(1, [2])]
        assert samples_by_step(reports) == [[1, 2, 3], [0]]

    def test_a_sample_on_two_ranks_is_named_with_both(self) -> None:
        """It counts twice in the gradient."""
        (finding,) = coverage_findings([rank(0, [0, 1]), rank(1, [1, 2])], 4, 1, "look")
        assert finding.code == "trained-twice"
        assert "sample 1 was trained on ranks 0 and 1" in finding.found
        (finding,) = coverage_findings([rank(0, [0]), rank(1, [1])], 3, 1, "look")
        assert finding.code == "never-trained"
        assert "1 of 3 samples was never trained in 1 epoch: 2" in finding.found


class TestRanksWithoutSamples:
    """A rank may leave out a step in which it has no sample; its steps still match."""

    RUN = SavedRun(
        num_samples=5,
        epochs=2,
        steps_per_epoch=2,
        every=3,
        world_size=2,
        global_batch_size=4,
        lr=0.1,
        tolerance=1e-5,
    )

    def report(self, number: int, *steps: tuple[float | None, list[int]]) -> RankReport:
        """A rank's steps: the weight before each, if it had a forward pass, and its samples."""
        events: list[dict[str, Any]] = []
        for weight, samples in steps:
            if weight is not None:
                events.append({"kind": "step_begins", "weights": weights(weight)})
                events.append({"kind": "forward", "samples": samples})
            events.append({"kind": "optimizer_step"})
        answer = {"weights": weights(4.0)}
        return RankReport(rank=number, exitcode=0, answer=answer, events=events)

    @pytest.mark.parametrize(
        "left_out", [[(None, [])], []], ids=["torch's optimizer", "written out"]
    )
    def test_a_step_left_out_is_filled_in(self, left_out: list[tuple[None, list[int]]]) -> None:
        first = self.report(0, (0.0, [0, 1]), (1.0, [4]), (2.0, [3, 2]), (3.0, [1]))
        second = self.report(1, (0.0, [2, 3]), *left_out, (2.0, [4, 0]), *left_out)
        reports = aligned([first, second])
        assert samples_by_step(reports) == [[0, 1, 2, 3], [4], [0, 2, 3, 4], [1]]
        begun = [weights(float(step)) for step in range(4)]
        assert [weights_by_step(report) for report in reports] == [begun, begun]

    @pytest.mark.parametrize(
        "left_out", [[(None, [])], []], ids=["torch's optimizer", "written out"]
    )
    def test_ranks_may_leave_out_different_steps(
        self, left_out: list[tuple[None, list[int]]]
    ) -> None:
        """No rank knows all weights; rank 0 is one of those that left out a step."""
        first = self.report(0, (0.0, [0, 1]), *left_out, (2.0, [3, 2]), (3.0, [1]))
        second = self.report(1, (0.0, [2, 3]), (1.0, [4]), (2.0, [0]), *left_out)
        reports = aligned([first, second])
        assert samples_by_step(reports) == [[0, 1, 2, 3], [4], [0, 2, 3], [1]]
        begun = [weights(float(step)) for step in range(4)]
        assert [weights_by_step(report) for report in reports] == [begun, begun]
        assert aligned(reports) == reports

    def test_a_killed_rank_gets_no_steps_after_its_kill(self) -> None:
        first = self.report(0, (0.0, [0]), (1.0, [1]), (2.0, [2]))
        second = replace(self.report(1, (0.0, [3]), (1.0, [4])), answer=None)
        reports = aligned([first, second])
        assert samples_by_step(reports) == [[0, 3], [1, 4], [2]]
        assert len(weights_by_step(reports[1])) == 2

    def test_other_events_stay(self) -> None:
        (report,) = aligned([replace(self.report(0), events=[{"kind": "noise"}])])
        assert report.events == [{"kind": "noise"}]

    def test_the_ranks_that_differ_at_a_restart_are_named(self) -> None:
        """Also where another rank was killed before its first step."""
        whole = [self.report(n, *((float(s), [n]) for s in range(4))) for n in range(3)]
        starts = [
            replace(self.report(0), answer=None),
            replace(self.report(1, (3.0, [1])), answer=None),
            replace(self.report(2, (3.5, [2])), answer=None),
        ]
        (finding,) = resumption_findings(self.RUN, whole, starts, [3], "killed", "look")
        assert finding.code == "ranks-differ"
        assert "the weights of ranks 1 and 2 differ" in finding.found

    def test_weights_that_no_other_rank_has_stay(self) -> None:
        first = self.report(0, (0.0, [0]), (1.0, [1]))
        second = self.report(1, (0.0, [2]), (1.5, [3]))
        _, drifted = aligned([first, second])
        assert weights_by_step(drifted) == [weights(0.0), weights(1.5)]

    def test_rounding_does_not_count_and_a_difference_does(self) -> None:
        states = [weights(float(step)) for step in range(5)]
        start = self.report(0, (2.0 + 1e-6, [0]), (3.0 + 1e-4, [1]))
        (report,) = aligned([start], states, self.RUN.tolerance)
        assert weights_by_step(report) == [weights(2.0), weights(3.0 + 1e-4)]
        assert (
            resumed_after([self.report(0, *((float(s), []) for s in range(4)))], [report]) == 2
        )

    def test_a_checkpoint_is_due_every_so_many_steps_and_at_an_epochs_end(self) -> None:
        assert self.RUN.dues() == [3]
        run = replace(self.RUN, saves_epochs=True)
        assert run.dues() == [2, 3, 4]
        assert [run.newest(done) for done in range(5)] == [0, 0, 2, 3, 4]
        assert [run.size_of(step) for step in range(4)] == [4, 1, 4, 1]


class TestWeights:
    def test_a_nan_differs_from_everything(self) -> None:
        """A comparison with NaN is false either way."""
        nan, one = "0000c07f", "0000803f"
        assert math.isnan(largest_difference({"w": one}, {"w": nan})[0])
        (finding,) = ranks_differ([{"w": one}, {"w": nan}])
        assert finding.code == "ranks-differ"
        assert finding.found.endswith("can't be compared: w has NaNs or infinities")
        # Wherever it is, and whatever comes after it.
        for theirs in ({"v": nan, "w": one}, {"v": one, "w": nan}):
            assert math.isnan(largest_difference({"v": one, "w": one}, theirs)[0])
        assert math.isnan(largest_difference({"w": one + one}, {"w": nan + one})[0])
        assert list(ranks_differ([{"w": one}] * 3)) == []
        assert largest_difference({"w": one}, {"v": one}) == (math.inf, "v, w")

    def test_weights_of_different_sizes_differ(self) -> None:
        """It is the learner's model that is wrong, not the grader that fails."""
        (finding,) = ranks_differ([{"w": "0000803f"}, {"w": "0000803f" * 2}])
        assert finding.found.endswith(": w has different sizes")


class TestFaults:
    def test_a_fault_after_a_step_kills_one_rank_or_all(self) -> None:
        """A dozen scenarios would otherwise spell it out."""
        assert Fault.after_step(3, rank=1) == Fault(rank=1, at="optimizer_step", count=3)
        assert Fault.after_step(3, rank=None).signal == "KILL"


class TestClipping:
    # Two ranks with two micro-batches each; the mean over the step's 4 samples is (3, 4).
    SUMS = [[[12.0, 0.0], [0.0, 8.0]], [[0.0, 4.0], [0.0, 4.0]]]

    def ways(self, most: float) -> dict[str, list[tuple[str, list[float]]]]:
        found: dict[str, list[tuple[str, list[float]]]] = {}
        places = {"tensor": [[slice(0, 1)], [slice(1, 2)]]}
        for code, words, vector in ways_to_clip(self.SUMS, 4, most, places):
            found.setdefault(code, []).append((words, vector))
        return found

    def test_the_right_one_is_the_mean_at_the_bound(self) -> None:
        """It comes first, so that a step that also fits another way still counts as right."""
        ways = self.ways(2.5)
        assert next(iter(ways)) == ""
        ((_, right),) = ways[""]
        assert right == pytest.approx([1.5, 2.0])

    def test_each_wrong_one_is_computed(self) -> None:
        """By hand, for a bound of 2.5."""
        ways = self.ways(2.5)
        assert ways["not-clipped"][0][1] == pytest.approx([3.0, 4.0])
        assert ways["clipped-in-parts"][0][1] == pytest.approx([2.5, 2.5])
        # As DDP has it: rank 0 holds (6, 4), rank 1 (0, 4), and each clips to 2.5.
        long = 2.5 / math.hypot(6, 4)
        expected = [6 * long / 2, (4 * long + 2.5) / 2]
        assert ways["clipped-per-rank"][0][1] == pytest.approx(expected)
        assert norm(ways["clipped-per-rank"][1][1]) <= 2.5 + 1e-9
        assert {"clipped-per-micro-batch", "norm-of-norms"} <= set(ways)

    def test_within_the_bound_only_scaling_up_differs(self) -> None:
        """A step that needs no clipping doesn't show how it would be clipped."""
        ways = self.ways(100.0)
        for code in ("", "not-clipped", "clipped-in-parts"):
            assert ways[code][0][1] == pytest.approx([3.0, 4.0])
        assert ways["clipped-up"][0][1] == pytest.approx([60.0, 80.0])


def test_folders_are_listed_backward_whatever_lists_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Code that takes the last of an unsorted listing passes where the file system sorts."""
    for name in ("listdir", "scandir"):
        monkeypatch.setattr(os, name, getattr(os, name))  # put back after the test
    folder = tmp_path / "run"
    (folder / "a").mkdir(parents=True)
    for name in ("step-1", "step-2", "step-3"):
        (folder / name).touch()
    list_backward()
    list_backward()  # a body may train several times
    backward = ["step-3", "step-2", "step-1"]
    assert os.listdir(folder) == [*backward, "a"]
    assert [path.name for path in folder.glob("step-*")] == backward
    assert [os.path.basename(path) for path in glob.glob(f"{folder}/step-*")] == backward
    with os.scandir(folder) as entries:
        assert next(entries).name == "step-3"
    assert next(os.walk(folder)) == (str(folder), ["a"], backward)
    shutil.rmtree(folder)
    assert not folder.exists()


class TestStarts:
    """What a start may resume from, and which start is which."""

    RUN = Steps(num_samples=9, epochs=3, steps_per_epoch=3, every=2)

    def test_a_run_is_judged_without_the_restarts_that_follow_it(self) -> None:
        """A restart's steps would count as the run's: every right answer would be refused."""
        events = [
            {"kind": "restarted", "folder": "short"},
            {"kind": "optimizer_step"},
            {"kind": "ended", "folder": "short", "answer": {"weights": {"w": "00"}}},
            {"kind": "restarted", "folder": "short-killed-0-00"},
            {"kind": "optimizer_step"},
        ]
        whole = ended_start([RankReport(rank=0, exitcode=1, events=events)], "short")
        assert [len(report.of("optimizer_step")) for report in whole] == [1]
        assert whole[0].answer["weights"] == {"w": "00"}
        ended = RankReport(rank=0, exitcode=0, events=events)
        stuck = RankReport(rank=1, exitcode=None, events=events[:2])
        assert ended_start([ended, stuck], "short") == []
        assert ended_start([ended], "short-killed-0-00") == []

    @pytest.mark.parametrize(
        ("steps", "is_after", "in_thread", "saved"),
        [(4, False, False, 2), (4, True, False, 4), (5, False, False, 4), (5, True, True, 2)],
    )
    def test_a_kill_in_a_save_costs_that_save(
        self, steps: int, is_after: bool, in_thread: bool, saved: int
    ) -> None:
        events = [
            {"kind": "saved", "steps": [2, 4], "in_thread": in_thread},
            {
                "kind": "kept",
                "folder": "a",
                "where": "here",
                "steps": steps,
                "is_after": is_after,
            },
        ]
        start = [RankReport(rank=0, exitcode=0, events=events)]
        ((folder, kill),) = kills_in_saves(self.RUN, start)
        assert (folder, kill.saved, kill.done) == ("a", saved, steps)
        assert kill.how == f"all ranks were killed here, after step {steps}"
        # The same, after a restart from step 2: what that one has found is never lost.
        ((_, again),) = kills_in_saves(self.RUN, start, 2, Kill("before", 2, 3, {1, 2, 3}))
        assert again.saved == max(2, self.RUN.newest(saved + 2))
        assert (again.done, again.wrote) == (steps + 2, {1, 2, 4, 6})
        assert again.how.startswith("before; the restart was killed, too, here")

    def test_a_start_must_not_resume_after_the_kill(self) -> None:
        """Its weights would come from elsewhere than a checkpoint."""
        run = TestRanksWithoutSamples()
        whole = [run.report(0, (0.0, [0]), (1.0, [1]), (2.0, [2]), (3.0, [3]))]
        start = [run.report(0, (3.0, [3]))]
        found = start_after_kill(run.RUN, whole, start, Kill("killed", 0, 2), "look")
        assert [finding.code for finding in found] == ["not-the-newest"]

    def test_the_newest_checkpoint_in_words(self) -> None:
        assert newest_of([0]) == "no checkpoint is due by then"
        assert newest_of([4]) == "the newest checkpoint is that of step 4"
        either = "step 4, or of step 2 if the save of step 4 wasn't complete"
        assert newest_of([4, 2]).endswith(either)
        assert newest_of([2, 0]).endswith(
            "2, or there is none if the save of step 2 wasn't complete"
        )


class TestSteps:
    def test_epochs_that_are_not_next_to_each_other_are_compared(self) -> None:
        """With the seed of an order from epoch % 2, neighbors differ."""
        run = Steps(num_samples=2, epochs=3, steps_per_epoch=2, every=2)
        (finding,) = one_order(run, [rank(0, [0], [1], [1], [0], [0], [1])], "same-order")
        assert "epochs 0 and 2 trained the samples in the same order" in finding.found

    @pytest.mark.parametrize("place", [0, 1])
    def test_a_nan_in_an_update_is_found_wherever_it_is(self, place: int) -> None:
        """max([0.0, nan]) is 0.0."""
        after = [0.0, 0.0]
        after[place] = math.nan
        events = [
            {"kind": "step_begins", "weights": {"w": array("f", [0.0, 0.0]).tobytes().hex()}},
            {"kind": "optimizer_step"},
        ]
        ended = {"weights": {"w": array("f", after).tobytes().hex()}}
        report = RankReport(rank=0, exitcode=0, events=events, answer=ended)
        (finding,) = sgd_findings([report], lambda *_: {"w": [0.0, 0.0]}, 0.1, "")
        assert finding.code == "different-update"
        assert "has NaNs or infinities" in finding.found


def test_a_batch_passed_by_name_is_seen() -> None:
    """model(inputs=batch) is a right answer, and a watch that expects a position crashes it."""
    model, seen = OddNet(), list[list[int]]()
    before_forward(model, lambda batch: seen.append(ids_of(batch)))
    inputs, _ = marked_samples(4)
    model(inputs[1:3])
    model(inputs=inputs[2:])
    assert seen == [[1, 2], [2, 3]]


class Record(list[dict[str, Any]]):
    """What a rank's context does for a watch: it keeps and counts events."""

    def record(self, kind: str, **facts: Any) -> None:
        self.append({"kind": kind, **facts})

    def count(self, kind: str) -> int:
        return len([event for event in self if event["kind"] == kind])


class TestWatchedSteps:
    def test_a_save_after_an_update_knows_its_step(self) -> None:
        """Whoever updates the weights; several passes may be one step."""
        record, model = Record(), OddNet()
        record.record("optimizer_step")  # of a start before this one
        watch = WatchedSteps(record, model)  # type: ignore[arg-type]
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer.register_step_post_hook(lambda *_: record.record("optimizer_step"))
        inputs, _ = marked_samples(4)
        done = [watch.done()]
        for by_hand in (True, False, True):
            for batch in inputs.split(2):
                model(batch).sum().backward()
            done.append(watch.done())
            if by_hand:
                with torch.no_grad():
                    model.outer.bias += 1.0
            else:
                optimizer.step()
            done.append(watch.done())
        assert done == [0, 0, 1, 1, 2, 2, 3]
        with torch.no_grad():
            model(inputs)  # an evaluation is no step
        assert watch.done() == 3
        watch.end_step()
        assert (watch.done(), record.count("optimizer_step")) == (3, 4)
        assert WatchedSteps.newest is watch


class TestMomentsToKeep:
    @staticmethod
    def moment(note: int, part: str = "before", **files: bytes) -> Moment:
        where = f"{part} {sorted(files)} {note}"
        return Moment(where=where, part=part, note=note, files={**files, "a folder": None})

    def test_between_saves_inside_them_and_after_the_last(self) -> None:
        """What a start has found was there for the start before it, and tells nothing new."""
        new = self.moment
        moments = [
            new(2, old=b"1"),
            new(2, "half", old=b"1", tmp=b"2"),
            new(4, old=b"2"),
            new(4, "half", old=b"2", tmp=b"4"),
            new(4, "none", old=b"2", tmp=b""),
            new(5, "end", old=b"4"),
        ]
        _, in_first, found_4, *in_later, end = moments
        draw = random.Random(0)

        def kept(*keep: Any) -> list[Moment]:
            return moments_to_keep(moments, {"old": b"1"}, Keep(*keep), draw)

        assert kept(0, 0, (0, 1, 2)) == [found_4, end]
        assert kept(0, 0, (-1, -2, -9, 0)) == [end, found_4]
        assert kept(9, 0, ()) == [in_first]
        assert kept(0, 9, ()) == in_later
        assert kept(9, 9, (0,)) == [found_4, in_first, *in_later]
        assert moments_to_keep([end], {}, Keep(9, 9, (0,)), draw) == []
        # A rank that only makes a folder at its start doesn't save.
        at_start = [new(0, old=b"1"), end]
        assert moments_to_keep(at_start, {"old": b"1"}, Keep(9, 9, (0, -1)), draw) == []


def ours_loaded(context: RankContext) -> list[str]:
    """The modules of this project that a rank has before anybody imports one."""
    return [name for name in sys.modules if name.startswith(("rehearsal.", "trainer_core"))]


BACKWARD = "    ((model(inputs) - targets).pow(2).sum() / size).backward()\n"
ZEROS = """    for parameter in model.parameters():
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
"""
SKIPS = (BACKWARD, f"    if len(inputs):\n    {BACKWARD}{ZEROS}")
BY_HAND = """    for number, parameter in enumerate(model.parameters()):
        if parameter.grad is not None:
            moved = optimizer.state[parameter].setdefault("momentum_buffer", torch.zeros(1))
            moved = 0.9 * moved + parameter.grad
            optimizer.state[parameter]["momentum_buffer"] = moved
            parameter.data -= optimizer.param_groups[0]["lr"] * moved
"""
# Other ways to take a step, as edits of two drills' solutions.
RIGHT_STEPS = {
    "a rank without samples adds zeros": [SKIPS],
    "rank 0 is the one without samples": [
        SKIPS,
        (
            "mine = samples[rank::world_size]",
            "mine = samples[world_size - 1 - rank :: world_size]",
        ),
    ],
    "sample by sample": [
        (
            BACKWARD,
            "    for one, target in zip(inputs.split(1), targets.split(1)):\n"
            "        ((model(one) - target).pow(2).sum() / size).backward()\n" + ZEROS,
        )
    ],
    "the update is written out": [SKIPS, ("    optimizer.step()\n", BY_HAND)],
}
SEED = 7  # ranks without samples are in every run


class TestOneWriter:
    @pytest.mark.parametrize(
        "events",
        [
            {"op": "open", "path": "a", "to": None},
            {"op": "torch.save", "path": "a", "to": None},
            {"op": "symlink", "path": "a", "to": None},
            {"op": "rename", "path": "own-{rank}", "to": "a"},
        ],
        ids=lambda event: event["op"],
    )
    def test_two_writers_of_one_file_are_found_however_they_write(
        self, events: dict[str, Any]
    ) -> None:
        """A file of each rank's own, moved onto a common name, is written twice, too."""
        reports = [
            RankReport(
                rank=rank,
                exitcode=0,
                events=[{"kind": "file", **events, "path": events["path"].format(rank=rank)}],
            )
            for rank in range(2)
        ]
        for finds in (one_writer, one_rank_changes):
            (finding,) = finds(reports)
            assert "ranks 0 and 1 both wrote" in finding.found
            assert " a" in finding.found

    def test_reading_and_removing_are_no_writes(self) -> None:
        """Each rank may remove what is left over: that is no second writer."""
        event = {"kind": "file", "op": "remove", "path": "a", "to": None}
        reports = [RankReport(rank=rank, exitcode=0, events=[event]) for rank in range(2)]
        assert not list(one_writer(reports))


@pytest.mark.ranks
class TestInRanks:
    def test_a_rank_begins_with_the_kit_and_without_the_trainer(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The kit costs a rank nothing; a trainer loaded early would outlive its next edit."""
        # An incident in this process may have wanted the trainer in its ranks.
        server.shut_down()
        monkeypatch.setattr(server, "_wanted", set())
        warm_up()  # as each check does
        loaded = set(run_ranks(ours_loaded, world_size=1)[0].answer)
        files = list(KIT.glob("*/[!_]*.py"))
        assert {f"rehearsal.kit.{file.parent.name}.{file.stem}" for file in files} <= loaded
        assert len(files) > 10
        assert not [name for name in loaded if name.startswith("trainer_core")]

    def test_formatting_a_stack_is_not_a_peek_at_the_drill(self) -> None:
        """torch.manual_seed formats it, with the lines of the modules next to the grader."""
        text = load("instrument_performance").solution
        first = "    optimizer = torch.optim.SGD("
        assert text.count(first) == 1
        seeded = text.replace(first, f"    torch.manual_seed(1)\n{first}")
        assert grade_source("instrument_performance", seeded).status == "passed"

    @pytest.mark.parametrize("drill", ["every_restart_crashes", "replicas_drift_apart"])
    @pytest.mark.parametrize("how", RIGHT_STEPS)
    def test_a_right_step_may_be_taken_in_other_ways(self, how: str, drill: str) -> None:
        """The number of passes, and who steps, are up to the learner."""
        text = load(drill).solution
        for old, new in RIGHT_STEPS[how]:
            assert text.count(old) == 1
            text = text.replace(old, new)
        verdict = grade_source(drill, text, seed=SEED)
        assert verdict.status == "passed", str(verdict)


class TestGlobalState:
    @pytest.mark.parametrize(
        ("change", "named"),
        [
            (lambda net: torch.rand(1), ["torch's random state"]),
            (lambda net: np.random.rand(), ["numpy's random state"]),
            (lambda net: random.random(), ["Python's random state"]),
            (lambda net: net.inner.eval(), ["the training flags of net"]),
            (lambda net: torch.set_grad_enabled(False), ["the grad mode"]),
            (lambda net: net(torch.zeros(2, 5)), []),
        ],
    )
    def test_a_change_is_named(self, change: Any, named: list[str]) -> None:
        """Code that must not touch it may touch any of it."""
        net = OddNet()
        with torch.enable_grad(), global_changes(net=net) as changed:
            change(net)
        assert changed == named
