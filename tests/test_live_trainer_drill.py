"""The drill live_trainer: judged by stages, whatever has been typed so far."""

from __future__ import annotations

import json
import sys
import types
from collections.abc import Callable
from typing import Any

import pytest

import rehearsal
from rehearsal.grading.drill import load, module_at
from rehearsal.grading.in_rank import is_blank
from rehearsal.session.brief import brief_of

DRILL = load("live_trainer")
GRADER = DRILL.grader
draws = module_at(DRILL.folder / "draws.py")
audit: Any = sys.modules[f"{GRADER.__name__}.audit"]
cells: Any = sys.modules[f"{GRADER.__name__}.cells"]
judge_parts: Any = sys.modules[f"{GRADER.__name__}.judge_parts"]
judge_saves: Any = sys.modules[f"{GRADER.__name__}.judge_saves"]
SOLUTION = DRILL.solution


def before(marker: str) -> str:
    """The solution up to a definition."""
    assert SOLUTION.count(marker) == 1
    return SOLUTION[: SOLUTION.index(marker)]


class TestForm:
    def test_it_asks_for_few_names(self) -> None:
        """Whoever types for 45 minutes has a design of their own."""
        assert len(DRILL.needs) < 20
        assert DRILL.minutes == 45

    def test_each_stage_calls_needed_names_and_has_a_scenario(self) -> None:
        """A stage that nothing judges passes whatever is typed."""
        names = [stage.name for stage in DRILL.stages]
        assert list(dict.fromkeys(s.stage for s in DRILL.scenarios(0))) == names
        for stage in DRILL.stages:
            assert set(stage.calls) <= set(DRILL.needs)
            assert len(stage.must.split()) <= 100

    def test_the_brief_has_the_stages_and_the_warm_ups(self) -> None:
        """A stage may judge only what the brief has said."""
        text = brief_of(DRILL)
        words = " ".join(text.split())
        assert all(" ".join(stage.must.split()) in words for stage in DRILL.stages)
        for name in DRILL.warm_ups:
            assert f"`{name}`" in text
            assert "warm-up for `live_trainer`" in brief_of(load(name))


class TestBlankness:
    @pytest.mark.parametrize(
        "text",
        [
            "def f(cfg): ...",
            "def f(cfg):\n    pass",
            "def f(cfg):\n    'Says what it does.'\n    ...",
            "def f(cfg):\n    raise NotImplementedError",
            "class f:\n    def a(self): ...\n    def b(self): raise NotImplementedError",
            "from dataclasses import dataclass\n@dataclass\nclass f:\n    a: int = 1\n"
            "    def __post_init__(self): raise NotImplementedError",
        ],
    )
    def test_an_empty_body_is_blank(self, text: str) -> None:
        """People write `...` first and type later. That must not count as a mistake."""
        scope: dict[str, Any] = {}
        exec(compile(text, "attempt.py", "exec"), scope)
        assert is_blank(scope["f"], counts_empty=True)

    def test_a_body_is_not(self) -> None:
        """What returns None on purpose has been typed."""
        scope: dict[str, Any] = {}
        exec(compile("def f(cfg): return 0", "attempt.py", "exec"), scope)
        assert not is_blank(scope["f"], counts_empty=True)
        exec(compile("def f(cfg): ...", "attempt.py", "exec"), scope)
        assert not is_blank(scope["f"])  # in a drill that isn't judged by stages


