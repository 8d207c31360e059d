"""What the model computes, where its gradients arrive, what it keeps, and what crop returns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from rehearsal.engine.reports import RankReport
from rehearsal.grading.verdict import Finding
from rehearsal.kit.judge.findings import first_of, some

from .codes import TABLE
from .in_rank import CROPS
from .plan import Plan

LEAST = CROPS // 6  # of a third of the draws, which is twice as many


def judge_model(
    plan: Plan, reports: Sequence[RankReport], earlier: object
) -> Iterable[Finding]:
    """The model first: a wrong one has wrong gradients."""
    answer = reports[0].answer
    return first_of(
        shape_findings(answer),
        logit_findings(answer),
        *(part(plan, answer) for part in (checkpoint_findings, crop_findings)),
    )


def shape_findings(answer: dict[str, Any]) -> Iterator[Finding]:
    """Parameters that aren't the program's."""
    for name, (found, wanted) in list(answer.get("shapes", {}).items())[:1]:
        text = f"the model has no parameter {name}, of shape {wanted}"
        if found:
            text = f"the model's parameter {name} has the shape {found}"
            text += f", not {wanted}" if wanted else "; the program's model has none"
        yield TABLE("parameters-changed", text)


def logit_findings(answer: dict[str, Any]) -> Iterator[Finding]:
    """Logits of padded rows, at their real residues."""
    if "output" in answer:
        found = f"three rows give {answer['output']}, not logits of shape {answer['wanted']}"
        yield TABLE("wrong-logits", found)
    elif answer["off"] is None:
        yield TABLE("wrong-logits", "for finite parameters, logits are NaN or infinite")
    elif answer["off"] > 1e-4 * answer["range"]:
        found = "with the same parameters, logits of real residues differ from those of the "
        yield TABLE("wrong-logits", f"{found}program by up to {answer['off']:.2g}")


def checkpoint_findings(plan: Plan, answer: dict[str, Any]) -> Iterator[Finding]:
    """What a checkpoint keeps, lets through, and says."""
    one, three = answer["kept"]
    per_block = (three - one) / 2
    # A block's input, and the mask; what happens inside is more than ten times as much.
    if per_block > 2 * answer["input"]:
        found = f"each further block keeps {per_block:,.0f} bytes for the backward pass; its "
        yield TABLE("keeps-activations", f"{found}input has {answer['input']:,}")
    if missing := answer["without gradient"]:
        found = f"with frozen embeddings, {len(missing)} parameters have no gradient, or a "
        yield TABLE("no-gradient", f"{found}wrong one: {some(missing, 3)}")
    if answer["warnings"]:
        first = answer["warnings"][0].partition(". ")[0]
        yield TABLE("warns", f"the forward pass of a new model warns: {first[:160]}")


def crop_findings(plan: Plan, answer: dict[str, Any]) -> Iterator[Finding]:
    """Windows of proteins that fit, and of one that is two residues too long."""
    crops, longest = answer["crops"], plan.shape.max_length
    if crops["cut"]:
        found = (
            f"with max_length={longest}, crop changed a protein of {crops['cut'][0]} residues"
        )
        yield TABLE("wrong-crop", found)
    elif crops["wrong"]:
        window = crops["wrong"][0]
        found = f"of {longest + 2} residues, with max_length={longest}, crop returned "
        found += f"{len(window)}" if len(window) != longest else "residues that don't adjoin"
        yield TABLE("wrong-crop", found)
    elif min(crops["starts"]) < LEAST or sum(crops["starts"]) < CROPS:
        found = f"of {longest + 2} residues, crop took the windows that begin at 0, 1 and 2 "
        found += f"{crops['starts'][0]}, {crops['starts'][1]} and {crops['starts'][2]} times "
        yield TABLE("wrong-crop", f"{found}in {CROPS} draws")
