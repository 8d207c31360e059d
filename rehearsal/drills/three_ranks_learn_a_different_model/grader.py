"""What each token weighs in its step, read off the one weight that only this token moves."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
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
from rehearsal.grading.verdict import Finding

CODES = {
    "collective-on-some-ranks": "the run stands still: not all ranks issued a collective",
    "wrong-number-of-steps": "not one optimizer step for all micro-batches of a step",
    "not-a-number": "a micro-batch without a token makes weights NaN",
    "ranks-differ": "the ranks end with different weights",
    "padding-trained": "a token that the mask hides moves a weight",
    "micro-batches-weigh-differently": "tokens of two micro-batches of a rank weigh unequally",
    "ranks-weigh-differently": "tokens of two ranks weigh unequally",
    "step-is-scaled": "all tokens weigh alike, but the step is not their mean",
}


def scenario(name: str, corpus: Corpus) -> Scenario:
    """Train on the corpus; tell what each token has weighed."""

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
        text = f"{taken} optimizer steps for {corpus.steps} groups of micro-batches"
        rule = "accumulated micro-batches are one step"
        yield Finding("wrong-number-of-steps", text, rule, "at when the optimizer steps")
    first = reports[0].answer
    if any(math.isnan(share) for share in first["shares"]):
        text = "weights are NaN; some micro-batches here are all padding on a rank"
        rule = "a micro-batch without a token adds nothing, and it breaks nothing"
        yield Finding("not-a-number", text, rule, "at every division")
        return
    yield from ranks_differ(weights_of_ranks(reports))


def judge_step(step: int, shares: Sequence[float], corpus: Corpus) -> Iterable[Finding]:
    """A finding if the tokens of a step do not all weigh one part in their number."""
    weighs = {}  # by rank and micro-batch: how many tokens, and what the first weighs
    for rank in range(corpus.world_size):
        for micro_step in range(corpus.grad_accum_steps):
            at = corpus.first_id(step, micro_step, rank)
            count = corpus.num_tokens(step, micro_step, rank)
            if any(abs(share) > 1e-5 for share in shares[at + count : at + WIDTH]):
                text = f"step {step}: padding of rank {rank}'s micro-batch {micro_step} counts"
                yield Finding("padding-trained", text, "padding has no loss", "at the mask")
                return
            if count:
                weighs[rank, micro_step] = count, shares[at]
    total = sum(count for count, _ in weighs.values())
    rule = f"each of a step's tokens (here {total}) weighs the same, wherever it was dealt"
    pairs = [(a, b) for a in weighs for b in weighs if a < b]
    # Those of one rank first: between ranks there is one divisor more.
    for a, b in sorted(pairs, key=lambda pair: pair[0][0] != pair[1][0]):
        (some, weight), (others, second) = weighs[a], weighs[b]
        if abs(weight - second) > 1e-4 / total:
            code = "micro-batches" if a[0] == b[0] else "ranks"
            found = f"step {step}: a token of rank {a[0]}'s micro-batch {a[1]} ({some} tokens) "
            found += f"weighs {weight:.4f}, one of rank {b[0]}'s micro-batch {b[1]} ({others} "
            found += f"tokens) {second:.4f}"
            look = "at each division, and at what is averaged after it"
            yield Finding(f"{code}-weigh-differently", found, rule, look)
            return
    weight = next(iter(weighs.values()))[1]
    if abs(weight - 1 / total) > 1e-4 / total:
        found = f"step {step}: every token weighs {weight:.4f}; of {total} tokens each should "
        found += f"weigh {1 / total:.4f} ({corpus.world_size} rank(s), "
        found += f"{corpus.grad_accum_steps} micro-batches)"
        rule = "a step follows the mean over its tokens"
        look = "at all factors, those that DDP adds included"
        yield Finding("step-is-scaled", found, rule, look)


SCENARIOS = [
    scenario("three ranks", Corpus(world_size=3, grad_accum_steps=2, least=1)),
    scenario("some all padding", Corpus(world_size=2, grad_accum_steps=3, least=0)),
    scenario("one rank", Corpus(world_size=1, grad_accum_steps=2, least=0)),
]
