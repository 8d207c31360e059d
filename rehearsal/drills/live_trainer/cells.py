"""The cells that need no second process: config and data."""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from rehearsal.engine.rank import RankContext
from rehearsal.kit.observe.refusal import refusal

from .draws import FACTORS, NOISY_SEED, SmallRun, keys_of

MAY_BE_ZERO = ("seed", "dropout")
REAL = ("learning_rate", "dropout")
FAR_LINES = 20_000  # to yield one epoch: of pure Python that shuffles for each step, 7,000
# Whatever else is set, these may be 1.
MAY_BE_ONE = ("max_epochs", "micro_batch_size", "warmup_steps", "checkpoint_every_steps")


def config_body(plan: SmallRun, context: RankContext, learner: SimpleNamespace) -> Any:
    """Good values, then one bad value at a time; then an assignment to each field."""
    draw = random.Random(f"config {plan.seed}")
    settings = plan.settings(context.folder / "config")
    cfg = learner.TrainConfig(**settings)
    kept = {name: repr(getattr(cfg, name, None)) for name in settings}
    bad: list[Any] = []
    good: list[Any] = []
    for name, value in settings.items():
        if isinstance(value, str):
            continue
        # Two digits: a message may round.
        negative = -draw.randint(1, 99) / 100 if name in REAL else -draw.randint(1, 50)
        wrong = [negative, -1, float("nan"), float("inf"), float("-inf")]
        for one in wrong + ([] if name in MAY_BE_ZERO else [0]):
            refused = refusal(learner.TrainConfig, **{**settings, name: one})
            bad.append([name, repr(one), refused])
        fine: list[Any] = [0] if name in MAY_BE_ZERO else [value * 2]
        fine += [1] if name in MAY_BE_ONE else []
        fine += [draw.uniform(0.3, 0.9)] if name == "dropout" else []
        fine += [draw.choice((2e-5, 1.5))] if name == "learning_rate" else []
        fine += [draw.randrange(10**6, 10**9)] if name == "seed" else []
        for one in fine:
            refused = refusal(learner.TrainConfig, **settings | {name: one})
            good.append([name, repr(one), refused])
    changed = []
    for name, value in settings.items():
        with contextlib.suppress(Exception):
            setattr(cfg, name, f"{value}-2" if isinstance(value, str) else value + 1)
        if repr(getattr(cfg, name, None)) != kept[name]:
            changed.append(name)
    return {
        "alone": refusal(learner.TrainConfig),
        "lost": [[n, repr(settings[n]), kept[n]] for n in kept if kept[n] != repr(settings[n])],
        "changed": changed,
        "bad": bad,
        "good": good,
    }


def steps_of(learner: SimpleNamespace, cfg: Any, rank: int, size: int, position: int) -> Any:
    """What a sampler yields, as plain data."""
    sampler = learner.ResumeAwareDistributedSampler(cfg, rank, size, position)
    return [[int(e), [int(i) for i in samples], int(s)] for e, samples, s in sampler]


class TooFar(BaseException):
    """More lines than allowed; the learner's code doesn't catch it."""


@contextlib.contextmanager
def at_most_lines(lines: int) -> Iterator[None]:
    """Leave the block once the functions called in it have run so many lines.

    However slow the machine is, it's the same line.
    """

    def trace(*_: Any) -> Any:
        nonlocal lines
        lines -= 1
        if lines < 0:
            raise TooFar
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    except TooFar:
        pass
    finally:
        sys.settrace(before)


def rows_of(dataset: Any, order: range) -> list[str]:
    """Every sample's input and label, as text that can be compared, by sample.

    Args:
        order: in which the samples are read.
    """
    import torch

    def text(part: Any) -> str:
        return torch.as_tensor(part).contiguous().numpy().tobytes().hex()

    rows = {i: " ".join(text(part) for part in dataset[i]) for i in order}
    return [rows[i] for i in sorted(rows)]


def data_body(plan: SmallRun, context: RankContext, learner: SimpleNamespace) -> Any:
    """The orders of several seeds, sizes and positions, from one and from several ranks.

    The second process has another hash seed; it says only what order and samples it finds.
    """
    import numpy as np
    import torch

    folder, draw = context.folder / "data", random.Random(f"data {plan.seed} {context.rank}")

    def config(**changes: Any) -> Any:
        return learner.TrainConfig(**plan.settings(folder, **changes))

    def of_seed_0() -> dict[str, Any]:
        reseed()
        of_0 = config(seed=NOISY_SEED)
        steps = steps_of(learner, of_0, 0, 1, 0)
        return {
            "alone": steps,
            "rows": rows_of(learner.ToyClassificationDataset(of_0), samples),
        }

    def reseed() -> None:
        """Whoever draws from a global generator gets another number now."""
        torch.manual_seed(draw.randrange(10**6))
        random.seed(draw.randrange(10**6))
        np.random.seed(draw.randrange(10**6))

    cfg, samples = config(), range(plan.num_samples)
    reseed()
    alone = steps_of(learner, cfg, 0, 1, 0)
    answer = {"alone": alone, "rows": rows_of(learner.ToyClassificationDataset(cfg), samples)}
    if context.rank:
        return answer
    reseed()
    answer |= {
        "again": steps_of(learner, cfg, 0, 1, 0),
        "rows again": rows_of(learner.ToyClassificationDataset(cfg), samples[::-1]),
        "ranks": {
            size: [steps_of(learner, cfg, rank, size, 0) for rank in range(size)]
            for size in (2, 3, 4, 5)
        },
        # The run is configured anew: what isn't the order's key must not move the order.
        "other settings": steps_of(
            learner,
            config(
                run_dir=f"{folder}-2",
                micro_batch_size=1,
                learning_rate=0.5,
                warmup_steps=plan.warmup_steps + 1,
                dropout=0,
                checkpoint_every_steps=plan.every + 1,
                max_epochs=plan.epochs + 1,
            ),
            0,
            1,
            0,
        )[: len(alone)],
        "other batch": steps_of(
            learner, config(global_batch_size=plan.global_batch_size + 2), 0, 1, 0
        ),
        "other seed": steps_of(learner, config(seed=plan.seed + 1), 0, 1, 0),
        "seed 0": of_seed_0(),
        "seed 0 again": of_seed_0(),
    }
    answer["keys"] = []
    for seed, epoch in keys_of(plan):
        key = config(seed=seed, max_epochs=epoch + 1)
        is_far = epoch > max(FACTORS)
        with at_most_lines(FAR_LINES) if is_far else contextlib.nullcontext():
            last = steps_of(learner, key, 0, 1, epoch * plan.steps_per_epoch)
            answer["keys"].append([seed, epoch, [i for _, own, _ in last for i in own]])
            continue
        break  # the sampler passes every epoch before this one
    answer["positions"] = []
    ends = plan.steps_per_epoch
    places = {1, ends - 1, ends, ends + 1, 9, 10, plan.total - 1, plan.total}
    for position in sorted({*places, draw.randrange(2, plan.total)}):
        found = [steps_of(learner, cfg, rank, 2, position) for rank in range(2)]
        answer["positions"].append([position, found])
    return answer
