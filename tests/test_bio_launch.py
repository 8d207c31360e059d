"""The biotech track's loop: a mean over labels that are there, and everything that the trainer
promises, on several ranks and across a kill."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from rehearsal.evidence.audit import audit_run
from trainer_core.bio import launch
from trainer_core.bio.batches import TensorBatch
from trainer_core.bio.config import BioConfig
from trainer_core.data import SampleKey, StepSchedule
from trainer_core.local_launcher import LocalRanks, RankResult
from trainer_core.model import build_optimizer, learning_rate_at
from trainer_core.order import EpochOrder
from trainer_core.rng import setup_seed
from trainer_core.settings import UserError
from trainer_core.train import Trainer

# Ranks cannot import a test module; its functions travel by value.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

NUM_MOLECULES, NUM_TASKS = 47, 3


@dataclass(frozen=True, slots=True)
class Rows(TensorBatch):
    features: Tensor  # (B, 6)

    def __len__(self) -> int:
        return len(self.features)

    def placeholder(self) -> Rows:
        return replace(self, features=self.features.new_zeros(1, 6))


class SparseAssays:
    """A table in memory: 6 features, 3 tasks, of whose labels most are missing."""

    num_classes = NUM_TASKS

    def __init__(self, content: int = 0) -> None:
        draw = np.random.default_rng(content)
        self.features = torch.from_numpy(draw.standard_normal((NUM_MOLECULES, 6))).float()
        self.labels = torch.from_numpy(draw.integers(0, 2, (NUM_MOLECULES, NUM_TASKS))).float()
        # Uneven on purpose: half of the molecules have no label at all.
        missing = draw.random((NUM_MOLECULES, NUM_TASKS)) < 0.6
        missing[::2] = True
        self.labels[torch.from_numpy(missing)] = torch.nan
        self.fingerprint = f"assays {content}"

    def __len__(self) -> int:
        return NUM_MOLECULES

    def batch(self, samples: Sequence[int] | Tensor) -> tuple[Rows, Tensor]:
        rows = torch.as_tensor(samples, dtype=torch.int64)
        return Rows(self.features[rows]), self.labels[rows]

    def visit(self, keys: Sequence[SampleKey], seed: int) -> tuple[Rows, Tensor]:
        return self.batch([key.sample for key in keys])

    def num_terms(self, bins: NDArray[np.int64]) -> int:
        return int((~self.labels[torch.from_numpy(bins)].isnan()).sum())

    def build_model(self, cfg: BioConfig) -> nn.Module:
        return Network()

    def summed_loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        there = ~targets.isnan()
        return F.binary_cross_entropy_with_logits(
            outputs[there], targets[there], reduction="sum"
        )


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, NUM_TASKS))

    def forward(self, batch: Rows) -> Tensor:
        logits: Tensor = self.layers(batch.features)
        return logits


def settings(run_dir: Path, **others: Any) -> BioConfig:
    values: dict[str, Any] = {
        "data": "molecules",
        "max_epochs": 2,
        "micro_batch_size": 2,
        "pinned_global_batch_size": 8,
        "checkpoint_every_steps": 4,
        "learning_rate": 1e-2,
        "device": "cpu",
        "trace_steps": 0,
    }
    return BioConfig(run_dir=run_dir, **(values | others))


def train(cfg: BioConfig, *, content: int = 0, dies_at: int | None = None) -> dict[str, Any]:
    """Run the loop on this rank; ``dies_at`` is the step in which the last rank is killed."""
    launch.build_task = lambda _: SparseAssays(content)
    step = launch.task_step
    steps = iter(range(1, 1000))

    def deadly(trainer: Trainer, *arguments: Any) -> Tensor:
        if next(steps) == dies_at and int(os.environ["RANK"]) == trainer.cfg.world_size - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return step(trainer, *arguments)

    launch.task_step = deadly
    return launch.run_task(cfg)


def on_ranks(world_size: int, cfg: BioConfig, **others: Any) -> list[RankResult]:
    return LocalRanks(partial(train, cfg, **others), world_size).wait(120)


def weights(run_dir: Path) -> Tensor:
    newest = max((run_dir / "checkpoints").glob("step-*"))
    state = torch.load(newest / "state.pt", weights_only=True)
    return torch.cat([tensor.flatten() for tensor in state["model"].values()])


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run folder of one process."""
    run_dir = tmp_path_factory.mktemp("alone") / "run"
    (result,) = on_ranks(1, settings(run_dir))
    assert result.exitcode == 0, result.traceback
    return run_dir


