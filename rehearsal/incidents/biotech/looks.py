"""The dashboards and records that only a biotech job has, and those that it shows otherwise."""

from __future__ import annotations

import math
from statistics import fmean, median
from typing import Any

import numpy as np

from rehearsal.incidents import dashboards, records
from rehearsal.incidents.biotech import plots
from rehearsal.incidents.biotech.deployed import module_names
from rehearsal.incidents.biotech.evidence import TRAIN, BioEvidence, Floats, auroc
from rehearsal.incidents.biotech.library import table_of
from rehearsal.incidents.biotech.settings import RULES
from rehearsal.incidents.biotech.world import world_of
from rehearsal.incidents.settings import table
from rehearsal.incidents.view import BadLook, Shown, a_step, rows_of

LOSSES = {
    "molecules": "cross-entropy per label (nats)",
    "proteins": "cross-entropy per masked residue (nats)",
    "graphs": "squared error per label (squared deviations)",
}
NOT_THERE = "The job didn't get to the end of its training, so nothing was scored."


def loss(evidence: BioEvidence) -> Shown:
    """Loss, learning rate and gradient norm per step, over all attempts."""
    return dashboards.loss_in(evidence, LOSSES[evidence.data])


def settings(evidence: BioEvidence) -> Shown:
    """What can be changed, with its value."""
    return Shown(dict(evidence.plan.settings), table(evidence.plan, RULES))


def code(evidence: BioEvidence, module: str) -> Shown:
    """A module's text as it is deployed."""
    return records.module_in(evidence, module, module_names())


def data(evidence: BioEvidence, step: int) -> Shown:
    """The samples of a step: of molecules with their labels, of bins only how many."""
    a_step(evidence, step)
    lines = {line["rank"]: line for line in evidence.ledger if line["step"] == step}
    rows = np.flatnonzero(evidence.parts == TRAIN)
    found: list[dict[str, Any]] = []
    for rank, line in sorted(lines.items()):
        for sample in line["samples"]:
            record = {"sample": sample, "rank": rank}
            if evidence.data == "molecules" and len(rows):
                labels = evidence.prepared_labels[rows[sample]]
                record |= {
                    "smiles": evidence.truth.smiles[evidence.molecule_of[rows[sample]]],
                    "labels": "".join("." if x != x else f"{x:.0f}" for x in labels),
                }
            found.append(record)
    head = list(found[0]) if found else ["sample", "rank"]
    text = rows_of(head, [list(record.values()) for record in found])
    if evidence.data == "molecules":
        text = "One character per assay: 1 active, 0 inactive, . no label\n" + text
    return Shown(found, text)


def needs(evidence: BioEvidence, data: str, what: str) -> None:
    """Raise BadLook if the job has other data."""
    if evidence.data != data:
        raise BadLook(f"This job learns from {evidence.data}: there is no {what} to look at.")


def validation(evidence: BioEvidence) -> Shown:
    """What the job reports at the end: its metrics on the part that was held back."""
    found = evidence.evaluated
    if found is None:
        why = NOT_THERE if evidence.data != "proteins" else "This job holds nothing back."
        return Shown(None, why)
    if evidence.data == "graphs":
        record = {name: found[name] for name in ("mean_absolute_error", "labels")}
        return Shown(record, f"step {found['step']}: {found['summary']}")
    shown = [
        {"assay": name, "labels": of["num_labels"], "actives": of["num_active"], **of["values"]}
        for name, of in found["tasks"].items()
    ]
    names = list(shown[0])[3:] if shown else []
    rows = [
        [r["assay"], r["labels"], r["actives"], *(f"{r[name]:.3f}" for name in names)]
        for r in shown
    ]
    lines = [f"step {found['step']}: {found['summary']}"]
    lines.append(rows_of(["assay", "labels", "actives", *names], rows))
    lines += [f"{name}: undefined, {why}" for name, why in found["undefined"].items()]
    facts = {"summary": found["summary"], "tasks": shown, "undefined": found["undefined"]}
    draw = (lambda: plots.metrics(shown)) if shown else None
    return Shown(facts, "\n".join(lines), draw)


