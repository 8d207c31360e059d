"""The findings about who a rank is, and about one optimizer step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rehearsal.engine.reports import RankReport
from rehearsal.grading.verdict import Finding
from rehearsal.kit.judge.findings import some
from rehearsal.kit.judge.weights import largest_difference

from .draws import SmallRun, steps_of_check
from .findings import TABLE, Earlier


def identity_judge(
    plan: SmallRun, reports: Sequence[RankReport], earlier: Earlier
) -> Iterator[Finding]:
    """Rank and size of the job, a group, and rank 0's weights."""
    size = len(reports)
    for report in reports:
        alone = report.answer["alone"]
        if alone != [0, 1]:
            found = "without torchrun's variables, maybe_init_dist() returned "
            found += f"{tuple(alone)}"[:160]
            if len(alone) == 1 and isinstance(alone[0], str):  # an exception
                found = "without torchrun's variables, reading rank and world size from "
                found += f"maybe_init_dist() failed: {alone[0][:160]}"
            yield TABLE("not-alone", found)
            return
    for report in reports:
        named, wanted = report.answer["named"], [report.rank, size]
        said = f"with RANK={report.rank}, WORLD_SIZE={size}, LOCAL_RANK=0 and "
        said += "LOCAL_WORLD_SIZE=1, maybe_init_dist "
        if named != wanted:
            yield TABLE("wrong-rank", f"{said}returned {tuple(named)}")
            return
        if not report.answer["group"] or report.answer["group rank"] != wanted:
            has = report.answer.get("group rank")
            group = f"group with (rank, size) {tuple(has)}" if has else "group"
            found = f"{said}initialized {'a' if has else 'no'} process {group}"
            yield TABLE("no-group", found)
            return
    truth = reports[0].answer["before"]
    for report in reports:
        for what in ("after", "wrapped"):
            if largest_difference(report.answer[what], truth)[0] > 0:
                found = "before wrap_model, each rank had its own weights; after it, rank "
                found += f"{report.rank} doesn't have the ones that rank 0 had"
                yield TABLE("wrapped-apart", found)
                return


def collectives_by_case(report: RankReport) -> dict[str, list[dict[str, Any]]]:
    """A rank's collectives in each case."""
    found: dict[str, list[dict[str, Any]]] = {}
    case = ""
    for event in report.events:
        if event["kind"] == "case":
            case = event["case"]
            found[case] = []
        elif event["kind"] == "case done":
            case = ""
        elif event["kind"] == "collective" and case:
            found[case].append(event)
    return found


def step_judge(
    plan: SmallRun, reports: Sequence[RankReport], earlier: Earlier
) -> Iterator[Finding]:
    """The mean over the step's samples, clipped, synchronized once."""
    drawn = steps_of_check(plan)
    for case, scale, count in drawn.cases:
        rows = [report.answer[case] for report in reports]
        shares = [row["share"] for row in rows]
        said = f"a step of {count} samples ({some(shares)} by rank)"
        for rank, row in enumerate(rows):
            if row["largest"] > row["limit"]:
                found = f"in {said}, with micro_batch_size={row['limit']}, rank {rank} passed "
                yield TABLE(
                    "micro-batch-too-large",
                    f"{found}{row['largest']} samples to the model at once",
                )
                return
        for rank, row in enumerate(rows):
            apart, name = largest_difference(rows[0]["after"], row["after"])
            if not apart <= 1e-6:
                found = f"after {said}, the weights of ranks 0 and {rank} differ "
                found += f"by {apart:.2g} in {name}"
                look = "" if 0 in shares else "at whose gradients each rank's optimizer uses"
                yield TABLE("ranks-step-apart", found, look)
                return
        apart, name = largest_difference(rows[0]["after"], rows[0]["expected"])
        if not apart <= 2e-5:
            how = "above 1" if case == "large" else "below 1"
            found = f"after {said}, with inputs multiplied by {scale:.3g} (for a gradient "
            found += f"norm {how}), the weights differ "
            yield TABLE(
                "wrong-gradient",
                f"{found}by {apart:.2g} in {name} from those after the same step on one rank",
            )
            return
        parts = sum(row["part"] for row in rows)
        if not abs(parts - rows[0]["loss"]) <= 1e-4 * max(1, abs(rows[0]["loss"])):
            found = (
                f"in {said}, the ranks returned {some([round(r['part'], 4) for r in rows])}; "
            )
            yield TABLE("wrong-loss", f"{found}the mean loss is {rows[0]['loss']:.4f}")
            return
    size = reports[0].answer["parameters"]
    for case, events in collectives_by_case(reports[0]).items():
        elements = sum(event["elements"] for event in events)
        if elements > 1.5 * size + 64:
            share, limit = (reports[0].answer[case][name] for name in ("share", "limit"))
            found = f"the model has {size} parameters, and rank 0 sent {elements} numbers in a "
            found += f"step of {-(-share // limit)} micro-batches"
            yield TABLE("syncs-too-often", found)
            return
    where = f"on rank {drawn.poisoned_rank}"
    for case, said in (
        ("infinite", f"{where}, the gradient was {drawn.infinity} and the loss was finite"),
        ("nonfinite", f"one sample {where} was {drawn.poison}"),
    ):
        ends = [report.answer[case] for report in reports]
        if not all(end["raised"] for end in ends) or any(end["changed"] for end in ends):
            raised = sum(bool(end["raised"]) for end in ends)
            changed = "changed" if any(end["changed"] for end in ends) else "didn't change"
            found = f"{said}: {raised} of {len(ends)} ranks raised, and the weights {changed}"
            yield TABLE("nonfinite-step", found)
            return
