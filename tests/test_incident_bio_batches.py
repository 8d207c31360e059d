"""Biotech incidents about what batches hold: lengths, precision, plates."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from rehearsal.incidents.biotech import batch_looks, batches
from rehearsal.incidents.biotech.after_training import SCORES
from rehearsal.incidents.biotech.alarms import ALARMS
from rehearsal.incidents.biotech.batches import BATCHES, Held
from rehearsal.incidents.biotech.evidence import BioEvidence
from rehearsal.incidents.biotech.judge import apply, draw, run, symptoms
from rehearsal.incidents.biotech.kinds import geometry, lengths, plates
from rehearsal.incidents.biotech.library import labels_as_read, plates_of, table_of, truth_of
from rehearsal.incidents.biotech.sequences import lengths_of, name_of_long, write_fasta
from rehearsal.incidents.biotech.symmetry_check import SYMMETRY
from rehearsal.incidents.biotech.world import world_of
from rehearsal.incidents.deployed import changed_modules
from rehearsal.incidents.settings import BadFix
from rehearsal.incidents.view import BadLook
from rehearsal.incidents.world import Plan
from trainer_core.bio.bins import BinPlan, plan_batches
from trainer_core.bio.fasta import FastaFile
from trainer_core.bio.geometry_precision import two_molecules
from trainer_core.bio.symmetry import PointGraph, symmetry_report
from trainer_core.order import EpochOrder

SEEDS = range(10)
KINDS = [kind.id for module in (lengths, geometry, plates) for kind in module.KINDS]


def deployed_module(plan: Plan, name: str, folder: Path) -> ModuleType:
    """A module as a plan deploys it, apart from the one that is imported."""
    path = folder / Path(name).name
    path.write_text(changed_modules(plan)[name])
    spec = importlib.util.spec_from_file_location(f"deployed_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look for it
    spec.loader.exec_module(module)
    return module


# ---------------------------------------------------------------- what is recorded


def test_a_rank_that_kept_no_scores_shifts_no_other(tmp_path: Path) -> None:
    """Rank 0 was killed in its evaluation, and rank 1 had written half a line."""
    scores = tmp_path / "run" / SCORES
    scores.mkdir(parents=True)
    (scores / "rank-1.jsonl").write_text('{"attempt"')
    (scores / "rank-2.jsonl").write_text('{"attempt": 0, "step": 3}\n')
    plan = draw(3, "leaky_split").healthy
    assert BioEvidence(tmp_path, plan).scored.keys() == {2}


def test_what_watches_a_job_survives_a_nan(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The trainer has a rule for it, and must be the one that stops."""
    written: list[dict[str, Any]] = []
    wrapped: dict[str, Any] = {}
    monkeypatch.setattr(batches, "wrap", wrapped.__setitem__)
    batches.compare_with_labels([[4, 7]], written.append)
    outputs = torch.tensor([[float("nan"), 0.0], [1.0, float("inf")]])
    targets = torch.tensor([[1.0, 1.0], [0.0, float("nan")]])
    losing = wrapped["MoleculeTask.summed_loss"]
    assert losing(lambda task, *of: of, None, outputs, targets) == (outputs, targets)
    [line] = written
    assert line["samples"] == [4, 7]
    assert line["labels"] == [2, 1]
    assert line["losses"] == pytest.approx([float("nan"), 1.3133], abs=1e-4, nan_ok=True)
    assert line["expected"] == pytest.approx([float("nan"), 0.7311], abs=1e-4, nan_ok=True)


# ---------------------------------------------------------------- the faults, without a job


def waiting(bins: BinPlan, plan: Plan) -> float:
    """The share of an epoch that ranks wait for the one with the most tokens."""
    world_size, tokens = plan.world_size, bins.padded()
    order = EpochOrder(len(bins), seed=plan.fixed["seed"], epoch=0)
    steps = range(0, len(bins) - world_size + 1, world_size)
    table = np.array([tokens[order.samples(at, at + world_size)] for at in steps])
    return float(1 - table.sum() / (table.max(axis=1).sum() * world_size))


def test_bins_by_count_make_two_ranks_wait_for_the_third(tmp_path: Path) -> None:
    """With a budget of tokens they hardly wait; on every seed, by a wide margin."""
    for seed in SEEDS:
        faulty = draw(seed, "bins_by_count").faulty
        tokens, budget = lengths_of(faulty) + lengths.ENDS, faulty.settings["budget"]
        by_count = deployed_module(faulty, "bio/bins.py", tmp_path).plan_batches
        assert waiting(plan_batches(tokens, budget), faulty) < 0.12
        assert waiting(by_count(tokens, budget), faulty) > 0.3
        # A larger budget is no way out: nothing looks at it.
        assert len(by_count(tokens, 2 * budget)) == len(by_count(tokens, budget))


