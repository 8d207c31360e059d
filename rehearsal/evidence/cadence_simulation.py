"""Is the formula right? A job played event by event: failures, restarts, saves, stragglers.

The question it answers: "who says that 97 % will be left?" Letters as in rehearsal/cadence.py,
of which nothing is used here but the costs and the checks.
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

    z is standard normal and belongs to a rank as long as it runs, so the median rank takes the
    step time without stragglers. On five large clusters, GPUs of one model differed by 8 % (up
    to 22 %) in performance: P. Sinha et al., Not All GPUs Are Created Equal, SC22, arXiv
    2208.11035. We read 8 % as the width of the middle 95 %, so spread = 0.02. The form of the
    distribution is our assumption.

    Args:
        ranks: N.
        spread: standard deviation of the logarithm of a rank's step time.

    Raises:
        ValueError: if there is no rank, or the spread is not in 0..1.
    """

    ranks: int
    spread: float = 0.02

    def __post_init__(self) -> None:
        check_ranks(self.ranks)
        if not 0 <= self.spread <= 1:
            raise ValueError(
                f"spread={self.spread}: the relative spread of the ranks' step times is in "
                "0..1; beyond it no step would end. Set spread to its standard deviation, "
                "such as 0.02."
            )

    def slowdowns(self, quantiles: NDArray[np.float64]) -> NDArray[np.float64]:
        """Quantiles (K,) of the slowest rank's step time, without drawing the others' (K,).

        All N are below z with probability Phi(z)^N = q, so z = -Phi^-1(1 - q^(1/N)).
        """
        if self.spread == 0:
            return np.ones_like(quantiles)
        tails = -np.expm1(np.log(quantiles) / self.ranks)
        normal = NormalDist()
        return np.exp([-self.spread * normal.inv_cdf(tail) for tail in tails.tolist()])

    def mean_slowdown(self) -> float:
        """Expected step time, relative to the one without stragglers."""
        return float(self.slowdowns((np.arange(4000) + 0.5) / 4000).mean())


@dataclass(frozen=True, kw_only=True, slots=True)
class Simulation:
    """What became of a simulated job's wall time, as fractions that add up to 1."""

    goodput: float
    standard_error: float  # of the goodput
    straggling: float  # waiting for the slowest rank, in work that was kept
    saving: float  # stalls of saves that were published
    restarting: float
    lost: float  # everything since the last published checkpoint, at a failure


def simulate_job(
    interval_s: float,
    costs: Costs,
    rng: np.random.Generator,
    *,
    num_failures: int = 1000,
    stragglers: Stragglers | None = None,
) -> Simulation:
    """Play one job, event by event, until its last failure.

    From failure to failure: restart, train, wait for the save in flight, stall, publish. What
    is not published at the next failure is lost; a failure may hit a restart, too. Each restart
    deals the job new ranks, the slowest of which sets the pace.

    Raises:
        ValueError: if the interval is no duration, or fewer than 2 failures leave no error bar.
    """
    check_durations(interval_s=interval_s)
    if num_failures < 2:
        raise ValueError(
            f"num_failures={num_failures}: the standard error is taken between failures, so "
            "fewer than 2 have none. Set num_failures to 1000."
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
    # Of a ratio of sums over independent lives.
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
    """One life, from a failure to the next: seconds of kept training, its stalls, restart."""
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
    """How many failures to play, 50 to 2000, so that there are about ``num_saves`` saves."""
    saves_per_failure = max(1.0, costs.mtbf_s / (interval_s + costs.save_s))
    return round(min(2000.0, max(50.0, num_saves / saves_per_failure)))
