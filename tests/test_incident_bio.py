"""The incident room's biotech track: what it draws, shows, refuses and judges."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import rehearsal
from rehearsal import __main__ as command_line
from rehearsal.incidents import digest as digests
from rehearsal.incidents import opening, prove, terminal
from rehearsal.incidents.biotech import looks
from rehearsal.incidents.biotech import track as biotech
from rehearsal.incidents.biotech.deck import DECK, DISTRACTORS, HARMLESS, base_plan
from rehearsal.incidents.biotech.deployed import deploy, module_names, modules_for
from rehearsal.incidents.biotech.evidence import BioEvidence, auroc, nearest_in
from rehearsal.incidents.biotech.kinds.registry import KINDS
from rehearsal.incidents.biotech.library import table_of, truth_of
from rehearsal.incidents.biotech.settings import RULES
from rehearsal.incidents.biotech.world import data_of, world_of
from rehearsal.incidents.case import Incident
from rehearsal.incidents.deployed import changed_modules, module_text
from rehearsal.incidents.draw import Drawn, draw
from rehearsal.incidents.kinds.kind import Kind
from rehearsal.incidents.parts import with_parts
from rehearsal.incidents.score import score_of
from rehearsal.incidents.settings import BadFix, apply
from rehearsal.incidents.sources import scope_of
from rehearsal.incidents.store import BadCase, Event, Store
from rehearsal.incidents.tracks import TRACKS
from trainer_core.bio import graph_task

SEEDS = range(30)
ON_RECORD = 20  # seeds of each kind
SOURCES = TRACKS["biotech"].sources
OF_MOLECULES = {"sparse_assay", "many_salts"}  # misleading symptoms
OF_OTHER_DATA = {  # looks that a job on graphs can't answer
    *("labels", "deliveries", "scores", "leakage", "neighbors", "plates", "batches")
}


def drawn_of(seed: int, name: str | None = None) -> Drawn:
    return draw(seed, name, DECK)


class TestDraw:
    def test_seeds_give_every_kind_and_every_misleading_symptom(self) -> None:
        """With few of them, the next case is the last one again."""
        drawn = [drawn_of(seed) for seed in range(300)]
        assert {cause for d in drawn for cause in d.causes} == set(KINDS)
        assert {d.distractor.id for d in drawn} == set(DISTRACTORS)

    @pytest.mark.parametrize("kind", sorted(KINDS))
    def test_a_fault_lives_in_its_layer_only(self, kind: str) -> None:
        """Otherwise "the right layer" is two."""
        for seed in SEEDS:
            d = drawn_of(seed, kind)
            assert d.faulty == drawn_of(seed, kind).faulty
            changed = {
                "world": d.healthy.world != d.faulty.world,
                "settings": d.healthy.settings != d.faulty.settings,
                "code": d.healthy.versions != d.faulty.versions,
            }
            found = [layer for layer, has in changed.items() if has]
            assert found == ([] if kind == "no_fault" else [d.kinds[0].layer])
            assert data_of(d.faulty) == "molecules" or d.distractor.id not in OF_MOLECULES

    @pytest.mark.parametrize("kind", sorted(KINDS))
    def test_edits_and_fixes_can_be_applied(self, kind: str) -> None:
        """An edit whose text is gone from the trainer would crash the case."""
        for seed in SEEDS:
            d = drawn_of(seed, kind)
            for text in changed_modules(d.faulty).values():
                compile(text, "module", "exec")
            for fix in (d.reference, *d.wrong):
                changed = apply(d.faulty, fix.settings, RULES)
                changed_modules(changed)
                assert changed != d.faulty or kind == "no_fault"
            assert [fix for fix in d.wrong if fix.settings == d.reference.settings] == []

    @pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.id)
    def test_a_kind_refers_to_what_exists(self, kind: Kind) -> None:
        """A misspelled name would show up in somebody's debrief."""
        assert kind.alarm in DECK.alarms or kind.layer == "none"
        assert set(kind.like) <= set(KINDS)
        assert set(kind.related) <= set(DECK.alarms)
        assert set(kind.clashes) - {"hard_batch", "warm_host", "save_hiccup"} <= set(
            DISTRACTORS
        )
        assert [see.link for see in kind.path] == ["symptom", "mechanism", "cause"]
        for see in kind.path:
            assert {see.source, *see.also} <= set(SOURCES)
            assert set(see.scope) <= set(scope_of(see.source, SOURCES))
            assert see.scope.get("module", "data.py") in module_names()

    def test_a_misleading_symptom_refers_to_what_exists(self) -> None:
        """The score compares names."""
        settings = base_plan(0, random.Random(0)).settings
        for false in DISTRACTORS.values():
            assert set(false.suggests) <= set(KINDS)
            assert set(false.sources) <= set(SOURCES)
            assert set(false.tempts) <= set(settings)

    def test_harmless_edits_are_in_the_shipped_text(self) -> None:
        """The misleading deployment must deploy something."""
        plan = base_plan(0, random.Random(0))
        for _, edit in HARMLESS:
            assert module_text(plan, edit.module).count(edit.old) == 1

    def test_the_general_track_draws_what_it_always_did(self) -> None:
        """Seven hundred recorded proofs are about its plans."""
        assert set(TRACKS["general"].deck.kinds) & set(KINDS) == {"no_fault"}
        assert draw(7).deck.track == "general"
        assert "data" not in draw(7).faulty.fixed
        assert prove.is_current("slow_rank", 3)


