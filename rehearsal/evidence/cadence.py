"""How often should a run save, and what share of its time is then left for training?

The question it answers: "a save stalls the job for 4 seconds, a restart takes ten minutes, and
something fails every three hours; what interval, and what goodput?"

    tau    interval_s  work between two saves, in seconds at the speed without stragglers
    delta  save_s      how long a save stalls all ranks
    d      publish_s   from the end of the stall until the checkpoint is usable (0: synchronous)
    R      restart_s   from a failure to the first new step, including detection
    M      mtbf_s      mean time between failures of the whole job, including during restarts
    s      slowdown    duration of a step relative to one without stragglers
    G      goodput     work that was not lost, per second of wall time

Failures are a Poisson process: a rank that has run for a month is as likely to fail as a new
one. So the failures of N ranks are a Poisson process too, with M = the MTBF of one rank / N.

rehearsal/evidence/cadence_simulation.py simulates the same job without these formulas.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

LEAST, MOST = 1e-9, 1e12
GOLDEN = (math.sqrt(5) - 1) / 2


def check_durations(**values: float) -> None:
    """Reject values that are not durations; each name ends in its unit, _s or _h.

    Raises:
        ValueError: if a value is NaN, or not between 1e-9 and 1e12.
    """
    for name, value in values.items():
        if not LEAST <= value <= MOST:  # also False for NaN
            unit = "hours" if name.endswith("_h") else "seconds"
            raise ValueError(
                f"{name}={value}: a duration must be from {LEAST:g} to {MOST:g} {unit}; any "
                f"other value makes the result meaningless. Set {name} to a measured time in "
                f"{unit}."
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class Costs:
    """What saves and failures cost one job, in seconds; see the legend at the top.

    Raises:
        ValueError: if one is not a duration; only ``publish_s`` may be 0.
    """

    save_s: float
    restart_s: float
    mtbf_s: float
    publish_s: float = 0.0

    def __post_init__(self) -> None:
        times_s = {spec.name: getattr(self, spec.name) for spec in fields(self)}
        if self.publish_s == 0:
            del times_s["publish_s"]
        check_durations(**times_s)


def job_mtbf_s(mtbf_per_rank_h: float, ranks: int) -> float:
    """Mean time between failures of a job that stops when any of its ranks fails, in seconds.

    Raises:
        ValueError: if the time is not a duration, or there are no ranks.
    """
    check_ranks(ranks)
    check_durations(mtbf_per_rank_h=mtbf_per_rank_h)
    return 3600 * mtbf_per_rank_h / ranks


def check_ranks(ranks: int) -> None:
    """Reject a job without ranks.

    Raises:
        ValueError: if ``ranks`` is below 1.
    """
    if ranks < 1:
        raise ValueError(
            f"ranks={ranks}: a job has at least one rank; without any, nothing trains and "
            "nothing fails. Set ranks to the job's world size."
        )


def young_interval(save_s: float, mtbf_s: float) -> float:
    """sqrt(2 delta M): the interval that loses the least time, if delta is far below M.

    J. W. Young, A first order approximation to the optimum checkpoint interval, Communications
    of the ACM 17(9), 1974, where it is Tc = sqrt(2 Ts Tf).

    Raises:
        ValueError: if one is not a duration.
    """
    check_durations(save_s=save_s, mtbf_s=mtbf_s)
    return math.sqrt(2 * save_s * mtbf_s)


def daly_interval(save_s: float, mtbf_s: float) -> float:
    """sqrt(2 delta M) [1 + x/3 + x^2/9] - delta with x^2 = delta / 2M; M if delta >= 2M.

    J. T. Daly, A higher order estimate of the optimum checkpoint interval for restart dumps,
    Future Generation Computer Systems 22(3), 2006, where it is tau_opt, with the same letters.

    Raises:
        ValueError: if one is not a duration.
    """
    check_durations(save_s=save_s, mtbf_s=mtbf_s)
    if save_s >= 2 * mtbf_s:
        return mtbf_s
    x = math.sqrt(save_s / (2 * mtbf_s))
    return math.sqrt(2 * save_s * mtbf_s) * (1 + x / 3 + x**2 / 9) - save_s


def first_order_goodput(interval_s: float, costs: Costs) -> float:
    """1 - delta/tau - (tau/2 + d + R)/M, the whiteboard estimate; can be negative.

    A failure costs the restart, half an interval, and the publish delay.
    """
    check_durations(interval_s=interval_s)
    lost_s = interval_s / 2 + costs.publish_s + costs.restart_s
    return 1 - costs.save_s / interval_s - lost_s / costs.mtbf_s


def expected_goodput(interval_s: float, costs: Costs, slowdown: float = 1.0) -> float:
    """The share of a long run's wall time spent on work that was not lost.

    Exact if every step is slowed by the same factor, ``slowdown``. Approximate if every
    restart draws new stragglers: then the mean slowdown stands for all of them.

        G = tau/M  exp(-(R + first + d)/M) / (1 - exp(-cycle/M))
        first = s tau + delta,  cycle = max(s tau, d) + delta

    The n-th checkpoint after a failure becomes usable at R + first + d + (n - 1) cycle, because
    a save waits for the one in flight. The job survives that long with probability
    exp(-that/M), and the sum over n is geometric. With d = 0 and s = 1 this is Daly's complete
    model (2006, see above), in which an interval takes M exp(R/M) (exp((tau + delta)/M) - 1).
    Up to d = s tau, a delay of d costs as much as a restart that takes d longer.

    Raises:
        ValueError: if the interval is not a duration, or ``slowdown`` is not in 0.5..1e6.
    """
    return math.exp(log_goodput(interval_s, costs, slowdown))


def log_goodput(interval_s: float, costs: Costs, slowdown: float = 1.0) -> float:
    """The logarithm of ``expected_goodput``, finite even where the goodput rounds to 0."""
    check_durations(interval_s=interval_s)
    if not 0.5 <= slowdown <= 1e6:
        raise ValueError(
            f"slowdown={slowdown}: stragglers cannot make a step faster, so a smaller factor "
            "would count time twice. Set slowdown to the mean step time divided by the step "
            "time without stragglers, for example 1.08."
        )
    train_s = slowdown * interval_s
    first_s = costs.restart_s + train_s + costs.save_s + costs.publish_s
    cycle_s = max(train_s, costs.publish_s) + costs.save_s
    log_published = -first_s / costs.mtbf_s - math.log(-math.expm1(-cycle_s / costs.mtbf_s))
    return math.log(interval_s / costs.mtbf_s) + log_published


def best_interval(costs: Costs, slowdown: float = 1.0) -> float:
    """The interval with the highest expected goodput, in seconds of work; R does not move it.

    Golden-section search over the logarithm: the goodput rises to a single peak, at M or
    earlier, and then falls. With async saves the peak may be the kink where s tau = d.
    """
    low, high = math.log(LEAST), math.log(costs.mtbf_s)
    while high - low > 1e-9:
        width = GOLDEN * (high - low)
        left, right = math.exp(high - width), math.exp(low + width)
        if log_goodput(left, costs, slowdown) < log_goodput(right, costs, slowdown):
            low = math.log(left)
        else:
            high = math.log(right)
    return math.exp((low + high) / 2)


def best_steps(costs: Costs, step_s: float, slowdown: float = 1.0) -> int:
    """``best_interval`` as a whole number of steps, at least 1.

    Raises:
        ValueError: if ``step_s``, the time of a step without stragglers, is not a duration.
    """
    check_durations(step_s=step_s)
    below = max(1, math.floor(best_interval(costs, slowdown) / step_s))
    return max(below, below + 1, key=lambda n: log_goodput(n * step_s, costs, slowdown))
