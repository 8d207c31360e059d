"""Chapter 32: the arithmetic, the group-by's bounds, the order, and a run resumed elsewhere."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from handbook_chapters import Chapter, cells_of, run_chapter
from trainer_core.bio import exchange, scaffold_groups
from trainer_core.bio.smiles_tokens import SPECIAL_TOKENS
from trainer_core.data import SampleKey
from trainer_core.order import EpochOrder

from rehearsal.deck.cards import CARDS
from rehearsal.evidence.run_records import rank_files, read_jsonl
from rehearsal.handbook.restarts import attempts_of

pytestmark = pytest.mark.ranks
CHAPTER = "32_billion_molecules"


@pytest.fixture(scope="module")
def ran() -> Iterator[Chapter]:
    pytest.importorskip("rdkit")
    piece = exchange.PIECE_RECORDS
    yield run_chapter(CHAPTER)
    exchange.PIECE_RECORDS = piece  # the chapter makes it small, like everything in it


class TestNumbers:
    def test_the_arithmetic_is_what_people_will_quote(self, ran: Chapter) -> None:
        """These are the figures of the spoken answers, which nobody computes again."""
        assert ran.token_bytes == 420e9
        assert "7.1 kB a molecule" in ran.printed
        assert "420 GB, 71 times less" in ran.printed
        assert 85 < ran.hours < 90
        assert 16 * ran.parameters / 1e9 == pytest.approx(1.4, abs=0.05)
        assert ran.egress == pytest.approx(10 * ran.hours * ran.USD_PER_GPU_HOUR, rel=0.05)

    def test_64_gpus_hide_the_sync_and_192_cannot(self, ran: Chapter) -> None:
        compute, sync, pass_h = ran.scales[64]
        assert compute > 2 * sync
        assert 1.2 < pass_h < 1.6
        assert ran.scales[192][0] < ran.scales[192][1]
        assert 3 < 10 * ran.scales[8][2] / 24 < 7  # days of ten passes: "in a week"

    def test_featurizing_is_dominated_by_the_standardizer(self, ran: Chapter) -> None:
        standardizing, tokenizing = ran.cost_s.values()
        assert standardizing > 10 * tokenizing
        assert "core-hours" in ran.printed


class TestRows:
    def test_all_damaged_rows_are_counted_and_all_are_one_vendors(self, ran: Chapter) -> None:
        """An average over sources hides that one of them is broken."""
        assert dict(ran.invalid) == {"gamma.csv": ran.tables.damaged}
        assert "1.7% of the rows can't be read" in ran.printed
        assert ran.invalid["gamma.csv"] / ran.by_source["gamma.csv"] > 0.12

    def test_merging_finds_the_planted_molecules_and_no_text_is_shared(
        self, ran: Chapter
    ) -> None:
        found = {group[0]["canonical_smiles"] for group in ran.merged.values()}
        assert len(found) == len(ran.merged) == len(ran.tables.originals)
        assert {key.smiles for key in ran.keys} <= found
        assert len(ran.texts) == len(ran.valid) > 1.4 * len(ran.merged)

    def test_64_bits_are_too_few_for_identity(self, ran: Chapter) -> None:
        assert "64-bit keys: 0.48 pairs" in ran.printed
        assert "128-bit keys: 2.6e-20 pairs" in ran.printed


class TestGrouping:
    def test_the_dict_grows_and_the_group_by_does_not(self, ran: Chapter) -> None:
        dicts, by_files = zip(*ran.peaks.values(), strict=True)
        assert dicts[-1] > 3 * dicts[0]
        assert max(by_files) < 1.15 * min(by_files)
        assert max(peak for _, peak in ran.on_two) < 1.15 * by_files[-1]

    def test_the_split_is_the_same_on_two_ranks(self, ran: Chapter) -> None:
        assert "the same split on two ranks: True" in ran.printed
        assert ran.alone["largest"] > 0.09 * 40_000

    def test_reads_are_chunks_times_partitions(
        self, ran: Chapter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The chapter's warning about 4.2 billion rows stands on this product."""
        counted: list[int] = []
        read = exchange.FileExchange._from_one_rank

        def counting(self: Any, path: Path, destination: int) -> Iterator[Any]:
            for records in read(self, path, destination):
                if self.columns == 2:
                    counted.append(len(records))
                yield records

        monkeypatch.setattr(exchange.FileExchange, "_from_one_rank", counting)
        monkeypatch.setitem(ran.grouped.__globals__, "folder", tmp_path)
        for size in (150, 1500):
            counted.clear()
            ran.grouped(6000, chunk=size, partition=size)
            stretches, num_bytes, _, _ = ran.exchange_files(6000, size, size)
            # Each partition is read three times, and an empty stretch isn't.
            assert sum(counted) == 3 * 6000
            assert len(counted) / 3 == pytest.approx(stretches, rel=0.2)
            assert 16 * np.mean(counted) == pytest.approx(num_bytes, rel=0.2)

    def test_larger_chunks_and_partitions_shrink_the_reads_for_a_gigabyte(
        self, ran: Chapter
    ) -> None:
        small, large = ran.layouts.values()
        assert small[0] == pytest.approx(7e8, rel=0.05)
        assert small[1] < 100
        assert large[0] == pytest.approx(1.1e6, rel=0.05)
        assert 50_000 < large[1] < 70_000
        assert large[3] < 1e9

    def test_no_scaffold_is_on_two_sides(self, ran: Chapter) -> None:
        assert not ran.sides[0] & ran.sides[1]
        scaffolds = [each["murcko_scaffold"] for each in ran.molecules]
        parts = ran.parts.tolist()
        on = [
            {s for s, at in zip(scaffolds, parts, strict=True) if at == side} for side in (0, 2)
        ]
        assert not on[0] & on[1] - {""}
        assert ran.split.counts == (568, 0, 184)

    def test_by_hash_new_rows_do_not_move_old_ones(self, ran: Chapter, tmp_path: Path) -> None:
        """A vendor's next file must not move a molecule from the test set to training."""
        more = [*ran.group_keys, *(f"new {number}" for number in range(500))]
        plan = ran.GroupingPlan(num_rows=len(more), by="hash", fractions=(0.8, 0.0, 0.2))
        scaffold_groups.group_scaffolds(
            [(0, more)], tmp_path / "split", plan, rank=0, world_size=1
        )
        parts = np.concatenate(list(scaffold_groups.read_group_parts(tmp_path / "split")))
        assert np.array_equal(parts[: len(ran.parts)], ran.parts)


