"""The incident room: what a person on call can do, what is refused, and how it is scored."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rehearsal
from rehearsal import __main__ as command_line
from rehearsal.engine.plain_message import PlainMessage
from rehearsal.incidents import opening, terminal
from rehearsal.incidents.alarms import ALARMS
from rehearsal.incidents.case import Incident
from rehearsal.incidents.deployed import changed_modules, module_text
from rehearsal.incidents.distractors import DISTRACTORS, HARMLESS
from rehearsal.incidents.draw import Drawn, base_plan, draw
from rehearsal.incidents.evidence import Evidence
from rehearsal.incidents.kinds.registry import KINDS, PAIRS
from rehearsal.incidents.score import Score, score_of
from rehearsal.incidents.settings import BadFix, apply
from rehearsal.incidents.sources import SOURCES, scope_of
from rehearsal.incidents.store import BadCase, Event, JobInterrupted, Store
from rehearsal.incidents.typed_source import modules_of

SEEDS = range(30)


class TestDraw:
    def test_a_seed_always_gives_the_same_case(self) -> None:
        """Two people who compare notes talk about the same job."""
        for seed in SEEDS:
            assert draw(seed).faulty == draw(seed).faulty

    def test_seeds_give_many_kinds_and_every_misleading_symptom(self) -> None:
        """With few of them, the next case is the last one again."""
        drawn = [draw(seed) for seed in range(300)]
        assert {cause for d in drawn for cause in d.causes} == set(KINDS)
        assert {d.distractor.id for d in drawn} == set(DISTRACTORS)

    def test_some_seeds_draw_two_faults(self) -> None:
        """Real jobs don't wait for the first fault to be gone."""
        pairs = [d for d in map(draw, range(1000)) if len(d.kinds) > 1]
        assert 50 <= len(pairs) <= 200
        assert {d.id for d in pairs} == {"+".join(pair) for pair in PAIRS}

    @pytest.mark.parametrize("pair", PAIRS, ids="+".join)
    def test_two_faults_do_not_touch_each_other(self, pair: tuple[str, str]) -> None:
        """If one fix undid the other, nobody could cure the job."""
        first, second = (KINDS[name] for name in pair)
        assert first.alarm not in (second.alarm, *second.related)
        assert second.alarm not in first.related
        assert first.layer != second.layer
        for seed in SEEDS:
            d = draw(seed, "+".join(pair))
            fixes = [kind.reference(d.faulty).settings for kind in d.kinds]
            assert not set(fixes[0]) & set(fixes[1])
            assert d.reference.settings == {**fixes[0], **fixes[1]}
            alone = draw(seed, first.id)
            assert d.alarms[0] == alone.alarms[0]
            assert d.distractor.id not in (*first.clashes, *second.clashes)

    @pytest.mark.parametrize("kind", sorted(KINDS))
    def test_a_fault_lives_in_its_layer_only(self, kind: str) -> None:
        """Otherwise "the right layer" is two."""
        for seed in SEEDS:
            d = draw(seed, kind)
            changed = {
                "world": d.healthy.world != d.faulty.world,
                "settings": d.healthy.settings != d.faulty.settings,
                "code": d.healthy.versions != d.faulty.versions,
            }
            found = [layer for layer, has in changed.items() if has]
            assert found == ([] if kind == "no_fault" else [d.kinds[0].layer])

    @pytest.mark.parametrize("kind", sorted(KINDS))
    def test_edits_and_fixes_can_be_applied(self, kind: str) -> None:
        """An edit whose text is gone from the trainer would crash the case."""
        for seed in SEEDS:
            d = draw(seed, kind)
            for text in changed_modules(d.faulty).values():
                compile(text, "module", "exec")
            reference, wrong = d.reference, d.wrong
            for fix in (reference, *wrong):
                changed = apply(d.faulty, fix.settings)
                changed_modules(changed)
                assert changed != d.faulty or kind == "no_fault"
            assert [fix.settings for fix in wrong if fix.settings == reference.settings] == []

    def test_a_hang_is_in_no_attempts_first_step(self) -> None:
        """The watchdog waits longest there, and a case has to be ready in seconds."""
        for seed in SEEDS:
            stuck = draw(seed, "stuck_host").faulty
            hosts = map(stuck.host_of, range(stuck.world_size))
            (step,) = [h.stalls_at_step for h in hosts if h.stalls_at_step is not None]
            alone = draw(seed, "collective_on_one_rank").faulty
            (text,) = re.findall(r"step == (\d+)", alone.versions[-1].edits[0].new)
            for plan, at in ((stuck, step), (alone, int(text))):
                every = plan.settings["checkpoint_every_steps"]
                assert at not in (1, every + 1, 2 * every + 1)

    def test_harmless_edits_are_in_the_shipped_text(self) -> None:
        """The misleading deployment must deploy something."""
        plan = base_plan(0, random.Random(0))
        for _, edit in HARMLESS:
            assert module_text(plan, edit.module).count(edit.old) == 1

    @pytest.mark.parametrize("kind", sorted(KINDS))
    def test_a_kind_refers_to_what_exists(self, kind: str) -> None:
        """A misspelled name would show up in somebody's debrief."""
        of = KINDS[kind]
        assert of.alarm in ALARMS or of.layer == "none"
        assert set(of.like) <= set(KINDS)
        assert set(of.related) <= set(ALARMS)
        assert set(of.clashes) <= set(DISTRACTORS)
        assert [see.link for see in of.path] == ["symptom", "mechanism", "cause"]
        for see in of.path:
            assert {see.source, *see.also} <= set(SOURCES)
            assert set(see.scope) <= set(scope_of(see.source))

    def test_a_misleading_symptom_refers_to_what_exists(self) -> None:
        """The score compares names."""
        for false in DISTRACTORS.values():
            assert set(false.suggests) <= set(KINDS)
            assert set(false.sources) <= set(SOURCES)
            assert set(false.tempts) <= set(base_plan(0, random.Random(0)).settings)


