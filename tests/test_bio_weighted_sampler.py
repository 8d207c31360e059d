"""Weighted draws: the right chances, the same on all ranks, and a resume from one integer."""

from __future__ import annotations

import itertools
import re
import sys
from typing import Any

import cloudpickle
import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import WeightedRandomSampler

from rehearsal.handbook.on_ranks import on_ranks
from trainer_core.bio.calibration import recalibrate
from trainer_core.bio.weighted_sampler import WeightedDistributedSampler, WeightedDraws
from trainer_core.bio.weighted_sampler import audit_draws
from trainer_core.config import TrainConfig
from trainer_core.data import StepSchedule
from trainer_core.settings import UserError

scipy_stats = pytest.importorskip("scipy.stats", reason="chi-square needs scipy")
cloudpickle.register_pickle_by_value(sys.modules[__name__])

WEIGHTS = np.array([1.0, 5.0, 0.5, 2.5, 1.0])
CHANCES = WEIGHTS / WEIGHTS.sum()


def p_value(found: np.ndarray, chances: np.ndarray) -> float:
    """How likely counts as far off as these are, if the chances are right."""
    return float(scipy_stats.chisquare(found, chances * found.sum()).pvalue)


def counts_of_pairs(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    return np.bincount(first * 5 + second, minlength=25)


class TestChances:
    def test_with_replacement_each_sample_comes_as_its_weight_says(self) -> None:
        draws = WeightedDraws(WEIGHTS, seed=1)
        found = np.bincount(draws.samples(0, 0, 40_000), minlength=5)
        assert 0.001 < p_value(found, CHANCES) < 0.999

    def test_neighboring_slots_epochs_and_seeds_are_independent(self) -> None:
        """A weak hash repeats itself, and an epoch trains the same runs of samples."""
        whole = WeightedDraws(WEIGHTS, seed=1).samples(0, 0, 40_001)
        others = [
            (whole[:-1], whole[1:]),
            (whole, WeightedDraws(WEIGHTS, seed=1).samples(1, 0, 40_001)),
            (whole, WeightedDraws(WEIGHTS, seed=2).samples(0, 0, 40_001)),
            (whole[:-4], whole[4:]),  # Philox makes four words at a time
        ]
        both = np.outer(CHANCES, CHANCES).ravel()
        for first, second in others:
            assert 0.001 < p_value(counts_of_pairs(first, second), both) < 0.999

    def test_drawing_positives_more_often_shifts_the_log_odds_like_pos_weight(self) -> None:
        """A model trained on such draws is as overconfident as one with pos_weight."""
        labels, weight = np.arange(60) < 3, 19.0
        draws = WeightedDraws(np.where(labels, weight, 1.0), seed=0)
        drawn = labels[draws.samples(0, 0, 40_000)].mean()
        logit = torch.tensor([np.log(drawn / (1 - drawn))])
        truth = recalibrate(logit, torch.tensor([weight])).item()
        assert logit.item() == pytest.approx(0, abs=0.03)
        assert truth == pytest.approx(np.log(3 / 57), abs=0.03)

    def test_without_replacement_each_slot_draws_by_weight_from_the_rest(self) -> None:
        """Sorting by u * w looks right and isn't: pairs come with the wrong chances."""
        draws = WeightedDraws(WEIGHTS, seed=1, replacement=False)
        orders = np.stack([draws.samples(epoch, 0, 5) for epoch in range(6000)])
        assert (np.sort(orders, axis=1) == np.arange(5)).all()
        found = counts_of_pairs(orders[:, 0], orders[:, 1])
        pairs = np.outer(CHANCES, CHANCES) / (1 - CHANCES[:, None])
        np.fill_diagonal(pairs, 0)
        is_pair = pairs.ravel() > 0
        assert not found[~is_pair].any()
        assert 0.001 < p_value(found[is_pair], pairs.ravel()[is_pair]) < 0.999
        keys = np.random.default_rng(0).random((6000, 5)) * WEIGHTS
        naive = np.argsort(-keys, axis=1)
        wrong = counts_of_pairs(naive[:, 0], naive[:, 1])
        assert p_value(wrong[is_pair], pairs.ravel()[is_pair]) < 1e-6

    def test_the_draw_is_this_one_for_good(self) -> None:
        """A change here would silently change the rest of every run that resumes."""
        draws = WeightedDraws(WEIGHTS, seed=7)
        assert draws.digest == "919a46eff37f"
        assert draws.samples(3, 10, 22).tolist() == [1, 0, 0, 4, 3, 3, 1, 3, 0, 1, 1, 1]
        without = WeightedDraws(WEIGHTS, seed=7, replacement=False)
        assert without.samples(3, 0, 5).tolist() == [4, 1, 0, 3, 2]

    def test_its_digest_depends_on_weights_and_kind_only(self) -> None:
        digest = WeightedDraws(WEIGHTS, seed=7).digest
        assert WeightedDraws(torch.tensor(WEIGHTS), seed=8).digest == digest
        assert WeightedDraws(WEIGHTS[::-1], seed=7).digest != digest
        assert WeightedDraws(WEIGHTS, seed=7, replacement=False).digest != digest

    @settings(max_examples=30)
    @given(st.integers(0, 500), st.integers(0, 40), st.integers(0, 3), st.booleans())
    def test_any_slots_can_be_had_on_their_own(
        self, first: int, count: int, epoch: int, replacement: bool
    ) -> None:
        """A seek that replays the draws before it takes an hour at slot 10 billion."""
        weights = np.arange(1.0, 541.0)
        whole = WeightedDraws(weights, seed=0, replacement=replacement).samples(epoch, 0, 540)
        draws = WeightedDraws(weights, seed=0, replacement=replacement)
        assert (
            draws.samples(epoch, first, first + count) == whole[first : first + count]
        ).all()
        if replacement:
            far = 10**15 + first
            assert len(draws.samples(epoch, far, far + count)) == count

    def test_the_ends_of_the_table_are_drawn_and_nothing_past_them(self) -> None:
        """searchsorted at exactly the total returns n: an index error once a year."""
        draws = WeightedDraws([1e-3, 1.0, 1e-3], seed=0)
        largest = 1 - 2.0**-53
        for uniform, sample in ((0.0, 0), (largest, 2)):
            draws._uniform = lambda *_, u=uniform: np.array([u])  # type: ignore[method-assign]
            assert draws.samples(0, 0, 1).tolist() == [sample]
        draws = WeightedDraws([1.0, 1.0], seed=0)
        draws._uniform = lambda *_: np.array([0.5])  # type: ignore[method-assign]
        assert draws.samples(0, 0, 1).tolist() == [1]  # [0, 0.5) is the first one's
        for total in np.random.default_rng(0).random(1000):
            assert largest * total < total


class TestRefusals:
    @pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf"), 1e300])
    @pytest.mark.parametrize("replacement", [True, False])
    def test_an_unusable_weight_is_named_by_row(self, bad: float, replacement: bool) -> None:
        """NaN makes every later cumulative weight NaN, and searchsorted answers anything."""
        with pytest.raises(UserError, match=re.escape(f"row 3: {bad:g}. A weight is positive")):
            WeightedDraws([1.0, 2.0, 3.0, bad, -5.0], seed=0, replacement=replacement)

    def test_a_weight_that_rounding_loses_is_named(self) -> None:
        """It is in the table and in the log, and it is never drawn."""
        with pytest.raises(UserError, match=r"row 1: 1e-20\. Next to a total of 2 it is lost"):
            WeightedDraws([1.0, 1e-20, 1.0], seed=0)

    @pytest.mark.parametrize("weights", [[], [[1.0, 2.0]]])
    def test_what_is_no_list_of_weights_is_refused(self, weights: Any) -> None:
        with pytest.raises(UserError, match=r"weights of shape \("):
            WeightedDraws(weights, seed=0)

    def test_more_draws_than_samples_need_replacement(self) -> None:
        WeightedDistributedSampler(WEIGHTS, StepSchedule(99, 4, 1), CFG, 0, 1)
        with pytest.raises(UserError, match=r"slots 6\.\.6 of 5 samples: .* with replacement"):
            WeightedDistributedSampler(
                WEIGHTS, StepSchedule(6, 4, 1), CFG, 0, 1, replacement=False
            )


CFG = TrainConfig(seed=11, micro_batch_size=2)
SCHEDULE = StepSchedule(num_samples=23, global_batch_size=8, max_epochs=2)


def sampler(rank: int, world_size: int, replacement: bool = True) -> WeightedDistributedSampler:
    weights = np.arange(1.0, 31.0)
    return WeightedDistributedSampler(
        weights, SCHEDULE, CFG, rank, world_size, replacement=replacement
    )


def trained(position: int, world_size: int, stop: int, replacement: bool) -> list[list[int]]:
    """Samples of each step from ``position`` to ``stop``, put together from all ranks."""
    ranks = [sampler(rank, world_size, replacement) for rank in range(world_size)]
    for one in ranks:
        one.load_state_dict({**one.state_dict(), "position": position})
    steps = []
    loaders = [iter(one) for one in ranks]
    for _ in range(position, stop):
        shares = [
            [key.sample for batch in itertools.islice(loader, one.micro_steps) for key in batch]
            for one, loader in zip(ranks, loaders, strict=True)
        ]
        step = [0] * sum(map(len, shares))
        for rank, share in enumerate(shares):
            step[rank::world_size] = share
        steps.append(step)
    return steps


class TestRanksAndResume:
    @settings(max_examples=30)
    @given(
        st.integers(0, 6),
        st.integers(1, 4),
        st.integers(1, 4),
        st.integers(0, 6),
        st.booleans(),
    )
    def test_a_resume_at_any_position_and_world_size_continues_the_same_draw(
        self, position: int, before: int, after: int, stop: int, replacement: bool
    ) -> None:
        position, stop = sorted((position, stop))
        whole = trained(0, 1, 6, replacement)
        assert trained(0, before, position, replacement) == whole[:position]
        assert trained(position, after, stop, replacement) == whole[position:stop]
        assert sorted(map(len, whole)) == [7, 7, 8, 8, 8, 8]

    def test_other_weights_are_refused_on_resume(self) -> None:
        """The rest of the epoch would come from another draw, and nothing would show it."""
        saved = sampler(0, 1).state_dict()
        other = WeightedDistributedSampler(WEIGHTS, SCHEDULE, CFG, 0, 1)
        with pytest.raises(
            UserError, match=r"weights \w{12}, but the checkpoint's are \w{12}:"
        ):
            other.load_state_dict(saved)
        with pytest.raises(UserError, match="the checkpoint's are 000000000000:"):
            other.load_state_dict({"position": 2})
        assert other.position == 0

    def test_torchs_sampler_draws_a_full_set_on_every_rank(self) -> None:
        """Seeded alike, W ranks train one rank's samples; seeded apart, an epoch is W long."""
        epoch = StepSchedule(30, 30, 1)
        ours, same, apart = [], [], []
        for rank in range(3):
            one = WeightedDistributedSampler(np.arange(1.0, 31.0), epoch, CFG, rank, 3)
            ours.append([key.sample for batch in one for key in batch])
            for seed, drawn in ((0, same), (rank, apart)):
                generator = torch.Generator().manual_seed(seed)
                weights = torch.arange(1.0, 31.0).tolist()
                drawn.append(list(WeightedRandomSampler(weights, 30, generator=generator)))
        assert [len(share) for share in ours] == [10, 10, 10]
        assert [len(share) for share in same] == [30, 30, 30]
        assert same[0] == same[1] == same[2]
        assert apart[0] != apart[1]
        assert sum(map(len, apart)) == 3 * 30

    @pytest.mark.ranks
    def test_real_ranks_draw_the_same_and_share_it(self) -> None:
        """Python salts its hash in every process; a draw that used it would differ."""

        def mine() -> list[list[int]]:
            rank, world_size = dist.get_rank(), dist.get_world_size()
            one = sampler(rank, world_size)
            return [[key.sample for key in batch] for batch in one.micro_batches(1)]

        for world_size in (1, 2, 3):
            shares = on_ranks(mine, world_size)
            step: list[int] = [0] * 8
            for rank, batches in enumerate(shares):
                step[rank::world_size] = [sample for batch in batches for sample in batch]
            assert step == trained(1, 1, 2, True)[0]


def ledger(world_sizes: list[int]) -> list[dict[str, Any]]:
    """One line per step and rank, as the trainer writes them; a world size for each step."""
    lines = []
    for step, world_size in enumerate(world_sizes, start=1):
        for rank in range(world_size):
            batches = sampler(rank, world_size).micro_batches(step - 1)
            samples = [key.sample for batch in batches for key in batch]
            lines.append(
                {"step": step, "rank": rank, "world_size": world_size, "samples": samples}
            )
    return lines


class TestAudit:
    DRAWS = WeightedDraws(np.arange(1.0, 31.0), seed=11)

    def test_a_run_that_changed_its_world_size_is_proved(self) -> None:
        audit = audit_draws(self.DRAWS, SCHEDULE, ledger([1, 2, 2, 3, 3, 1]))
        assert audit == (6, 46, [])
        # A set of samples would prove nothing: some came twice, some never.
        samples = [s for line in ledger([1, 1, 1]) for s in line["samples"]]
        assert len(set(samples)) < len(samples) == 23

    def test_what_differs_is_named_by_step_rank_and_slot(self) -> None:
        lines = ledger([1, 2, 3])
        right = lines[2]["samples"][1]
        lines[2]["samples"][1] = 99  # rank 1's second: slot 8 + 1 + 2
        assert audit_draws(self.DRAWS, SCHEDULE, lines).findings == [
            f"step 2, rank 1: sample 99 in slot 11, whose draw is {right}"
        ]
        lines[2]["samples"][1:] = [right]
        assert audit_draws(self.DRAWS, SCHEDULE, lines).findings == [
            "step 2, rank 1: 2 samples instead of 4"
        ]

    @pytest.mark.parametrize(
        ("change", "step"),
        [
            (lambda lines: lines[:1] + lines[2:], 2),  # a rank's line is gone
            (lambda lines: lines + lines[-1:], 3),  # a slot was trained twice
            (lambda lines: lines[:1] + lines[3:], 2),  # a step is gone
        ],
    )
    def test_a_slot_that_is_missing_or_trained_twice_is_found(
        self, change: Any, step: int
    ) -> None:
        (finding,) = audit_draws(self.DRAWS, SCHEDULE, change(ledger([1, 2, 3]))).findings
        assert finding.startswith(f"step {step}: not one line per rank")

    def test_another_seed_is_refuted(self) -> None:
        other = WeightedDraws(np.arange(1.0, 31.0), seed=12)
        assert len(audit_draws(other, SCHEDULE, ledger([1, 1])).findings) == 2