class TestShards:
    def test_a_row_is_where_arithmetic_says(self, ran: Chapter) -> None:
        """Without offsets, one wrong width shifts every later molecule."""
        found = set()
        for shard in ran.trained:
            size = 2 * shard["width"]
            content = (ran.folder / "shards" / shard["name"]).read_bytes()
            for row in range(shard["rows"]):
                ids = np.frombuffer(content[row * size : (row + 1) * size], "<u2")
                found.add(ran.vocabulary.decode(ids))
        trained = zip(ran.molecules, ran.parts, strict=True)
        assert found == {each["canonical_smiles"] for each, part in trained if part == 0}

    def test_a_cut_shard_is_found_and_a_flipped_bit_too(self, ran: Chapter) -> None:
        assert "cut by a token: train-176-00000.u16: 350 bytes" in ran.printed
        assert "restored: []" in ran.printed
        content = ran.longest.read_bytes()
        ran.longest.write_bytes(bytes([content[0] ^ 1]) + content[1:])
        try:
            assert list(ran.problems(ran.folder / "shards")) == [
                f"{ran.longest.name}: another hash"
            ]
        finally:
            ran.longest.write_bytes(content)

    def test_uint16_has_to_be_cast_and_wraps_in_silence(self, ran: Chapter) -> None:
        assert ran.lookups["embedding(ids)"].startswith("RuntimeError: Expected tensor")
        assert ran.lookups["ids > 4"].startswith("NotImplementedError")
        assert ran.lookups["embedding(ids.long())"] == "works, (4, 4)"
        assert ran.wrapped == [65535, 0, 4464]
        assert len(ran.vocabulary) == 42


