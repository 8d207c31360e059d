"""Does spot capacity pay off? The cost of a useful GPU-hour, by formula and by simulation.

    N   nodes of the job; if one is taken, all stop      p   price of a node-hour
    m   mean time between interruptions of one node      M   of the job: m / N
    delta  seconds to save      R   seconds from the stop to the first new step, waits included
    G   useful time / paid time      cost of a useful node-hour: p / G

Without a warning, the work since the last save is lost. So the job saves at the best interval,
and G is ``expected_goodput`` of rehearsal/evidence/cadence.py. With a warning long enough for a
save, nothing is lost and no other save is needed: a cycle is M of work, then delta + R.

    G = M / (M + delta + R)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from rehearsal.evidence.cadence import Costs, best_interval, expected_goodput
from rehearsal.evidence.pictures import INK, new_figure, on_any_theme, rank_color

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def job_mtbi_s(node_mtbi_h: float, nodes: int) -> float:
    """M in seconds: a job that stops with any of its nodes stops N times as often as one."""
    return 3600 * node_mtbi_h / nodes


def goodput_unwarned(mtbi_s: float, save_s: float, restart_s: float) -> float:
    """G if a node just disappears, at the best save interval."""
    costs = Costs(save_s=save_s, restart_s=restart_s, mtbf_s=mtbi_s)
    return expected_goodput(best_interval(costs), costs)


def goodput_warned(mtbi_s: float, save_s: float, restart_s: float) -> float:
    """G if each stop is announced, early enough for one save."""
    return mtbi_s / (mtbi_s + save_s + restart_s)


def cost_of_useful_hour(price_per_hour: float, goodput: float) -> float:
    """What a node-hour of work that counts costs."""
    return price_per_hour / goodput


def simulate_goodput(
    mtbi_s: float,
    save_s: float,
    restart_s: float,
    *,
    is_warned: bool,
    stops: int = 4000,
    seed: int = 0,
) -> float:
    """G of a job that is stopped that often, event by event, without the formulas above.

    A stop without a warning may also hit the restart; one with a warning waits for it.
    """
    rng = np.random.default_rng(seed)
    costs = Costs(save_s=save_s, restart_s=restart_s, mtbf_s=mtbi_s)
    interval_s = best_interval(costs)
    useful_s = paid_s = 0.0
    for life_s in rng.exponential(mtbi_s, stops):
        if is_warned:
            useful_s += life_s
            paid_s += life_s + save_s + restart_s
        else:
            saves = max(0.0, life_s - restart_s) // (interval_s + save_s)
            useful_s += saves * interval_s
            paid_s += life_s
    return useful_s / paid_s


def break_even_nodes(
    nodes: Sequence[int], spot_costs: Sequence[float], on_demand_costs: Sequence[float]
) -> int | None:
    """The first job size at which spot costs more; None if it never does."""
    triples = zip(nodes, spot_costs, on_demand_costs, strict=True)
    return next((size for size, spot, other in triples if spot > other), None)


def cost_picture(
    nodes: Sequence[int],
    curves: Mapping[str, Sequence[float]],
    on_demand: Sequence[float],
    subtitle: str,
) -> Figure:
    """The cost of a useful hour against the job's size, one curve per way of using spot."""
    figure, axes = new_figure(4.2, "What a useful node-hour costs", subtitle)
    axes.plot(nodes, on_demand, color=INK, linewidth=2, label="on demand")
    for at, (name, costs) in enumerate(curves.items()):
        style = ("-", "--", "-.", ":")[at % 4]
        axes.plot(nodes, costs, color=rank_color(at), linestyle=style, label=name)
    axes.set_xscale("log", base=2)
    axes.set_xticks(list(nodes), [str(size) for size in nodes])
    axes.minorticks_off()
    axes.set(
        ylim=(0, 3),
        xlabel="nodes in the job (log scale)",
        ylabel="relative to one on-demand node-hour",
    )
    axes.legend(frameon=False)
    return on_any_theme(figure)
