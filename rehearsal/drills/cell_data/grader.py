"""Each sample once per epoch at any world size, and a position that only commit moves.

n = 23 samples and G = 7: four steps per epoch. The last one has only two samples, so three of
five ranks get none. One process plays all ranks of a job, since a sampler needs no group.
"""

from __future__ import annotations

import operator
import random
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from types import SimpleNamespace
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, Sampler
from trainer_core.config import TrainConfig

from rehearsal.grading.drill import Scenario
from rehearsal.engine.reports import RankReport
from rehearsal.kit.judge.coverage import miscounted
from rehearsal.kit.judge.findings import only_first, some
from rehearsal.kit.observe.anti_cheat import close_the_answer
from rehearsal.engine.rank import RankContext
from rehearsal.grading.verdict import Finding, FindingTable, counted
from .cpu_limit import at_most

ONCE = "in each epoch, each sample goes to exactly one rank, once"
POSITION = "the position counts completed optimizer steps, and only commit moves it"
# code: meaning; rule; where to look
TABLE = FindingTable(
    {
        "never-ends": (
            "iterating without a commit yields more than the plan",
            "an iteration ends where the plan ends; a loader fetches ahead of training, so it "
            "can't wait for commits",
            "at what the loop checks before each step",
        ),
        "order-not-reproducible": (
            "two samplers with equal arguments deal different samples",
            "every rank computes the same order from dataset size, seed and epoch",
            "at which random generator the shuffle uses",
        ),
        "moves-global-random-state": (
            "iterating changes torch's or Python's global random state",
            "dropout draws from the global state, and a resume must find it unchanged",
            "at which random generator the shuffle uses",
        ),
        "ranks-out-of-step": (
            "the ranks yield different numbers of micro-batches",
            "if one rank runs fewer backward passes, the others wait in theirs",
            "at steps in which a rank has few samples or none",
        ),
        "micro-batch-too-large": (
            "a micro-batch has more than micro_batch_size samples",
            "micro_batch_size is what fits in a device's memory",
            "at how you split a step into shares, and a share into micro-batches",
        ),
        "wrong-epoch": (
            "a pair has the wrong epoch",
            "augmentation depends on seed, epoch and sample",
            "at the pair you yield",
        ),
        "trained-twice": (
            "a sample is dealt more than once in an epoch",
            ONCE,
            "at whether all ranks use one order, where a step begins, and what fills a share",
        ),
        "never-trained": (
            "a sample of an epoch is dealt to no rank",
            ONCE,
            "at where a share, a step, an epoch and the plan end",
        ),
        "step-depends-on-ranks": (
            "the samples of a step change with the number of ranks",
            "a step is defined before it is split, so world size may change between two steps",
            "at what the order is made from, and at what you split first: the epoch into "
            "steps, or the epoch among ranks",
        ),
        "uneven-shares": (
            "a rank has more than its share of a step",
            "all ranks wait for the one with the most samples",
            "at how you split a step among the ranks",
        ),
        "same-order-each-epoch": (
            "two epochs use the same order",
            "each epoch has its own order, or the model learns the order",
            "at what the order is made from",
        ),
        "orders-alias": (
            "two seeds share an order, in the same epoch or in different ones",
            "an order belongs to one pair of seed and epoch",
            "at how you combine the two numbers into one",
        ),
        "wrong-length": (
            "len() is not the number of micro-batches left",
            "len() is the number of lists that an iteration started now would yield",
            "at what len() counts, and from where",
        ),
        "position-moves-on-fetch": (
            "the position moves when something iterates",
            POSITION,
            "at what changes when you yield",
        ),
        "wrong-position": (
            "after k commits the state's position is not k",
            POSITION,
            "at what commit counts",
        ),
        "commit-disturbs-iteration": (
            "a commit changes what a running iteration yields",
            "a running iteration doesn't depend on commits: a loader has already fetched ahead",
            "at what an iteration reads after it has started",
        ),
        "iterates-from-elsewhere": (
            "a new iteration does not begin at the position",
            "an iteration runs from the position to the end of the plan",
            "at where the loop starts the second time",
        ),
        "resume-repeats": (
            "after a resume, samples of completed steps are dealt again",
            "completed steps stay completed, at any world size",
            "at what load_state_dict does with the position",
        ),
        "resume-skips": (
            "after a resume, samples that were never trained are left out",
            "whatever wasn't trained before a resume is trained after it, at any world size",
            "at what load_state_dict does with the position",
        ),
        "replays-the-past": (
            "resuming at a late position costs as much as the steps before it",
            "a restart computes its position; it doesn't walk there",
            "at what runs before a resume's first micro-batch",
        ),
    }
)
CODES = TABLE.codes
NUM_SAMPLES, BATCH, MICRO, EPOCHS = 23, 7, 2, 3
STEPS = -(-NUM_SAMPLES // BATCH)  # per epoch
PLAN = STEPS * EPOCHS
WORLD_SIZES = ([1, 3], [2, 5])  # checked by rank 0, by rank 1
SEEDS = (3, 1, 2, 3)
COMMITTED = 5  # in the middle of the second epoch
FAR_EPOCH = 300_000_000
MOST_LISTS = 1000  # no iteration is followed further than this

Keys = list[list[int]]  # pairs of epoch and sample


# ---------------------------------------------------------------- in the ranks


def close_answers(context: RankContext) -> None:
    """trainer_core's own schedule and sampler can't be called."""
    names = ["StepSchedule", "ResumeAwareDistributedSampler"]
    close_the_answer(context, "trainer_core.data", names)


def sampler_of(
    learner: SimpleNamespace, rank: int, world_size: int, seed: int = 3, epochs: int = EPOCHS
) -> Any:
    """The learner's sampler, made as a run makes it."""
    cfg = TrainConfig(
        dataset_size=NUM_SAMPLES,
        seed=seed,
        micro_batch_size=MICRO,
        max_epochs=epochs,
        pinned_global_batch_size=BATCH,
        world_size=world_size,
    )
    schedule = learner.StepSchedule(NUM_SAMPLES, BATCH, epochs)
    return learner.ResumeAwareDistributedSampler(schedule, cfg, rank, world_size)


def taken(sampler: Any, most: int = MOST_LISTS) -> list[Keys]:
    """The micro-batches of an iteration started now."""
    return [pairs_in(keys) for keys in islice(iter(sampler), most)]


def pairs_in(keys: Any) -> Keys:
    """What an iteration yielded, as plain data; a TypeError with what it was if it can't be."""
    try:
        return [[int(epoch), int(sample)] for epoch, sample in keys]
    except (TypeError, ValueError):
        what = "not a list of pairs (epoch, sample)"
        raise TypeError(f"iterating yields {str(keys)[:80]}, {what}") from None


def position_of(sampler: Any) -> int:
    """The position in the sampler's state; a TypeError with the state if there is none."""
    state = sampler.state_dict()
    try:
        return operator.index(state["position"])
    except (TypeError, KeyError, IndexError):
        wanted = "not {'position': an int}"
        raise TypeError(f"state_dict() returned {str(state)[:80]}, {wanted}") from None


def micro_steps_of(sampler: Any) -> int:
    """The sampler's micro_steps; a TypeError with what it is if that isn't a number."""
    try:
        return int(sampler.micro_steps)
    except (TypeError, ValueError):
        raise TypeError(f"micro_steps is {sampler.micro_steps!r:.80}, not an int") from None


def flat(batches: list[Keys]) -> Keys:
    """Their keys in one list."""
    return [key for keys in batches for key in keys]


def deal(learner: SimpleNamespace, world_size: int, position: int = 0) -> dict[str, Any]:
    """What each rank gets from ``position`` on, and what len() promises."""
    samplers = [sampler_of(learner, rank, world_size) for rank in range(world_size)]
    if position:
        for sampler in samplers:
            sampler.load_state_dict({"position": position})
    return {
        "micro_steps": [micro_steps_of(sampler) for sampler in samplers],
        "lengths": [sampler.__len__() for sampler in samplers],
        "ranks": [taken(sampler) for sampler in samplers],
    }


def deals(context: RankContext, learner: SimpleNamespace) -> Any:
    """Iterate the whole plan at several world sizes, and with several seeds on one rank."""
    close_answers(context)
    torch.manual_seed(context.rank)
    random.seed(context.rank)
    before = torch.get_rng_state().tolist(), random.getstate()
    answer = {
        "deals": {size: deal(learner, size) for size in WORLD_SIZES[context.rank]},
        "orders": [flat(taken(sampler_of(learner, 0, 1, seed))) for seed in SEEDS],
    }
    after = torch.get_rng_state().tolist(), random.getstate()
    return {**answer, "is_state_kept": before == after}


def resumes(context: RankContext, learner: SimpleNamespace) -> Any:
    """Peek; train some steps through a loader that prefetches; resume at another world size."""
    close_answers(context)
    straight = taken(sampler_of(learner, context.rank, 2))
    sampler = sampler_of(learner, context.rank, 2)
    states = [position_of(sampler)]
    taken(sampler, 3)
    states.append(position_of(sampler))
    loader: DataLoader[Any] = DataLoader(
        Echo(), batch_sampler=Plain(sampler), collate_fn=as_they_are, num_workers=1
    )
    batches = iter(loader)
    states.append(position_of(sampler))
    trained = []
    for _ in range(COMMITTED):
        trained += list(islice(batches, micro_steps_of(sampler)))
        sampler.commit()
    states.append(position_of(sampler))
    far = sampler_of(learner, context.rank, 2, epochs=2 * FAR_EPOCH)
    try:
        with at_most(0.5):
            far.load_state_dict({"position": FAR_EPOCH * STEPS})
            start: list[Keys] | None = taken(far, micro_steps_of(far))
    except (TimeoutError, MemoryError):
        start = None
    resumed = deal(learner, (1, 3)[context.rank], states[-1])
    return {
        "straight": straight,
        "trained": trained,
        "states": states,
        "again": taken(sampler),
        "left": sampler.__len__(),
        "resumed": resumed,
        "far": start,
        "micro_steps": micro_steps_of(sampler),
        "after_the_end": deal(learner, 2, PLAN)["ranks"],
    }


class Plain(Sampler[Keys]):
    """A sampler's keys as lists, since workers can't unpickle a class typed in a notebook."""

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler

    def __iter__(self) -> Iterator[Keys]:
        for keys in self.sampler:
            yield [list(key) for key in keys]


class Echo(Dataset[list[int]]):
    """Returns its keys, so a loader shows what its sampler said."""

    def __getitem__(self, key: Any) -> list[int]:
        return list(key)


def as_they_are(batch: Any) -> Any:
    """A collate function that does nothing."""
    return batch


# ---------------------------------------------------------------- in the kernel


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


def cover(steps: Sequence[list[Keys]], where: str, codes: tuple[str, str]) -> Iterable[Finding]:
    """Findings if a sample of the plan is not there exactly once per epoch.

    Args:
        where: the beginning of the sentence, as "on 2 ranks".
    """
    keys = [key for step in steps for key in keys_of(step)]
    for epoch in range(EPOCHS):
        wrong = miscounted((sample for e, sample in keys if e == epoch), NUM_SAMPLES)
        for code, samples in zip(codes, wrong, strict=True):
            if samples:
                how = "dealt more than once" if samples is wrong.extra else "dealt to no rank"
                be = "is" if len(samples) == 1 else "are"
                found = f"{where}, {len(samples)} of {NUM_SAMPLES} samples {be} {how} in epoch "
                yield TABLE(code, f"{found}{epoch}: {some(samples)}")
        if unknown := [s for e, s in keys if e == epoch and not 0 <= s < NUM_SAMPLES]:
            found = f"{where}, sample {unknown[0]} is dealt in epoch {epoch}, but the samples "
            found += f"run from 0 to {NUM_SAMPLES - 1}"
            yield TABLE(codes[0], found, "at what fills a share")


def shape_findings(deal: dict[str, Any]) -> Iterable[Finding]:
    """How many micro-batches there are, and how large."""
    size, counts = len(deal["ranks"]), [len(batches) for batches in deal["ranks"]]
    if (most := max(counts)) > PLAN * max(deal["micro_steps"]):
        is_cut = most >= MOST_LISTS
        found = f"on {counted(size, 'rank')}, an iteration without a commit yields {most} lists"
        found += f"{' or more' if is_cut else ''}; the plan has {PLAN} steps, and micro_steps "
        look = "" if is_cut else "at how many lists you yield for a step, and how many steps"
        yield TABLE("never-ends", f"{found}is {max(deal['micro_steps'])}", look)
    if len({*counts}) > 1 or len({*deal["micro_steps"]}) > 1:
        found = f"ranks 0 to {size - 1} yield {some(counts)} micro-batches; their micro_steps "
        found += f"are {some(deal['micro_steps'])}"
        yield TABLE("ranks-out-of-step", found)
    sizes = [len(keys) for batches in deal["ranks"] for keys in batches]
    if (most := max(sizes, default=0)) > MICRO:
        found = (
            f"on {counted(size, 'rank')}, a micro-batch has {most} samples; micro_batch_size "
            f"is {MICRO}"
        )
        yield TABLE("micro-batch-too-large", found)


def deal_findings(deal: dict[str, Any], alone: dict[str, Any]) -> Iterable[Finding]:
    """One world size; ``alone`` is what a single rank gets."""
    size, steps = len(deal["ranks"]), steps_of(deal)
    for number, step in enumerate(steps if len(steps) == PLAN else ()):
        if wrong := [key for key in keys_of(step) if key[0] != number // STEPS]:
            found = f"step {number} yields the pair {wrong[0]}; with {STEPS} steps per epoch, "
            found += f"that step is in epoch {number // STEPS}"
            yield TABLE("wrong-epoch", found)
    yield from cover(steps, f"on {counted(size, 'rank')}", ("trained-twice", "never-trained"))
    for number, (step, whole) in enumerate(zip(steps, steps_of(alone), strict=False)):
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


def judge_deals(reports: Sequence[RankReport], _: object) -> Iterable[Finding]:
    """Order, coverage and shares."""
    answer, orders = reports[0].answer, reports[0].answer["orders"]
    if orders != reports[1].answer["orders"] or orders[0] != orders[-1]:
        found = "two samplers with equal arguments yield different orders"
        yield TABLE("order-not-reproducible", found)
    if not answer["is_state_kept"]:
        found = "after iterating, torch's or Python's global random state has changed"
        yield TABLE("moves-global-random-state", found)
    deals = {int(size): deal for r in reports for size, deal in r.answer["deals"].items()}
    for deal in deals.values():
        yield from shape_findings(deal)
    for _, deal in sorted(deals.items()):
        yield from deal_findings(deal, deals[1])
    seen: dict[str, tuple[int, int]] = {}
    for seed, keys in zip(SEEDS[:-1], orders, strict=False):
        for epoch in range(EPOCHS):
            order = str([sample for e, sample in keys if e == epoch])
            if order in seen:
                code = "same-order-each-epoch" if seen[order][0] == seed else "orders-alias"
                found = f"seed {seen[order][0]} in epoch {seen[order][1]} and seed {seed} in "
                yield TABLE(code, f"{found}epoch {epoch} use the same order")
            seen[order] = seed, epoch


def judge_resumes(reports: Sequence[RankReport], _: object) -> Iterable[Finding]:
    """The position, and what comes after it."""
    for rank, answer in enumerate(report.answer for report in reports):
        first, peeked, fetched, committed = answer["states"]
        cut = COMMITTED * answer["micro_steps"]
        if first:
            found = f"rank {rank}: before the first step, the position is {first}, not 0"
            yield TABLE("wrong-position", found, "at where the position begins")
        if peeked or fetched:
            found = f"rank {rank}: no step was trained, but the position was {peeked} after a "
            found += (
                f"peek at three micro-batches, and {fetched} once a loader started fetching"
            )
            yield TABLE("position-moves-on-fetch", found)
        if committed != COMMITTED:
            found = f"rank {rank}: after {COMMITTED} commits the position is {committed}"
            yield TABLE("wrong-position", found)
        if answer["trained"][:1] != answer["straight"][:1]:
            found = f"rank {rank}: after a peek at three micro-batches, list 1 of a new "
            found += f"iteration is {some(answer['trained'][:1]) or 'missing'} instead of "
            found += some(answer["straight"][:1])
            yield TABLE("iterates-from-elsewhere", found)
        if answer["trained"] != answer["straight"][:cut]:
            found = f"rank {rank}: {COMMITTED} steps through a loader, each committed, differ "
            found += "from the same steps of an iteration without commits"
            yield TABLE("commit-disturbs-iteration", found)
        if answer["again"] != answer["straight"][cut:]:
            ours, wanted = answer["again"], answer["straight"][cut:]
            at = next(n for n in range(len(wanted) + 1) if ours[n : n + 1] != wanted[n : n + 1])
            found = (
                f"rank {rank}: after {COMMITTED} commits, list {at + 1} of a new iteration is "
            )
            found += f"{some(ours[at : at + 1]) or 'missing'} instead of "
            found += some(wanted[at : at + 1]) or "the end"
            yield TABLE("iterates-from-elsewhere", found)
        for length, count, where in [
            (answer["left"], len(answer["again"]), f"after {COMMITTED} commits"),
            (
                answer["resumed"]["lengths"][0],
                len(answer["resumed"]["ranks"][0]),
                "after a resume",
            ),
        ]:
            if length != count:
                found = f"{where} len() is {length}, but an iteration yields {count} lists"
                yield TABLE("wrong-length", found)
    done = {
        "ranks": [report.answer["trained"] for report in reports],
        "micro_steps": [report.answer["micro_steps"] for report in reports],
    }
    for answer in (report.answer for report in reports):
        resumed = answer["resumed"]
        where = f"with the run's first {COMMITTED} steps on 2 ranks and the rest on "
        where += f"{len(resumed['ranks'])}"
        steps = steps_of(done) + steps_of(resumed)
        yield from cover(steps, where, ("resume-repeats", "resume-skips"))
        if any(answer["after_the_end"]):
            found = f"after a resume at position {PLAN}, the end of a plan of {PLAN} steps, an "
            found += "iteration still yields lists"
            yield TABLE("resume-repeats", found)
        if answer["far"] is None:
            found = f"a resume at position {FAR_EPOCH * STEPS:,} and the micro-batches of its "
            found += "first step took more than 0.5 s of CPU time, or ran out of memory"
            yield TABLE("replays-the-past", found)
        elif not any(answer["far"]):
            found = f"after a resume at position {FAR_EPOCH * STEPS:,}, halfway through the "
            found += "plan, the first step has no samples"
            yield TABLE("resume-skips", found)
        elif {epoch for keys in answer["far"] for epoch, _ in keys} != {FAR_EPOCH}:
            found = f"after a resume at position {FAR_EPOCH * STEPS:,}, an iteration begins "
            found += f"with {answer['far'][:2]}; with {STEPS} steps per epoch, that position "
            yield TABLE("wrong-epoch", f"{found}is in epoch {FAR_EPOCH:,}")


SCENARIOS = [
    Scenario(name="deal", body=deals, judge=only_first(judge_deals), deadline_s=5),
    Scenario(name="resume", body=resumes, judge=only_first(judge_resumes), deadline_s=5),
]
