"""Is the formula right? A job simulated event by event: failures, restarts, saves, stragglers.

The question it answers: "who says we'd get 97% goodput?" The letters are those of
rehearsal/evidence/cadence.py; only its costs and checks are used here, none of its formulas.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from rehearsal.evidence.cadence import Costs, check_durations, check_ranks


@dataclass(frozen=True, kw_only=True, slots=True)
class Stragglers:
    """A step takes as long as its slowest rank: the maximum over ranks of exp(spread z).

    z is standard normal and stays with a rank as long as it runs, so the median rank sets the
    step time without stragglers. On five large clusters, GPUs of one model differed by 8% (up
    to 22%) in performance: P. Sinha et al., Not All GPUs Are Created Equal, SC22, arXiv
    2208.11035. We read 8% as the width of the middle 95%, hence spread = 0.02. The shape of
    the distribution is our assumption.

    Args:
        ranks: N.
        spread: standard deviation of the logarithm of a rank's step time.

    Raises:
        ValueError: if there are no ranks, or the spread is not in 0..1.
    """

    ranks: int
    spread: float = 0.02

    def __post_init__(self) -> None:
        check_ranks(self.ranks)
        if not 0 <= self.spread <= 1:
            raise ValueError(
                f"spread={self.spread}: the relative spread of the ranks' step times must be "
                "in 0..1; beyond that the slowest rank would never finish. Set spread to the "
                "standard deviation of log step time, for example 0.02."
            )

    def slowdowns(self, quantiles: NDArray[np.float64]) -> NDArray[np.float64]:
        """The slowest rank's step time at the given quantiles, both (K,), without drawing N.

        All N are below z with probability Phi(z)^N = q, so z = -Phi^-1(1 - q^(1/N)).
        """
        if self.spread == 0:
            return np.ones_like(quantiles)
        tails = -np.expm1(np.log(quantiles) / self.ranks)
        normal = NormalDist()
        return np.exp([-self.spread * normal.inv_cdf(tail) for tail in tails.tolist()])

    def mean_slowdown(self) -> float:
        """Expected step time relative to a step without stragglers."""
        return float(self.slowdowns((np.arange(4000) + 0.5) / 4000).mean())


@dataclass(frozen=True, kw_only=True, slots=True)
class Simulation:
    """Where a simulated job's wall time went, as fractions that add up to 1."""

    goodput: float
    standard_error: float  # of the goodput
    straggling: float  # waiting for the slowest rank, within work that was kept
    saving: float  # stalls of saves that were published
    restarting: float
    lost: float  # at each failure, everything since the last published checkpoint


def simulate_job(
    interval_s: float,
    costs: Costs,
    rng: np.random.Generator,
    *,
    num_failures: int = 1000,
    stragglers: Stragglers | None = None,
) -> Simulation:
    """Simulate one job, event by event, until its last failure.

    Between two failures: restart, then repeat: train, wait for the save in flight, stall,
    publish. Anything unpublished at the next failure is lost; a failure can also hit a restart.
    Each restart draws new ranks for the job, and the slowest one sets the pace.

    Raises:
        ValueError: if the interval is not a duration, or there are fewer than 2 failures.
    """
    check_durations(interval_s=interval_s)
    if num_failures < 2:
        raise ValueError(
            f"num_failures={num_failures}: the standard error compares failures, so it needs "
            "at least 2. Set num_failures to 1000."
        )
    lives_s = rng.exponential(costs.mtbf_s, num_failures)
    paces = np.ones(num_failures)
    if stragglers is not None:
        paces = stragglers.slowdowns(rng.uniform(1e-12, 1, num_failures))
    parts_s = np.array(
        [
            play_life(life, pace * interval_s, costs)
            for life, pace in zip(lives_s, paces, strict=True)
        ]
    )  # (F, 3): kept training, stalls, restart
    kept_s, saving_s, restarting_s = parts_s.T
    work_s, wall_s = kept_s / paces, lives_s.sum()
    goodput = work_s.sum() / wall_s
    # Standard error of a ratio of sums over independent lives.
    residuals = work_s - goodput * lives_s
    error = math.sqrt(num_failures / (num_failures - 1) * (residuals**2).sum()) / wall_s
    return Simulation(
        goodput=float(goodput),
        standard_error=float(error),
        straggling=float((kept_s - work_s).sum() / wall_s),
        saving=float(saving_s.sum() / wall_s),
        restarting=float(restarting_s.sum() / wall_s),
        lost=float((lives_s - parts_s.sum(axis=1)).sum() / wall_s),
    )


def play_life(life_s: float, train_s: float, costs: Costs) -> tuple[float, float, float]:
    """From one failure to the next: seconds of kept training, of its stalls, of restarting."""
    now_s = published_s = costs.restart_s
    num_published, stalled_s, kept_stalls_s = 0, 0.0, 0.0
    while True:
        now_s += train_s
        trained_s = now_s
        now_s = max(now_s, published_s) + costs.save_s  # one save in flight at a time
        stalled_s += now_s - trained_s
        published_s = now_s + costs.publish_s
        if published_s > life_s:
            kept_s = num_published * train_s
            return kept_s, kept_stalls_s, min(life_s, costs.restart_s)
        num_published += 1
        kept_stalls_s = stalled_s


def enough_failures(interval_s: float, costs: Costs, num_saves: float = 1e5) -> int:
    """How many failures to simulate, 50 to 2000, to get about ``num_saves`` saves."""
    saves_per_failure = max(1.0, costs.mtbf_s / (interval_s + costs.save_s))
    return round(min(2000.0, max(50.0, num_saves / saves_per_failure)))