class TestTheLab:
    def test_a_cell_is_a_measurement_or_empty(self) -> None:
        """A 0 where nothing was measured is the fault of one of the kinds."""
        d = drawn_of(3, "missing_labels_as_negatives")
        truth = truth_of(d.healthy)
        cells = table_of(d.healthy)["labels"]
        assert np.isnan(cells[~truth.measured]).all()
        assert (cells[truth.measured] == truth.labels[truth.rows][truth.measured]).all()
        filled = table_of(d.faulty)["labels"]
        assert (filled[~truth.measured] == 0).all()
        assert (filled[truth.measured] == cells[truth.measured]).all()

    def test_a_delivery_shows_how_many_cells_are_empty(self, tmp_path: Path) -> None:
        """It is how one finds out where the invented negatives come from."""
        for fault, empty in (("missing_labels_as_negatives", False), ("leaky_split", True)):
            before, newest = looks.deliveries(
                BioEvidence(tmp_path, drawn_of(1, fault).faulty)
            ).data
            assert (newest["in_use"], before["in_use"]) == (True, False)
            assert before["empty"] > 0
            assert (newest["empty"] > 0) is empty
            assert before["active"] == newest["active"]

    def test_the_fresh_batch_has_scaffolds_of_its_own(self) -> None:
        """Otherwise it would leak as the validation part does."""
        murcko = pytest.importorskip("rdkit.Chem.Scaffolds.MurckoScaffold")
        plan = base_plan(1, random.Random(1))
        truth, each = truth_of(plan), world_of(plan).library.per_scaffold
        table, fresh = (
            [murcko.MurckoScaffoldSmiles(text) for text in smiles[::each]]
            for smiles in (truth.smiles, truth.fresh_smiles)
        )
        assert len(set(table) & set(fresh)) <= 1
        assert len(set(table)) > 0.9 * len(table)


class TestParts:
    def test_a_function_has_other_parts(self) -> None:
        """The one it was made from keeps its own."""

        def double(value: int) -> int:
            return len([value]) * 10

        made = with_parts(double, len=lambda items: 7)
        assert (made(1), double(1)) == (70, 10)

    def test_a_part_that_nothing_uses_is_refused(self) -> None:
        """It would be ignored: after a renaming, the general job would run."""
        with pytest.raises(AssertionError, match="doesn't use"):
            with_parts(drawn_of, run_job=None)


class TestDeployed:
    def test_a_job_imports_what_its_data_need(self) -> None:
        """The list says what can be read, and what a proof depends on."""
        assert "bio/splits.py" in modules_for("molecules")
        assert "bio/graph_task.py" in modules_for("graphs")
        assert "bio/graph_task.py" not in modules_for("molecules")
        assert {"train.py", "bio/molecule_task.py"} <= set(module_names())
        assert "bio/cells.py" not in module_names()

    def test_the_whole_package_is_deployed(self, tmp_path: Path) -> None:
        """A module left out would be the shipped one, or missing."""
        plan = drawn_of(0, "leaky_split").faulty
        assert deploy(plan.with_settings(code_version=plan.versions[0].id), tmp_path) is None
        assert deploy(plan, tmp_path) == tmp_path
        package = tmp_path / "trainer_core"
        assert (package / "bio" / "splits.py").read_text() == changed_modules(plan)[
            "bio/splits.py"
        ]
        for name in module_names():
            assert (package / name).is_file()
        assert (package / "bio" / "data" / "proteins.fasta").exists()


