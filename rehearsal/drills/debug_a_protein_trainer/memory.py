"""What ``planned_mib`` counts, found by comparing it with every combination of mistakes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import product

from rehearsal.engine.reports import RankReport
from rehearsal.grading.verdict import Finding

from .codes import TABLE
from .plan import MIB, Plan, Probe, Shape, right_mib

# For each part of the plan: what else it could count, with the code that reports it.
Count = Callable[[int, Shape], float]
RIGHT = ""
PAIRS: Sequence[tuple[str, Count]] = (
    (RIGHT, lambda n, s: s.num_pair_blocks * n**2 * s.pair_width),
    ("pair-width", lambda n, s: s.num_pair_blocks * n**2 * s.d_model),
    ("pair-width", lambda n, s: s.num_pair_blocks * n**2 * s.num_heads),
    ("pairs-of-an-encoder", lambda n, s: max(1, s.num_pair_blocks) * n**2 * s.pair_width),
    ("pairs-of-an-encoder", lambda n, s: (1 + s.num_pair_blocks) * n**2 * s.pair_width),
    ("pairs-of-an-encoder", lambda n, s: s.num_layers * n**2 * s.pair_width),
    ("both", lambda n, s: max(1, s.num_pair_blocks) * n**2 * s.d_model),
    ("both", lambda n, s: (1 + s.num_pair_blocks) * n**2 * s.d_model),
    ("both", lambda n, s: n**2 * s.d_model),
)
LOGITS: Sequence[tuple[str, Count]] = (
    (RIGHT, lambda n, s: 0 if s.is_fused else s.num_heads * n**2),
    ("fused-logits", lambda n, s: s.num_heads * n**2),
    ("fused-logits", lambda n, s: s.num_heads * n**2 if s.is_fused else 0),
)
UNITS = (MIB, 1e6, 2**30, 1e9, 2**10, 1e3, 1)


def judge_memory(
    plan: Plan, reports: Sequence[RankReport], earlier: object
) -> Iterator[Finding]:
    """One finding for each mistake."""
    values = [value for value, _ in reports[0].answer]
    for probe, (value, said) in zip(plan.probes, reports[0].answer, strict=True):
        if value is None:
            yield TABLE("wrong-plan", f"{described(probe)}, planned_mib returned {said}")
            return
    if agree(values, [right_mib(probe) for probe in plan.probes]):
        return
    for (pairs, count_pairs), (logits, count_logits), size in product(PAIRS, LOGITS, UNITS):
        planned = [
            4 * (stream(probe) + count_pairs(*probe) + count_logits(*probe)) / size
            for probe in plan.probes
        ]
        if agree(values, planned):
            yield from mistakes(plan, values, pairs, logits, MIB / size)
            return
    at = next(n for n, probe in enumerate(plan.probes) if differs(values[n], right_mib(probe)))
    probe = plan.probes[at]
    found = f"{described(probe)}, planned_mib returned {values[at]:.6g}; the parts add up to "
    yield TABLE("wrong-plan", f"{found}{right_mib(probe):.6g} MiB")


def stream(probe: Probe) -> int:
    """Numbers in the inputs of all blocks."""
    return probe.shape.num_layers * probe.length * probe.shape.d_model


def differs(ours: float, theirs: float) -> bool:
    """Whether two amounts are different ones."""
    return not math.isclose(ours, theirs, rel_tol=1e-9)


def agree(ours: Sequence[float], theirs: Sequence[float]) -> bool:
    """Whether all amounts are the same."""
    return not any(map(differs, ours, theirs))


def described(probe: Probe) -> str:
    """The arguments that matter."""
    shape = probe.shape
    kind = "fused" if shape.is_fused else "not fused"
    return (
        f"for {probe.length} residues, d_model={shape.d_model}, num_heads={shape.num_heads}, "
        f"num_layers={shape.num_layers}, pair_width={shape.pair_width}, "
        f"num_pair_blocks={shape.num_pair_blocks}, {kind}"
    )


def mistakes(
    plan: Plan, values: Sequence[float], pairs: str, logits: str, factor: float
) -> Iterator[Finding]:
    """Each mistake, in its own numbers."""
    if factor != 1:
        found = (
            f"whatever the shape, the number is {factor:.6g} times the MiB of what it counts"
        )
        yield TABLE("wrong-unit", found)
    if pairs in ("pairs-of-an-encoder", "both"):
        # Twice the length is twice the stream; squares give themselves away.
        found = "with num_pair_blocks=0, planned_mib changes with "
        found += "d_model times the square of the length" * (pairs == "both")
        found += "pair_width" * (pairs != "both")
        yield TABLE("pairs-of-an-encoder", found)
    if pairs in ("pair-width", "both"):
        found = "with a structure trunk, another pair_width doesn't change planned_mib"
        yield TABLE("pair-width", found)
    if logits:
        yield TABLE("fused-logits", "planned_mib counts attention logits where is_fused=True")