def by_hand() -> Tensor:
    """The same training in ten lines, on whole batches: the mean over the labels that exist."""
    cfg = settings(Path("unused"), world_size=1)
    task, schedule = SparseAssays(), StepSchedule(NUM_MOLECULES, 8, 2)
    setup_seed(cfg.seed, "weights")
    model = Network()
    optimizer = build_optimizer(cfg, model)
    cfg = replace(cfg, decay_steps=schedule.total_steps)
    for position in range(schedule.total_steps):
        epoch, first, last = schedule.slots(position)
        order = EpochOrder(NUM_MOLECULES, seed=cfg.seed, epoch=epoch)
        rows, labels = task.batch(order.samples(first, last).tolist())
        there = ~labels.isnan()
        loss = F.binary_cross_entropy_with_logits(model(rows)[there], labels[there])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate_at(cfg, position + 1)
        optimizer.step()
    return torch.cat([tensor.detach().flatten() for tensor in model.state_dict().values()])


@pytest.mark.ranks
class TestRanks:
    def test_one_process_follows_the_mean_over_labels(self, alone: Path) -> None:
        """A mean over samples weighs a label by how many others its molecule has."""
        assert (weights(alone) - by_hand()).abs().max() < 1e-6

    def test_it_saves_at_the_end_of_an_epoch(self, alone: Path) -> None:
        """A run with few steps in an epoch might never reach the next multiple."""
        saved = sorted(path.name for path in (alone / "checkpoints").glob("step-*"))
        assert [int(name.removeprefix("step-")) for name in saved] == [6, 8, 12]

    @pytest.mark.parametrize("world_size", [2, 3])
    def test_ranks_with_uneven_labels_equal_one_process(
        self, tmp_path: Path, alone: Path, world_size: int
    ) -> None:
        """A mean per rank, averaged over ranks, trains another model; a rank without labels
        that leaves out the sync hangs the others."""
        results = on_ranks(world_size, settings(tmp_path / "run"))
        assert [result.exitcode for result in results] == [0] * world_size
        assert (weights(tmp_path / "run") - weights(alone)).abs().max() < 1e-6
        assert results[0].value["loss"] == pytest.approx(
            on_ranks(1, settings(alone))[0].value["loss"], abs=1e-6
        )
        assert audit_run(tmp_path / "run").status == "proved"

    def test_killed_and_resumed_on_other_ranks_trains_each_sample_once(
        self, tmp_path: Path, alone: Path
    ) -> None:
        """What is added to the trainer must not cost what it's for."""
        killed = on_ranks(2, settings(tmp_path / "run"), dies_at=6)
        assert killed[1].exitcode == -signal.SIGKILL
        resumed = on_ranks(3, settings(tmp_path / "run"))
        assert [result.exitcode for result in resumed] == [0] * 3
        assert (weights(tmp_path / "run") - weights(alone)).abs().max() < 1e-6
        report = audit_run(tmp_path / "run")
        assert report.status == "proved"
        assert report.replayed_steps > 0

    def test_other_data_is_refused_on_every_rank(self, alone: Path) -> None:
        """A resume on another table would train its rows under the old weights."""
        results = on_ranks(2, settings(alone), content=1)
        assert [result.exitcode for result in results] == [2, 2]
        assert all("dataset_fingerprint" in result.traceback for result in results)


class TestSettings:
    @pytest.mark.parametrize(
        ("values", "message"),
        [
            ({"data": "molecules:"}, "is no dataset of the biotech track"),
            ({"data": "toy"}, "is no dataset of the biotech track"),
            ({"split": "chronological"}, "must be one of random, scaffold"),
            ({"budget": 0}, "at least 1"),
            ({"input_noise": 0.1}, "plus noise is something else"),
            ({"warmup_steps": 5, "decay_steps": 5}, "no step is left to decay in"),
        ],
    )
    def test_a_mistake_is_refused_with_its_rule(
        self, values: dict[str, Any], message: str
    ) -> None:
        """Training on what nobody meant is the expensive way to find a typing error."""
        with pytest.raises(UserError, match=message):
            settings(Path("unused"), **values)
