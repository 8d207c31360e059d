"""Build models, evaluate them, train them. Runs in the rank; answers in plain data."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from rehearsal.engine.rank import RankContext

from .plan import Plan, Run
from .reference import close, fill, logits_of, mean_loss, parameters_of, shapes_of
from .watch import Watch, facts_of

DROPOUT = 0.3


def model_of(plan: Plan, learner: SimpleNamespace, dropout: float) -> nn.Module:
    """The learner's model."""
    model: nn.Module = learner.Transformer(*plan.shape, dropout)
    return model


def wrong_shapes(plan: Plan, model: nn.Module) -> dict[str, Any] | None:
    """The parameters that aren't the program's; None if all are."""
    found = {name: [*p.shape] for name, p in model.named_parameters()}
    wanted = shapes_of(plan.shape)
    if found == wanted:
        return None
    names = [name for name in found | wanted if found.get(name) != wanted.get(name)]
    return {name: [found.get(name), wanted.get(name)] for name in names}


@torch.no_grad()
def model_body(plan: Plan, context: RankContext, learner: SimpleNamespace) -> Any:
    """Compare a model with the reference, part by part."""
    model = model_of(plan, learner, DROPOUT)
    if wrong := wrong_shapes(plan, model):
        return {"shapes": wrong}
    fill(model, plan.seed, sharp=2.5)
    model.eval()
    rng = torch.Generator().manual_seed(plan.seed)
    length = plan.shape.context_length
    tokens = torch.randint(1, plan.shape.vocab_size, (3, length), generator=rng)
    logits = model(tokens)
    if not isinstance(logits, Tensor) or logits.shape != (3, length, plan.shape.vocab_size):
        size = [*logits.shape] if isinstance(logits, Tensor) else type(logits).__name__
        return {"output": str(size), "wanted": str([3, length, plan.shape.vocab_size])}
    if not close(model(tokens), logits) and logits.isfinite().all():
        return {"noise": float((model(tokens) - logits).abs().max())}
    leak, worst = None, 1e-4
    for place in range(1, length):
        changed = tokens.clone()
        changed[:, place] = changed[:, place] % (plan.shape.vocab_size - 1) + 1
        off = (model(changed) - logits)[:, :place].abs().amax((0, 2))
        if float(off.max()) > worst:
            worst = float(off.max())
            leak = [place, int(off.argmax()), worst]
    return {
        "finite": bool(logits.isfinite().all()),
        "leak": leak,
        **{
            name: is_right(plan, model, tokens, silent)
            for name, silent in (
                ("stream", ("attention.out", "mlp.2")),
                ("attention", ("mlp.2",)),
                ("mlp", ("attention.out",)),
                ("all", ()),
            )
        },
        "short": is_right(plan, model, tokens[:1, :5], ()),
    }


def is_right(plan: Plan, model: nn.Module, tokens: Tensor, silent: tuple[str, ...]) -> bool:
    """Whether the logits are the reference's while the weights of some layers are zero."""
    model = copy.deepcopy(model)
    for name, parameter in model.named_parameters():
        if any(part in name for part in silent):
            parameter.zero_()
    return close(model(tokens), logits_of(parameters_of(model), tokens, plan.shape))


def number(value: Any) -> float | None:
    """A loss, if it's a plain float; None otherwise, also for a tensor."""
    return value if isinstance(value, float) else None


def evaluation_body(plan: Plan, context: RankContext, learner: SimpleNamespace) -> Any:
    """Evaluate a model on full sequences, on padded ones, and in several micro-batches."""
    model = model_of(plan, learner, DROPOUT)
    if wrong := wrong_shapes(plan, model):
        return {"shapes": wrong}
    fill(model, plan.seed + 1, sharp=2.5)
    watch = Watch(plan, model, drops=False)
    whole, padded = torch.tensor(plan.whole), torch.tensor(plan.held_out)
    found = []
    for sequences, size in (
        (whole, len(whole)),
        (whole, len(whole)),
        (padded, len(padded)),
        (padded, plan.eval_size),
    ):
        model.train()
        before = len(watch.passes)
        value = learner.evaluate(model, sequences.clone(), size)
        passes = watch.passes[before:]
        found.append(
            {
                "loss": number(value),
                "returned": repr(value)[:80],
                "right": mean_loss(parameters_of(model), sequences, plan.shape),
                "graphs": sum(one.has_graph for one in passes),
                "largest": max((len(one.rows) for one in passes), default=0),
                "size": size,
            }
        )
    return {"evaluations": found}


def training_body(plan: Plan, context: RankContext, learner: SimpleNamespace) -> Any:
    """Train three times."""
    return {
        run.name: trained(plan, run, plan.seed + at, learner)
        for at, run in enumerate(plan.runs)
    }


def trained(plan: Plan, run: Run, ambient: int, learner: SimpleNamespace) -> dict[str, Any]:
    """The facts of one run.

    Args:
        ambient: for torch's own random state, which says nothing about the order.
    """
    model = model_of(plan, learner, run.dropout)
    fill(model, plan.seed + 2)
    model.eval()  # a step needs it in train mode, whoever used it before
    watch, begin = Watch(plan, model, drops=run.dropout > 0), parameters_of(model)
    torch.manual_seed(ambient)
    sequences = torch.tensor(plan.sequences[: run.num_sequences])
    held_out = torch.tensor(plan.held_out)
    returned = learner.train(model, sequences, held_out, **run.settings._asdict())
    lists = (
        [[number(value) for value in one] for one in returned]
        if isinstance(returned, tuple | list)
        and len(returned) == 2
        and all(isinstance(one, list | tuple) for one in returned)
        else None
    )
    return {
        **facts_of(plan, run, watch, begin, parameters_of(model)),
        "returned": lists,
        "said": repr(returned)[:80],
    }
