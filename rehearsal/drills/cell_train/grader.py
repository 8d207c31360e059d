"""Which gradient did the weights follow, how often was it reduced, and did the host wait?"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

from rehearsal.grading.drill import Scenario
from rehearsal.engine.reports import RankReport
from rehearsal.kit.judge.clipping import away, clipped, norm, weighted
from rehearsal.kit.judge.collectives import bytes_reduced
from rehearsal.kit.judge.coverage import coverage_findings
from rehearsal.kit.judge.findings import only_first
from rehearsal.kit.observe.anti_cheat import close_the_answer
from rehearsal.kit.observe.samples import OddNet, marked_samples, watch_samples
from .candidates import candidate_gradients
from .watch import HostReads, num_collectives, sums_per_micro_batch
from rehearsal.engine.rank import RankContext
from rehearsal.grading.verdict import Finding, counted, named_ranks

CODES = {
    "left-the-step": "a rank skips a collective of the step that its peers issue",
    "no-sync": "no gradient is reduced in a step",
    "synced-too-often": "the gradients are reduced more than once per step",
    "trained-twice": "a sample goes through the model more than once in a step",
    "never-trained": "a sample of the step is left out",
    "many-steps": "the optimizer steps more than once per call",
    "learning-rate": "a group steps with a learning rate other than lr",
    "nonfinite-applied": "a rank applies a gradient that is NaN or infinite",
    "moved-without-gradient": "the weights change in a step whose update should be skipped",
    "ranks-differ": "the ranks leave the step with different weights",
    "mean-of-means": "ranks or micro-batches weigh the same, instead of samples",
    "scale": "the gradient is the right sum, divided by the wrong number",
    "only-the-last-micro-batch": "gradients of earlier micro-batches are lost",
    "clipping": "clipped by the wrong norm, at the wrong moment, or not at all",
    "wrong-gradient": "the step follows a gradient that none of the other codes explains",
    "autocast": "the forward pass does not compute in the configured type",
    "loss": "the loss in unread is not this rank's sum, or is summed in bf16",
    "record": "the norm, flag or count in unread, or the returned flag, is wrong",
    "host-waits": "a tensor's value is read on the host within the step",
}
LOOKS = {
    "mean-of-means": "at what you divide a loss by",
    "scale": "at what you divide a loss by, and at what DDP divides by",
    "only-the-last-micro-batch": "at what happens to the gradients between two micro-batches",
    "clipping": "at when and by which norm you clip",
}
# Sizes of the micro-batches, by step and rank.
CUTS = [
    [[3, 3, 1], [0, 3, 2], [0, 0, 2]],
    [[0, 1, 2], [0, 1, 1], [0, 0, 0]],
    [[2, 3, 1], [0, 2, 2], [0, 0, 1]],
    [[3, 2, 1], [0, 1, 3], [0, 0, 1]],
]
POISONED, LRS, DECAY = 2, [0.3, 0.2, 0.4, 0.1], 0.1
FIRST_LR = 9.0  # the groups' own, before the first call
BOUNDS: list[float | None] = [None, 1.0, 1.0, 5.0]  # the last is not reached
EMPTY_STEP, LAST = 1, 3  # in EMPTY_STEP, the last of three ranks has no samples


def cuts_of(step: int, world_size: int) -> tuple[list[list[range]], int]:
    """The samples of each rank's micro-batches, and one past the last of the step."""
    at = sum(sum(map(sum, cut[:world_size])) for cut in CUTS[:step])
    ranks = []
    for sizes in CUTS[step][:world_size]:
        ranks.append([range(at + sum(sizes[:i]), at + sum(sizes[: i + 1])) for i in range(3)])
        at += sum(sizes)
    return ranks, at