@pytest.mark.ranks
class TestStages:
    @pytest.mark.parametrize(
        ("text", "reached"),
        [
            (before("def seed_for"), "config: pass. Next: data."),
            (before("class TinyNet"), "config, data: pass. Next: model."),
            (before("def maybe_init_dist"), "config, data, model: pass. Next: who am I?"),
            (
                before("class TinyNet") + "class TinyNet(nn.Module): ...\n",
                "config, data: pass. Next: model.",
            ),
            (
                before("class TinyNet") + SOLUTION[SOLUTION.index("def fsync") :],
                "config, data, checkpoint, metrics: pass. Next: model.",
            ),
        ],
        ids=["config", "data", "model", "ellipsis", "a gap"],
    )
    def test_what_is_missing_is_not_held_against_you(self, text: str, reached: str) -> None:
        """A check after each cell would otherwise fail seven times."""
        verdict = rehearsal.grade_source("live_trainer", text, seed=3)
        assert (verdict.status, list(verdict.findings)) == ("not_attempted", [])
        assert verdict.reached == reached
        assert "PASSED SO FAR" in str(verdict)
        assert reached in str(verdict)
        assert "PASSED SO FAR" in verdict._repr_html_()

    def test_a_failing_stage_ends_the_check(self) -> None:
        """Later findings would follow from the first."""
        wrong = before("class TinyNet").replace("permutation(n)", "permutation(n - 1)")
        verdict = rehearsal.grade_source("live_trainer", wrong, seed=3)
        assert verdict.status == "wrong"
        assert verdict.reached == "config: pass. Not yet: data."

    @pytest.mark.parametrize("seed", [1, 2])
    @pytest.mark.parametrize("name", list(DRILL.solutions()))
    def test_every_design_passes_whatever_is_drawn(self, name: str, seed: int) -> None:
        """A check that depends on its draw is a lottery."""
        verdict = rehearsal.grade_source("live_trainer", DRILL.solutions()[name], seed=seed)
        assert verdict.status == "passed", str(verdict)
        assert verdict.reached == "all 12 stages pass"
        assert verdict.seed == seed


class TestDraws:
    def test_the_run_is_cut_where_it_hurts(self) -> None:
        """A kill at an epoch's end would hide a position that is rounded down to it."""
        seen = set()
        for seed in range(300):
            run = draws.plan_of(seed)
            saved = run.saved_before(run.kill_at)
            assert 10 <= saved < run.kill_at < run.total
            assert saved % run.steps_per_epoch
            assert 0 < run.saved_before(run.silent_at) < run.silent_at < 10
            assert run.silent_at % run.steps_per_epoch
            assert any(step < 10 for step in run.saves)
            assert run.steps_per_epoch % run.every  # or a save at its end comes anyway
            assert run.num_samples % run.global_batch_size
            seen.add((run.num_samples, run.global_batch_size, run.seed, run.every))
        assert len(seen) > 200
        assert draws.plan_of(5) == draws.plan_of(5)

    def test_the_rates_are_asked_for_up_to_the_last_planned_step(self) -> None:
        """A cosine to 0 reaches it there, and nowhere before."""
        for seed in range(50):
            run = draws.plan_of(seed)
            for asked in draws.rates_of_check(run):
                last = asked.settings["max_epochs"] * run.steps_per_epoch
                assert (asked.steps[0], asked.steps[-1]) == (0, last)
                assert list(asked.steps) == sorted(set(asked.steps))
            assert last >= 10_000

    @pytest.mark.parametrize(
        "key",
        [
            lambda seed, epoch: seed + epoch,
            lambda seed, epoch: seed + 10_000 * epoch,
            lambda seed, epoch: 10_000 * seed + epoch,
            lambda seed, epoch: 1_000_003 * seed + epoch,
            lambda seed, epoch: 31 * seed + 17 * epoch,
            lambda seed, epoch: (seed + 1) * (epoch + 1),
            lambda seed, epoch: seed * (epoch + 1),
            lambda seed, epoch: seed ^ epoch,
            lambda seed, epoch: f"{seed}{epoch}",
            lambda seed, epoch: sorted((seed, epoch)),
        ],
    )
    def test_a_careless_key_meets_itself(self, key: Callable[[int, int], Any]) -> None:
        """Two runs with one order are one run with a different first epoch."""
        for seed in range(50):
            keys = draws.keys_of(draws.plan_of(seed))
            assert len(set(keys)) == len(keys)
            assert len({str(key(*pair)) for pair in keys}) < len(keys)


