"""How much does each token weigh in its step? Each one moves a parameter of its own."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import product
from types import SimpleNamespace
from typing import Any

from rehearsal.engine.rank import RankContext
from rehearsal.engine.reports import RankReport
from rehearsal.grading.drill import Scenario
from rehearsal.grading.verdict import Finding, counted
from rehearsal.kit.judge.collectives import mismatched_collectives
from rehearsal.kit.judge.coverage import steps_taken
from rehearsal.kit.judge.findings import first_of
from rehearsal.kit.judge.weights import ranks_differ, weights_of_ranks
from rehearsal.kit.observe.samples import weights_of
from .corpus import Corpus, corpus_of
from .table import Table, initial_values, micro_batches_of, shares_of

CODES = {
    "collective-on-some-ranks": "the run hangs or fails: the ranks' collectives differ",
    "wrong-number-of-steps": "the micro-batches of a step are not one optimizer step",
    "not-a-number": "a micro-batch that is all padding turns weights NaN",
    "ranks-differ": "the ranks end with different weights",
    "trains-on-padding": "padding moves a weight",
    "tokens-weigh-differently": "tokens of one micro-batch do not all weigh the same",
    "micro-batches-weigh-differently": "tokens weigh more in one micro-batch than in another",
    "ranks-weigh-differently": "tokens weigh more on one rank than on another",
    "moved-without-gradient": "a parameter that gets no gradient moves",
    "step-is-scaled": "all tokens weigh the same, but the step does not follow their mean",
}


EXACT = 3e-4  # of a share; float32 rounds less, a wrong divisor changes far more


def body(corpus: Corpus, context: RankContext, learner: SimpleNamespace) -> Any:
    """Train on the corpus; return what each token weighed."""
    context.init_group()
    model = Table(initial_values(corpus))
    learner.train(
        model,
        micro_batches_of(corpus, context.rank),
        lr=corpus.lr,
        grad_accum_steps=corpus.grad_accum_steps,
    )
    unused = model.unused.detach().tolist()
    return {"shares": shares_of(corpus, model), "unused": unused, "weights": weights_of(model)}


def judge(
    corpus: Corpus, reports: Sequence[RankReport], earlier: Mapping[str, Sequence[RankReport]]
) -> Iterable[Finding]:
    """The run first, then the shares, step by step."""
    if any(not report.has_answer for report in reports):
        yield from mismatched_collectives(reports)
        return
    shares = reports[0].answer["shares"]
    steps = [list(judge_step(step, shares, corpus)) for step in range(corpus.steps)]
    if steps[0] and not steps[-1]:
        look = "at what the optimizer or a gradient keeps from one step to the next"
        steps[0] = [steps[0][0]._replace(look=look)]
    yield from first_of(judge_run(reports, corpus), judge_unused(reports), *steps)


def judge_unused(reports: Sequence[RankReport]) -> Iterable[Finding]:
    """A finding if the parameter that gets no gradient has moved."""
    unused = reports[0].answer["unused"]
    if any(value != 1.0 for value in unused):
        found = f"the unused parameter was 1 everywhere, and is {unused[0]:.4g} now"
        rule = "a parameter without a gradient stays as it is"
        yield Finding(
            "moved-without-gradient", found, rule, "at the optimizer and its settings"
        )


def judge_run(reports: Sequence[RankReport], corpus: Corpus) -> Iterable[Finding]:
    """Findings about the run as a whole."""
    taken, shares = steps_taken(reports[0]), reports[0].answer["shares"]
    # Updates may be written out, without an optimizer: then the shares tell.
    if taken != corpus.steps and not (taken == 0 and any(shares)):
        text = f"the run took {counted(taken, 'optimizer step')} for {corpus.steps} groups of "
        text += "micro-batches"
        rule = "all micro-batches of a group are one optimizer step"
        yield Finding("wrong-number-of-steps", text, rule, "at when the optimizer steps")
    if any(math.isnan(share) for share in shares):
        text = "weights turned NaN"
        text += " in a run in which some micro-batches are all padding" * corpus.has_empty
        rule = "a step follows the mean over its tokens"
        if corpus.has_empty:
            rule = "a micro-batch that is all padding adds nothing to the step"
        yield Finding("not-a-number", text, rule, "at every division")
        return
    yield from ranks_differ(weights_of_ranks(reports))


def judge_step(step: int, shares: Sequence[float], corpus: Corpus) -> Iterable[Finding]:
    """A finding if the tokens of a step do not all weigh one over their number."""
    total = corpus.num_tokens(step)
    weighs = {}  # by rank and micro-batch: how many tokens, and what each weighs
    places = product(range(corpus.world_size), range(corpus.grad_accum_steps))
    for rank, micro_step in places:
        first = corpus.first_id(step, micro_step, rank)
        tokens = corpus.tokens[step, micro_step, rank]
        padding = sorted({*range(corpus.width)} - {*tokens})
        if any(abs(shares[first + at]) > EXACT / total for at in padding):
            text = f"in step {step + 1}, padding in rank {rank}'s micro-batch "
            text += f"{micro_step + 1} moved a weight"
            rule = "padding has no loss"
            yield Finding("trains-on-padding", text, rule, "at where the mask is used")
            return
        for number, at in enumerate(tokens, 1):
            share, other = shares[first + at], shares[first + tokens[0]]
            if abs(share - other) > EXACT / total:
                text = f"in step {step + 1}, the tokens of rank {rank}'s micro-batch "
                text += f"{micro_step + 1} weigh {other:.4f} (token 1) and "
                text += f"{share:.4f} (token {number})"
                rule = f"each of a step's tokens (here {total}) weighs the same"
                look = "at the loss, and at every factor: which parameters does it reach?"
                yield Finding("tokens-weigh-differently", text, rule, look)
                return
        if tokens:
            weighs[rank, micro_step] = len(tokens), shares[first + tokens[0]]
    rule = f"each of a step's tokens (here {total}) weighs the same, wherever it landed"
    pairs = [(a, b) for a in weighs for b in weighs if a < b]
    # Pairs on one rank first: between ranks there is one more divisor.
    for a, b in sorted(pairs, key=lambda pair: pair[0][0] != pair[1][0]):
        (some, weight), (others, second) = weighs[a], weighs[b]
        if abs(weight - second) > EXACT / total:
            code = "micro-batches" if a[0] == b[0] else "ranks"
            found = f"in step {step + 1}, a token of rank {a[0]}'s micro-batch {a[1] + 1} "
            found += f"({counted(some, 'token')}) weighs {weight:.4f}, and one of rank "
            found += f"{b[0]}'s micro-batch {b[1] + 1} ({counted(others, 'token')}) "
            found += f"{second:.4f}"
            look = "at each division, at what is averaged after it, and at which micro-batches "
            look += "make up a step"
            yield Finding(f"{code}-weigh-differently", found, rule, look)
            return
    weight = next(iter(weighs.values()))[1]
    if abs(weight - 1 / total) > EXACT / total:
        found = f"in step {step + 1}, each token weighs {weight:.4f}; with {total} tokens in "
        found += f"the step, it should weigh {1 / total:.4f} "
        found += f"({counted(corpus.world_size, 'rank')}, "
        found += f"grad_accum_steps={corpus.grad_accum_steps})"
        rule = "a step follows the mean over its tokens"
        look = "at the loss and every factor, also those that DDP adds, and at when gradients "
        look += "are cleared"
        if weight == 0:
            look = "at the order of backward and step: which gradients does the optimizer see?"
        yield Finding("step-is-scaled", found, rule, look)


def scenarios(seed: int) -> list[Scenario]:
    """Several ranks; others with micro-batches that are all padding; one rank."""
    draw = random.Random(seed)
    corpora = {
        "several ranks": corpus_of(seed, 3, draw.choice((2, 3)), has_empty=False),
        "some all padding": corpus_of(
            seed, draw.choice((2, 2, 4)), draw.choice((1, 2, 3)), has_empty=True
        ),
        "one rank": corpus_of(seed, 1, draw.choice((2, 3)), has_empty=True),
    }
    return [
        Scenario(
            name=name,
            body=partial(body, corpus),
            judge=partial(judge, corpus),
            world_size=corpus.world_size,
            deadline_s=4,
            judges_failures=True,
        )
        for name, corpus in corpora.items()
    ]