def body(context: RankContext, learner: SimpleNamespace) -> Any:
    """Four steps that start with stale gradients; what each found and left."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    from trainer_core.config import TrainConfig
    from trainer_core.data import MicroBatch
    from trainer_core.metrics import StepTimers

    close_the_answer(context, "trainer_core.train", ["train_step", "update_weights"])
    world_size, amp = context.world_size, "bf16" if context.world_size == 1 else "no"
    inputs, values = marked_samples(60)
    inputs[14:19, 1:] *= 4  # the second step of three ranks
    targets, device = (values[:, 0] > 0).long(), torch.device("cpu")
    inner = OddNet(seed=context.rank)
    inner.unused.requires_grad_(False)
    model: Any = inner
    if world_size > 1:
        context.init_group()
        model = DistributedDataParallel(inner)
    watch_samples(context, inner)
    types = Counter[str]()
    inner.outer.register_forward_hook(lambda *a: types.update([str(a[2].dtype)]))
    matrices = [p for p in inner.parameters() if p.ndim > 1]
    others = [p for p in inner.parameters() if p.ndim < 2]
    groups: list[dict[str, Any]] = [{"params": matrices, "weight_decay": DECAY}]
    optimizer = torch.optim.SGD([*groups, {"params": others}], lr=FIRST_LR, fused=True)
    used = [p for p in inner.parameters() if p.requires_grad]
    steps = []
    for step, lr in enumerate(LRS):
        cuts, _ = cuts_of(step, world_size)
        before = torch.cat([p.detach().flatten() for p in used]).tolist()
        twin = OddNet()
        twin.load_state_dict(inner.state_dict())
        twin.unused.requires_grad_(False)
        truth = sums_per_micro_batch(twin, inputs, targets, cuts[context.rank])
        for p in used:
            p.grad = torch.ones_like(p)  # left over from before the step
        batches = []
        for ids in cuts[context.rank]:
            rows = torch.tensor(list(ids), dtype=torch.int64)
            batches.append(MicroBatch(rows, inputs[rows].clone(), targets[rows]))
        if step == POISONED and context.rank == min(1, world_size - 1):
            batches[1].inputs[0, 3] = math.inf
        cfg = TrainConfig(
            world_size=world_size, amp=amp, max_grad_norm=BOUNDS[step], device="cpu"
        )
        trainer = learner.Trainer(cfg, device, model, optimizer, None, StepTimers(device))
        issued = num_collectives() if world_size > 1 else 0
        reads: list[str] = []
        with HostReads(reads) if step == LAST else nullcontext():
            num_samples = sum(len(ids) for rank in cuts for ids in rank)
            returned = learner.train_step(trainer, batches, num_samples, lr)
        issued = num_collectives() - issued if world_size > 1 else 0
        context.record("step", issued=issued)
        after = torch.cat([p.detach().flatten() for p in used]).tolist()
        steps.append(
            {
                "before": before,
                "after": after,
                "truth": truth,
                "reads": reads,
                "lrs": [group["lr"] for group in optimizer.param_groups],
                "unread": [float(x) for x in trainer.unread[-1]] if trainer.unread else [],
                "entries": len(trainer.unread),
                "returned": None if returned is None else float(returned),
            }
        )
    tensors = [[n, p.numel(), p.ndim] for n, p in inner.named_parameters() if p.requires_grad]
    return {"steps": steps, "tensors": tensors, "types": dict(types), "amp": amp}


def findings(reports: Sequence[RankReport], _: object) -> Iterator[Finding]:
    """All findings; earlier ones explain later ones."""
    yield from sync_findings(reports)
    if not all(report.has_answer for report in reports):
        return
    first = reports[0].answer
    num_samples = cuts_of(len(LRS) - 1, len(reports))[1]
    look = "at which micro-batches go through the model"
    for finding in coverage_findings(reports, num_samples, 1, look):
        yield finding._replace(
            found=finding.found.replace("in 1 epoch", f"in {len(LRS)} steps"),
            rule="a step trains each of its samples exactly once",
        )
    wanted = "torch.bfloat16" if first["amp"] == "bf16" else "torch.float32"
    if set(first["types"]) != {wanted}:
        yield Finding(
            "autocast",
            f"with amp={first['amp']!r}, the logits are {', '.join(first['types'])}",
            "the forward pass computes in the configured type, no other",
            "at what turns autocast on",
        )
    for step, lr in enumerate(LRS):
        yield from update_findings(reports, step, lr)
    yield from byte_findings(reports)
    for step in range(len(LRS)):
        yield from record_findings(reports, step)
    places = first["steps"][LAST]["reads"]
    if places:
        yield Finding(
            "host-waits",
            f"a step reads a tensor's value on the host {counted(len(places), 'time')}, first "
            f"at {places[0]}",
            "nothing in a step makes the host wait for the device",
            "at item(), float(), and tensors in an if",
        )


def sync_findings(reports: Sequence[RankReport]) -> Iterator[Finding]:
    """Which ranks issued how many collectives in a step; also known of a job that hung."""
    issued = [[event["issued"] for event in report.of("step")] for report in reports]
    for step in range(min(map(len, issued), default=0)):
        counts = [row[step] for row in issued]
        if len(reports) > 1 and not any(counts):
            yield Finding(
                "no-sync",
                f"step {step + 1}: no rank issued a collective",
                "ranks train the same model only if they reduce their gradients in each step",
                "at what runs under no_sync",
            )
    most = max(map(len, issued))
    for step in range(most):
        known = {rank: row[step] for rank, row in enumerate(issued) if step < len(row)}
        if len(set(known.values())) > 1:
            rank = min(known, key=lambda r: known[r])
            why = "has no samples" if step == EMPTY_STEP else "has a non-finite gradient"
            about = f", in which a rank {why}" if step in (EMPTY_STEP, POISONED) else ""
            look = "at branches that depend on this rank's samples or loss"
            if known[rank]:  # it did sync, and another rank more often
                look = f"at which backward passes sync, and {look}"
            yield Finding(
                "left-the-step",
                f"step {step + 1}{about}: rank {rank} issued "
                f"{counted(known[rank], 'collective')}, another rank {max(known.values())}",
                "every rank issues the same collectives in a step, whatever samples it has",
                look,
            )
            return


def update_findings(reports: Sequence[RankReport], step: int, lr: float) -> Iterator[Finding]:
    """What one step did to each rank's weights."""
    world_size, answers = len(reports), [report.answer["steps"][step] for report in reports]
    names: list[str] = []
    parts: list[slice] = []
    groups: dict[bool, list[slice]] = {True: [], False: []}
    at = 0
    for name, size, ndim in reports[0].answer["tensors"]:
        names += [name] * size
        parts.append(slice(at, at + size))
        groups[ndim > 1].append(parts[-1])
        at += size
    for rank, answer in enumerate(answers):
        if set(answer["lrs"]) != {lr}:
            yield Finding(
                "learning-rate",
                f"step {step + 1} on rank {rank} was called with lr={lr}, and the groups have "
                f"{answer['lrs']}",
                "every group of the optimizer steps with the given learning rate",
                "at what you set before the optimizer steps",
            )
    steps = len(reports[0].of("optimizer_step"))
    if steps > len(LRS):
        yield Finding(
            "many-steps",
            f"{len(LRS)} calls took {steps} optimizer steps",
            "accumulation means one optimizer step over all micro-batches",
            "at where the optimizer steps",
        )
    bad = [r for r, a in enumerate(answers) if not all(map(math.isfinite, a["after"]))]
    if bad:
        cause = "one rank's gradient was not finite, and " if step == POISONED else ""
        look = "at what you base the decision on, and whether every rank knows it"
        if all(answer["returned"] == 1.0 for answer in answers):
            look = "at how and when the flag reaches the update: train_step returned 1.0 on "
            look += "every rank"
        yield Finding(
            "nonfinite-applied",
            f"in step {step + 1} {cause}the weights of {named_ranks(bad)} of {world_size} "
            "became NaN or infinite",
            "a gradient that is NaN or infinite changes no weight on any rank",
            look
            if step == POISONED
            else "at where NaN or infinity comes from: the samples of this step are finite",
        )
    moved = [r for r, a in enumerate(answers) if a["after"] != a["before"]]
    if step == POISONED and moved:
        yield Finding(
            "moved-without-gradient",
            f"in step {step + 1} one rank's gradient was not finite, and the weights of "
            f"{named_ranks(moved)} of {world_size} changed",
            "a skipped update leaves weights and optimizer state unchanged",
            "at what the optimizer does with a zero gradient, and at who decides",
        )
    for rank, answer in enumerate(answers):
        if answer["after"] != answers[0]["after"]:
            yield Finding(
                "ranks-differ",
                f"ranks 0 and {rank} have different weights after step {step + 1}",
                "after the sync all ranks have the same gradient and do the same with it",
                "at what happens to the gradients before and after the last backward pass",
            )
    if step == POISONED:
        return
    decay = [
        DECAY if any(at in range(p.start, p.stop) for p in groups[True]) else 0.0
        for at in range(len(names))
    ]
    pairs = zip(answers[0]["before"], answers[0]["after"], decay, strict=True)
    followed = [(before - after) / lr - d * before for before, after, d in pairs]
    sums = [[row[1:] for row in answer["truth"]] for answer in answers]
    sizes = CUTS[step][:world_size]
    close = 0.05 if reports[0].answer["amp"] == "bf16" else 1e-3
    most = BOUNDS[step] or 1e9
    mean = weighted(
        [row for rank in sums for row in rank], [1 / sum(map(sum, sizes))] * sum(map(len, sums))
    )
    right = away(followed, clipped(mean, most))
    where = f"on {counted(world_size, 'rank')}, step {step + 1} "
    where += f"({sum(map(sum, sizes))} samples)"
    if not moved:
        yield Finding(
            "wrong-gradient",
            f"{where} changed no weight, and every gradient was finite",
            "a step follows the mean gradient over its samples",
            "at what decides whether the optimizer steps",
        )
        return
    places = {"tensor": [[part] for part in parts], "group": list(groups.values())}
    for code, words, vector in candidate_gradients(sums, sizes, most, places):
        if away(followed, vector)[0] < close:
            if code:
                yield Finding(
                    code,
                    f"{where} followed {words}",
                    "a step follows the mean gradient over its samples, however they are "
                    "split, clipped by its global norm",
                    LOOKS[code],
                )
            return
    if norm(followed) < 1e-3 * norm(mean):
        yield Finding(
            "wrong-gradient",
            f"{where} followed a gradient of zero; only weight decay changed the weights",
            "a step follows the mean gradient over its samples",
            "at what clears or scales the gradients before the optimizer steps",
        )
        return
    # The rate that the optimizer had before the call.
    old = LRS[step - 1] if step else FIRST_LR
    pairs = zip(answers[0]["before"], answers[0]["after"], decay, strict=True)
    late = [(before - after) / old - d * before for before, after, d in pairs]
    if away(late, clipped(mean, most))[0] < close:
        yield Finding(
            "learning-rate",
            f"step {step + 1} was called with lr={lr}, and the weights changed as with {old}",
            "every group of the optimizer steps with the given learning rate",
            "at whether you set it before or after the optimizer steps",
        )
        return
    stale = [x + 1 for x in mean]
    if min(away(followed, v)[0] for v in (stale, clipped(stale, most))) < close:
        yield Finding(
            "wrong-gradient",
            f"{where} followed the mean gradient plus 1 in every element, which is what the "
            "gradients held before the call",
            "gradients from before the call don't count",
            "at what was in the gradients before the first backward pass",
        )
        return
    yield Finding(
        "wrong-gradient",
        f"{where} did not follow the mean gradient: the largest error is in "
        f"{names[right[1]]}, {right[0]:.3g} times the gradient's largest element",
        "a step follows the gradients of its own samples: all of them, and nothing else",
        "at what each backward pass adds, and at each line that changes a gradient or a weight",
    )