class TestOrder:
    def test_the_stock_sampler_holds_a_permutation_and_ours_holds_keys(
        self, ran: Chapter
    ) -> None:
        assert ran.per_sample * ran.N > 100e9
        assert ran.seek_bytes < 100_000
        assert ran.repeated == 0 < ran.drawn

    def test_a_small_epoch_visits_everything_once(self, ran: Chapter) -> None:
        """The chapter says that the tests compare whole epochs."""
        for num_samples in (1, 2047, 5000):
            order = EpochOrder(num_samples, seed=17, epoch=0).samples(0, num_samples)
            assert sorted(order.tolist()) == list(range(num_samples))

    def test_every_molecule_is_in_one_bin_of_an_epoch(self, ran: Chapter) -> None:
        plan = ran.LengthClasses([8, 16, 40], [101, 7, 33], budget=80)
        for epoch in (0, 1):
            seen = [
                (at, row)
                for bin_id in range(len(plan))
                for at, rows in [plan.molecules(bin_id, 17, epoch)]
                for row in rows.tolist()
            ]
            counts = enumerate([101, 7, 33])
            assert sorted(seen) == [(at, row) for at, n in counts for row in range(n)]
        one, other = (plan.molecules(0, 17, epoch)[1].tolist() for epoch in (0, 1))
        assert one != other
        assert plan.sizes(np.arange(len(plan))).tolist() == [
            *[10] * 10, 1, 5, 2, *[2] * 16, 1
        ]  # fmt: skip

    def test_bins_are_equal_work_and_the_plan_is_small(self, ran: Chapter) -> None:
        assert min(ran.work) > 0.98 * ran.BUDGET
        assert max(ran.work) <= ran.BUDGET
        assert ran.padding < 0.15
        assert ran.attention < 0.05
        assert "the plan is 448 bytes, and chapter 31's would be 34 GB" in ran.printed

    def test_a_step_has_the_same_bins_on_64_and_48_ranks(self, ran: Chapter) -> None:
        on_64, on_48 = (np.concatenate(ranks) for ranks in (ran.before, ran.after))
        assert sorted(on_64) == sorted(on_48)
        assert {len(bins) for bins in ran.before} == {3}
        assert {len(bins) for bins in ran.after} == {4}


class TestRun:
    def test_each_bin_is_trained_once_over_a_kill_and_another_world_size(
        self, ran: Chapter
    ) -> None:
        assert ran.report.status == "proved"
        assert ran.report.replayed_steps == 3
        first, second = attempts_of(ran.folder / "killed")
        assert (first.world_size, first.last, first.lost) == (2, 15, 3)
        assert (second.world_size, second.first, second.last) == (3, 13, 20)

    def test_the_ledgers_of_both_runs_have_the_same_bins(self, ran: Chapter) -> None:
        """The audit compares with the plan; this compares with the run nobody interrupted."""

        def bins(name: str) -> dict[int, list[int]]:
            lines = [
                line
                for path in rank_files(ran.folder / name, "ledger")
                for line in read_jsonl(path)
            ]
            last = {line["step"]: 0 for line in lines}
            for line in lines:
                last[line["step"]] = max(last[line["step"]], line["attempt"])
            found: dict[int, list[int]] = {step: [] for step in last}
            for line in lines:
                if line["attempt"] == last[line["step"]]:
                    found[line["step"]] += line["samples"]
            return {step: sorted(samples) for step, samples in found.items()}

        assert bins("killed") == bins("whole")

    def test_the_resumed_run_ends_where_the_uninterrupted_one_does(self, ran: Chapter) -> None:
        assert 0 < ran.apart < 1e-4
        assert ran.resumed["loss"] == pytest.approx(ran.whole["loss"], abs=1e-5)
        assert ran.states[0]["sampler"] == {"position": 20}

    def test_it_learns(self, ran: Chapter) -> None:
        """A run that trains on padding would be resumed just as exactly."""
        assert ran.whole["loss"] < np.log(len(ran.vocabulary)) - 0.2

    def test_masks_hide_tokens_of_molecules_and_follow_the_visit(self, ran: Chapter) -> None:
        (tokens, targets), (again, _) = (
            ran.task.visit([SampleKey(0, 3)], 17) for _ in range(2)
        )
        hidden = targets >= 0
        assert (targets[hidden] >= len(SPECIAL_TOKENS)).all()
        assert (tokens.tokens[hidden] == ran.MASK_ID).all()
        assert torch.equal(tokens.tokens, again.tokens)
        other, _ = ran.task.visit([SampleKey(1, 3)], 17)
        assert not torch.equal(tokens.tokens, other.tokens)
        assert ran.terms == ran.planned

    def test_new_data_under_the_same_run_is_refused_on_every_rank(self, ran: Chapter) -> None:
        for report in ran.refused:
            assert report.failure
            assert "belongs to a different run: dataset_fingerprint" in report.failure.message

    def test_the_interval_is_for_a_job_of_64_gpus(self, ran: Chapter) -> None:
        assert 30 < ran.mtbf_s / 86400 < 36
        assert ran.state_gb == pytest.approx(1.0, abs=0.05)
        assert "save every 89 min" in ran.printed