class TestRates:
    @pytest.mark.parametrize(
        ("rate", "is_fine"),
        [
            (lambda s, w, last: min(s / w, w / max(1, s)), True),
            (lambda s, w, last: s / w if s <= w else 0.5 ** (s - w), True),  # 0, as a float
            (lambda s, w, last: s / w if s <= w else (last + 1 - s) / (last + 1 - w), True),
            (lambda s, w, last: s / w if s <= w else (last - s) / (last - w), False),
            (lambda s, w, last: s / w if s <= w else (10_000 - s) / (10_000 - w), False),
            (lambda s, w, last: s / w if s <= w else max(0.01, 0.9 ** (s - w)), False),
            (lambda s, w, last: s / w if s <= w else max(0.0, 1 - s / 5_000), False),
        ],
    )
    def test_it_falls_and_stays_positive(self, rate: Any, is_fine: bool) -> None:
        """Up to the last step that the config plans, however many those are."""
        run, codes = draws.plan_of(1), []
        for asked in draws.rates_of_check(run):
            w, peak = asked.settings["warmup_steps"], asked.settings["learning_rate"]
            rates = [peak * rate(step, w, asked.steps[-1]) for step in asked.steps]
            found = judge_parts.rate_findings(asked, {"rates": rates, "again": rates})
            codes += [finding.code for finding in found]
        assert (not codes) == is_fine


class TestFarEpochs:
    def test_a_walk_ends_at_the_same_line_each_time(self) -> None:
        """Otherwise a slow machine would decide which epochs are compared."""

        def walk(steps: list[int]) -> None:
            for step in range(10**6):
                steps.append(step)

        lengths = []
        for _ in range(3):
            steps = list[int]()
            with cells.at_most_lines(1_000):
                walk(steps)
            lengths.append(len(steps))
        assert lengths[0] < 1_000
        assert len(set(lengths)) == 1

    def test_what_is_short_runs_to_its_end(self) -> None:
        """The limit is for samplers that pass all epochs before the one asked for."""
        tracer = sys.gettrace()  # of a debugger, or of who measures coverage
        with cells.at_most_lines(1_000):
            total = sum(n for n in range(10))
        assert total == 45
        assert sys.gettrace() is tracer


class TestAudit:
    def lines(self, change: Callable[[dict[str, Any]], Any] = lambda line: line) -> Any:
        """Two starts: 2 ranks up to step 12, then 3 ranks from step 11 on."""
        run = draws.plan_of(0)
        steps = self.steps()
        found = []
        for attempt, size, first, last in ((0, 2, 0, 12), (1, 3, 10, run.total)):
            for number in range(first, last):
                for rank in range(size):
                    line = {
                        "time": 1.0,
                        "attempt": attempt,
                        "epoch": number // run.steps_per_epoch,
                        "step": number + 1,
                        "rank": rank,
                        "world_size": size,
                        "samples": steps[number][rank::size],
                        "phases": {},
                    }
                    if (changed := change(line)) is not None:
                        found.append([f"rank-{rank}.jsonl", changed])
        return found

    def steps(self) -> list[list[int]]:
        run = draws.plan_of(0)
        order = list(range(run.num_samples))[::-1]  # any order that is a function will do
        size = run.global_batch_size
        cut = [sorted(order[at : at + size]) for at in range(0, run.num_samples, size)]
        return cut * run.epochs

    def codes(self, lines: Any) -> list[str]:
        findings = audit.audit_findings(lines, self.steps(), [2, 3], draws.plan_of(0))
        return [finding.code for finding in findings]

    def test_a_true_ledger_is_proved(self) -> None:
        """Steps 11 and 12 were trained twice, and only the later lines count."""
        assert self.codes(self.lines()) == []
        assert self.codes([*self.lines(), ["rank-0.jsonl", '{"cut sh']]) == []

    @pytest.mark.parametrize(
        ("change", "code"),
        [
            (lambda x: None if x["step"] == 14 else x, "audit-refutes"),
            (lambda x: x | {"samples": x["samples"][1:]}, "audit-refutes"),
            (lambda x: x | {"samples": x["samples"] * 2}, "audit-refutes"),
            (lambda x: None if x["step"] == 4 and x["rank"] else x, "audit-refutes"),
            (lambda x: x | {"attempt": 0}, "attempts-unclear"),
            (
                lambda x: x | {"attempt": 0 if x["rank"] == 2 else x["attempt"]},
                "attempts-unclear",
            ),
            (lambda x: x | {"world_size": 2}, "attempts-unclear"),
            (lambda x: {k: v for k, v in x.items() if k != "epoch"}, "attempts-unclear"),
        ],
    )
    def test_a_false_one_is_refuted(self, change: Any, code: str) -> None:
        """An audit that can't say no proves nothing."""
        assert self.codes(self.lines(change))[:1] == [code]