def byte_findings(reports: Sequence[RankReport]) -> Iterator[Finding]:
    """Whether the gradients are reduced once: reduced bytes against bytes of gradients."""
    if len(reports) == 1:
        return
    once = 4 * sum(size for _, size, _ in reports[0].answer["tensors"])
    for report in reports:
        travelled = bytes_reduced(report)
        if travelled > 1.5 * once * len(LRS):
            yield Finding(
                "synced-too-often",
                f"rank {report.rank} put {travelled} bytes into reductions in {len(LRS)} "
                f"steps; its gradients are {once} bytes per step",
                "gradients accumulate locally and are reduced once per step",
                "at the backward passes before the last one",
            )


def record_findings(reports: Sequence[RankReport], step: int) -> Iterator[Finding]:
    """What the step left in unread and returned."""
    look, flag = "at what you append, and at what you return", float(step == POISONED)
    for report in reports:
        answer = report.answer["steps"][step]
        samples, loss, length, skipped = [*answer["unread"], *[None] * 4][:4]
        where = f"step {step + 1}, rank {report.rank}: "
        size = sum(sum(cut) for cut in CUTS[step][: len(reports)])
        if answer["entries"] > 1:
            yield Finding(
                "record",
                f"{where}train_step appended {answer['entries']} entries to unread",
                "a step appends one entry to unread, or the host counts its samples twice",
                "at what you append",
            )
        if samples != size or skipped != flag or answer["returned"] != flag:
            yield Finding(
                "record",
                f"{where}unread {'ends with' if answer['unread'] else 'is'} "
                f"{answer['unread'] or 'empty'} and train_step returned "
                f"{answer['returned']}; the step has {size} samples, and skipped should be "
                f"{flag}",
                "a step records its samples, loss, norm and flag; the host reads them later",
                look,
            )
        if step == POISONED:
            continue
        expected = sum(row[0] for row in answer["truth"])
        tolerance = 2e-2 if report.answer["amp"] == "bf16" else 1e-4
        if not abs(loss - expected) <= tolerance * max(1.0, expected):
            yield Finding(
                "loss",
                f"{where}the loss in unread is {loss:.4f}; the sum over this rank's samples is "
                f"{expected:.4f}",
                "each rank records the sum over its own samples; the host adds them up and "
                "divides once",
                look,
            )
        flat = [row[1:] for r in reports for row in r.answer["steps"][step]["truth"]]
        true_norm = norm(weighted(flat, [1 / size] * len(flat)))
        if not abs(length - true_norm) <= max(tolerance, 1e-3) * true_norm:
            yield Finding(
                "record",
                f"{where}the norm in unread is {length:.4f}; the gradient's is {true_norm:.4f}",
                "the norm is reported as it was before clipping",
                look,
            )


SCENARIOS = [
    Scenario(
        name="three ranks",
        body=body,
        judge=only_first(findings),
        world_size=3,
        deadline_s=5,
        judges_failures=True,
    ),
    Scenario(
        name="one rank", body=body, judge=only_first(findings), world_size=1, deadline_s=5
    ),
]