class TestJudging:
    def test_random_rows_flatter_the_token_loss(self, ran: Chapter) -> None:
        assert ran.token_losses["scaffolds"] > ran.token_losses["random rows"] + 0.15

    def test_another_vocabulary_reads_other_molecules_without_an_error(
        self, ran: Chapter
    ) -> None:
        text = ran.molecules[0]["canonical_smiles"]
        assert ran.by_text.decode(ran.stored) != text == ran.vocabulary.decode(ran.stored)
        assert "ids in range: True; vocabularies equal: False" in ran.printed

    def test_a_split_before_merging_trains_on_what_it_holds_out(self, ran: Chapter) -> None:
        assert ran.leaked > 0.3 * len(ran.both[1])


WITHOUT_RDKIT = """
import os, sys
sys.modules["rdkit"] = None
os.environ["MPLBACKEND"] = "Agg"
sys.path.insert(0, {tests!r})
from IPython.core.interactiveshell import InteractiveShell
from handbook_chapters import cells_of
from rehearsal.engine.ranks import shut_down
shell = InteractiveShell.instance()
shell.history_manager.enabled = False
cells = [text for kind, text in cells_of({chapter!r}) if kind == "code"]
failed = [text for text in cells if not shell.run_cell(text).success]
print("FAILED", len(failed), *failed)
shut_down()
"""


def test_without_rdkit_every_cell_runs_or_says_what_it_needs() -> None:
    """The arithmetic, the group-by and the order need no chemistry."""
    code = WITHOUT_RDKIT.format(tests=str(Path(__file__).parent), chapter=CHAPTER)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "FAILED 0" in done.stdout, done.stdout[-3000:] + done.stderr[-3000:]
    assert "This kernel has no rdkit. Run `pip install rdkit`" in done.stdout
    assert "Skipped: this cell needs rdkit" in done.stdout
    assert "the same split on two ranks: True" in done.stdout
    assert "EpochOrder: the last four" in done.stdout


def test_the_cards_of_a_billion_molecules_lead_here() -> None:
    """Whoever misses a point is sent to where it's shown."""
    cards = tomllib.loads((CARDS / "billion_molecules.toml").read_text("utf-8"))["card"]
    text = "\n".join(text for kind, text in cells_of(CHAPTER) if kind == "markdown")
    headings = set(re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE))
    for card in cards:
        here = [place for place in card["shown_in"] if CHAPTER in place]
        assert here, card["id"]
        assert {place.partition("#")[2] for place in here} <= headings, card["id"]
