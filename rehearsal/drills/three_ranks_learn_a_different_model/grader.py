"""How much does each token weigh in its step? Each one moves a parameter of its own."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from types import SimpleNamespace
from typing import Any

from rehearsal.grading.drill import Scenario
from rehearsal.engine.reports import RankReport
from rehearsal.kit.judge.collectives import mismatched_collectives
from rehearsal.kit.judge.coverage import steps_taken
from rehearsal.kit.judge.findings import first_of
from rehearsal.kit.judge.weights import ranks_differ, weights_of_ranks
from rehearsal.kit.observe.samples import weights_of
from .corpus import WIDTH, Corpus
from .table import LR, micro_batches_of, shares_of, table_for
from rehearsal.engine.rank import RankContext
from rehearsal.grading.verdict import Finding, counted

CODES = {
    "collective-on-some-ranks": "the run hangs or fails: the ranks' collectives differ",
    "wrong-number-of-steps": "the micro-batches of a step are not one optimizer step",
    "not-a-number": "a micro-batch that is all padding turns weights NaN",
    "ranks-differ": "the ranks end with different weights",
    "trains-on-padding": "padding moves a weight",
    "tokens-weigh-differently": "tokens of one micro-batch do not all weigh the same",
    "micro-batches-weigh-differently": "tokens weigh more in one micro-batch than in another",
    "ranks-weigh-differently": "tokens weigh more on one rank than on another",
    "step-is-scaled": "all tokens weigh the same, but the step does not follow their mean",
}


def scenario(name: str, corpus: Corpus) -> Scenario:
    """Train on the corpus; return what each token weighed."""

    def body(context: RankContext, learner: SimpleNamespace) -> Any:
        context.init_group()
        model = table_for(corpus)
        batches = micro_batches_of(corpus, context.rank)
        learner.train(model, batches, lr=LR, grad_accum_steps=corpus.grad_accum_steps)
        return {"shares": shares_of(corpus, model), "weights": weights_of(model)}

    def judge(
        reports: Sequence[RankReport], earlier: Mapping[str, Sequence[RankReport]]
    ) -> Iterable[Finding]:
        if any(not report.has_answer for report in reports):
            yield from mismatched_collectives(reports)
            return
        shares = reports[0].answer["shares"]
        steps = [judge_step(step, shares, corpus) for step in range(corpus.steps)]
        yield from first_of(judge_run(reports, corpus), *steps)

    return Scenario(
        name=name,
        body=body,
        judge=judge,
        world_size=corpus.world_size,
        deadline_s=4,
        judges_failures=True,
    )


def judge_run(reports: Sequence[RankReport], corpus: Corpus) -> Iterable[Finding]:
    """Findings about the run as a whole."""
    taken = steps_taken(reports[0])
    if taken != corpus.steps:
        text = f"the run took {counted(taken, 'optimizer step')} for {corpus.steps} groups of "
        text += "micro-batches"
        rule = "all micro-batches of a group are one optimizer step"
        yield Finding("wrong-number-of-steps", text, rule, "at when the optimizer steps")
    first = reports[0].answer
    if any(math.isnan(share) for share in first["shares"]):
        text = "weights turned NaN"
        text += " in a run in which some micro-batches are all padding" * (corpus.least == 0)
        rule = "a step follows the mean over its tokens"
        if corpus.least == 0:
            rule = "a micro-batch that is all padding adds nothing to the step"
        yield Finding("not-a-number", text, rule, "at every division")
        return
    yield from ranks_differ(weights_of_ranks(reports))


def judge_step(step: int, shares: Sequence[float], corpus: Corpus) -> Iterable[Finding]:
    """A finding if the tokens of a step do not all weigh one over their number."""
    weighs = {}  # by rank and micro-batch: how many tokens, and what each weighs
    places = product(range(corpus.grad_accum_steps), range(corpus.world_size))
    total = sum(corpus.num_tokens(step, micro_step, rank) for micro_step, rank in places)
    for rank in range(corpus.world_size):
        for micro_step in range(corpus.grad_accum_steps):
            at = corpus.first_id(step, micro_step, rank)
            count = corpus.num_tokens(step, micro_step, rank)
            if any(abs(share) > 1e-5 for share in shares[at + count : at + WIDTH]):
                text = f"in step {step + 1}, padding in rank {rank}'s micro-batch "
                text += f"{micro_step + 1} moved a weight"
                rule = "padding has no loss"
                yield Finding("trains-on-padding", text, rule, "at where the mask is used")
                return
            for number, share in enumerate(shares[at : at + count]):
                if abs(share - shares[at]) > 1e-4 / total:
                    text = f"in step {step + 1}, the tokens of rank {rank}'s micro-batch "
                    text += f"{micro_step + 1} weigh {shares[at]:.4f} (token 1) and "
                    text += f"{share:.4f} (token {number + 1})"
                    rule = f"each of a step's tokens (here {total}) weighs the same"
                    look = "at the loss, and at every factor: which parameters does it reach?"
                    yield Finding("tokens-weigh-differently", text, rule, look)
                    return
            if count:
                weighs[rank, micro_step] = count, shares[at]
    rule = f"each of a step's tokens (here {total}) weighs the same, wherever it landed"
    pairs = [(a, b) for a in weighs for b in weighs if a < b]
    # Pairs on one rank first: between ranks there is one more divisor.
    for a, b in sorted(pairs, key=lambda pair: pair[0][0] != pair[1][0]):
        (some, weight), (others, second) = weighs[a], weighs[b]
        if abs(weight - second) > 1e-4 / total:
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
    if abs(weight - 1 / total) > 1e-4 / total:
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


SCENARIOS = [
    scenario("three ranks", Corpus(world_size=3, grad_accum_steps=2, least=1)),
    scenario("some all padding", Corpus(world_size=2, grad_accum_steps=3, least=0)),
    scenario("one rank", Corpus(world_size=1, grad_accum_steps=2, least=0)),
]
