"""Each sample once per epoch at any world size, and a position that only commit moves.

A check draws a dataset whose last step is smaller than the number of ranks, a batch that some
world size does not divide, and a resume in the middle of an epoch: see ``plan``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from rehearsal.engine.reports import RankReport
from rehearsal.grading.drill import Scenario
from rehearsal.grading.verdict import Finding, counted
from rehearsal.kit.judge.coverage import miscounted
from rehearsal.kit.judge.findings import only_first, some
from .codes import TABLE
from .in_rank import LARGE, MOST_LISTS, Keys, deals, flat, resumes
from .plan import Deal, Drawn, plan_of

CODES = TABLE.codes


def steps_of(deal: dict[str, Any]) -> list[list[Keys]]:
    """By step and rank: the keys."""
    cut: list[list[Keys]] = [
        [flat(batches[at : at + size]) for at in range(0, len(batches), max(1, size))]
        for batches, size in zip(deal["ranks"], deal["micro_steps"], strict=True)
    ]
    return [list(step) for step in zip(*cut, strict=False)]


def keys_of(step: list[Keys]) -> list[tuple[int, int]]:
    """The keys of all ranks, sorted."""
    return sorted((epoch, sample) for keys in step for epoch, sample in keys)


def said(cut: Deal, ranks: int) -> str:
    """ "with G = 7 on 3 ranks"."""
    return f"with G = {cut.batch} on {counted(ranks, 'rank')}"


def cover(
    plan: Drawn, epochs: int, steps: Sequence[list[Keys]], where: str, codes: tuple[str, str]
) -> Iterable[Finding]:
    """Findings if a sample of the plan is not there exactly once per epoch.

    Args:
        where: the beginning of the sentence, as "on 2 ranks".
    """
    keys, samples_in = [key for step in steps for key in keys_of(step)], plan.num_samples
    for epoch in range(epochs):
        wrong = miscounted((sample for e, sample in keys if e == epoch), samples_in)
        for code, samples in zip(codes, wrong, strict=True):
            if samples:
                how = "dealt more than once" if samples is wrong.extra else "dealt to no rank"
                be = "is" if len(samples) == 1 else "are"
                found = f"{where}, {len(samples)} of {samples_in} samples {be} {how} in epoch "
                yield TABLE(code, f"{found}{epoch}: {some(samples)}")


# ---------------------------------------------------------------- whole runs


def share_findings(plan: Drawn, cut: Deal, deal: dict[str, Any]) -> Iterable[Finding]:
    """Samples that no dataset has, and ranks with more than their even shares of a run."""
    size, whole = len(deal["ranks"]), plan.num_samples // cut.batch
    rest = plan.num_samples % cut.batch
    fair = whole * -(-cut.batch // size) + -(-rest // size)
    for rank, lists in enumerate(deal["ranks"]):
        keys = {(epoch, sample) for epoch, sample in flat(lists) if epoch < cut.epochs}
        if unknown := [key for key in sorted(keys) if not 0 <= key[1] < plan.num_samples]:
            epoch, sample = unknown[0]
            found = f"{said(cut, size)}, sample {sample} is dealt in epoch {epoch}, but the "
            found += f"samples run from 0 to {plan.num_samples - 1}"
            yield TABLE("trained-twice", found, "at what fills a share")
        if len(keys) > fair * cut.epochs:
            found = f"{said(cut, size)}, rank {rank} trains {len(keys)} of the "
            found += (
                f"{plan.num_samples * cut.epochs} samples of {counted(cut.epochs, 'epoch')}"
            )
            yield TABLE("uneven-shares", f"{found}; its even shares are {fair * cut.epochs}")


def shape_findings(plan: Drawn, cut: Deal, deal: dict[str, Any]) -> Iterable[Finding]:
    """How many micro-batches there are, and how large."""
    size, counts = len(deal["ranks"]), [len(batches) for batches in deal["ranks"]]
    total, largest = -(-plan.num_samples // cut.batch) * cut.epochs, max(deal["micro_steps"])
    if (most := max(counts)) > total * largest:
        is_cut = most >= MOST_LISTS
        found = f"{said(cut, size)}, an iteration without a commit yields {most} lists"
        found += f"{' or more' if is_cut else ''}; the plan has {total} steps, and micro_steps "
        look = "" if is_cut else "at how many lists you yield for a step, and how many steps"
        yield TABLE("never-ends", f"{found}is {largest}", look)
    if len({*counts}) > 1 or len({*deal["micro_steps"]}) > 1:
        found = f"ranks 0 to {size - 1} yield {some(counts)} micro-batches; their micro_steps "
        found += f"are {some(deal['micro_steps'])}"
        yield TABLE("ranks-out-of-step", found)
    sizes = [len(keys) for batches in deal["ranks"] for keys in batches]
    if (most := max(sizes, default=0)) > cut.micro:
        found = f"{said(cut, size)}, a micro-batch has {most} samples; micro_batch_size is "
        yield TABLE("micro-batch-too-large", f"{found}{cut.micro}")
    share = -(-cut.batch // size)
    if largest > (needed := -(-share // cut.micro)):
        found = (
            f"{said(cut, size)} and micro-batches of {cut.micro}, micro_steps is {largest}; "
        )
        found += f"a share of {share} fits in {needed}"
        yield TABLE("too-many-micro-steps", found)


def deal_findings(
    plan: Drawn, cut: Deal, deal: dict[str, Any], alone: dict[str, Any] | None
) -> Iterable[Finding]:
    """One world size; ``alone`` is what a single rank gets."""
    size, steps = len(deal["ranks"]), steps_of(deal)
    where, per_epoch = said(cut, size), -(-plan.num_samples // cut.batch)
    for number, step in enumerate(steps if len(steps) == per_epoch * cut.epochs else ()):
        if wrong := [key for key in keys_of(step) if key[0] != number // per_epoch]:
            found = (
                f"{where}, step {number} yields the pair {wrong[0]}; with {per_epoch} steps "
            )
            found += f"per epoch, that step is in epoch {number // per_epoch}"
            yield TABLE("wrong-epoch", found)
    yield from cover(plan, cut.epochs, steps, where, ("trained-twice", "never-trained"))
    for number, (step, whole) in enumerate(
        zip(steps, steps_of(alone) if alone else steps, strict=False)
    ):
        ours, theirs = keys_of(step), keys_of(whole)
        if ours != theirs:
            found = f"step {number} trains samples {some([s for _, s in ours], 8)} on {size} "
            found += f"ranks, but {some([s for _, s in theirs], 8)} on one"
            yield TABLE("step-depends-on-ranks", found)
        if (share := max(map(len, step))) > -(-len(ours) // size):
            found = f"one of {size} ranks has {share} of the {len(ours)} samples of step "
            found += f"{number}; an even share is at most {-(-len(ours) // size)}"
            yield TABLE("uneven-shares", found)
    for length, batches in zip(deal["lengths"], deal["ranks"], strict=True):
        if length != len(batches):
            found = f"at the start of a run len() is {length}, but an iteration yields "
            found += f"{len(batches)} lists"
            yield TABLE("wrong-length", found)


def slot_findings(
    plan: Drawn, cut: Deal, deal: dict[str, Any], order: list[list[int]]
) -> Iterable[Finding]:
    """Each step against its slots of the order, by epoch."""
    per_epoch = -(-plan.num_samples // cut.batch)
    for number, step in enumerate(steps_of(deal)):
        epoch, place = divmod(number, per_epoch)
        if epoch >= len(order):
            return
        slots = order[epoch][place * cut.batch : (place + 1) * cut.batch]
        ours = sorted(sample for _, sample in keys_of(step))
        if ours != sorted(slots):
            last = place * cut.batch + len(slots) - 1
            found = f"{said(cut, len(deal['ranks']))} and {counted(cut.epochs, 'epoch')}, step "
            found += (
                f"{number} trains samples {some(ours, 8)}; dealt one at a time in a plan of "
            )
            found += f"{plan.epochs} epochs, slots {place * cut.batch} to {last} of epoch "
            yield TABLE("not-the-slots", f"{found}{epoch} are {some(sorted(slots), 8)}")


def order_findings(plan: Drawn, orders: Sequence[Keys]) -> Iterable[Finding]:
    """Two visits with one order, near each other."""
    seen: dict[str, tuple[int, int]] = {}
    for seed, keys in zip(plan.seeds[:-1], orders, strict=False):
        for epoch in range(plan.epochs):
            order = str([sample for e, sample in keys if e == epoch])
            if order in seen:
                code = "same-order-each-epoch" if seen[order][0] == seed else "orders-alias"
                found = f"seed {seen[order][0]} in epoch {seen[order][1]} and seed {seed} in "
                yield TABLE(code, f"{found}epoch {epoch} use the same order")
            seen[order] = seed, epoch


def judge_deals(plan: Drawn, reports: Sequence[RankReport], _: object) -> Iterable[Finding]:
    """Order, coverage and shares."""
    answer, orders = reports[0].answer, reports[0].answer["orders"]
    if orders != reports[1].answer["orders"] or orders[0] != orders[-1]:
        found = "two samplers with equal arguments yield different orders"
        yield TABLE("order-not-reproducible", found)
    if answer["changed"]:
        found = "making, iterating, loading and committing samplers changed "
        yield TABLE("moves-global-random-state", found + some(answer["changed"]))
    main = [deal for _, deal in sorted((int(n), d) for n, d in answer["main"].items())]
    runs = [(plan.main, deal) for deal in main]
    others = zip(plan.others, answer["others"], strict=True)
    runs += [(cut, deal) for cut, of_cut in others for deal in of_cut]
    for cut, deal in runs:
        yield from share_findings(plan, cut, deal)
    for cut, deal in runs:
        yield from shape_findings(plan, cut, deal)
    for cut, deal in runs:
        alone = main[0] if cut is plan.main else None
        yield from deal_findings(plan, cut, deal, alone)
    yield from order_findings(plan, orders)
    order = [[s for e, s in orders[0] if e == epoch] for epoch in range(plan.epochs)]
    for cut, deal in runs:
        yield from slot_findings(plan, cut, deal, order)


# ---------------------------------------------------------------- resumes


def fetch_findings(plan: Drawn, rank: int, answer: dict[str, Any]) -> Iterable[Finding]:
    """The position, and what an iteration yields, while a loader fetches and steps commit."""
    states, size = answer["states"], answer["micro_steps"]
    cut = plan.committed * size
    if states["first"]:
        found = f"rank {rank}: before the first step, the position is {states['first']}, not 0"
        yield TABLE("wrong-position", found, "at where the position begins")
    if states["peeked"] or states["fetched"]:
        found = f"rank {rank}: no step was trained, but the position was {states['peeked']} "
        found += f"after a peek at {plan.peek} micro-batches, and "
        found += f"{states['fetched']} once a loader started fetching"
        yield TABLE("position-moves-on-fetch", found)
    for steps, position in enumerate(answer["positions"], 1):
        if position != steps:
            found = f"rank {rank}: after {counted(steps, 'commit')} the position is {position}"
            yield TABLE("wrong-position", found)
    if answer["trained"][:1] != answer["straight"][:1]:
        found = f"rank {rank}: after a peek at the first micro-batches, list 1 of a new "
        found += f"iteration is {some(answer['trained'][:1]) or 'missing'} instead of "
        yield TABLE("iterates-from-elsewhere", found + some(answer["straight"][:1]))
    if answer["trained"] != answer["straight"][:cut]:
        found = f"rank {rank}: {plan.committed} steps through a loader, each committed, differ "
        found += "from the same steps of an iteration without commits"
        yield TABLE("commit-disturbs-iteration", found)
    if answer["by_hand"] != answer["straight"]:
        found = f"rank {rank}: with a commit after each list, an iteration yields different "
        yield TABLE("commit-disturbs-iteration", f"{found}lists than without commits")
    where = f"rank {rank}: after {plan.committed} commits"
    yield from begins_with(
        answer["again"], answer["straight"][cut:], where, "iterates-from-elsewhere"
    )
    if answer["left"] != len(answer["again"]):
        found = f"{where} len() is {answer['left']}, but an iteration yields "
        yield TABLE("wrong-length", f"{found}{len(answer['again'])} lists")


def begins_with(
    ours: list[Keys], wanted: list[Keys], where: str, code: str
) -> Iterable[Finding]:
    """A finding at the first list that differs."""
    if ours != wanted:
        ends = range(max(len(ours), len(wanted)) + 1)
        at = next(n for n in ends if ours[n : n + 1] != wanted[n : n + 1])
        found = f"{where}, list {at + 1} of a new iteration is "
        found += f"{some(ours[at : at + 1]) or 'missing'} instead of "
        yield TABLE(code, found + (some(wanted[at : at + 1]) or "the end"))


def continuation_findings(
    plan: Drawn, answer: dict[str, Any], trained: list[list[Keys]]
) -> Iterable[Finding]:
    """What comes after a resume at another world size; ``trained`` is what came before it."""
    resumed, codes = answer["resumed"], ("resume-repeats", "resume-skips")
    where = f"with the run's first {plan.committed} steps on 2 ranks and the rest on "
    where += f"{len(resumed['ranks'])}"
    yield from cover(plan, plan.main.epochs, trained + steps_of(resumed), where, codes)
    if any(answer["at_the_end"]["ranks"]):
        found = f"after a resume at position {plan.total}, the end of a plan of {plan.total} "
        yield TABLE("resume-repeats", f"{found}steps, an iteration still yields lists")
    steps = steps_of(answer["at_an_epoch"])
    epochs = [{epoch for epoch, _ in keys_of(step)} for step in steps[:1]]
    if epochs != [{1}] or len(steps) != plan.total - plan.steps:
        found = f"after a resume at position {plan.steps}, the end of epoch 0, an iteration "
        found += f"yields {len(steps)} steps, the first from epoch "
        found += f"{some(sorted(epochs[0])) if epochs else 'none'}"
        is_more = len(steps) > plan.total - plan.steps or epochs == [{0}]
        yield TABLE("resume-repeats" if is_more else "resume-skips", found)
    for deal, position in (
        (resumed, plan.committed),
        (answer["at_an_epoch"], plan.steps),
        (answer["at_the_end"], plan.total),
    ):
        if (deal["loaded"], deal["committed"]) != (position, position + 1):
            found = f"after loading position {position} the position is {deal['loaded']}, and "
            found += f"{deal['committed']} after one commit"
            yield TABLE("wrong-position", found, "at what load_state_dict does with it")
        for length, lists in zip(deal["lengths"], deal["ranks"], strict=True):
            if length != len(lists):
                found = f"after a resume at position {position} of {plan.total} len() is "
                found += f"{length}, but an iteration yields {len(lists)} lists"
                yield TABLE("wrong-length", found)


def far_findings(plan: Drawn, answer: dict[str, Any]) -> Iterable[Finding]:
    """The second step of an epoch in the middle of an endless plan."""
    where = f"after a resume at position {plan.far_epoch * plan.steps + 1:,}"
    if answer["far"] is None:
        found = f"{where}, dealing the rest of that epoch took more than 0.5 s of CPU time or "
        yield TABLE("replays-the-past", f"{found}ran out of memory")
        return
    keys = flat(answer["far"])
    if {epoch for epoch, _ in keys} - {plan.far_epoch}:
        found = f"{where}, an iteration begins with {answer['far'][:2]}; with {plan.steps} "
        found += f"steps per epoch, that position is in epoch {plan.far_epoch:,}"
        yield TABLE("wrong-epoch", found)
    wanted = plan.num_samples - plan.main.batch
    if len({sample for _, sample in keys}) != wanted or len(keys) != wanted:
        found = f"{where}, the rest of that epoch has {len(keys)} samples; "
        yield TABLE("resume-skips", f"{found}{wanted} are left after its first step")


def large_findings(plan: Drawn, answer: dict[str, Any]) -> Iterable[Finding]:
    """Two steps of a dataset that is too large for one block of an order."""
    batch = plan.main.batch | 1
    counts = [len({sample for _, sample in keys}) for keys in answer["large"]]
    if answer["far"] is not None and counts != [batch, batch]:
        found = f"with {LARGE:,} samples and G = {batch} on 1 rank, the steps from position "
        found += f"{2**16 // batch} on have {some(counts)} different samples, not {batch} each"
        look = "at which part of the order you keep, and where in it a step begins"
        yield TABLE("not-the-slots", found, look)


def back_findings(plan: Drawn, rank: int, answer: dict[str, Any]) -> Iterable[Finding]:
    """An earlier state in a sampler that has trained."""
    back = answer["back"]
    where = (
        f"rank {rank}: after loading position {plan.back} into a sampler that had committed "
    )
    where += f"{plan.committed} steps"
    if (back["loaded"], back["committed"]) != (plan.back, plan.back + 1):
        found = f"{where}, the position is {back['loaded']}, and {back['committed']} after one "
        yield TABLE("keeps-its-past", f"{found}commit")
    wanted = answer["straight"][plan.back * answer["micro_steps"] :]
    yield from begins_with(back["lists"], wanted, where, "keeps-its-past")
    for state, position, which in (
        (answer["kept"], plan.back + 1, "returned by state_dict"),
        (back["state"].get("position"), plan.back, "passed to load_state_dict"),
    ):
        if state != position:
            found = f"rank {rank}: a state {which} at position {position} says {state} after "
            yield TABLE("state-is-live", f"{found}later commits")


def judge_resumes(plan: Drawn, reports: Sequence[RankReport], _: object) -> Iterable[Finding]:
    """The position, and what comes after it."""
    answers = [report.answer for report in reports]
    for rank, answer in enumerate(answers):
        yield from fetch_findings(plan, rank, answer)
    trained = steps_of(
        {
            "ranks": [answer["trained"] for answer in answers],
            "micro_steps": [answer["micro_steps"] for answer in answers],
        }
    )
    for answer in answers:
        yield from continuation_findings(plan, answer, trained)
        yield from far_findings(plan, answer)
        yield from large_findings(plan, answer)
    for rank, answer in enumerate(answers):
        yield from back_findings(plan, rank, answer)
        for at in answer["equal"]:
            one, other = plan.collisions[at]
            found = f"seed {one.seed} in epoch {one.epoch:,} and seed {other.seed:,} in epoch "
            yield TABLE("orders-alias", f"{found}{other.epoch} use the same order")


def scenarios(seed: int) -> list[Scenario]:
    """Whole runs at several cuts; then a run that is interrupted."""
    plan = plan_of(seed)
    jobs = (("deal", deals, judge_deals), ("resume", resumes, judge_resumes))
    return [
        Scenario(name=name, body=partial(body, plan), judge=only_first(partial(judge, plan)))
        for name, body, judge in jobs
    ]