class TestBadInput:
    @pytest.mark.parametrize("name", ["chemistry", "", None, ["biotech"]])
    def test_an_unknown_track(self, name: Any) -> None:
        """One clear line, with the ones that exist."""
        with pytest.raises(BadCase, match="must be general or biotech"):
            rehearsal.incident(0, track=name)
        with pytest.raises(BadCase, match="must be general or biotech"):
            rehearsal.incident_kinds(track=name)

    @pytest.mark.parametrize(
        ("changes", "says"),
        [
            ({"split": "colour"}, "split"),
            ({"delivery": "2019-12"}, "must be one of 2026-"),
            ({"restored_samples": [1]}, "is not a setting that can be changed here"),
            ({"balance": "yes"}, "must be of type bool"),
        ],
    )
    def test_bad_settings_are_refused_in_one_line(
        self, changes: dict[str, Any], says: str
    ) -> None:
        """A rerun with a setting that means nothing would look like a failed fix."""
        with pytest.raises(BadFix, match=says) as refused:
            apply(base_plan(1, random.Random(1)), changes, RULES)
        assert "\n" not in str(refused.value)
        assert "othing ran" in str(refused.value)

    def test_without_rdkit_a_case_on_molecules_says_so(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """RDKit is optional; what doesn't need it goes on working."""
        seed = next(s for s in SEEDS if data_of(drawn_of(s).faulty) == "molecules")
        monkeypatch.setattr(biotech, "find_spec", lambda name: None)
        monkeypatch.setattr(opening, "run_job", lambda *_: pytest.fail("a job ran"))
        with pytest.raises(BadCase, match=r"rdkit isn't installed.*pip install") as refused:
            rehearsal.incident(seed, track="biotech")
        assert "\n" not in str(refused.value)
        assert Store(seed, track="biotech").header() is None
        assert TRACKS["biotech"].missing("scaler_fitted_on_all_data") == ""
        assert TRACKS["general"].missing("slow_rank") == ""

    def test_the_command_line_explains(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """No traceback, and exit code 2."""
        prove = ["incidents", "prove", "--track", "biotech"]
        assert command_line.main([*prove, "slow_rank"]) == 2
        assert "leaky_split" in capsys.readouterr().err
        monkeypatch.setattr(biotech, "find_spec", lambda name: None)
        assert command_line.main([*prove, "leaky_split"]) == 2
        assert "rdkit isn't installed" in capsys.readouterr().err
        assert command_line.main(["incidents", "list", "--track", "biotech"]) == 0
        assert capsys.readouterr().out.split() == sorted(KINDS)
        assert rehearsal.incident_kinds(track="biotech") == sorted(KINDS)


class TestStore:
    @pytest.fixture(autouse=True)
    def no_job_runs(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def run_job(drawn: Drawn, folder: Path) -> None:
            folder.mkdir(parents=True)
            (folder / "plan.json").write_text(drawn.faulty.as_json())

        monkeypatch.setattr(opening, "run_job", run_job)
        monkeypatch.setattr(biotech, "find_spec", lambda name: object())
        monkeypatch.setattr(Incident, "alert", "Something happened.")

    def test_a_case_remembers_its_track(self, capsys: pytest.CaptureFixture[str]) -> None:
        """Seed 7 of one track is not seed 7 of the other."""
        general, bio = rehearsal.incident(7), rehearsal.incident(7, track="biotech")
        assert general.kind.id in rehearsal.incident_kinds()
        assert bio.choices == sorted(KINDS)
        assert repr(bio).startswith("Biotech incident 7, tier realistic")
        assert Store(7).header() != Store(7, track="biotech").header()
        again = rehearsal.incident(7, track="biotech")
        assert "Continuing biotech incident 7" in capsys.readouterr().out
        assert again.kind == bio.kind
        # The folder says so itself, whoever opens it.
        folder = Store(7, track="biotech").folder
        assert opening.incident_in(folder, 7).kind == bio.kind

    def test_a_terminal_and_every_tier(self) -> None:
        """The track's own causes, settings and looks, wherever a case is played."""
        said: list[str] = []
        commands = ["causes", "settings", "sources", "look neighbours", "fix delivery=x"]
        terminal.play(7, "choice", track="biotech", lines=commands, say=said.append)
        assert said[0].startswith("Biotech incident 7, tier choice")
        causes = said[1].splitlines()
        assert len(causes) == 4
        assert set(causes) <= set(KINDS)
        assert "the lab's table of labels" in said[2]
        assert "fresh_batch  3 min" in said[3]
        assert "Did you mean neighbors" in said[4]
        assert "must be one of 2026-" in said[5]
        guided = rehearsal.incident(8, tier="guided", track="biotech")
        assert guided.question == guided.kind.path[0].asks

    @pytest.mark.parametrize(
        ("word", "module"),
        [
            ("bio/splits.py", "bio/splits.py"),
            ("splits.py", "bio/splits.py"),
            ("/home/me/splits.py", "bio/splits.py"),
            ("/home/me/bio/launch.py", "bio/launch.py"),
            ("launch.py", "launch.py"),
            ("mine.py", "mine.py"),
        ],
    )
    def test_a_file_replaces_the_module_that_its_path_ends_with(
        self, word: str, module: str
    ) -> None:
        """launch.py is the trainer's, and the track has one of its own."""
        assert terminal.module_named(word, module_names()) == module

    def test_a_track_that_is_gone(self) -> None:
        """A newer version may have more of them."""
        store = Store(5, track="biotech")
        store.create("leaky_split", "realistic")
        path = store.folder / "case.json"
        path.write_text(path.read_text().replace('"biotech"', '"alchemy"'))
        with pytest.raises(BadCase, match="track='alchemy'"):
            rehearsal.incident(5, track="biotech")


# ---------------------------------------------------------------- figures


class TestFigures:
    def test_auroc_counts_pairs(self) -> None:
        """Ties count half; without an active or an inactive there is no pair."""
        labels, scores = np.array([1, 0, 1, 0]), np.array([0.9, 0.4, 0.4, 0.1])
        assert auroc(labels, scores) == pytest.approx((1 + 1 + 0.5 + 1) / 4)
        assert auroc(labels, -scores) == pytest.approx(0.5 / 4)
        assert np.isnan(auroc(np.ones(3), np.zeros(3)))

    def test_the_nearest_neighbor_is_rdkits(self) -> None:
        """Shared bits over bits of either."""
        train = np.array([[1, 1, 0, 0], [0, 1, 1, 1]], np.float32)
        asked = np.array([[1, 1, 0, 0], [0, 0, 1, 1], [1, 0, 0, 0]], np.float32)
        assert nearest_in(train, asked).tolist() == pytest.approx([1, 2 / 3, 1 / 2])

    def test_a_mean_over_ranks_is_a_mismatch(self, tmp_path: Path) -> None:
        """The fault is there only if the ranks' lists differ from the one list."""
        plan = drawn_of(0, "metric_averaged_over_ranks").faulty
        num_assays = len(truth_of(plan).assays)
        (tmp_path / "run" / "scores").mkdir(parents=True)
        (tmp_path / "run" / "logs").mkdir()
        per_rank = ([(0, 0.9, 1), (1, 0.8, 0)], [(2, 0.1, 1), (3, 0.0, 0), (4, 0.2, 0)])
        for rank, rows in enumerate(per_rank):
            kept = {
                "samples": [row for row, _, _ in rows],
                "scores": [[score] * num_assays for _, score, _ in rows],
                "labels": [[label] * num_assays for _, _, label in rows],
            }
            path = tmp_path / "run" / "scores" / f"rank-{rank}.jsonl"
            path.write_text(json.dumps(kept) + "\n")
        for value, apart in ((4 / 6, 0.0), ((1 + 0.5) / 2, 1.5 / 2 - 4 / 6)):
            tasks = {name: {"values": {"auroc": value}} for name in truth_of(plan).assays}
            event = {"event": "evaluated", "time": 0.0, "rank": 0, "tasks": tasks}
            (tmp_path / "run" / "logs" / "rank-0.jsonl").write_text(json.dumps(event) + "\n")
            evidence = BioEvidence(tmp_path, plan)
            assert evidence.metric_mismatch() == pytest.approx(apart)
            assert evidence.own_aurocs() == pytest.approx([0.75] * num_assays)
            fires = DECK.alarms["metric_mismatch"].fires(evidence)
            assert fires is (apart > 0)

    @pytest.mark.parametrize("kind", sorted(set(KINDS) - {"no_fault"}))
    def test_a_job_that_left_nothing_shows_no_symptom_of_science(
        self, kind: str, tmp_path: Path
    ) -> None:
        """What isn't there can't be wrong; that the job gave up is a symptom of its own."""
        (tmp_path / "supervisor.jsonl").write_text("")
        evidence = BioEvidence(tmp_path, drawn_of(0, kind).faulty)
        own = [
            a for name, a in DECK.alarms.items() if name not in TRACKS["general"].deck.alarms
        ]
        assert [alarm.id for alarm in own if alarm.fires(evidence)] == []
        assert DECK.alarms["unfinished"].fires(evidence)


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


@pytest.mark.parametrize("kind", sorted(KINDS))
class TestScore:
    def test_the_expert_gets_all_points(self, kind: str) -> None:
        """Otherwise nobody can."""
        for seed in range(5):
            d = drawn_of(seed, kind)
            sources = [see.source for see in d.path]
            told = diagnose(kind, sources, f"first: {d.kinds[0].first_moves[0]}")
            reference = dict(d.reference.settings)
            done = [*map(look, sources), told, *([fix(reference, True)] if reference else [])]
            assert score_of(d, done).points == 8, str(score_of(d, done))

    def test_who_chases_the_misleading_symptom_gets_almost_none(self, kind: str) -> None:
        """That is the mistake that these cases are about."""
        for seed in range(5):
            d = drawn_of(seed, kind)
            false = d.distractor
            cause = next(name for name in false.suggests if name not in d.causes)
            changed = dict.fromkeys(false.tempts[:1], "changed")
            done = [
                *map(look, false.sources),
                *([fix(changed, False)] if changed else []),
                diagnose(cause, list(false.sources), "change it"),
            ]
            score = score_of(d, done)
            assert score.rows[0].grade == 0
            assert score.points <= 1, str(score)

    def test_who_names_everything_gets_almost_none(self, kind: str) -> None:
        """A score that rewards guessing teaches guessing."""
        d = drawn_of(1, kind)
        causes = random.Random(1).sample(sorted(KINDS), len(KINDS))
        done = [diagnose(cause, list(SOURCES), "restart it") for cause in causes]
        assert score_of(d, done).points <= 3


# ---------------------------------------------------------------- the record


@pytest.fixture(scope="module")
def cases() -> dict[str, tuple[Drawn, str]]:
    """A case of each kind of data, with its digest."""
    drawn = {
        "molecules": drawn_of(3, "leaky_split"),
        "graphs": drawn_of(3, "scaler_fitted_on_all_data"),
        "proteins": drawn_of(3, "bins_by_count"),
        "general": draw(3, "slow_rank"),
    }
    return {name: (case, digests.digest(case)) for name, case in drawn.items()}


BIO = {"molecules", "graphs", "proteins"}


class TestDigest:
    @pytest.fixture(autouse=True)
    def remember(self, cases: dict[str, tuple[Drawn, str]]) -> None:
        self.cases = cases

    def stale(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, module: str, old: str, new: str
    ) -> set[str]:
        """Which cases have another digest once a module's text has changed."""
        usual, changed = digests.path_of, tmp_path / "changed.py"
        text = usual(module).read_text()
        assert old in text
        changed.write_text(text.replace(old, new))
        is_general = module in digests.MACHINERY  # it takes a second to read all of it again
        if is_general:
            digests.machinery.cache_clear()
        with monkeypatch.context() as patched:
            patched.setattr(
                digests, "path_of", lambda name: changed if name == module else usual(name)
            )
            found = {
                name
                for name, (case, before) in self.cases.items()
                if digests.digest(case) != before
            }
        if is_general:
            digests.machinery.cache_clear()
        return found

    @pytest.mark.parametrize(
        ("module", "old", "new", "stale"),
        [
            ("biotech.evidence", "return 1.0", "return 2.0", BIO),
            ("biotech.evidence", '"""The mean of', '"""A mean of', set()),
            ("biotech.kinds.splits", "0.13,", "0.14,", {"molecules"}),
            ("biotech.kinds.splits", "How far apart are", "How far are", set()),
            ("biotech.looks", "1 active, 0 inactive", "0 inactive, 1 active", set()),
            ("parts", "if isinstance(const, CodeType)", "if const", BIO),
            ("agent", "step % 17 == 5", "step % 17 == 6", {*BIO, "general"}),
        ],
    )
    def test_a_proof_depends_on_what_ran_and_judged_it(
        self,
        monkeypatch: pytest.MonkeyPatch,
        tmp_path: Path,
        module: str,
        old: str,
        new: str,
        stale: set[str],
    ) -> None:
        """Neither may the record claim what nobody has seen, nor hours be spent for a word."""
        name = f"rehearsal.incidents.{module}"
        assert self.stale(monkeypatch, tmp_path, name, old, new) == stale

    def test_a_proof_depends_on_the_modules_that_its_job_imports(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        """A change in the graphs leaves the molecules' proofs current."""
        for module, old, new, stale in (
            ("graph_task", "HELD_BACK = 0.1", "HELD_BACK = 0.2", {"graphs"}),
            ("splits", "EIGHT_ONE_ONE: Fractions", "EIGHT: Fractions", {"molecules"}),
            ("step", "max(num_terms, 1)", "num_terms", BIO),
            ("generated_proteins", "MEDIAN", "MIDDLE", {"proteins"}),
        ):
            name = f"trainer_core.bio.{module}"
            assert self.stale(monkeypatch, tmp_path, name, old, new) == stale


def test_the_record_has_every_kind_and_no_failure() -> None:
    """docs/incidents_bio.json is what the project claims about its cases."""
    record: dict[str, dict[str, Any]] = json.loads(TRACKS["biotech"].record.read_text())
    assert list(record) == TRACKS["biotech"].names
    for name, proofs in record.items():
        assert set(map(str, range(ON_RECORD))) <= set(proofs), name
        assert [seed for seed, facts in proofs.items() if facts["problems"]] == [], name


# ---------------------------------------------------------------- real jobs


@pytest.mark.ranks
def test_a_kind_holds_on_a_new_seed(tmp_path: Path) -> None:
    """The fault shows as claimed, the reference fix removes it, the wrong ones don't.

    One for all of them: CI has minutes, and ``incidents prove`` has hours.
    """
    proof = TRACKS["biotech"].prove_one("positions_in_bf16", 1000, tmp_path)
    assert proof.problems == []


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Incident:
    """A case on graphs, which needs no RDKit."""
    folder = tmp_path_factory.mktemp("incident")
    return opening.incident_in(folder, 1000, "scaler_fitted_on_all_data", "biotech")


@pytest.mark.ranks
class TestCase:
    SCOPES: ClassVar[dict[str, dict[str, Any]]] = {
        "code": {"module": "bio/graph_task.py"},
        "data": {"step": 3},
    }

    def test_every_source_can_be_seen(self, case: Incident) -> None:
        """As data, as text and as a picture; a look at other data says why there is nothing."""
        for source, minutes in case.sources.items():
            before, scope = case.minutes, self.SCOPES.get(source, {})
            if source in OF_OTHER_DATA:
                with pytest.raises(BadCase, match="This job learns from graphs"):
                    case.look(source, **scope)
                assert case.minutes == before
                continue
            view = case.look(source, **scope)
            assert case.minutes == before + minutes
            assert str(view).strip()
            json.dumps(view.data)
            if (figure := view.figure()) is not None:
                assert figure.axes
                assert "<img alt=" in view._repr_html_()

    def test_from_the_alert_to_the_debrief(self, case: Incident) -> None:
        """The right line cures it, and the debrief tells all of it."""
        assert re.search(r"an error of \d\.\d\d standard deviations", case.alert)
        name = "bio/graph_task.py"
        version = case.look("settings").data["code_version"]
        assert (
            "self.labels_of(graph) for graph in graphs"
            in case.look("deploys", version=version).text
        )
        text = case.look("code", module=name).data
        with pytest.raises(BadCase, match="is not a module of the trainer"):
            case.fix(source={"graph_task.py": text})
        with pytest.raises(BadCase, match="would be empty, so nothing ran"):
            case.fix(source={name: ""})  # or the shipped module would take its place
        right = text.replace(
            "self.labels_of(graph) for graph in graphs",
            "self.labels_of(graphs[row]) for row in train",
        )
        told = case.fix(source={name: right})
        assert told, told.text
        assert "No new symptom" in told.text
        shipped = Path(graph_task.__file__).read_text("utf-8")
        other_split = case.fix(source={name: shipped})  # its parts aren't those of the case
        assert other_split, other_split.text
        for see in case.kind.path:
            case.look(see.source, **see.scope)
        because = [see.source for see in case.kind.path]
        case.diagnose(case.kind.id, because=because, first_move="roll back")
        lines = {n: f"the {n}" for n in ("impact", "cause", "detection", "fix", "prevention")}
        case.postmortem(**lines)
        debrief = str(case.debrief())
        assert "8 of 8 points" in debrief, str(case.score)
        for words in (case.kind.chain[0], case.kind.prevention, "the detection", case.alert):
            assert words in " ".join(debrief.split())
        assert max(map(len, debrief.splitlines())) <= 80
        again = opening.incident_in(case._store.folder, 1000)
        assert str(again.debrief()) == debrief
        assert again.look("scaler", run=1).data
