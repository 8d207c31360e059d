"""What one check of the cell draws: the data, the settings, and when a rank is signaled."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from trainer_core.config import TrainConfig

SHAPES: dict[str, Any] = {"toy": {"input_dim": 6}, "tokens": {"seq_len": 4, "vocab_size": 16}}


class Plan(NamedTuple):
    """One check's numbers. Steps count from 1 over the whole run."""

    world_size: int
    num_samples: int
    steps_per_epoch: int
    epochs: int
    every: int  # checkpoint_every_steps
    settings: dict[str, Any]  # further fields of the config
    stop_at: int = 0  # SIGTERM in this step, on stop_rank
    stop_rank: int = 0
    kill_after: int = 0  # SIGKILL in this step of the next start, on kill_rank
    kill_rank: int = 0
    bad_step: int = 0  # bad_rank can't read one of its samples
    bad_rank: int = 0
    saves_behind: str = ""  # the scenario whose start saves in the background

    @property
    def total(self) -> int:
        """All steps."""
        return self.steps_per_epoch * self.epochs

    def is_epoch_end(self, step: int) -> bool:
        """Whether a step is the last of its epoch."""
        return step % self.steps_per_epoch == 0

    def is_due(self, step: int) -> bool:
        """Whether a save is due after a step."""
        return self.is_epoch_end(step) or step % self.every == 0

    def last_due(self, step: int) -> int:
        """The newest save that was due before ``step`` was complete; 0 if there is none."""
        return max((at for at in range(1, step) if self.is_due(at)), default=0)

    def stopping(self) -> Plan:
        """The same with a save after each step, so that a stop comes where one is due."""
        return self._replace(every=1)

    def config(self, run_dir: Path, data: str = "toy") -> TrainConfig:
        """The config that the learner's ``run`` gets."""
        from trainer_core.config import TrainConfig

        return TrainConfig(
            run_dir=run_dir,
            data=data,
            dataset_size=self.num_samples,
            max_epochs=self.epochs,
            checkpoint_every_steps=self.every,
            device="cpu",
            dist_timeout_s=30.0,
            **SHAPES[data.partition(":")[0]],
            **(self.settings if data == "toy" else self.settings | {"input_noise": 0.0}),
        )


def plan_of(seed: int) -> Plan:
    """Several ranks, with a stop and a kill whose effects can be told apart.

    A stop comes before step 10, the last save before the kill after it: by name, step-9 is
    newer than step-10. The last step of an epoch has fewer samples than there are ranks.
    """
    draw = random.Random(seed)
    world_size = draw.choice((2, 2, 3))
    batch, settings = drawn_batch(draw, world_size)
    settings |= drawn_settings(draw)
    while True:
        steps, epochs, every = draw.randint(5, 9), draw.randint(2, 4), draw.randint(3, 6)
        plan = Plan(
            world_size=world_size,
            num_samples=(steps - 1) * batch + draw.randrange(1, world_size),
            steps_per_epoch=steps,
            epochs=epochs,
            every=every,
            # Loader workers run ahead of the training.
            settings=settings
            | {
                "num_workers": draw.choice((0, 0, 2)),
                "decay_steps": draw.choice((25, 40)),
                "input_noise": draw.choice((0.05, 0.1, 0.3)),
                "log_every": draw.choice((4, 5, 6, 7)),
            },
            stop_at=draw.randint(2, 7),
            stop_rank=draw.randrange(world_size),
            kill_rank=draw.randrange(world_size),
            bad_step=draw.randint(2, steps - 1),
            bad_rank=draw.randrange(world_size),
            saves_behind=draw.choice(("uninterrupted", "sigterm", "resumed")),
        )
        saved = draw.choice(range(12 - 12 % every, 19, every))
        plan = plan._replace(kill_after=saved - plan.stop_at + 1)
        if is_telling(plan, saved):
            return plan


def is_telling(plan: Plan, saved: int) -> bool:
    """Whether every place where a run may resume by mistake differs from the right one.

    Args:
        saved: the save after which the kill comes, 1 to 3 steps later: a run stops in the step
            of its SIGTERM or in one of the next two.
    """
    stop, log_every = plan.stop_at, plan.settings["log_every"]
    return (
        13 <= plan.total <= 20
        and 10 <= saved <= plan.total - 3
        and not any(plan.is_epoch_end(step) for step in (saved, saved + 1, saved + 2))
        and plan.last_due(stop) > 0  # or a stop without a save is a fresh start
        # An answer that looks for the stop only when it logs is late.
        and all(step % log_every for step in range(stop, stop + 3))
        and not plan.is_due(stop)
        and not plan.is_due(stop + 1)
        and not plan.is_epoch_end(stop + 2)
    )


def one_rank(seed: int) -> Plan:
    """A single process without peers, whose every save is watched; it crosses step 9, too.

    Its config names no horizon for the rates; that of ``plan_of`` does.
    """
    draw = random.Random(f"one rank {seed}")
    batch, settings = drawn_batch(draw, 1)
    steps = draw.choice((3, 4))
    plan = Plan(
        world_size=1,
        num_samples=(steps - 1) * batch + draw.randrange(1, batch),
        steps_per_epoch=steps,
        epochs=draw.choice((4, 5)) if steps == 3 else draw.choice((3, 4)),
        every=draw.choice((2, 5)),
        settings=settings | drawn_settings(draw, (None, 0.25, 0.7)),
    )
    # A stop may end in the run's last step, too.
    return plan._replace(stop_at=draw.choice((draw.randint(1, plan.total), plan.total - 1)))


def drawn_batch(draw: random.Random, world_size: int) -> tuple[int, dict[str, Any]]:
    """The global batch, and the settings that make it; the ranks don't divide it if pinned."""
    micro = draw.choice((1, 2, 3))
    if world_size > 1 and draw.random() < 0.6:
        batch = draw.choice([n for n in range(4, 10) if n % world_size])
        return batch, {"pinned_global_batch_size": batch, "micro_batch_size": micro}
    accumulate = draw.choice((2, 3))
    batch = micro * accumulate * world_size
    return batch, {"micro_batch_size": micro, "grad_accum_steps": accumulate}


def drawn_settings(
    draw: random.Random, bounds: Sequence[float | None] = (0.6, 0.7, 0.8)
) -> dict[str, Any]:
    """What shapes the updates.

    Args:
        bounds: of the gradient's norm. The default ones bind in the small last steps of an
            epoch, and in few others: AdamW hides a factor that all gradients have.
    """
    return {
        "seed": draw.randrange(1, 1000),
        "hidden_dim": 2 * draw.randint(3, 6),
        "num_heads": 2,
        "num_layers": draw.choice((1, 2)),
        "dropout": draw.choice((0.15, 0.2, 0.3)),
        "learning_rate": draw.choice((0.004, 0.01, 0.02)),
        "min_lr_fraction": draw.choice((0.0, 0.1, 0.3)),
        "warmup_steps": draw.randrange(4),
        "decay_steps": None,
        "weight_decay": draw.choice((0.0, 0.01, 0.2)),
        "max_grad_norm": draw.choice(bounds),
        "log_every": draw.randint(1, 4),
        "keep_last": draw.randint(1, 3),
    }
