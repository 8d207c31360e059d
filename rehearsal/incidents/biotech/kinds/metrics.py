"""How a model is judged over several ranks."""

from __future__ import annotations

from rehearsal.incidents.biotech.alarms import of_bio
from rehearsal.incidents.biotech.evidence import BioEvidence
from rehearsal.incidents.kinds.kind import Claim, Fix, See
from rehearsal.incidents.kinds.layers import code_fault, deploy, in_module
from rehearsal.incidents.world import Edit

GATHERED = """\
    table = gather_scores(samples, scores, labels)
    report = None
    with errors_on_all_ranks():
        if table is not None:
            if num_samples is not None and len(table.samples) != num_samples:
                raise UserError(
                    f"{len(table.samples)} different samples were scored, of {num_samples}. A "
                    "metric of a part isn't the metric of the whole. Score each sample on some "
                    "rank (drop_last=False)."
                )
            report = screening_report(table, tasks, metrics)
    shared: ScreeningReport = gather_objects(report)[0]
    return shared
"""
AVERAGED = """\
    # Every score on rank 0 is a lot of memory. A rank's own list is ranked where it is.
    own = ScoreTable(samples.numpy(), scores.numpy(), labels.numpy())
    return mean_report(gather_objects(screening_report(own, tasks, metrics)))
"""
MEAN = '''\
def mean_report(reports: Sequence[ScreeningReport]) -> ScreeningReport:
    """Each figure averaged over the ranks that have it."""
    tasks, undefined = {}, {}
    for report in reports:
        undefined |= report.undefined
    for name in dict.fromkeys(name for report in reports for name in report.tasks):
        found = [report.tasks[name] for report in reports if name in report.tasks]
        values = {
            metric: statistics.fmean(task.values[metric] for task in found)
            for metric in found[0].values
        }
        num_labels = sum(task.num_labels for task in found)
        num_active = sum(task.num_active for task in found)
        tasks[name] = TaskMetrics(num_labels, num_active, values)
        undefined.pop(name, None)
    return ScreeningReport(tasks, undefined, sum(report.num_samples for report in reports))


'''
HEAD = "def screening_report_over_ranks(\n"

metric_averaged_over_ranks = code_fault(
    id="metric_averaged_over_ranks",
    title="The reported metric is a mean over the ranks, and not that of all scores",
    alarm="metric_mismatch",
    alert=lambda e: (
        "The model registry scored the checkpoint again, on one machine, and refuses it: its "
        "AUROC differs from the one that the run reported."
    ),
    inject=deploy(
        Edit(module="bio/screening_metrics.py", old=GATHERED, new=AVERAGED),
        Edit(module="bio/screening_metrics.py", old=HEAD, new=MEAN + HEAD),
        message="screening_metrics: no gather of all scores on rank 0",
    ),
    claims=(
        Claim(
            "AUROC by which a reported figure is off the one over all scores",
            of_bio(BioEvidence.metric_mismatch),
            0.0005,
            0.005,
        ),
        Claim(
            "share of the assays whose figure is the mean of the ranks' own",
            of_bio(lambda e: mean_of_ranks(e)),
            0.3,
            0.95,
        ),
    ),
    wrong=lambda plan: (
        Fix({"micro_batch_size": 4}, "score and train on smaller batches"),
        Fix({"split": "random"}, "a random part must be more even than scaffolds"),
    ),
    path=(
        See(
            "scores",
            "Is the reported figure that of all scores?",
            "In hardly any assay. What is reported is the mean of what the ranks find on their "
            "own molecules; over all scores it's a different number, sometimes higher and "
            "sometimes lower.",
            "symptom",
        ),
        See(
            "validation",
            "Are molecules missing or doubled? How many actives does an assay have?",
            "The labels and actives are those of the whole part, so nothing is missing or "
            "doubled. With five or ten actives in an assay, a rank has two or three of them, "
            "and its own AUROC is mostly chance.",
            "mechanism",
            ("logs", "labels"),
        ),
        in_module(
            "bio/screening_metrics.py",
            "Where are the ranks' scores brought together?",
            "Nowhere, since the last deployment. screening_metrics.py ranks each rank's own "
            "list and averages the figures. AUROC compares pairs; a pair on two ranks is never "
            "compared.",
        ),
    ),
    chain=(
        "the last deployment computes the metrics on each rank and averages them",
        "AUROC and enrichment are statements about one list: pairs on different ranks are "
        "never compared, and a rank with one active counts as much as one with ten",
        "the reported figure changes with the number of ranks, and differs from a recount",
    ),
    prevention="Test that metrics are equal, bit for bit, on one, two and three ranks; average "
    "sums and counts, never metrics.",
    like=("leaky_split", "missing_labels_as_negatives"),
)


def mean_of_ranks(evidence: BioEvidence) -> float:
    """The share of the assays whose reported AUROC is the mean of the ranks' own."""
    own = evidence.own_aurocs()
    if evidence.evaluated is None or not own:
        return 0.0
    reported = evidence.evaluated["tasks"]
    matches = [
        abs(reported[name]["values"]["auroc"] - mean) < 1e-6
        for name, mean in zip(evidence.truth.assays, own, strict=True)
        if name in reported
    ]
    return float(sum(matches) / max(len(matches), 1))


KINDS = (metric_averaged_over_ranks,)