class TestFixes:
    @pytest.mark.parametrize(
        ("changes", "says"),
        [
            ({"num_worker": 2}, "Did you mean num_workers"),
            ("num_workers=2", "must be names with their values"),
            ({"num_workers": "two"}, "must be of type int"),
            ({"num_workers": -1}, "at least 0"),
            ({"learning_rate": float("nan")}, "finite"),
            ({"hosts": "one"}, "must be a list of host names"),
            ({"hosts": ["nowhere-1"]}, "isn't in the inventory"),
            ({"hosts": []}, "must be a list of host names"),
            ({"storage_tier": "tape"}, "must be one of standard, fast"),
            ({"code_version": "v0"}, "must be one of"),
            ({"restored_samples": ["x"]}, "must be a list of sample ids"),
        ],
    )
    def test_bad_settings_are_refused_in_one_line(self, changes: Any, says: str) -> None:
        """A rerun with a setting that means nothing would look like a failed fix."""
        plan = base_plan(1, random.Random(1))
        with pytest.raises(BadFix, match=says) as refused:
            apply(plan, changes)
        assert "\n" not in str(refused.value)
        assert "Nothing ran" in str(refused.value) or "nothing ran" in str(refused.value)

    def test_a_host_twice_is_refused(self) -> None:
        """Two ranks on one host would be a different experiment."""
        plan = base_plan(1, random.Random(1))
        with pytest.raises(BadFix, match="a host is twice"):
            apply(plan, {"hosts": plan.placement[:1] * 2})

    def test_giving_up_a_host_is_a_symptom(self, tmp_path: Path) -> None:
        """One rank has no straggler, no peer to differ from, and half the throughput."""
        plan = base_plan(1, random.Random(1))
        fewer = apply(plan, {"hosts": plan.placement[:-1]})
        assert not ALARMS["capacity"].fires(Evidence(tmp_path, plan))
        assert ALARMS["capacity"].fires(Evidence(tmp_path, fewer))

    def test_another_global_batch_is_a_symptom(self, tmp_path: Path) -> None:
        """It may hide a fault, and it trains another model."""
        plan = base_plan(1, random.Random(1))
        (tmp_path / "run" / "ledger").mkdir(parents=True)
        for size, fires in ((plan.world.global_batch_size, False), (4, True)):
            self.train(tmp_path, [plan.world.global_batch_size, size])
            assert ALARMS["batch"].fires(Evidence(tmp_path, plan)) is fires

    def train(self, folder: Path, sizes: list[int]) -> None:
        """An attempt of eight steps for each batch size."""
        lines = [
            {"attempt": n, "step": step, "time": 0.0, "rank": 0, "samples": [*range(size)]}
            for n, size in enumerate(sizes)
            for step in range(8 * n + 1, 8 * n + 9)
        ]
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (folder / "run" / "ledger" / "rank-0.jsonl").write_text(text)

    def test_a_reported_loss_that_is_no_mean_over_samples_is_a_symptom(
        self, tmp_path: Path
    ) -> None:
        """With uneven shares, the mean of the ranks' means is another number."""
        plan = draw(0, "mean_of_means").faulty
        for name in ("logs", "telemetry"):
            (tmp_path / "run" / name).mkdir(parents=True)
        for rank, (samples, loss) in enumerate(((3, 1.0), (2, 2.0))):
            line = {"attempt": 0, "step": 1, "samples": samples, "local_loss": loss}
            path = tmp_path / "run" / "telemetry" / f"rank-{rank}.jsonl"
            path.write_text(json.dumps(line) + "\n")
        for reported, fires in ((1.4, False), (1.5, True)):
            facts = {"event": "train_progress", "time": 0.0, "rank": 0, "attempt": 0, "step": 1}
            path = tmp_path / "run" / "logs" / "rank-0.jsonl"
            path.write_text(json.dumps({**facts, "loss": reported}) + "\n")
            assert ALARMS["loss_mismatch"].fires(Evidence(tmp_path, plan)) is fires

    def test_an_alarm_says_its_figure_and_limit_in_one_unit(self, tmp_path: Path) -> None:
        """38% against a limit of 0.27 is a sum to do at three in the morning."""
        plan = base_plan(1, random.Random(1))
        evidence = Evidence(tmp_path, plan)
        for alarm in ALARMS.values():
            text = alarm._replace(measure=lambda evidence: 0.25).describe(evidence)
            assert text.count(alarm.form.format(0.25)) >= 1
            is_count = alarm.limit == 0.5 and alarm.form == "{:.0f}"
            limit = f"(limit {alarm.form.format(alarm.limit)})"
            assert text.endswith(limit) is not is_count, text

    def test_source_may_be_one_text(self) -> None:
        """You look at a module, edit it and hand it back; its name follows from the text."""
        plan = draw(0, "duplicate_shards").faulty
        text = module_text(plan, "data.py")
        assert modules_of(plan, text) == {}
        assert list(modules_of(plan, text + "\n# edited\n")) == ["data.py"]

    @pytest.mark.parametrize(
        ("source", "says"),
        [
            ({"nope.py": ""}, "is not a module of the trainer"),
            ({"data.py": "def"}, "doesn't compile"),
            ("x = 1", "not the text of a module"),
        ],
    )
    def test_bad_source_is_refused(self, source: Any, says: str) -> None:
        """A syntax error is a typo, not a failed fix."""
        with pytest.raises(BadFix, match=says):
            modules_of(base_plan(1, random.Random(1)), source)