def fresh_batch(evidence: BioEvidence) -> Shown:
    """How the final model does on a batch that was measured after the data was prepared."""
    if evidence.data == "graphs":
        return fresh_geometries(evidence)
    needs(evidence, "molecules", "fresh batch")
    if not evidence.fresh_scores.size:
        return Shown(None, NOT_THERE)
    truth, scores = evidence.truth, evidence.fresh_scores
    # A changed split may leave nothing to validate on.
    validation = evidence.validation_aurocs() or [math.nan] * len(truth.assays)
    fresh = evidence.fresh_aurocs()
    shown = [
        {
            "assay": name,
            "validation_auroc": rounded(validation[n]),
            "fresh_auroc": rounded(fresh[n]),
            "actives": round(float(truth.fresh_labels[:, n].mean()), 3),
            "expected": round(float(scores[:, n].mean()), 3),
            "recall": round(recall(truth.fresh_labels[:, n], scores[:, n]), 3),
        }
        for n, name in enumerate(truth.assays)
    ]
    means = [mean_shown(shown, name) for name in list(shown[0])[1:]]
    rows = [[as_text(value) for value in record.values()] for record in shown]
    rows.append(["mean", *map(as_text, means)])
    head = ["assay", "validation AUROC", "fresh AUROC", "active", "expected", "recall at 0.5"]
    text = (
        f"{len(scores)} molecules on new scaffolds, measured in every assay after the data was "
        "prepared.\nactive: their share; expected: the mean probability that the model gives "
        "them\n" + rows_of(head, rows)
    )
    return Shown(shown, text, lambda: plots.fresh(shown))


def rounded(value: float) -> float | None:
    """Three decimals; None where there is no figure."""
    return round(value, 3) if value == value else None


def as_text(value: Any) -> str:
    """A cell of a table."""
    if value is None:
        return "undefined"
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def mean_shown(records_: list[dict[str, Any]], name: str) -> float | None:
    """The mean of a column over the assays that have it."""
    known = [record[name] for record in records_ if record[name] is not None]
    return fmean(known) if known else None


def recall(labels: Floats, scores: Floats) -> float:
    """The share of the actives that get a half or more."""
    actives = scores[labels == 1]
    return float((actives >= 0.5).mean()) if actives.size else 0.0


def fresh_geometries(evidence: BioEvidence) -> Shown:
    """The error on geometries that were measured later, in the data's own unit."""
    kept = evidence.scored.get(0, {})
    if "fresh" not in kept:
        return Shown(None, NOT_THERE)
    held_back = [abs(p - y) * kept["deviation"] for p, y in kept["held_back"]]
    fresh = [abs(p - y) for p, y in kept["fresh"]]
    unit = float(evidence.energies["train"].std())
    shown = [
        {
            "part": name,
            "geometries": len(of),
            "mean": fmean(of),
            "median": median(of),
            "in_deviations": fmean(of) / unit,
        }
        for name, of in (("held back", held_back), ("fresh batch", fresh))
    ]
    rows = [
        [r["part"], r["geometries"], *(f"{r[n]:.2f}" for n in ("mean", "median"))]
        + [f"{r['in_deviations']:.2f}"]
        for r in shown
    ]
    head = ["part", "geometries", "mean error", "median error", "mean, in deviations"]
    text = (
        "Absolute errors in the unit of the data (kcal/mol), and their mean in standard "
        "deviations\nof the energies that were trained on.\n" + rows_of(head, rows)
    )
    return Shown(shown, text, lambda: plots.predictions(kept))


def labels(evidence: BioEvidence) -> Shown:
    """Per assay: labels that the lab measured, and those that an epoch trained on."""
    needs(evidence, "molecules", "table of labels")
    kept = evidence.scored.get(0, {})
    if "terms" not in kept:
        return Shown(None, NOT_THERE)
    known = evidence.truth.known[evidence.molecule_of[evidence.parts == TRAIN]]
    shown = [
        {
            "assay": name,
            "measured": int((~np.isnan(column)).sum()),
            "measured_actives": int((column == 1).sum()),
            "trained": terms,
            "trained_actives": actives,
        }
        for name, column, terms, actives in zip(
            evidence.truth.assays, known.T, kept["terms"], kept["actives"], strict=True
        )
    ]
    rows = [list(record.values()) for record in shown]
    head = ["assay", "measured", "of these active", "trained on", "of these active"]
    total = [sum(record[name] for record in shown) for name in list(shown[0])[1:]]
    text = (
        f"{len(known)} molecules in the training part. Measured: by the lab's own count; "
        "trained on: loss terms of an epoch.\n" + rows_of(head, [*rows, ["all", *total]])
    )
    return Shown(shown, text, lambda: plots.label_counts(shown))


