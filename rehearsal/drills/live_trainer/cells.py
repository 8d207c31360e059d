"""The cells that need no second process: config and data."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

from rehearsal.engine.rank import RankContext
from rehearsal.kit.observe.refusal import refusal

from .draws import EPOCHS, plan_of

MAY_BE_ZERO = ("seed", "dropout")


def config_body(context: RankContext, learner: SimpleNamespace) -> Any:
    """Good values, then one bad value at a time."""
    settings = plan_of(context.seed).settings(context.folder / "config")
    cfg = learner.TrainConfig(**settings)
    learner.TrainConfig()
    kept = {name: repr(getattr(cfg, name, None)) for name in settings}
    numbers = [name for name, value in settings.items() if not isinstance(value, str)]
    bad: list[Any] = []
    good: list[Any] = []
    for name in numbers:
        values = [-1, float("nan"), float("inf")] + ([] if name in MAY_BE_ZERO else [0])
        for value in values:
            refused = refusal(learner.TrainConfig, **{**settings, name: value})
            bad.append([name, repr(value), refused])
        fine = 0 if name in MAY_BE_ZERO else settings[name] * 2
        fine = 0.5 if name == "dropout" and context.seed % 2 else fine
        good.append([name, repr(fine), refusal(learner.TrainConfig, **settings | {name: fine})])
    with contextlib.suppress(AttributeError, TypeError):
        cfg.seed = settings["seed"] + 1
    return {
        "lost": [[n, repr(settings[n]), kept[n]] for n in kept if kept[n] != repr(settings[n])],
        "changed": cfg.seed != settings["seed"],
        "bad": bad,
        "good": good,
    }


def steps_of(learner: SimpleNamespace, cfg: Any, rank: int, size: int, position: int) -> Any:
    """What a sampler yields, as plain data."""
    sampler = learner.ResumeAwareDistributedSampler(cfg, rank, size, position)
    return [[int(e), [int(i) for i in samples], int(s)] for e, samples, s in sampler]


def rows_of(dataset: Any, count: int) -> list[str]:
    """Every sample's input and label, as text that can be compared."""
    import torch

    def text(part: Any) -> str:
        return torch.as_tensor(part).contiguous().numpy().tobytes().hex()

    return [" ".join(text(part) for part in dataset[i]) for i in range(count)]


def data_body(context: RankContext, learner: SimpleNamespace) -> Any:
    """The orders of several seeds, sizes and positions, from one and from several ranks."""
    import random

    import torch

    plan = plan_of(context.seed)
    folder, draw = context.folder / "data", random.Random(context.seed + 1)

    def config(**changes: Any) -> Any:
        return learner.TrainConfig(**plan.settings(folder, **changes))

    cfg = config()
    alone = steps_of(learner, cfg, 0, 1, 0)
    torch.manual_seed(draw.randrange(10**6))  # whoever draws from it gets another number now
    random.seed(draw.randrange(10**6))
    answer: dict[str, Any] = {
        "again": steps_of(learner, cfg, 0, 1, 0),
        "ranks": {
            size: [steps_of(learner, cfg, rank, size, 0) for rank in range(size)]
            for size in (2, 3, 4, 5)
        },
        # The run is configured anew: what isn't the order's key must not move the order.
        "other settings": steps_of(
            learner,
            config(micro_batch_size=1, learning_rate=0.5, max_epochs=EPOCHS + 1),
            0,
            1,
            0,
        )[: len(alone)],
        "other batch": steps_of(
            learner, config(global_batch_size=plan.global_batch_size + 2), 0, 1, 0
        ),
        "other seed": steps_of(learner, config(seed=plan.seed + 1), 0, 1, 0),
        # Digits that run into each other, and a sum: keys that collide.
        "key 1, 21": steps_of(learner, config(seed=1, max_epochs=22), 0, 1, 0),
        "key 12, 1": steps_of(learner, config(seed=12, max_epochs=22), 0, 1, 0),
        "positions": [],
    }
    for position in (1, plan.steps_per_epoch, plan.steps_per_epoch + 2, 10, plan.total):
        found = [steps_of(learner, cfg, rank, 2, position) for rank in range(2)]
        answer["positions"].append([position, found])
    rows = rows_of(learner.ToyClassificationDataset(cfg), plan.num_samples)
    torch.manual_seed(draw.randrange(10**6))
    other = learner.ToyClassificationDataset(cfg)
    backward = [other[i] for i in reversed(range(plan.num_samples))][::-1]
    return answer | {
        "alone": alone,
        "rows": rows,
        "rows again": rows_of(backward, plan.num_samples),
        "plan": plan._asdict(),
    }