def test_only_the_long_protein_needs_more_memory_than_there_is() -> None:
    """A healthy job has room to spare, and the killed rank is killed in the middle of it."""
    for seed in SEEDS:
        drawn = draw(seed, "uncropped_protein")
        for plan, is_faulty in ((drawn.healthy, False), (drawn.faulty, True)):
            crop = plan.settings["crop"] or 10**9
            tokens = np.minimum(lengths_of(plan), crop) + lengths.ENDS
            bins, budget = plan_batches(tokens, 1026), plan.settings["budget"]
            assert budget == 1026
            sizes = bins.sizes[:, 0].tolist()
            widths = np.concatenate(
                [[max(sizes[slot.size] for slot in p.slots)] * p.copies for p in bins.patterns]
            )
            needed = bins.padded() * widths * world_of(plan).mib_per_million_pairs / 1e6
            too_much = np.flatnonzero(needed > lengths.LIMIT_MIB)
            assert too_much.tolist() == ([0] if is_faulty else [])
            assert np.delete(needed, 0).max() < lengths.LIMIT_MIB / 2
            order = EpochOrder(len(bins), seed=plan.fixed["seed"], epoch=0)
            step = order.samples(0, len(bins)).tolist().index(0) // plan.world_size + 1
            if is_faulty:
                assert plan.settings["checkpoint_every_steps"] < step
                assert step < len(bins) // plan.world_size
        assert lengths_of(drawn.faulty).argmax() == name_of_long(drawn.faulty)


def test_positions_in_bf16_break_the_symmetry_with_and_without_autocast(tmp_path: Path) -> None:
    """So turning autocast off is no fix; and without the edit, autocast does no harm."""
    from trainer_core.bio import equivariant

    broken = deployed_module(
        draw(0, "positions_in_bf16").faulty, "bio/equivariant.py", tmp_path
    )
    for seed in range(3):
        for module, is_broken in ((equivariant, False), (broken, True)):
            for has_autocast in (False, True):
                torch.manual_seed(seed)
                graph = two_molecules(torch.device("cpu"))
                network = module.EquivariantNetwork(4, 16, 2, 1)

                def vectors(
                    moved: PointGraph, network: Any = network, on: bool = has_autocast
                ) -> torch.Tensor:
                    with torch.autocast("cpu", torch.bfloat16, enabled=on):
                        found: torch.Tensor = network(*moved, num_graphs=2).displacements
                    return found.float()

                errors = symmetry_report(vectors, graph, "node vectors", num_draws=1)
                turning = max(errors["rotation"], errors["reflection"])
                assert (turning > 1e-3) if is_broken else (turning < 1e-5)
                assert errors["permutation"] < 1e-5


class TestPlates:
    def test_one_plate_has_more_hits_and_the_others_their_own(self) -> None:
        """Another cutoff only adds hits: what was active stays active."""
        for seed in SEEDS:
            plan = draw(seed, "plate_with_another_cutoff").faulty
            truth, found = truth_of(plan), plates_of(plan)
            read, is_shifted = labels_as_read(plan, truth), found == plates.shifted(plan)
            assert (read[~is_shifted] == truth.labels[~is_shifted]).all()
            assert (read >= truth.labels).all()
            assert read[is_shifted].mean() > 0.7 > 0.5 > truth.labels[is_shifted].mean()

    def test_every_plate_has_its_share_of_the_molecules(self) -> None:
        """A plate of three molecules has no share of actives worth looking at."""
        plan = draw(0, "plate_with_another_cutoff").faulty
        counts = np.bincount(plates_of(plan))[1:]
        assert len(counts) == len(world_of(plan).plates)
        assert counts.max() - counts.min() <= 1

    def test_an_excluded_plate_has_no_labels_and_the_rest_stays(self) -> None:
        """Leaving it out must not change the split, or anything else that is trained on."""
        drawn = draw(1, "plate_with_another_cutoff")
        plate = plates.shifted(drawn.faulty)
        before, after = (
            table_of(plan)
            for plan in (drawn.faulty, apply(drawn.faulty, drawn.reference.settings))
        )
        rows = np.array(truth_of(drawn.faulty).rows)
        is_out = plates_of(drawn.faulty)[rows] == plate
        assert np.isnan(after["labels"][is_out]).all()
        assert not np.isnan(before["labels"][is_out]).all()
        same = before["labels"][~is_out], after["labels"][~is_out]
        np.testing.assert_array_equal(*same)
        assert before["smiles"] == after["smiles"]

    @pytest.mark.parametrize("value", [3, ["3"], [0], [99], [True], None])
    def test_a_plate_that_is_not_there_is_refused(self, value: Any) -> None:
        """A rerun without a change would look like a failed fix."""
        plan = draw(0, "plate_with_another_cutoff").faulty
        with pytest.raises(BadFix, match="must be a list of plate numbers, from 1 to"):
            apply(plan, {"excluded_plates": value})


