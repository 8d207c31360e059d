"""Does a ledger of two starts prove that each sample was trained exactly once per epoch?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rehearsal.engine.reports import RankReport
from rehearsal.grading.verdict import Finding, counted
from rehearsal.kit.judge.findings import some

from .draws import NOISY_SEED, SmallRun
from .findings import TABLE, Earlier
from .outcomes import FIELDS, planned, trained, wrong_type


def audit_judge(
    plan: SmallRun, reports: Sequence[RankReport], earlier: Earlier
) -> Iterator[Finding]:
    """From the lines alone: each sample of each epoch, exactly once."""
    kill = "killed on one rank, once its first checkpoint was there"
    for job, sizes, seed in (
        ("resumed", [2, 2], NOISY_SEED),
        ("a different number of ranks", [2, 3], plan.seed),
    ):
        lines, steps = earlier[job][0].answer["lines"], planned(earlier, seed)
        yield from audit_findings(lines, steps, sizes, plan)
        for report in earlier[job]:
            own = [fields for file, fields in lines if file == f"rank-{report.rank}.jsonl"]
            said = sum(fields["attempt"] == 1 for fields in own if isinstance(fields, Mapping))
            taken = len(trained(report))
            if said != taken:
                found = (
                    f"resumed on {sizes[1]} ranks, rank {report.rank} trained "
                    f"{counted(taken, 'step')}, and its ledger has {counted(said, 'line')} of "
                )
                yield TABLE("audit-refutes", f"{found}attempt 1")
                return
    if not all(report.has_answer for report in reports):
        return
    answer = reports[0].answer
    if answer["raised"]:
        yield TABLE("cannot-resume", f"{kill}; the run raised {answer['raised']}")
        return
    steps = planned(earlier, plan.seed)
    yield from audit_findings(answer["lines"], steps, [1, 1], plan, said=f"{kill}, and resumed")


def audit_findings(
    lines: Sequence[Any],
    steps: Sequence[Sequence[int]],
    sizes: Sequence[int],
    plan: SmallRun,
    *,
    said: str = "",
) -> Iterator[Finding]:
    """The lines of a run of two starts.

    Args:
        steps: the samples of each step, by the learner's own sampler.
        sizes: the number of ranks of each start.
        said: how it was killed and resumed, in place of ``sizes``.
    """
    said = said or f"killed on {sizes[0]} ranks, resumed on {sizes[1]}"
    cut = [file for file, fields in lines if not isinstance(fields, Mapping)]
    if len(cut) > sizes[0]:
        found = f"{said}: {len(cut)} lines aren't JSON, one of them in {cut[0]}"
        look = "at how a line is written, and at where one goes if a kill cut the line before"
        yield TABLE("audit-refutes", found, look)
        return
    kept = [fields for _, fields in lines if isinstance(fields, Mapping)]
    lacking = [name for fields in kept for name in FIELDS if name not in fields]
    if not lacking and (has := next(filter(None, map(wrong_type, kept)), "")):
        yield TABLE(
            "attempts-unclear", f"{said}: a line has {has}", "at what you put into a line"
        )
        return
    attempts = sorted({fields["attempt"] for fields in kept if not lacking})
    if lacking or attempts != [0, 1]:
        found = f"{said}: the ledger's lines say attempt {some(attempts)}; they should say 0 "
        found = f"{said}: a line has no {lacking[0]}" if lacking else f"{found}and 1"
        yield TABLE("attempts-unclear", found)
        return
    for attempt, size in enumerate(sizes):
        of = [fields for fields in kept if fields["attempt"] == attempt]
        found_sizes = {fields["world_size"] for fields in of}
        found_ranks = {fields["rank"] for fields in of}
        if found_sizes != {size} or found_ranks != set(range(size)):
            found = (
                f"{said}: the lines of attempt {attempt} say rank {some(sorted(found_ranks))} "
            )
            found += f"and world_size {some(sorted(found_sizes))}; attempt {attempt} had "
            found += f"{size} ranks"
            yield TABLE("attempts-unclear", found)
            return
    resumed = min(fields["step"] for fields in kept if fields["attempt"] == 1)
    lineage = [fields for fields in kept if fields["attempt"] == 1 or fields["step"] < resumed]
    for epoch in range(plan.epochs):
        samples = Counter(
            s for line in lineage if line["epoch"] == epoch for s in line["samples"]
        )
        twice = sorted(s for s in samples if samples[s] > 1)
        missed = sorted({*range(plan.num_samples)} - {*samples})
        if twice or missed:
            found = f"{said}: according to the ledger, samples never trained in epoch {epoch}: "
            found += f"{some(missed) or 'none'}; more than once: {some(twice) or 'none'}"
            unwritten = min(lines_lacking(lineage, resumed, sizes[0]), default=None)
            if not missed or unwritten is None:
                yield TABLE("audit-refutes", found)
                return
            step, rank = unwritten
            found = f"{said}: the resumed run began after step {step}, of which rank {rank} "
            found += f"has no ledger line. Missing from epoch {epoch}: samples "
            look = "at what makes sure, before a save, that all ranks have written their lines"
            yield TABLE("audit-refutes", found + some(missed), look)
            return
    for number, wanted in enumerate(steps, 1):
        samples_of = [s for line in lineage if line["step"] == number for s in line["samples"]]
        if sorted(samples_of) != list(wanted):
            found = f"{said}: according to the ledger, step {number} trained "
            found += f"samples {some(sorted(samples_of), 9) or 'none'}; the sampler deals it "
            found += f"samples {some(wanted, 9)}"
            yield TABLE("audit-refutes", found)
            return


def lines_lacking(
    lineage: Sequence[Mapping[str, Any]], resumed: int, size: int
) -> Iterator[tuple[int, int]]:
    """The last step before a restart, and each rank that has no line of it."""
    step = resumed - 1
    there = {line["rank"] for line in lineage if line["step"] == step}
    yield from ((step, rank) for rank in range(size) if rank not in there)