def deliveries(evidence: BioEvidence) -> Shown:
    """Each delivery of the lab's table: its rows, and how its cells are filled."""
    needs(evidence, "molecules", "table of labels")
    plan = evidence.plan
    shown = []
    for name in world_of(plan).deliveries:
        cells = table_of(plan.with_settings(delivery=name))["labels"]
        shown.append(
            {
                "delivery": name,
                "rows": len(cells),
                "assays": cells.shape[1],
                "active": int((cells == 1).sum()),
                "inactive": int((cells == 0).sum()),
                "empty": int(np.isnan(cells).sum()),
                "in_use": name == plan.settings["delivery"],
            }
        )
    rows = [[*list(r.values())[:-1], "in use" if r["in_use"] else ""] for r in shown]
    return Shown(shown, rows_of([*list(shown[0])[:-1], ""], rows))


def scores(evidence: BioEvidence) -> Shown:
    """AUROC of each assay: on each rank's own molecules, over all scores, and as reported."""
    needs(evidence, "molecules", "list of scores")
    if evidence.evaluated is None or not evidence.scored:
        return Shown(None, NOT_THERE)
    _, all_scores, own_labels = evidence.all_scores
    shown: list[dict[str, Any]] = []
    for n, name in enumerate(evidence.truth.assays):
        of_ranks = {}
        for rank, kept in evidence.scored.items():
            column = np.array([row[n] for row in kept["labels"]], np.float32)
            of_ranks[rank] = rounded(
                auroc(column, np.array([row[n] for row in kept["scores"]]))
            )
        reported = evidence.evaluated["tasks"].get(name)
        shown.append(
            {
                "assay": name,
                "ranks": of_ranks,
                "all": rounded(auroc(own_labels[:, n], all_scores[:, n])),
                "reported": rounded(reported["values"]["auroc"]) if reported else None,
            }
        )
    ranks = sorted(evidence.scored)
    rows = [
        [r["assay"], *(as_text(r["ranks"][rank]) for rank in ranks), as_text(r["all"]),
         as_text(r["reported"])]
        for r in shown
    ]  # fmt: skip
    counts = ", ".join(f"rank {n}: {len(evidence.scored[n]['samples'])}" for n in ranks)
    head = ["assay", *(f"rank {rank}" for rank in ranks), "all scores", "reported"]
    text = f"AUROC. Molecules scored: {counts}; {len(all_scores)} different ones.\n"
    return Shown(shown, text + rows_of(head, rows), lambda: plots.scores(shown))


def leakage(evidence: BioEvidence) -> Shown:
    """The leakage report of the validation part, as the preparation printed it."""
    needs(evidence, "molecules", "leakage report")
    found = evidence.leakage
    if found is None:
        return Shown(None, "No molecules were prepared.")
    return Shown(found["figures"], "\n".join(found["lines"]))


def neighbors(evidence: BioEvidence) -> Shown:
    """Similarity of the validation part and of the fresh batch to their nearest in training."""
    needs(evidence, "molecules", "molecule")
    validation, fresh = evidence.nearest()
    if not validation.size:
        return Shown(None, "No molecules were prepared.")
    found = {"validation": validation.round(3).tolist(), "fresh batch": fresh.round(3).tolist()}
    shares = (0.05, 0.25, 0.5, 0.75, 0.95)
    rows = [
        [name, len(of), *(f"{np.quantile(of, s):.2f}" for s in shares),
         f"{np.mean(np.array(of) >= 0.7):.0%}"]
        for name, of in found.items()
    ]  # fmt: skip
    head = ["part", "molecules", *(f"{share:.0%}" for share in shares), "0.7 or more"]
    text = "Tanimoto similarity to the nearest molecule of the training part; quantiles.\n"
    return Shown(found, text + rows_of(head, rows), lambda: plots.neighbors(found))


def scaler(evidence: BioEvidence) -> Shown:
    """Mean and deviation that the job scales by, and those of each part of the data."""
    needs(evidence, "graphs", "scale of a label")
    kept = evidence.scored.get(0, {})
    if "deviation" not in kept:
        return Shown(None, NOT_THERE)
    shown = [
        {"of": name, "labels": len(of), "mean": float(of.mean()), "deviation": float(of.std())}
        for name, of in evidence.energies.items()
    ]
    shown.append(
        {"of": "in use", "labels": None, "mean": kept["mean"], "deviation": kept["deviation"]}
    )
    rows = [
        [r["of"], "-" if r["labels"] is None else r["labels"], f"{r['mean']:.2f}",
         f"{r['deviation']:.2f}"]
        for r in shown
    ]  # fmt: skip
    text = "Energies in the unit of the data (kcal/mol).\n"
    text += rows_of(["of", "labels", "mean", "deviation"], rows)
    energies = {name: of.tolist() for name, of in evidence.energies.items()}
    return Shown(shown, text, lambda: plots.scales(energies, kept["mean"], kept["deviation"]))