def test_the_proteins_are_a_file_that_the_trainer_reads(tmp_path: Path) -> None:
    """Their lengths are what the fault was planned with."""
    plan = draw(2, "uncropped_protein").faulty
    write_fasta(plan, tmp_path)
    (path,) = tmp_path.iterdir()
    found = [len(record.sequence) for record in FastaFile(path)]
    assert found == lengths_of(plan).tolist()
    assert sorted(found)[-2] <= lengths.CROP - 6 < 940 <= max(found) + 2 <= 1026


def test_memory_is_held_at_its_peak() -> None:
    """As a caching allocator does: a smaller batch later gives nothing back."""
    held = Held()
    for needed, left in ((2.0, 2.0), (0.5, 2.0), (3.0, 3.0)):
        held.reserve(needed)
        assert held.mib == left
        assert len(held.buffer) == round(left * 2**20)


# ---------------------------------------------------------------- figures, from written records


Lines = Mapping[str, Sequence[Mapping[str, Any]]]


@pytest.fixture
def written(tmp_path: Path) -> Callable[[Plan, Lines], BioEvidence]:
    """Evidence of a job that left these lines, by file."""

    def write(plan: Plan, lines: Lines) -> BioEvidence:
        for name, records in lines.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("".join(json.dumps(record) + "\n" for record in records))
        return BioEvidence(tmp_path, plan)

    return write


