"""How does a job train in a folder in which later jobs of the check resume?

``judge.restart`` reads what is recorded here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch.distributed as dist
from torch import nn

from rehearsal.engine.rank import RankContext
from rehearsal.kit.observe.samples import OddNet, marked_samples, watch_samples, weights_of

Body = Callable[[RankContext, SimpleNamespace], dict[str, Any]]


def run_folder(context: RankContext, name: str) -> Path:
    """The folder of a run, created if need be, without a trace in the record of files."""
    context.is_armed = False
    path = context.folder / name
    path.mkdir(exist_ok=True, parents=True)
    context.is_armed = True
    return path


def odd_net(context: RankContext) -> nn.Module:
    """Each rank's own initial weights: sharing rank 0's is the learner's task."""
    return OddNet(seed=context.rank)


def trains(
    run: str,
    num_samples: int,
    *,
    model: Callable[[RankContext], nn.Module] = odd_net,
    data: Callable[[RankContext, int], Sequence[Any]] = lambda _, count: marked_samples(count),
    before: Callable[[RankContext], None] = lambda _: None,
    **settings: Any,
) -> Body:
    """A body that calls the learner's ``train`` in the folder of ``run``.

    Args:
        run: its folder; "{rank}" in it becomes the rank, which gives each rank its own disk.
        model, data: make the first arguments of ``train``, in this order.
        before: called right before ``train``.
        settings: keyword arguments of ``train``.
    """

    def body(context: RankContext, learner: SimpleNamespace) -> dict[str, Any]:
        if not dist.is_initialized():  # a body may train several times
            context.init_group()
        net, arguments = model(context), data(context, num_samples)
        watch_samples(context, net)

        def first_forward(*_: object) -> None:
            context.record("first_forward", weights=weights_of(net))
            handle.remove()

        handle = net.register_forward_pre_hook(first_forward)
        folder = run_folder(context, run.format(rank=context.rank))
        before(context)
        returned = learner.train(net, *arguments, folder=folder, **settings)
        return {"weights": weights_of(net), "returned": returned}

    return body
