"""What to look at for the work, the plates and the symmetry of a biotech job."""

from __future__ import annotations

from typing import Any

from rehearsal.incidents.biotech import batch_plots as plots
from rehearsal.incidents.biotech.evidence import BioEvidence
from rehearsal.incidents.biotech.looks import needs
from rehearsal.incidents.view import BadLook, Shown, a_rank, rows_of

NO_CHECK = "The job didn't get to the end of its training, so its network wasn't checked."


def batches(
    evidence: BioEvidence, step: int | None = None, rank: int | None = None, num_steps: int = 6
) -> Shown:
    """What each rank's batches held in a few steps; by default the last ones."""
    needs(evidence, "proteins", "batch of proteins")
    if type(num_steps) is not int or not 1 <= num_steps <= 20:
        raise BadLook(f"num_steps={num_steps!r}: must be 1 to 20.")
    if rank is not None:
        a_rank(evidence, rank)
    last = max((r["step"] for r in evidence.batches), default=0)
    if step is not None and (type(step) is not int or not 1 <= step <= last):
        raise BadLook(f"step={step!r}: the batches on record are of steps 1 to {last}.")
    first = step or max(1, last - num_steps + 1)
    killed = {id(record) for record in evidence.fatal_batches}
    everything = [
        {**record, "killed": id(record) in killed}
        for record in evidence.batches
        if rank in (None, record["rank"])
    ]
    found = [r for r in everything if first <= r["step"] < first + num_steps]
    rows: list[list[Any]] = [
        [r["attempt"], r["step"], r["rank"], " ".join(map(str, r["samples"])), r["proteins"],
         r["longest"], f"made_up_{r['longest_id']}", r["tokens"], f"{r['needs_mib']:.0f}",
         "killed here" if r["killed"] else ""]
        for r in found
    ]  # fmt: skip
    head = [
        "attempt", "step", "rank", "bins", "proteins", "longest", "which", "tokens",
        "needs MiB", "",
    ]  # fmt: skip
    text = summary_of(evidence) + "\n" + rows_of(head, rows)
    return Shown(found, text, (lambda: plots.tokens(everything)) if everything else None)


def summary_of(evidence: BioEvidence) -> str:
    """The whole job in a line or two."""
    lines = [
        f"Tokens, padding included, over {len(evidence.tokens_at)} steps: the busiest rank has "
        f"{evidence.token_skew():.1f} times as many as the idlest in a typical step, and ranks "
        f"spend {evidence.idle_share():.0%} of their time waiting for it."
    ]
    usual = sorted(r["longest"] for r in evidence.batches)
    if usual:
        lines.append(
            f"Longest row of a batch, with both ends: median {usual[len(usual) // 2]} tokens, "
            f"largest {usual[-1]}."
        )
    return "\n".join(lines)


def plates(evidence: BioEvidence) -> Shown:
    """Per plate: labels trained on, actives, what the model expected, and the loss."""
    needs(evidence, "molecules", "plate")
    excluded = evidence.plan.settings.get("excluded_plates", [])
    found = [{"plate": number, **of._asdict()} for number, of in evidence.plates.items()]
    rows = [
        [r["plate"], r["labels"], f"{r['actives']:.2f}", f"{r['expected']:.2f}",
         f"{r['loss']:.3f}"]
        for r in found
    ]  # fmt: skip
    text = (
        "Visits to labels in the last three quarters of the training, each before its step's "
        "update.\nactive: share of the labels; expected: the mean probability that the model "
        "gave them\n"
    )
    text += rows_of(["plate", "labels", "active", "expected", "loss (nats)"], rows)
    if excluded:
        text += f"\nLeft out: {', '.join(map(str, excluded))}"
    return Shown(found, text, (lambda: plots.plates(found)) if found else None)


MOTIONS = ("rotation", "reflection", "translation", "permutation")


def symmetry(evidence: BioEvidence) -> Shown:
    """How much each symmetry of space is off, in the trained network."""
    needs(evidence, "graphs", "symmetry of a network")
    found = evidence.symmetry
    if found is None:
        return Shown(None, NO_CHECK)
    shown = {what: found[what] for what in ("energies", "vectors")}
    rows = [[motion, *(f"{shown[what][motion]:.1e}" for what in shown)] for motion in MOTIONS]
    text = (
        f"step {found['step']}: |f(R x) - R f(x)| / |f(x)|, the largest of two draws on six "
        "molecules that were held back.\nRounding a number changes it by up to 6e-8 of its "
        "size in float32, 4e-3 in bf16.\n"
    )
    table = rows_of(["motion", "energies", "vectors"], rows)
    return Shown(shown, text + table, lambda: plots.symmetry(shown, MOTIONS))