class TestBadInput:
    @pytest.mark.parametrize("seed", [-1, "7", 1.0, True, None])
    def test_an_impossible_seed(self, seed: Any) -> None:
        """One clear line."""
        with pytest.raises(BadCase, match="must be a whole number"):
            rehearsal.incident(seed)

    def test_an_unknown_tier(self) -> None:
        """One clear line, with the ones that exist."""
        with pytest.raises(BadCase, match="guided, choice or realistic"):
            rehearsal.incident(0, tier="easy")  # type: ignore[arg-type]

    def test_a_case_from_a_newer_version(self) -> None:
        """Misreading it would lose what somebody did there."""
        Store(5).create("slow_rank", "realistic")
        path = Store(5).folder / "case.json"
        path.write_text(path.read_text().replace('"format": 1', '"format": 2'))
        with pytest.raises(BadCase, match="newer version"):
            rehearsal.incident(5)

    def test_a_case_from_another_version(self) -> None:
        """Its run folder shows a job that this version's fixes and debrief aren't about."""
        store = Store(5)
        store.create("slow_rank", "realistic")
        (store.runs / "0").mkdir(parents=True)
        (store.runs / "0" / "plan.json").write_text(draw(6, "slow_rank").faulty.as_json())
        with pytest.raises(BadCase, match="another version of the package"):
            rehearsal.incident(5)

    def test_a_case_that_is_not_json(self) -> None:
        """It names the file and the way out."""
        Store(5).create("slow_rank", "realistic")
        (Store(5).folder / "case.json").write_text("{")
        with pytest.raises(BadCase, match="restart=True"):
            rehearsal.incident(5)

    def test_a_kind_that_is_gone(self) -> None:
        """Kinds get renamed; the case then can't be judged."""
        Store(5).create("slow_rank+gremlins", "realistic")
        with pytest.raises(BadCase, match="a kind that this version doesn't have"):
            rehearsal.incident(5)

    def test_two_sessions_at_once(self) -> None:
        """They would write into the same run folder."""
        with Store(5).alone(), pytest.raises(BadCase, match="Another session"):
            rehearsal.incident(5)

    def test_an_interrupted_job_is_one_line(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """In a notebook, frames of our code would fill the screen; and no later cell runs."""

        def interrupted(*_: object) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(opening, "run_job", interrupted)
        with pytest.raises(JobInterrupted, match="this run doesn't count") as caught:
            rehearsal.incident(5)
        assert isinstance(caught.value, KeyboardInterrupt)
        assert isinstance(caught.value, PlainMessage)
        assert Store(5).header() is None

    def test_starting_over_keeps_what_was_done(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The postmortem is somebody's writing, and the score part of their progress."""
        monkeypatch.setattr(opening, "run_job", lambda *_: None)
        for number in (1, 2, 3):
            rehearsal.incident(5, restart=True)
            Store(5).runs.mkdir()
            Store(5).add("postmortem", lines={"impact": f"impact {number}"})
        rehearsal.incident(5, restart=True)
        assert Store(5).events() == []
        assert not Store(5).runs.exists()
        earlier = [Store(5, Store(5).folder / "earlier" / name) for name in "123"]
        said = [event["lines"]["impact"] for store in earlier for event in store.events()]
        assert said == ["impact 1", "impact 2", "impact 3"]
        assert all(store.header() for store in earlier)

    def test_nobody_else_may_read_a_case(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        """An incident may be the first thing somebody does: it makes the history's folder."""
        monkeypatch.setenv("REHEARSAL_HOME", str(tmp_path / "fresh"))
        monkeypatch.setattr(opening, "run_job", lambda *_: None)
        rehearsal.incident(5)
        assert (tmp_path / "fresh").stat().st_mode & 0o077 == 0

    def test_the_command_line_explains(self, capsys: pytest.CaptureFixture[str]) -> None:
        """No traceback, and exit code 2."""
        assert command_line.main(["incident", "-1"]) == 2
        assert command_line.main(["incidents", "prove", "gremlins"]) == 2
        said = capsys.readouterr().err
        assert "must be a whole number" in said
        assert "not a kind of incident" in said

    def test_the_causes_are_listed(self, capsys: pytest.CaptureFixture[str]) -> None:
        """Before the first case, people want to know what there is."""
        assert command_line.main(["incidents", "list"]) == 0
        assert capsys.readouterr().out.split() == rehearsal.incident_kinds()
        assert "no_fault" in rehearsal.incident_kinds()


# ---------------------------------------------------------------- the score: scripted players


def look(source: str) -> Event:
    return {
        "did": "look",
        "source": source,
        "scope": {},
        "run": 0,
        "minutes": SOURCES[source][0],
    }


def diagnose(cause: str, because: list[str], first_move: str) -> Event:
    return {"did": "diagnose", "cause": cause, "because": because, "first_move": first_move}


def fix(settings: dict[str, Any], is_fixed: bool) -> Event:
    facts = {"settings": settings, "modules": [], "is_fixed": is_fixed, "text": ""}
    return {"did": "fix", **facts, "minutes": 15}


def expert(drawn: Drawn) -> list[Event]:
    """Follows each path, names each cause with its evidence, applies the reference fix."""
    events = []
    for kind in drawn.kinds:
        sources = [see.source for see in kind.path]
        told = diagnose(kind.id, sources, f"first: {kind.first_moves[0]}")
        events += [*map(look, sources), told]
    reference = dict(drawn.reference.settings)
    return [*events, *([fix(reference, True)] if reference else [])]


def chaser(drawn: Drawn) -> list[Event]:
    """Follows the misleading symptom to the end."""
    false = drawn.distractor
    cause = next(name for name in false.suggests if name not in drawn.causes)
    return [
        *map(look, false.sources),
        fix({false.tempts[0]: "changed"}, False),
        diagnose(cause, list(false.sources), "change it"),
    ]


def guesser(drawn: Drawn) -> list[Event]:
    """Names every cause in some order, with everything as evidence."""
    rng = random.Random(drawn.faulty.seed)
    causes = rng.sample(sorted(KINDS), len(KINDS))
    return [diagnose(cause, list(SOURCES), "restart it") for cause in causes]


Player = Callable[[Drawn], list[Event]]


class TestScore:
    def score(self, player: Player, seed: int, kind: str | None = None) -> Score:
        drawn = draw(seed, kind)
        return score_of(drawn, player(drawn))

    @pytest.mark.parametrize("kind", sorted(KINDS))
    def test_the_expert_gets_all_points(self, kind: str) -> None:
        """Otherwise nobody can."""
        for seed in range(5):
            score = self.score(expert, seed, kind)
            assert score.points == 8, str(score)

    @pytest.mark.parametrize("kind", sorted(KINDS))
    def test_who_chases_the_misleading_symptom_gets_almost_none(self, kind: str) -> None:
        """That is the mistake that these cases are about."""
        for seed in range(5):
            score = self.score(chaser, seed, kind)
            assert score.rows[0].grade == 0
            assert score.points <= 1, str(score)

    @pytest.mark.parametrize("kind", sorted(KINDS))
    def test_who_names_everything_gets_almost_none(self, kind: str) -> None:
        """A score that rewards guessing teaches guessing."""
        for seed in range(5):
            assert self.score(guesser, seed, kind).points <= 3

    def test_the_players_are_ranked_with_a_margin(self) -> None:
        """On average over seeds, not only in single cases."""

        def mean(player: Player) -> float:
            return sum(self.score(player, seed).points for seed in SEEDS) / len(SEEDS)

        assert mean(expert) == 8
        assert mean(expert) - mean(guesser) > 5
        assert mean(guesser) < 2
        assert mean(chaser) < 1

    def test_doing_nothing_gets_nothing(self) -> None:
        """Not even for leaving the misleading symptom alone."""
        assert score_of(draw(3), []).points == 0

    def test_evidence_counts_only_if_it_was_looked_at(self) -> None:
        """Naming a dashboard is not reading it."""
        drawn = draw(0, "slow_rank")
        sources = [see.source for see in drawn.path]
        events = [diagnose("slow_rank", sources, "drain the host")]
        assert score_of(drawn, events).rows[3].grade == 0
        events = [*map(look, sources), *events]
        assert score_of(drawn, events).rows[3].grade == 2

    def test_evidence_must_come_before_the_diagnosis(self) -> None:
        """Else the debrief's own words would count."""
        drawn = draw(0, "duplicate_shards")
        told = diagnose(drawn.kinds[0].id, ["audit", "ledger", "code"], "roll back")
        late = [told, {"did": "debrief"}, *map(look, ["audit", "ledger", "code"]), told]
        assert score_of(drawn, late).rows[3].grade == 0

    def test_a_workaround_in_another_layer_is_partly_right(self) -> None:
        """It silences the pager and leaves the fault where it is."""
        drawn = draw(0, "loader_starved")
        events = [fix({"hosts": ["x"]}, True)]
        assert score_of(drawn, events).rows[2].grade == 1

    @pytest.mark.parametrize("pair", PAIRS, ids="+".join)
    def test_of_two_faults_one_is_half_of_it(self, pair: tuple[str, str]) -> None:
        """Who stops at the page leaves a broken job behind."""
        drawn = draw(0, "+".join(pair))
        full, alone = expert(drawn), expert(draw(0, pair[0]))
        assert score_of(drawn, full).points == 8
        half = [*alone[:-1], fix(dict(drawn.wrong[0].settings), False)]
        rows = score_of(drawn, half).rows
        assert [row.grade for row in rows] == [2, 1, 0, 1], str(score_of(drawn, half))
        assert f"{pair[1]} wasn't named" in rows[1].why
        # The first fix brings the second fault to light, so two changes aren't guessing.
        later = [*full[:-1], fix(dict(drawn.wrong[0].settings), False), full[-1]]
        assert score_of(drawn, later).points == 8
        mixed = [*full[:-1], diagnose("stuck_host", ["loss"], "drain it"), full[-1]]
        assert score_of(drawn, mixed).rows[1].grade == 0

    def test_a_healthy_job_is_best_left_alone(self) -> None:
        """A rollback "to be safe" is a change to a healthy job."""
        drawn = draw(0, "no_fault")
        careful = [*expert(drawn), fix({"code_version": "v1"}, False)]
        assert score_of(drawn, careful).rows[2].grade == 1


# ---------------------------------------------------------------- a whole case, with a real job


@pytest.fixture(scope="module")
def shared_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("incidents")


@pytest.mark.ranks
class TestCase:
    SEED = next(seed for seed in range(1000) if draw(seed).id == "loader_starved")

    @pytest.fixture(autouse=True)
    def home(self, shared_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("REHEARSAL_HOME", str(shared_home))

    @pytest.fixture
    def case(self, home: None) -> Incident:
        return rehearsal.incident(self.SEED)

    def test_every_source_can_be_seen(self, case: Incident) -> None:
        """As data, as text and as a picture; and each look costs its price."""
        scopes: dict[str, dict[str, Any]] = {"code": {"module": "data.py"}, "data": {"step": 3}}
        for source, minutes in case.sources.items():
            before = case.minutes
            view = case.look(source, **scopes.get(source, {}))
            assert case.minutes == before + minutes
            assert str(view).strip()
            json.dumps(view.data)
            if (figure := view.figure()) is not None:
                for axes in figure.axes:
                    if source not in ("trace", "audit"):
                        assert axes.get_ylabel() or axes.get_yticklabels()
                assert "<img alt=" in view._repr_html_()

    def test_a_look_can_be_narrowed(self, case: Incident) -> None:
        """You get what you ask for and nothing else."""
        assert list(case.look("phases", rank=1).data) == [1]
        saves = case.look("logs", rank=0, contains="checkpoint_saved").data
        assert saves
        assert all("checkpoint_saved" in line for line in saves)
        version = case.look("settings").data["code_version"]
        assert version in case.look("deploys", version=version).text

    def test_bad_looks_cost_nothing(self, case: Incident) -> None:
        """The message names what there is."""
        before = case.minutes
        for source, scope, says in (
            ("phase", {}, "Did you mean phases"),
            ("phases", {"rnk": 1}, "It takes rank"),
            ("phases", {"rank": 9}, "The ranks are 0, 1"),
            ("code", {}, "needs module"),
            ("code", {"module": "dat.py"}, "Did you mean data.py"),
            ("ledger", {"step": 10**6}, "the ledger has steps"),
            ("logs", {"last": 0}, "at least 1"),
            ("ledger", {"num_steps": "3"}, "must be 1 to 10"),
            ("deploys", {"version": "v0"}, "no such deployment. The deployments: v"),
            ("loss", {"run": 3}, "rerun"),
        ):
            with pytest.raises(BadCase, match=says):
                case.look(source, **scope)  # type: ignore[arg-type]
        assert case.minutes == before

    def test_from_the_alert_to_the_debrief(
        self, case: Incident, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """A wrong fix doesn't work, the right one does, and all of it is kept."""
        assert case.alert.endswith(".")
        # The figure that the pager watches would name the cause.
        wrong = case.fix(settings={"storage_tier": "fast"})
        assert not wrong
        assert "the same page went off again" in wrong.text
        assert "waits for data" not in wrong.text
        assert case.look("phases", run=1).data
        with pytest.raises(BadCase, match="This changes nothing"):
            case.fix()
        with pytest.raises(BadCase, match="This changes nothing"):
            case.fix(settings={"num_workers": 0})
        case.look("phases")
        case.look("settings")
        case.look("throughput")
        with pytest.raises(BadCase, match="not a cause"):
            case.diagnose("loader_starving")
        noted = len(case.history)
        with pytest.raises(BadCase, match="'phase' is not a source, so nothing was noted"):
            case.diagnose("loader_starved", because=["phase"], first_move="raise num_workers")
        assert len(case.history) == noted
        bare = case.diagnose("loader_starved")
        assert "The score also asks for evidence and a first move: name the cause again" in bare
        because = ["throughput", "phases all ranks", "settings"]
        told = case.diagnose("loader_starved", because=because, first_move="raise num_workers")
        assert "The score" not in told
        verdict = case.fix(settings={"num_workers": 2})
        assert verdict, verdict.text
        assert "No new symptom" in verdict.text
        with pytest.raises(BadCase, match="cause is missing"):
            case.postmortem(impact="slow")
        lines = {name: f"the {name}" for name in ("impact", "cause", "detection", "fix")}
        case.postmortem(**lines, prevention="an alert")
        debrief = case.debrief()
        assert debrief.cause == "loader_starved"
        assert [row.grade for row in debrief.score.rows] == [2, 2, 1, 2]
        assert "the detection" in str(debrief)
        # Another process finds all of it.
        again = rehearsal.incident(self.SEED)
        assert "Continuing incident" in capsys.readouterr().out
        assert again.minutes == case.minutes
        assert str(again.debrief()) == str(debrief)
        assert again.look("phases", run=2).data

    def test_a_terminal_can_do_it_all(self, capsys: pytest.CaptureFixture[str]) -> None:
        """Commands in, plain text out; a mistake is a line, not the end."""
        said: list[str] = []
        commands = [
            "look throughput",
            "look nonsense",
            "look logs contains=save",
            "settings",
            "causes",
            'diagnose loader_starved throughput,phases "add a worker"',
            "fix num_workers=two",
            "fix nowhere.py",
            "dance",
            "look",
            "diagnose",
            "look heartbeats rank=0",
            "look logs contains=unheard-of",
            'look "phases',
            "debrief",
            "quit",
            "look loss",
        ]
        terminal.play(self.SEED, "realistic", lines=commands, say=said.append)
        everything = "\n".join(said)
        assert "ALERT" in said[0]
        for text in ("samples/s", "is not a source", "Noted at minute", "must be of type int"):
            assert text in everything
        for text in ("can't be read", "is not a command", "No closing quotation"):
            assert text in everything
        assert "look needs more: look SOURCE" in everything
        assert "heartbeats can't be narrowed by 'rank'. It has no narrower scope" in everything
        assert "No line has 'unheard-of'" in everything
        assert said[-1].startswith("loader_starved: ")
        assert max(map(len, said[-1].splitlines())) <= 80
        assert "\x1b" not in everything

    def test_the_guided_tier_asks_one_question_at_a_time(self, case: Incident) -> None:
        """The path, as questions; a look that answers one leads to the next."""
        Store(self.SEED).create("loader_starved", "guided")
        (Store(self.SEED).folder / "events.jsonl").unlink()
        guided = rehearsal.incident(self.SEED)
        first = guided.question
        assert "loss" not in [see.source for see in KINDS["loader_starved"].path]
        guided.look("loss")
        assert guided.question == first
        assert "samples/s is low" in guided.look("throughput").text
        assert guided.question != first
        guided.look("phases")
        guided.look("settings")
        assert "diagnose" in guided.question

    def test_the_choice_tier_has_four_causes(self, case: Incident) -> None:
        """One is right, and the misleading symptom's may be among the others."""
        Store(self.SEED).create("loader_starved", "choice")
        choice = rehearsal.incident(self.SEED)
        assert len(set(choice.choices)) == 4
        assert "loader_starved" in choice.choices
        with pytest.raises(BadCase, match="not a cause that can be named here"):
            choice.diagnose(next(name for name in KINDS if name not in choice.choices))


@pytest.mark.ranks
class TestTwoFaults:
    SEED = next(s for s in range(1000) if draw(s).id == "memory_leak+skewed_clock")

    def test_both_have_to_be_fixed(self, capsys: pytest.CaptureFixture[str]) -> None:
        """The page is about the first; who stops there leaves a broken job."""
        case = rehearsal.incident(self.SEED)
        assert case.alert == draw(self.SEED, "memory_leak").alert(case._evidence)
        drawn = draw(self.SEED)
        first, second = (dict(fix.settings) for fix in drawn.wrong)
        half = case.fix(settings=first)
        assert not half
        assert "That page is quiet now. But a second one went off" in half.text
        assert drawn.kinds[1].alert(case._evidence) in half.text
        rest = case.fix(settings=second)
        assert not rest
        assert "the same page went off again" in rest.text
        for kind in drawn.kinds:
            sources = [see.source for see in kind.path]
            for see in kind.path:
                case.look(see.source, **see.scope)
            case.diagnose(kind.id, because=sources, first_move=kind.first_moves[0])
        assert case.fix(settings={**first, **second})
        text = str(case.debrief())
        for kind in drawn.kinds:
            assert f"An expert's path to {kind.id}" in text
            assert kind.chain[0] in " ".join(text.split())
        # Two faults are continued as two, and the other tiers have one.
        again = rehearsal.incident(self.SEED)
        assert str(again.debrief()) == text
        guided = rehearsal.incident(self.SEED, tier="choice", restart=True)
        assert "skewed_clock" not in guided.fix(settings=first).text
        assert guided.fix(settings=first)