def batch(step: int, rank: int, tokens: int, **facts: Any) -> dict[str, Any]:
    """A line of a rank about a batch of proteins."""
    usual = {"attempt": 0, "samples": [step], "proteins": 2, "rows": 2, "longest": tokens // 2}
    return {**usual, "step": step, "rank": rank, "tokens": tokens, "needs_mib": 1.0,
            "longest_id": 7, **facts}  # fmt: skip


Written = Callable[[Plan, Lines], BioEvidence]


def test_waiting_is_counted_over_steps_in_which_every_rank_works(written: Written) -> None:
    """An epoch's last step leaves ranks without work, and that is nobody's fault."""
    plan = draw(0, "uncropped_protein").faulty  # two ranks
    evidence = written(
        plan,
        {
            f"run/{BATCHES}/rank-0.jsonl": [
                batch(1, 0, 900),
                batch(2, 0, 300),
                batch(3, 0, 800),
            ],
            f"run/{BATCHES}/rank-1.jsonl": [batch(1, 1, 300), batch(2, 1, 900)],
        },
    )
    assert evidence.idle_share() == pytest.approx(1 - 2400 / 3600)
    assert evidence.token_skew() == pytest.approx(3.0)
    assert evidence.least_often_busiest() == pytest.approx(0.5)
    assert ALARMS["uneven_work"].fires(evidence)


def test_the_batch_that_killed_a_rank_is_on_record(written: Written) -> None:
    """The rank couldn't write anything afterward, and its step isn't in the ledger."""
    plan = draw(0, "uncropped_protein").faulty
    ends = [{"rank": 0, "exitcode": -9, "error": ""}, {"rank": 1, "exitcode": 1, "error": ""}]
    evidence = written(
        plan,
        {
            "supervisor.jsonl": [{"attempt": 0, "began": 0.0, "ended": 1.0, "ranks": ends}],
            f"run/{BATCHES}/rank-0.jsonl": [batch(1, 0, 200), batch(2, 0, 1000, longest=1000)],
            f"run/{BATCHES}/rank-1.jsonl": [batch(1, 1, 200), batch(2, 1, 200)],
        },
    )
    assert [record["longest"] for record in evidence.fatal_batches] == [1000]
    assert evidence.fatal_length() == pytest.approx(10.0)
    view = batch_looks.batches(evidence)
    assert [record["rank"] for record in view.data if record["killed"]] == [0]
    assert view.text.count("killed here") == 1
    assert [record["rank"] for record in batch_looks.batches(evidence, rank=1).data] == [1, 1]
    # The ledger ends at step 1: the step that killed the rank was never finished.
    assert [record["longest"] for record in batch_looks.batches(evidence, step=2).data] == [
        *(1000, 100)
    ]
    assert view.draw is not None
    assert view.draw().axes[0].get_ylabel() == "tokens"
    for scope in ({"num_steps": 0}, {"num_steps": "3"}, {"rank": 2}, {"step": 3}):
        with pytest.raises(BadLook, match=r"must be 1 to 20|no such rank|steps 1 to 2"):
            batch_looks.batches(evidence, **scope)


class Trained(BioEvidence):
    """Samples are the lab's molecules, in their order."""

    def trained_molecules(self) -> list[int]:
        return list(range(400))


def test_a_plate_that_is_off_stands_out(written: Written, tmp_path: Path) -> None:
    """By its share of actives and its loss; what the model expected at first doesn't count."""
    plan = draw(0, "plate_with_another_cutoff").faulty
    off = plates_of(plan) == 3
    expected, count = np.full(len(off), 0.3), 40
    records = []
    for step in range(1, 9):  # the first quarter expects nonsense
        chosen = np.arange(count * (step - 1), count * step)
        mine = off[chosen]
        records.append(
            {
                "attempt": 0, "step": step, "rank": 0, "samples": chosen.tolist(),
                "labels": [10] * count, "actives": np.where(mine, 8, 3).tolist(),
                "expected": (10 * expected[chosen] * (step > 2)).tolist(),
                "losses": np.where(mine, 12, 6).tolist(),
            }
        )  # fmt: skip
    written(plan, {f"run/{BATCHES}/rank-0.jsonl": records})
    evidence = Trained(tmp_path, plan)
    gaps = {plate: of.gap for plate, of in evidence.plates.items()}
    assert gaps.pop(3) == pytest.approx(0.5)
    assert max(gaps.values()) == pytest.approx(0.0)
    assert evidence.loudest_plate() == pytest.approx(2.0)
    assert ALARMS["miscalibration"].fires(evidence)
    view = batch_looks.plates(evidence)
    assert "  3 " in view.text
    assert view.draw is not None
    assert len(view.draw().axes[0].get_yticklabels()) == len(world_of(plan).plates)


def test_a_broken_symmetry_is_told_apart_from_rounding(written: Written) -> None:
    """Four orders of magnitude; and only the motions that turn the molecule show it."""
    plan = draw(0, "positions_in_bf16").faulty
    still = {"translation": 1e-7, "permutation": 0.0}
    for turning, fires in ((3e-7, False), (8e-3, True)):
        errors = {"rotation": turning, "reflection": turning / 2, **still}
        line = {"attempt": 0, "step": 9, "energies": errors, "vectors": errors}
        evidence = written(plan, {f"run/{SYMMETRY}/rank-0.jsonl": [line]})
        assert evidence.turning_error() == turning
        assert ALARMS["asymmetry"].fires(evidence) is fires
        view = batch_looks.symmetry(evidence)
        assert f"{turning:.1e}" in view.text
        assert view.draw is not None
        assert view.draw().axes[0].get_xscale() == "log"


def test_other_jobs_do_not_raise_these_alarms(tmp_path: Path) -> None:
    """A job without proteins, plates or geometries has nothing to be uneven about."""
    for name in KINDS:
        evidence = BioEvidence(tmp_path, draw(0, name).faulty)
        for alarm in ("uneven_work", "asymmetry", "miscalibration"):
            assert not ALARMS[alarm].fires(evidence)


def test_a_look_at_what_the_job_does_not_have_says_so(tmp_path: Path) -> None:
    """The clock must not move for it, and the message says what there is."""
    proteins = BioEvidence(tmp_path, draw(0, "bins_by_count").faulty)
    graphs = BioEvidence(tmp_path, draw(0, "positions_in_bf16").faulty)
    for look, evidence in (
        (batch_looks.symmetry, proteins),
        (batch_looks.plates, proteins),
        (batch_looks.batches, graphs),
    ):
        with pytest.raises(BadLook, match="This job learns from"):
            look(evidence)
    assert "wasn't checked" in batch_looks.symmetry(graphs).text


# ---------------------------------------------------------------- the faults, in a job


@pytest.mark.ranks
@pytest.mark.parametrize("kind", ["bins_by_count", "uncropped_protein", "positions_in_bf16"])
def test_a_faulty_job_shows_its_symptom_and_no_other(kind: str, tmp_path: Path) -> None:
    """What the pager says has really happened; ``incidents prove`` has the fixes."""
    drawn = draw(1000, kind)
    evidence = run(drawn.faulty, tmp_path)
    own = drawn.alarms[0].id
    found = symptoms(drawn, evidence)
    assert own in found
    timing = {name for name in found if ALARMS[name].is_timing}
    assert found - timing <= {own, *drawn.related}
    for claim in drawn.kinds[0].claims:
        assert claim.measure(evidence) > claim.low, claim.text
