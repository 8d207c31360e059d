"""Weighted draws that are the same on all ranks and resume from one integer.

The question it answers: "we oversample the rare actives; which molecule comes next after a
restart on three machines instead of two?"

    n  samples with a weight      slot  place in the epoch's draw, 0..m-1
    m  draws in an epoch          W     world size

torch's WeightedRandomSampler knows no ranks: with one seed each rank draws the same m samples,
so W ranks compute one rank's gradient; with a seed per rank each draws m of its own, so an
epoch is W times as long. Its position isn't in any checkpoint either.

Here slot k of epoch e is a pure function of (weights, seed, e, k). Steps cut the slots, ranks
share each step, and the position is the number of completed steps, as for every order
(``trainer_core.order``). What changes is what a ledger can prove. A sample may come often or
never in an epoch, so "each sample once" becomes "slot k of epoch e was trained once":
``audit_draws`` checks that. ``scripts/audit_run.py`` would refute such a run.

Two consequences of drawing with replacement. Randomness per visit that derives from (seed,
epoch, sample) repeats when a sample is drawn twice in an epoch; add the slot if that matters.
And drawing positives w times as often adds ln(w) to the optimal logit, like ``pos_weight``:
``trainer_core.bio.calibration.recalibrate`` undoes it.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

# %% active="py"
from trainer_core.config import TrainConfig
from trainer_core.data import ResumeAwareDistributedSampler, StepSchedule
from trainer_core.order import hash_words
from trainer_core.settings import UserError

# %%
DRAWS_VERSION = "weighted-draws-1"
MAX_WEIGHT = 1e290  # sums of them stay finite
WORDS_PER_COUNT = 4  # Philox yields four 64-bit words for each value of its counter


class WeightedDraws:
    """Which sample each slot of an epoch draws, with a chance proportional to its weight.

    With replacement, slot k hashes to a number u in [0, 1) and takes the first sample whose
    cumulative weight exceeds u times the total: O(log n) per slot, any slot on its own. Adding,
    multiplying and comparing float64 gives the same bits on every machine.

    Without, the epoch is the order of the keys -ln(u_i) / w_i, ascending (Efraimidis and
    Spirakis, "Weighted random sampling with a reservoir", 2006, in logarithms): slot 0 is drawn
    by weight from all, slot 1 from the rest, and so on. The order is sorted once per epoch.
    Where ranks have different processors, ln may differ in the last bit and swap two keys that
    are that close.

    Memory is 8 bytes per sample on every rank, and 24 without replacement.

    Args:
        weights: (n,), positive and finite; they needn't add up to 1.
        seed: equal on all ranks.
        replacement: whether a sample can be drawn again in the same epoch.

    Attributes:
        digest: of the weights and this code's version. Put it in the dataset's fingerprint, so
            a resume with other weights is refused.

    Raises:
        UserError: for the first weight that is unusable, by row.
    """

    def __init__(self, weights: ArrayLike, *, seed: int, replacement: bool = True) -> None:
        values = np.ascontiguousarray(weights, dtype="<f8")
        self.cumulative = cumulative_weights(values)
        self.seed = seed
        self.replacement = replacement
        content = hashlib.sha256(f"{DRAWS_VERSION}/{replacement}/{values.size}/".encode())
        content.update(values.data)
        self.digest = content.hexdigest()[:12]
        self._weights = None if replacement else values
        self._order: tuple[int, NDArray[np.int64]] = (-1, np.empty(0, np.int64))

    def __len__(self) -> int:
        """n, the samples that can be drawn."""
        return len(self.cumulative)

    def samples(self, epoch: int, first: int, last: int) -> NDArray[np.int64]:
        """Samples at slots ``first`` to ``last - 1`` of ``epoch``; int64, (last - first,).

        Raises:
            UserError: if there are no such slots; without replacement, an epoch has n.
        """
        if not 0 <= first <= last or not (self.replacement or last <= len(self)):
            raise UserError(
                f"slots {first}..{last} of {len(self)} samples: slots count from 0, and "
                "without replacement there is one per sample, because none can be drawn twice. "
                "Lower the draws per epoch, or draw with replacement."
            )
        if not self.replacement:
            return self._without_replacement(epoch)[first:last]
        points = self._uniform(epoch, first, last) * self.cumulative[-1]
        # Below the total even after rounding: u is at most 1 - 2**-53, and the product is at
        # least half a unit in the last place short of it.
        found: NDArray[np.int64] = np.searchsorted(self.cumulative, points, side="right")
        return found

    def _without_replacement(self, epoch: int) -> NDArray[np.int64]:
        if self._order[0] != epoch:
            uniform = self._uniform(epoch, 0, len(self)) + 2.0**-54  # ln(0) isn't a key
            self._order = (epoch, np.argsort(-np.log(uniform) / self._weights, kind="stable"))
        return self._order[1]

    def _uniform(self, epoch: int, first: int, last: int) -> NDArray[np.float64]:
        """One number in [0, 1) per slot: 53 bits of Philox's output at that counter.

        It is numpy's counter-based generator: keyed, and it starts anywhere for free. numpy
        guarantees the streams of its bit generators across versions, unlike its distributions.
        """
        key = hash_words("weighted", self.seed, epoch, self.digest, count=2)
        counter, skipped = divmod(first, WORDS_PER_COUNT)
        words = np.random.Philox(key=key, counter=counter).random_raw(skipped + last - first)
        bits: NDArray[np.float64] = (words[skipped:] >> np.uint64(11)).astype(np.float64)
        return bits * 2.0**-53


def cumulative_weights(weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """The cumulative weights, strictly increasing.

    Raises:
        UserError: for the first weight that is unusable, by row.
    """
    with np.errstate(all="ignore"):
        sums = np.cumsum(weights)
    if weights.ndim != 1 or not weights.size:
        raise UserError(
            f"weights of shape {weights.shape}: one weight per sample is needed, for at least "
            "one sample, or there is nothing to draw. Pass a flat array."
        )
    # Written so that NaN, which compares false with everything, is refused too.
    is_bad = ~((weights > 0) & (weights < MAX_WEIGHT))
    rule = f"A weight is positive and below {MAX_WEIGHT:g}. NaN or infinity spoils every draw, "
    rule += "and a row that is never drawn doesn't belong in the table"
    if not is_bad.any():
        is_bad = ~(np.diff(sums, prepend=0.0) > 0)
        rule = f"Next to a total of {sums[-1]:.3g} it is lost in float64's 53 bits, so the row "
        rule += "would never be drawn"
    if is_bad.any():
        row = int(is_bad.argmax())
        raise UserError(
            f"weights, row {row}: {weights[row]:g}. {rule}. Remove the row, or change its "
            "weight."
        )
    return sums


# %%
class WeightedDistributedSampler(ResumeAwareDistributedSampler):
    """Deal each step's weighted draws to the ranks, starting at the committed position.

    Args:
        weights: of all samples, equal on all ranks.
        schedule: its ``num_samples`` is m, the draws per epoch; with replacement, m may be any
            number.
        cfg: its seed decides the draws, its micro_batch_size how a step is split.

    Raises:
        UserError: if a weight is unusable, or if m > n without replacement.
    """

    def __init__(
        self,
        weights: ArrayLike,
        schedule: StepSchedule,
        cfg: TrainConfig,
        rank: int,
        world_size: int,
        *,
        replacement: bool = True,
    ) -> None:
        super().__init__(schedule, cfg, rank, world_size)
        self.draws = WeightedDraws(weights, seed=cfg.seed, replacement=replacement)
        self.draws.samples(0, schedule.num_samples, schedule.num_samples)  # refuses m > n now

    def _samples(self, epoch: int, first: int, last: int) -> NDArray[np.int64]:
        return self.draws.samples(epoch, first, last)

    def state_dict(self) -> dict[str, int]:
        """The position, and the weights' digest as a number."""
        return {**super().state_dict(), "weights": int(self.draws.digest, 16)}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue after ``state["position"]`` completed steps.

        Raises:
            UserError: if the state was saved with other weights.
        """
        saved = f"{state.get('weights', 0):012x}"
        if saved != self.draws.digest:
            raise UserError(
                f"weights {self.draws.digest}, but the checkpoint's are {saved}: the "
                "rest of the epoch would be part of a different draw, and no audit could prove "
                "it. Use the same weights, or start a new run."
            )
        super().load_state_dict(state)


# %%
class DrawAudit(NamedTuple):
    """What a ledger proves about weighted draws. The run is proved if ``findings`` is empty."""

    num_steps: int
    num_slots: int  # that were trained once, by the rank whose turn it was
    findings: list[str]


def audit_draws(
    draws: WeightedDraws, schedule: StepSchedule, lines: Iterable[Mapping[str, Any]]
) -> DrawAudit:
    """Check that slot k of epoch e was trained once, for all slots up to the last step.

    Each ledger line is compared with the draw itself, place by place: with replacement,
    counting samples proves nothing.

    Args:
        lines: of RUN/ledger, of the surviving lineage only (a retrained step has one line per
            rank in it).
    """
    shares: dict[int, list[tuple[int, int]]] = defaultdict(list)  # step to (rank, world size)
    findings: list[str] = []
    num_slots = 0
    for line in lines:
        step, rank, world_size = line["step"], line["rank"], line["world_size"]
        epoch, first, last = schedule.slots(step - 1)
        expected = draws.samples(epoch, first, last)[rank::world_size].tolist()
        shares[step].append((rank, world_size))
        if line["samples"] == expected:
            num_slots += len(expected)
            continue
        pairs = enumerate(zip(line["samples"], expected, strict=False))
        place = next((at for at, (found, due) in pairs if found != due), None)
        detail = f"{len(line['samples'])} samples instead of {len(expected)}"
        if place is not None:
            slot = first + rank + place * world_size
            detail = f"sample {line['samples'][place]} in slot {slot}, whose draw is "
            detail += f"{expected[place]}"
        findings.append(f"step {step}, rank {rank}: {detail}")
    for step in range(1, max(shares, default=0) + 1):
        ranks = sorted(shares.get(step, ()))
        world_size = ranks[0][1] if ranks else 1
        if ranks != [(rank, world_size) for rank in range(world_size)]:
            findings.append(f"step {step}: not one line per rank, but (rank, world) {ranks}")
    return DrawAudit(len(shares), num_slots, findings)