class TestDurability:
    def codes(self, text: str) -> list[str]:
        """The findings about a save, from lines such as "rename tmp step-9"."""
        events: list[dict[str, Any]] = [{"kind": "begins"}]
        for line in text.split("; "):
            op, path, *to = line.split()
            events.append({"kind": "file", "op": op, "path": path, "to": to[0] if to else None})
        events.append({"kind": "ends"})
        answer = {"folder": "c", "files": {"c/step/state": "all"}}
        report = types.SimpleNamespace(events=events, answer=answer)
        return [finding.code for finding in judge_saves.sync_findings(report)]

    def test_contents_before_names(self) -> None:
        """A power loss right after the rename keeps the name and loses the content."""
        save = "mkdir c; mkdir c/tmp; torch.save c/tmp/state; fsync c/tmp/state; fsync c/tmp; "
        save += "rename c/tmp c/step; fsync c"
        assert self.codes(save) == []
        assert self.codes(save.replace("fsync c/tmp/state; ", "")) == ["not-durable"]
        assert self.codes(save.replace("; fsync c", "", 2)) == ["not-durable"]
        late = "torch.save c/tmp/state; rename c/tmp c/step; fsync c/step/state; fsync c"
        assert self.codes(late) == ["not-durable"]
        again = save.replace("; rename", "; open c/tmp/state; rename")
        assert self.codes(again) == ["not-durable"]

    def test_names_before_names(self) -> None:
        """A folder's list of names is on disk once the folder is fsynced, and no sooner."""
        save = "mkdir c/tmp; torch.save c/tmp/state; fsync c/tmp/state; fsync c/tmp; "
        save += "rename c/tmp c/step; fsync c"
        assert self.codes(save) == []
        assert self.codes(save.replace("fsync c/tmp; ", "")) == ["not-durable"]
        early = "mkdir c/tmp; fsync c/tmp; torch.save c/tmp/state; fsync c/tmp/state; "
        assert self.codes(early + "rename c/tmp c/step; fsync c") == ["not-durable"]
        assert self.codes(save.removesuffix("; fsync c")) == ["not-durable"]
        in_place = "mkdir c/step; open c/step/state; fsync c/step/state; fsync c/step; fsync c"
        assert self.codes(in_place) == []
        assert self.codes(in_place.removesuffix("; fsync c")) == ["not-durable"]
        assert self.codes(in_place.replace("fsync c/step; ", "")) == ["not-durable"]


def test_a_verdict_that_passed_in_part_survives_json() -> None:
    """A notebook's front end gets it as plain data."""
    verdict = rehearsal.Verdict(
        drill="live_trainer", status="not_attempted", stages=["config"], next_stage="who am I?"
    )
    assert json.loads(json.dumps(verdict.reached)) == "config: pass. Next: who am I?"
    assert verdict.is_partial
