"""The live trainer keeps every promise of its 200 lines."""

from __future__ import annotations

import contextlib
import gc
import hashlib
import io
import json
import os
import pickle
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from rehearsal.engine import programs
from rehearsal.engine.rank import RankContext
from rehearsal.engine.ranks import run_ranks
from rehearsal.evidence.audit import audit_run
from rehearsal.evidence.run_plan import RunPlan
from rehearsal.evidence.run_records import read_jsonl
from rehearsal.faults.breaks import at_step, both, is_rank, kill, wrap
from rehearsal.faults.jobs import (
    LIVE,
    SIX_STEPS_LIVE,
    arguments,
    codes_of,
    finish,
    problem_of,
    small_live,
    start,
)
from trainer_core import live

# Ranks cannot import a test module; its functions travel by value.
cloudpickle.register_pickle_by_value(sys.modules[__name__])
# The ledger stays open until the process ends; a run in this process drops it.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")

STEPS = 26  # of ``small_live``: 203 samples in global batches of 16, twice
SAVED = [3, 6, 9, 12, 13, 15, 18, 21, 24, 26]  # every third step, and each epoch's last


def contents(folder: Path) -> dict[str, tuple[int, bytes]]:
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in files}


def ledger(run_dir: Path | str, rank: int = 0) -> list[dict[str, Any]]:
    """The steps that a rank recorded."""
    lines = read_jsonl(Path(run_dir, "ledger", f"rank-{rank}.jsonl"))
    return [line for line in lines if "samples" in line]


def run_starts(run_dir: Path | str, rank: int = 0) -> list[dict[str, Any]]:
    lines = read_jsonl(Path(run_dir, "ledger", f"rank-{rank}.jsonl"))
    return [line for line in lines if line.get("event") == "run_start"]


class Power(BaseException):
    """Fails in the middle of a step; nothing in the trainer catches it."""


def fail_at(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """Stop the process's training in ``step``, before the optimizer has taken it."""
    original = torch.optim.AdamW.step

    def stepping(self: Any, *rest: Any) -> Any:
        done = [int(state["step"]) for state in self.state.values()]
        if done and done[0] + 1 == step:
            raise Power
        return original(self, *rest)

    monkeypatch.setattr(torch.optim.AdamW, "step", stepping)


def killed_at(step: int, cfg: live.TrainConfig) -> None:
    """A run in this process that stops in the middle of ``step``."""
    with pytest.MonkeyPatch.context() as monkeypatch, contextlib.suppress(Power):
        fail_at(monkeypatch, step)
        live.run(cfg)
        pytest.fail(f"the run never came to step {step}")


# ---------------------------------------------------------------- config


class TestConfig:
    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("dataset_size", 0),
            ("dataset_size", -5),
            ("max_epochs", 0),
            ("seed", -1),
            ("global_batch_size", 0),
            ("micro_batch_size", 0),
            ("learning_rate", 0.0),
            ("learning_rate", float("nan")),
            ("learning_rate", float("inf")),
            ("warmup_steps", 0),
            ("dropout", -0.1),
            ("dropout", 1.5),
            ("dropout", float("nan")),
            ("checkpoint_every_steps", 0),
        ],
    )
    def test_a_value_that_cannot_work_is_refused_by_name(self, name: str, value: Any) -> None:
        """A mistake that is found in the first second costs a second."""
        settings: dict[str, Any] = {name: value}
        with pytest.raises(live.UserError, match=f"{name}={value}"):
            live.TrainConfig(**settings)

    def test_zero_is_a_seed_and_a_dropout(self) -> None:
        cfg = live.TrainConfig(seed=0, dropout=0.0)
        assert (cfg.seed, cfg.dropout) == (0, 0.0)

    @pytest.mark.parametrize(("n", "steps"), [(1, 1), (32, 1), (33, 2), (2000, 63)])
    def test_the_last_step_takes_the_rest(self, n: int, steps: int) -> None:
        """Dropping the rest would leave samples that no epoch trains."""
        assert live.TrainConfig(dataset_size=n).steps_per_epoch == steps


# ---------------------------------------------------------------- order, data, sampler


class TestOrder:
    @given(st.integers(1, 500), st.integers(0, 99), st.integers(0, 99))
    def test_it_is_a_function_of_n_seed_and_epoch(self, n: int, seed: int, epoch: int) -> None:
        """A restart that shuffles again repeats some samples and loses others."""
        order = live.epoch_order(n, seed, epoch).tolist()
        assert sorted(order) == list(range(n))
        np.random.seed(seed)  # whatever else draws
        assert live.epoch_order(n, seed, epoch).tolist() == order

    def test_it_is_the_same_in_every_process(self) -> None:
        """Python salts hash() in each process: a restart would have a different order."""
        assert live.epoch_order(8, 17, 0).tolist() == [3, 6, 2, 1, 0, 7, 5, 4]
        assert live.seed_for("order", 17, 0) == 17924082764055453801

    def test_epochs_and_seeds_have_orders_of_their_own(self) -> None:
        """The same order each epoch makes the same batches, and a model learns them."""
        keys = [(seed, epoch) for seed in range(30) for epoch in range(30)]
        assert len({tuple(live.epoch_order(50, *key)) for key in keys}) == len(keys)

    @given(st.integers(1, 300), st.integers(0, 9), st.integers(0, 9))
    def test_the_audit_expects_this_order(self, n: int, seed: int, epoch: int) -> None:
        """It has its own version of the rule; a trainer can't vouch for itself."""
        planned = RunPlan(n, seed, 8, 1, is_live=True).shuffled(epoch)
        assert planned.tolist() == live.epoch_order(n, seed, epoch).tolist()

    def test_words_of_a_key_do_not_run_together(self) -> None:
        """(seed 1, epoch 21) would train like (seed 12, epoch 1)."""
        assert live.seed_for("order", 1, 21) != live.seed_for("order", 12, 1)
        assert live.seed_for("order", 1, 1) != live.seed_for("dropout", 1, 1)


class TestDataset:
    def test_it_is_a_function_of_the_seed(self) -> None:
        """Ranks that draw different data train on samples the ledger never names."""
        cfg = small_live(Path("x"))
        everything = torch.arange(203)
        torch.manual_seed(1)
        one = live.ToyClassificationDataset(cfg)[everything]
        torch.manual_seed(2)
        two = live.ToyClassificationDataset(cfg)[everything]
        assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))
        other = live.ToyClassificationDataset(small_live(Path("x"), seed=18))[everything]
        assert not torch.equal(one[0], other[0])

    def test_an_index_names_one_sample(self) -> None:
        """The ledger records indices, so an index must be the sample."""
        dataset = live.ToyClassificationDataset(small_live(Path("x")))
        inputs, labels = dataset[torch.tensor([5, 2])]
        assert torch.equal(inputs, dataset.inputs[[5, 2]])
        assert labels.tolist() == inputs[:, :4].argmax(1).tolist()


def share(cfg: live.TrainConfig, rank: int, world_size: int, position: int = 0) -> list[Any]:
    """What the sampler deals a rank: (epoch, samples, S) of each step that is left."""
    steps = live.ResumeAwareDistributedSampler(cfg, rank, world_size, position)
    return [(epoch, samples.tolist(), S) for epoch, samples, S in steps]


@st.composite
def configs(draw: st.DrawFn) -> live.TrainConfig:
    """Sizes that divide nothing evenly."""
    return live.TrainConfig(
        dataset_size=draw(st.integers(1, 120)),
        global_batch_size=draw(st.integers(1, 50)),
        max_epochs=draw(st.integers(1, 3)),
        seed=draw(st.integers(0, 9)),
    )


class TestSampler:
    @given(configs(), st.lists(st.integers(1, 6), min_size=1))
    def test_each_sample_once_an_epoch_however_often_the_ranks_change(
        self, cfg: live.TrainConfig, sizes: list[int]
    ) -> None:
        """A sample that two ranks train counts twice in the gradient."""
        total = cfg.max_epochs * cfg.steps_per_epoch
        trained: dict[int, list[int]] = {epoch: [] for epoch in range(cfg.max_epochs)}
        for position in range(total):
            world_size = sizes[position % len(sizes)]
            shares = [share(cfg, rank, world_size, position)[0] for rank in range(world_size)]
            (epoch,) = {epoch for epoch, _, _ in shares}
            (S,) = {S for _, _, S in shares}
            assert epoch == position // cfg.steps_per_epoch
            assert sum(len(samples) for _, samples, _ in shares) == S
            lengths = [len(samples) for _, samples, _ in shares]
            assert max(lengths) - min(lengths) <= 1
            dealt = [0] * S
            for rank, (_, samples, _) in enumerate(shares):
                dealt[rank::world_size] = samples
            trained[epoch] += dealt
        for epoch, samples in trained.items():
            expected = live.epoch_order(cfg.dataset_size, cfg.seed, epoch).tolist()
            assert samples == expected

    @given(configs(), st.data())
    def test_a_resume_deals_what_is_left(self, cfg: live.TrainConfig, data: Any) -> None:
        """Off by one, a step is trained twice or never."""
        total = cfg.max_epochs * cfg.steps_per_epoch
        position = data.draw(st.integers(0, total))
        assert share(cfg, 0, 2, position) == share(cfg, 0, 2)[position:]

    def test_every_step_but_an_epochs_last_is_a_global_batch(self) -> None:
        sizes = [S for _, _, S in share(small_live(Path("x")), 0, 3)]
        assert sizes == 2 * ([16] * 12 + [11])


# ---------------------------------------------------------------- model and step


class TestLearningRate:
    def test_it_warms_up_to_its_peak_and_falls_with_the_root_of_the_step(self) -> None:
        cfg = live.TrainConfig(learning_rate=0.4, warmup_steps=20)
        rates = [live.learning_rate_at(cfg, step) for step in (0, 1, 10, 20, 80, 320)]
        assert rates == pytest.approx([0, 0.02, 0.2, 0.4, 0.2, 0.1])

    def test_it_reaches_the_optimizer_also_after_a_resume(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The optimizer's state brings an old rate with it."""
        rates: list[float] = []
        original = torch.optim.AdamW.step

        def stepping(self: Any) -> Any:
            rates.append(self.param_groups[0]["lr"])
            return original(self)

        monkeypatch.setattr(torch.optim.AdamW, "step", stepping)
        cfg = small_live(tmp_path)
        killed_at(14, cfg)
        live.run(cfg)
        steps = [*range(1, 14), *range(14, STEPS + 1)]
        assert rates == [live.learning_rate_at(cfg, step) for step in steps]


@pytest.fixture
def meeting(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The stores with which ranks meet under one torchrun, instead of a process group."""
    shared, stores = dist.HashStore(), list[Any]()
    monkeypatch.setattr(dist, "rendezvous", lambda url: iter([(shared, 0, 2)]))
    monkeypatch.setattr(
        dist, "init_process_group", lambda *_, store=None, **__: stores.append(store or shared)
    )
    for name, value in {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    return stores


class TestDistributed:
    def test_alone_there_is_no_group(
        self, meeting: list[Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
            monkeypatch.delenv(name)
        assert live.maybe_init_dist(live.TrainConfig(device="cpu")) == (0, 1)
        assert meeting == []

    def test_a_restart_does_not_meet_the_dead(
        self, meeting: list[Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Their addresses are still in torchrun's store; connecting to one hangs the job."""
        for attempt in ("0", "1"):
            monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", attempt)
            assert live.maybe_init_dist(live.TrainConfig(device="cpu")) == (1, 2)
        dead, alive = meeting
        dead.set("address", "of the dead")
        assert not alive.check(["address"])
        assert dead.check(["address"])

    def test_a_restart_does_not_answer_the_dead(
        self, meeting: list[Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """NCCL's request for dumps ignores any prefix; a rank that reads it hangs at exit."""
        live.maybe_init_dist(live.TrainConfig(device="cpu"))
        (dead,) = meeting
        dead.underlying_store.set("exception_dump", "0")
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
        live.maybe_init_dist(live.TrainConfig(device="cpu"))
        assert not meeting[1].underlying_store.check(["exception_dump"])


def gradients(cfg: live.TrainConfig, samples: torch.Tensor, scale: float) -> list[torch.Tensor]:
    """The clipped gradient of the mean loss over ``samples``, the way a textbook has it."""
    torch.manual_seed(0)
    model = live.TinyNet(cfg)
    inputs, labels = live.ToyClassificationDataset(cfg)[samples]
    nn.functional.cross_entropy(model(inputs * scale), labels).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


def one_step(
    cfg: live.TrainConfig, rank: int, world_size: int, samples: torch.Tensor, scale: float
) -> tuple[Any, list[torch.Tensor], int]:
    """This rank's part of the loss, its gradients, and how often the ranks synchronized."""
    torch.manual_seed(0)
    bare = live.TinyNet(cfg)
    model, syncs = bare, []
    if world_size > 1:
        model = live.wrap_model(cfg, bare)

        def reduce(_, bucket):  # type: ignore[no-untyped-def] # torch reads annotations
            syncs.append(1)
            work = dist.all_reduce(bucket.buffer().div_(world_size), async_op=True)
            return work.get_future().then(lambda done: done.value()[0])

        model.register_comm_hook(None, reduce)
    inputs, labels = live.ToyClassificationDataset(cfg)[samples[rank::world_size]]
    optimizer = torch.optim.SGD(bare.parameters(), lr=0.0)
    loss = live.train_step(
        cfg,
        model,
        optimizer,
        inputs * scale,
        labels,
        len(samples),
        world_size,
        live.StepTimers(),
    )
    grads = [parameter.grad for parameter in bare.parameters()]
    return loss, [grad for grad in grads if grad is not None], len(syncs)


def step_in_rank(context: RankContext, cfg: Any, samples: Any, scale: float) -> Any:
    """``one_step`` on a rank, as plain data."""
    context.init_group()
    loss, grads, syncs = one_step(cfg, context.rank, context.world_size, samples, scale)
    return float(loss), [grad.tolist() for grad in grads], syncs


def close(ours: Any, theirs: list[torch.Tensor]) -> bool:
    pairs = zip(ours, theirs, strict=True)
    return all(torch.allclose(torch.as_tensor(a), b, rtol=1e-4, atol=1e-6) for a, b in pairs)


class TestTrainStep:
    @pytest.mark.parametrize("micro_batch_size", [1, 3, 5, 100])
    @pytest.mark.parametrize("scale", [0.1, 100.0])
    def test_the_gradient_is_the_mean_over_the_samples(
        self, micro_batch_size: int, scale: float
    ) -> None:
        """A mean of means weighs the samples of a small micro-batch more."""
        cfg = live.TrainConfig(dropout=0.0, device="cpu", micro_batch_size=micro_batch_size)
        samples = torch.arange(11)
        loss, grads, _ = one_step(cfg, 0, 1, samples, scale)
        assert close(grads, gradients(cfg, samples, scale))
        torch.manual_seed(0)
        inputs, labels = live.ToyClassificationDataset(cfg)[samples]
        whole = nn.functional.cross_entropy(live.TinyNet(cfg)(inputs * scale), labels)
        assert float(loss) == pytest.approx(whole.item(), rel=1e-5)

    @pytest.mark.ranks
    @pytest.mark.parametrize("world_size", [2, 3, 4])
    @pytest.mark.parametrize(("num_samples", "scale"), [(23, 0.1), (23, 100.0), (1, 100.0)])
    def test_it_is_the_same_mean_on_several_ranks_that_sync_once(
        self, world_size: int, num_samples: int, scale: float
    ) -> None:
        """A rank without a sample must join the sum; clipping must come after it."""
        cfg = live.TrainConfig(dropout=0.0, device="cpu", micro_batch_size=2)
        samples = torch.arange(num_samples)
        reports = run_ranks(step_in_rank, cfg, samples, scale, world_size=world_size)
        assert not any(report.failure for report in reports), reports
        expected = gradients(cfg, samples, scale)
        assert all(close(report.answer[1], expected) for report in reports)
        assert [report.answer[2] for report in reports] == [1] * world_size
        loss, _, _ = one_step(cfg, 0, 1, samples, scale)
        total = sum(report.answer[0] for report in reports)
        assert total == pytest.approx(float(loss), rel=1e-4)

    def test_on_a_gpu_the_forward_pass_is_in_bf16_and_the_loss_is_not(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A sum of losses in bf16 has two digits."""
        asked, seen = [], []
        autocast, cross_entropy = torch.autocast, nn.functional.cross_entropy

        def on_this_cpu(device: str, dtype: Any) -> Any:
            asked.append((device, dtype))
            return autocast("cpu", dtype)

        def looking(logits: Any, *rest: Any, **named: Any) -> Any:
            seen.append(logits.dtype)
            return cross_entropy(logits, *rest, **named)

        monkeypatch.setattr(torch, "autocast", on_this_cpu)
        monkeypatch.setattr(nn.functional, "cross_entropy", looking)
        samples = torch.arange(16)
        cfg = live.TrainConfig(dropout=0.0, device="cuda", micro_batch_size=16)
        # wrap_model isn't called with one rank, so nothing is moved to a GPU.
        _, in_bf16, _ = one_step(cfg, 0, 1, samples, 1.0)
        cfg = live.TrainConfig(dropout=0.0, device="cpu", micro_batch_size=16)
        _, in_fp32, _ = one_step(cfg, 0, 1, samples, 1.0)
        assert asked == [("cuda", torch.bfloat16)]
        assert seen == [torch.float32] * 2
        assert close(in_fp32, gradients(cfg, samples, 1.0))
        assert not close(in_bf16, in_fp32)
        assert all(grad.dtype == torch.float32 for grad in in_bf16)

    def test_a_loss_that_is_not_finite_stops_the_run_before_the_weights(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Otherwise the newest good checkpoint is all NaN."""
        original = live.ToyClassificationDataset.__getitem__
        poisoned = live.epoch_order(203, 17, 0)[5 * 16]

        def reading(self: Any, samples: Any) -> Any:
            inputs, labels = original(self, samples)
            inputs[samples == int(poisoned)] = float("nan")
            return inputs, labels

        monkeypatch.setattr(live.ToyClassificationDataset, "__getitem__", reading)
        with pytest.raises(RuntimeError, match="non-finite"):
            live.run(small_live(tmp_path))
        assert [line["step"] for line in ledger(tmp_path)] == [1, 2, 3, 4, 5]
        newest = live.latest_checkpoint_path(tmp_path / "checkpoints")
        weights = torch.load(newest / "state.pt")["model"]
        assert all(tensor.isfinite().all() for tensor in weights.values())


# ---------------------------------------------------------------- checkpoint


@pytest.fixture
def trained() -> tuple[nn.Module, torch.optim.Optimizer]:
    """A model and optimizer after two steps."""
    model = live.TinyNet(live.TrainConfig())
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        model(torch.randn(4, 8)).sum().backward()
        optimizer.step()
    return model, optimizer


def save(folder: Path, trained: Any, *steps: int) -> None:
    for step in steps:
        live.save_checkpoint(folder, step, *trained)


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "a flipped bit": lambda path: flip_a_bit(path / "state.pt"),
    "a cut state": lambda path: os.truncate(path / "state.pt", 100),
    "an empty state": lambda path: os.truncate(path / "state.pt", 0),
    "no state": lambda path: (path / "state.pt").unlink(),
    "no manifest": lambda path: (path / "manifest.json").unlink(),
    "an empty manifest": lambda path: os.truncate(path / "manifest.json", 0),
    "a manifest without a hash": lambda path: (path / "manifest.json").write_text("{}"),
    "a manifest of another kind": lambda path: (path / "manifest.json").write_text("[1]"),
}


class TestCheckpoint:
    def test_it_holds_everything_that_training_needs(
        self, tmp_path: Path, trained: Any
    ) -> None:
        """AdamW without its moments takes different steps."""
        save(tmp_path, trained, 2)
        model = live.TinyNet(live.TrainConfig())
        optimizer = torch.optim.AdamW(model.parameters())
        path = live.latest_checkpoint_path(tmp_path)
        assert live.restore_checkpoint(path, model, optimizer) == 2
        for ours, theirs in zip(model.parameters(), trained[0].parameters(), strict=True):
            assert torch.equal(ours, theirs)
        ours, theirs = optimizer.state_dict()["state"], trained[1].state_dict()["state"]
        assert ours.keys() == theirs.keys()
        for number, state in theirs.items():
            assert all(torch.equal(ours[number][name], state[name]) for name in state)

    def test_everything_is_on_disk_before_the_name_is(
        self, tmp_path: Path, trained: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """After power loss, a name without its bytes is a checkpoint of zeros."""
        done: list[str] = []
        rename, sync = Path.rename, os.fsync

        def renaming(self: Path, target: Any) -> Any:
            done.append("rename")
            return rename(self, target)

        def syncing(descriptor: int) -> None:
            name = Path(os.readlink(f"/proc/self/fd/{descriptor}")).name
            done.append("tmp" if name.startswith("tmp-") else name)
            sync(descriptor)

        monkeypatch.setattr(Path, "rename", renaming)
        monkeypatch.setattr(os, "fsync", syncing)
        before = len(os.listdir("/proc/self/fd"))
        save(tmp_path, trained, 2)
        assert sorted(done[:2]) == ["manifest.json", "state.pt"]
        assert done[2:] == ["tmp", "rename", tmp_path.name]
        assert len(os.listdir("/proc/self/fd")) == before

    @pytest.mark.parametrize("number", range(1, 4))
    def test_a_save_that_fails_leaves_no_checkpoint(
        self, tmp_path: Path, trained: Any, monkeypatch: pytest.MonkeyPatch, number: int
    ) -> None:
        """Half a checkpoint under a checkpoint's name would be the newest."""
        calls: list[int] = []

        def failing(path: Path) -> None:
            calls.append(1)
            if len(calls) == number:
                raise OSError("no space left")

        save(tmp_path, trained, 1)
        monkeypatch.setattr(live, "fsync", failing)
        with pytest.raises(OSError, match="no space left"):
            save(tmp_path, trained, 2)
        assert live.latest_checkpoint_path(tmp_path).name == "step-000000000001"
        monkeypatch.undo()
        save(tmp_path, trained, 2)  # the leftovers don't get in the way
        assert live.latest_checkpoint_path(tmp_path).name == "step-000000000002"

    def test_the_newest_is_the_highest_step(self, tmp_path: Path, trained: Any) -> None:
        """Sorted as text, step 9 comes after step 10."""
        save(tmp_path, trained, 9, 10, 99_999_999, 100_000_000, 5)
        assert live.latest_checkpoint_path(tmp_path).name == "step-000100000000"

    def test_there_is_none_in_a_new_folder(self, tmp_path: Path) -> None:
        (tmp_path / "tmp-123").mkdir()  # a save that was killed
        assert live.latest_checkpoint_path(tmp_path) is None

    @pytest.mark.parametrize("harm", DAMAGE)
    def test_a_damaged_one_is_named_and_the_one_before_it_taken(
        self, tmp_path: Path, trained: Any, harm: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Loaded blindly, it crashes every restart, or the run trains on wrong weights."""
        save(tmp_path, trained, 3, 6)
        assert live.latest_checkpoint_path(tmp_path).name == "step-000000000006"
        assert capsys.readouterr().out == ""
        DAMAGE[harm](tmp_path / "step-000000000006")
        assert live.latest_checkpoint_path(tmp_path).name == "step-000000000003"
        assert "step-000000000006 is damaged" in capsys.readouterr().out

    @pytest.mark.parametrize("harm", DAMAGE)
    def test_if_all_are_damaged_the_run_is_refused(
        self, tmp_path: Path, trained: Any, harm: str
    ) -> None:
        """Starting over in silence throws away the weeks that a backup could bring back."""
        save(tmp_path, trained, 3, 6)
        for step in (3, 6):
            DAMAGE[harm](tmp_path / f"step-{step:012}")
        with pytest.raises(live.UserError, match=f"no intact checkpoint in {tmp_path}"):
            live.latest_checkpoint_path(tmp_path)

    def test_a_damaged_one_is_kept_beside_its_successor(
        self, tmp_path: Path, trained: Any
    ) -> None:
        """A rename onto a folder with files fails, and the run would never get past it."""
        save(tmp_path, trained, 3, 6)
        flip_a_bit(tmp_path / "step-000000000006" / "state.pt")
        damaged = (tmp_path / "step-000000000006" / "state.pt").read_bytes()
        save(tmp_path, trained, 6)
        assert live.latest_checkpoint_path(tmp_path).name == "step-000000000006"
        assert damaged in [path.read_bytes() for path in tmp_path.rglob("state.pt")]

    def test_it_is_read_to_the_cpu_and_runs_no_code(
        self, tmp_path: Path, trained: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """All ranks would read it onto the GPU it was saved from."""
        save(tmp_path, trained, 3)
        path, places, load = tmp_path / "step-000000000003", [], torch.load

        def loading(*rest: Any, **named: Any) -> Any:
            places.append(named.get("map_location"))
            return load(*rest, **named)

        monkeypatch.setattr(torch, "load", loading)
        live.restore_checkpoint(path, *trained)
        assert [torch.device(place) for place in places] == [torch.device("cpu")]
        torch.save({"model": RunsCode(str(tmp_path / "was-run"))}, path / "state.pt")
        with pytest.raises(pickle.UnpicklingError):
            live.restore_checkpoint(path, *trained)
        assert not (tmp_path / "was-run").exists()


class RunsCode:
    """Pickles as a call that creates a folder."""

    def __init__(self, proof: str) -> None:
        self.proof = proof

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.proof,)


# ---------------------------------------------------------------- metrics


class TestMetrics:
    def test_where_one_phase_ends_the_next_begins(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What no phase measures is where the time goes."""
        ticks = iter([10.0, 11.0, 13.0, 17.0, 25.0])
        monkeypatch.setattr(time, "perf_counter", lambda: next(ticks))
        timers = live.StepTimers()
        for phase in ("data_wait", "forward", "backward", "forward"):
            timers.end(phase)
        assert timers.phases == {"data_wait": 1.0, "forward": 10.0, "backward": 4.0}

    def test_a_phase_ends_when_the_gpu_has_done_its_work(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Kernels run behind the host: a clock read at once measures their launch."""
        now = [0.0]

        def wait() -> None:
            now[0] += 5.0

        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.cuda, "synchronize", wait)
        monkeypatch.setattr(time, "perf_counter", lambda: now[0])
        timers = live.StepTimers()
        timers.end("forward")
        assert timers.phases == {"forward": 5.0}

    def test_the_phases_of_a_run_add_up_to_its_time(self, tmp_path: Path) -> None:
        live.run(small_live(tmp_path))
        lines = ledger(tmp_path)
        measured = sum(sum(line["phases"].values()) for line in lines[1:])
        passed = lines[-1]["time"] - lines[0]["time"]
        assert measured == pytest.approx(passed, rel=0.05)
        assert set(lines[1]["phases"]) == {
            "log",
            "data_wait",
            "forward",
            "backward",
            "optimizer",
        }
        saves = [line["step"] - 1 for line in lines if "checkpoint" in line["phases"]]
        assert saves == SAVED[:-1]

    def test_a_slow_phase_is_the_one_that_grows(self, tmp_path: Path) -> None:
        """Blamed on the next phase, somebody optimizes the wrong thing."""

        def slow(original: Any) -> Any:
            def slowed(*arguments: Any, **named: Any) -> Any:
                time.sleep(0.05)
                return original(*arguments, **named)

            return slowed

        slow_ones = {
            "data_wait": (live.ToyClassificationDataset, "__getitem__"),
            "forward": (live.TinyNet, "forward"),
            "backward": (torch.Tensor, "backward"),
            "optimizer": (torch.optim.AdamW, "step"),
            "checkpoint": (live, "save_checkpoint"),
            "log": (live, "log_rank_event"),
        }
        for phase, (owner, name) in slow_ones.items():
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(owner, name, slow(getattr(owner, name)))
                own = {"micro_batch_size": 4, "max_epochs": 1, "checkpoint_every_steps": 1}
                live.run(small_live(tmp_path / phase, **{**SIX_STEPS_LIVE, **own}))
            lines = [line["phases"] for line in ledger(tmp_path / phase)[1:]]
            # On a busy machine any phase may take long now and then.
            grown = {name for name in lines[0] if min(line[name] for line in lines) >= 0.05}
            assert grown == {phase}

    def test_a_line_is_in_the_file_when_the_call_returns(self, tmp_path: Path) -> None:
        """A SIGKILL takes back what is still in a buffer."""
        with open(tmp_path / "log", "a") as file:
            live.log_rank_event(file, step=3)
            (line,) = read_jsonl(tmp_path / "log")
            assert line["step"] == 3
            assert time.time() - 10 < line["time"] <= time.time()


# ---------------------------------------------------------------- run, in this process


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The result of the uninterrupted run of one rank."""
    return live.run(small_live(tmp_path_factory.mktemp("straight")))  # type: ignore[no-any-return]


class TestRun:
    def test_it_ends_with_one_line_of_json(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Schedulers and graders read it."""
        result = live.run(small_live(tmp_path))
        assert json.loads(capsys.readouterr().out.splitlines()[-1]) == result
        assert (result["status"], result["step"]) == ("done", STEPS)
        report = audit_run(tmp_path)
        assert (report.status, report.epochs, report.notes) == ("proved", 2, [])

    def test_the_hash_is_that_of_the_weights_it_saved(
        self, tmp_path: Path, straight: dict[str, Any]
    ) -> None:
        """SHA-256 over the names and bytes, in state-dict order."""
        assert live.run(small_live(tmp_path)) == straight
        newest = live.latest_checkpoint_path(tmp_path / "checkpoints")
        digest = hashlib.sha256()
        for name, tensor in torch.load(newest / "state.pt")["model"].items():
            digest.update(name.encode() + tensor.numpy().tobytes())
        assert straight["weights_sha256"] == digest.hexdigest()

    @pytest.mark.parametrize(
        "change", [{"seed": 18}, {"dropout": 0.3}, {"learning_rate": 0.01}, {"warmup_steps": 5}]
    )
    def test_a_setting_has_its_effect(
        self, tmp_path: Path, straight: dict[str, Any], change: dict[str, Any]
    ) -> None:
        """A setting that is ignored is worse than none."""
        assert live.run(small_live(tmp_path, **change)) != straight

    def test_it_learns(self, tmp_path: Path) -> None:
        live.run(small_live(tmp_path, dataset_size=1600, max_epochs=4))
        losses = [line["loss"] for line in ledger(tmp_path)]
        assert np.mean(losses[-100:]) < 0.6 * np.mean(losses[:20])

    def test_it_saves_every_few_steps_and_at_each_epochs_end(self, tmp_path: Path) -> None:
        """Without a save at its end, a kill after an epoch retrains that epoch's last steps."""
        live.run(small_live(tmp_path))
        names = [path.name for path in sorted((tmp_path / "checkpoints").iterdir())]
        assert names == [f"step-{step:012}" for step in SAVED]

    @pytest.mark.parametrize("step", [1, 2, 3, 4, 12, 13, 14, 15, 26])
    def test_stopped_in_a_step_and_resumed_it_ends_with_the_same_weights(
        self, tmp_path: Path, straight: dict[str, Any], step: int
    ) -> None:
        """Any step: before the first save, right after one, around an epoch's end, the last."""
        cfg = small_live(tmp_path)
        if step > 1:
            killed_at(step, cfg)
        torch.manual_seed(step)  # a new process has a different random state
        assert live.run(cfg) == straight
        report = audit_run(tmp_path)
        assert (report.status, report.steps) == ("proved", STEPS), report.findings
        restored = max([saved for saved in SAVED if saved < step], default=0)
        assert run_starts(tmp_path)[-1]["step"] == restored

    def test_two_stops_in_one_epoch(self, tmp_path: Path, straight: dict[str, Any]) -> None:
        """A second resume that counts from the first one's start skips the steps between."""
        cfg = small_live(tmp_path)
        killed_at(5, cfg)
        killed_at(11, cfg)
        assert live.run(cfg) == straight
        report = audit_run(tmp_path)
        assert (report.status, report.attempts) == ("proved", 3), report.findings
        assert [start["attempt"] for start in run_starts(tmp_path)] == [0, 1, 2]

    @pytest.mark.parametrize(
        "torn", ["", '{"time": 17', '{"time": 17, "event": "run_start", "st']
    )
    def test_a_line_that_a_kill_cut_spoils_no_proof(self, tmp_path: Path, torn: str) -> None:
        """The next start's first line is appended to it, and both are unreadable."""
        cfg = small_live(tmp_path)
        killed_at(17, cfg)
        with open(tmp_path / "ledger" / "rank-0.jsonl", "a") as file:
            file.write(torn)
        live.run(cfg)
        report = audit_run(tmp_path)
        assert (report.status, report.steps) == ("proved", STEPS), report.findings
        assert len(report.notes) == bool(torn)  # what that start restored is taken on trust

    def test_a_finished_run_changes_no_file(
        self, tmp_path: Path, straight: dict[str, Any]
    ) -> None:
        """A scheduler that starts it once more must not cost anything."""
        live.run(small_live(tmp_path))
        before = contents(tmp_path)
        assert live.run(small_live(tmp_path)) == straight
        assert contents(tmp_path) == before

    def test_a_damaged_newest_checkpoint_costs_its_steps_and_no_more(
        self, tmp_path: Path, straight: dict[str, Any]
    ) -> None:
        cfg = small_live(tmp_path)
        killed_at(17, cfg)
        flip_a_bit(tmp_path / "checkpoints" / "step-000000000015" / "state.pt")
        assert live.run(cfg) == straight
        assert run_starts(tmp_path)[-1]["step"] == 13
        assert audit_run(tmp_path).status == "proved"

    def test_the_line_is_written_once_the_optimizer_has_stepped(self, tmp_path: Path) -> None:
        """The ledger is evidence, not intent."""
        killed_at(5, small_live(tmp_path))
        assert [line["step"] for line in ledger(tmp_path)] == [1, 2, 3, 4]

    def test_the_first_line_has_every_setting_and_the_others_their_facts(
        self, tmp_path: Path
    ) -> None:
        """There is no config.json: this is what the audit compares with."""
        cfg = small_live(tmp_path)
        killed_at(5, cfg)
        live.run(cfg)
        for number, start_ in enumerate(run_starts(tmp_path)):
            assert vars(cfg).items() <= start_.items()
            facts = {"attempt": number, "rank": 0, "world_size": 1, "step": 3 * number}
            assert facts.items() <= start_.items()
        lines = ledger(tmp_path)
        names = "attempt epoch step rank world_size samples time loss phases".split()
        assert all(set(names) == set(line) for line in lines)
        assert [line["step"] for line in lines] == [1, 2, 3, 4, *range(4, STEPS + 1)]
        assert [line["epoch"] for line in lines[4:]] == [0] * 10 + [1] * 13

    def test_every_step_and_every_rank_draws_dropout_of_its_own(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Ranks with one mask see less noise than the setting says."""
        drawn: dict[int, list[int]] = {0: [], 1: []}
        step = live.train_step
        for rank, streams in drawn.items():

            def stepping(*rest: Any, streams: list[int] = streams) -> Any:
                streams.append(int(torch.randint(2**62, ())))
                return step(*rest)

            monkeypatch.setattr(live, "train_step", stepping)
            monkeypatch.setattr(live, "maybe_init_dist", lambda cfg, rank=rank: (rank, 1))
            live.run(small_live(tmp_path / f"{rank}"))
        assert len({*drawn[0], *drawn[1]}) == 2 * STEPS

    def test_a_gpu_draws_from_that_stream_too(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its dropout draws from its own generator."""
        on_the_gpu = torch.Generator()
        monkeypatch.setattr(torch.cuda, "default_generators", (on_the_gpu,))
        live.run(small_live(tmp_path))
        assert on_the_gpu.initial_seed() == torch.default_generator.initial_seed()

    def test_the_seed_decides_the_first_weights_and_nothing_else_does(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """DDP copies rank 0's, but a run of one rank has nobody to copy from."""
        seen: list[Any] = []

        def stepping(cfg: Any, model: Any, *rest: Any) -> Any:
            seen.append({name: tensor.clone() for name, tensor in model.state_dict().items()})
            raise Power

        monkeypatch.setattr(live, "train_step", stepping)
        for number, seed in enumerate((17, 17, 18)):
            torch.manual_seed(number)
            with pytest.raises(Power):
                live.run(small_live(tmp_path / f"{number}", seed=seed))
        assert all(torch.equal(seen[0][name], seen[1][name]) for name in seen[0])
        assert not torch.equal(seen[0]["0.weight"], seen[2]["0.weight"])

    @given(st.integers(1, 60), st.integers(1, 20), st.integers(1, 9), st.integers(1, 9))
    @settings(max_examples=10)
    def test_any_sizes_train_each_sample_once(
        self, n: int, batch: int, micro: int, every: int
    ) -> None:
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
            sizes = {"dataset_size": n, "global_batch_size": batch, "micro_batch_size": micro}
            live.run(small_live(Path(folder), **sizes, checkpoint_every_steps=every))
            report = audit_run(folder)
        assert (report.status, report.epochs, report.notes) == ("proved", 2, [])

    def test_a_missing_device_is_named(self, tmp_path: Path) -> None:
        device = f"cuda:{torch.cuda.device_count()}"
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("LOCAL_RANK", f"{torch.cuda.device_count()}")
            with pytest.raises(live.UserError, match=f"device={device}: no GPU for rank"):
                live.run(small_live(tmp_path, device=device))


# ---------------------------------------------------------------- run, on ranks


def run_file(*flags: str) -> Any:
    """live.py as its user runs it alone."""
    return programs.run(str(LIVE), *flags)


@pytest.mark.ranks
class TestExitCodes:
    def test_a_run_that_is_done_exits_with_0_and_so_does_a_rerun(self, tmp_path: Path) -> None:
        done = [run_file(*arguments(small_live(tmp_path))) for _ in range(2)]
        assert [(each.returncode, each.stderr) for each in done] == [(0, "")] * 2
        first, second = (json.loads(each.stdout.splitlines()[-1]) for each in done)
        assert first == second

    @pytest.mark.parametrize(
        ("flags", "says"),
        [
            ("--dataset-size 0", "dataset_size=0"),
            ("--dropout 1.5", "dropout=1.5"),
            ("--learning-rate nan", "learning_rate=nan"),
            ("--device banana", "device=banana"),
        ],
    )
    def test_a_bad_setting_is_one_line_and_exit_code_2(
        self, tmp_path: Path, flags: str, says: str
    ) -> None:
        """A traceback says where in the trainer it hurt, not what to change."""
        if "device" in flags and torch.cuda.is_available():
            pytest.skip("a missing device was not tried: this machine has one")
        refused = run_file("--run-dir", str(tmp_path), *flags.split())
        assert refused.returncode == 2
        (line,) = refused.stderr.splitlines()
        assert line.startswith("live.py: ")
        assert says in line

    def test_an_unknown_flag_is_refused(self, tmp_path: Path) -> None:
        refused = run_file("--run-dir", str(tmp_path), "--epochs", "3")
        assert refused.returncode == 2
        assert "--epochs" in refused.stderr

    def test_every_setting_has_a_flag(self, tmp_path: Path) -> None:
        """And the type of its default."""
        wanted = live.TrainConfig(
            run_dir=str(tmp_path),
            dataset_size=50,
            max_epochs=1,
            seed=3,
            global_batch_size=8,
            micro_batch_size=3,
            learning_rate=0.5,
            warmup_steps=2,
            dropout=0.0,
            checkpoint_every_steps=4,
            device="cpu",
        )
        assert run_file(*arguments(wanted)).returncode == 0
        assert vars(wanted).items() <= run_starts(tmp_path)[0].items()

    @pytest.mark.parametrize("world_size", [1, 2])
    def test_if_every_checkpoint_is_damaged_all_ranks_refuse_and_change_nothing(
        self, tmp_path: Path, world_size: int
    ) -> None:
        cfg = small_live(tmp_path, **SIX_STEPS_LIVE)
        finish(cfg, world_size)
        for state in tmp_path.rglob("state.pt"):
            flip_a_bit(state)
        before = contents(tmp_path)
        reports = start(cfg, world_size)
        assert codes_of(reports) == [2] * world_size
        for report in reports:
            assert report.failure is not None
            assert report.failure.kind == "UserError"
            assert "no intact checkpoint" in report.failure.message
            assert "Traceback" not in report.output
        assert contents(tmp_path) == before

    def test_anything_else_is_1_with_a_traceback(self, tmp_path: Path) -> None:
        """A bug that exits with 2 looks like a typo of the user's."""
        (tmp_path / "file").touch()
        crashed = run_file("--run-dir", str(tmp_path / "file"))
        assert crashed.returncode == 1
        assert "Traceback" in crashed.stderr


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> dict[int, dict[str, Any]]:
    """The result of the uninterrupted run, by world size."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    return {w: finish(small_live(folder / str(w)), w) for w in (1, 2, 3, 4)}


def log_late(rank: int, step: int) -> None:
    """Have a rank take a while to write its line of ``step``."""
    if is_rank(rank):
        at_step(step, partial(time.sleep, 0.5))


def look_at_the_ledgers(seen: Path) -> None:
    """At each save, note the last step that each rank's ledger has."""

    def looking(save: Any, folder: Path, step: int, *rest: Any) -> None:
        steps = {
            rank: max(line.get("step", 0) for line in read_jsonl(path))
            for rank, path in enumerate(sorted((folder.parent / "ledger").iterdir()))
        }
        with seen.open("a") as file:
            print(json.dumps({"step": step, "has": list(steps.values())}), file=file)
        save(folder, step, *rest)

    wrap("save_checkpoint", looking)


def see_an_older_checkpoint(rank: int) -> None:
    """Have one rank find nothing, as on a disk that lags behind."""

    def finding(latest: Any, folder: Path) -> Any:
        found = latest(folder)
        return None if is_rank(rank) else found

    wrap("latest_checkpoint_path", finding)


def no_wrapper_at_the_end(seen: Path) -> None:
    """Note how many DDP wrappers are alive when the group is destroyed."""
    destroy = dist.destroy_process_group

    def destroying(*rest: Any) -> None:
        wrappers = [
            each
            for each in gc.get_objects()
            if isinstance(each, nn.parallel.DistributedDataParallel)
        ]
        seen.with_name(f"{seen.name}-{os.environ['RANK']}").write_text(f"{len(wrappers)}")
        destroy(*rest)

    dist.destroy_process_group = destroying


@pytest.mark.ranks
class TestRanks:
    @pytest.mark.parametrize("world_size", [1, 2, 3, 4])
    @pytest.mark.parametrize("step", [8, 14])
    def test_killed_and_resumed_equals_uninterrupted(
        self,
        tmp_path: Path,
        uninterrupted: dict[int, dict[str, Any]],
        world_size: int,
        step: int,
    ) -> None:
        """A resume that differs in one bit has lost a piece of state."""
        cfg = small_live(tmp_path)
        victim = world_size - 1
        assert codes_of(start(cfg, world_size, partial(kill, victim, step)))[victim] == -9
        reports = start(cfg, world_size)
        assert problem_of(reports) == ""
        assert [r.answer for r in reports] == [uninterrupted[world_size]] * world_size
        report = audit_run(tmp_path)
        assert (report.status, report.attempts) == ("proved", 2), report.findings
        for rank in range(world_size):
            assert [start_["attempt"] for start_ in run_starts(tmp_path, rank)] == [0, 1]

    def test_the_number_of_ranks_may_change_within_an_epoch(self, tmp_path: Path) -> None:
        """Machines come and go; the order of the rest must not change."""
        cfg = small_live(tmp_path / "chain", dropout=0.0)
        for world_size, step in ((2, 5), (3, 8), (1, 11)):
            codes = codes_of(start(cfg, world_size, partial(kill, 0, step, "after the ledger")))
            assert codes[0] == -9
        finish(cfg, 4)
        report = audit_run(cfg.run_dir)
        assert (report.status, report.attempts) == ("proved", 4), report.findings
        finish(small_live(tmp_path / "straight", dropout=0.0), 1)
        ours, theirs = (
            torch.load(tmp_path / name / "checkpoints" / f"step-{STEPS:012}" / "state.pt")[
                "model"
            ]
            for name in ("chain", "straight")
        )
        assert all(torch.allclose(ours[k], theirs[k], rtol=1e-4, atol=1e-5) for k in ours)
        losses = [
            sum(ledger(cfg.run_dir, rank)[-1]["loss"] for rank in range(4)),
            ledger(tmp_path / "straight")[-1]["loss"],
        ]
        assert losses[0] == pytest.approx(losses[1], rel=1e-3)

    def test_a_checkpoint_comes_after_every_ranks_lines(self, tmp_path: Path) -> None:
        """The audit would miss a step that the weights have seen."""
        prepare = partial(
            both, partial(log_late, 1, 3), partial(look_at_the_ledgers, tmp_path / "seen")
        )
        assert not problem_of(start(small_live(tmp_path / "run", max_epochs=1), 2, prepare))
        for line in read_jsonl(tmp_path / "seen"):
            assert line["has"] == [line["step"]] * 2

    def test_rank_0_decides_where_to_resume(
        self, tmp_path: Path, uninterrupted: dict[int, dict[str, Any]]
    ) -> None:
        """Ranks that loaded different checkpoints train together and never notice."""
        cfg = small_live(tmp_path)
        start(cfg, 2, partial(kill, 0, 8))
        reports = start(cfg, 2, partial(see_an_older_checkpoint, 1))
        assert problem_of(reports) == ""
        assert [report.answer for report in reports] == [uninterrupted[2]] * 2

    def test_only_rank_0_talks(self, tmp_path: Path) -> None:
        """A thousand ranks would each say the same."""
        zero, one = start(small_live(tmp_path), 2)
        lines = zero.output.splitlines()
        assert lines[0].startswith("[rank 0/2] step 3 loss ")
        assert len(lines) == len(SAVED) + 1
        assert one.output == ""

    def test_the_loss_on_the_console_is_that_of_all_ranks(self, tmp_path: Path) -> None:
        """Rank 0's part alone looks half as high."""
        zero, _ = start(small_live(tmp_path), 2)
        said = [float(line.split()[-1]) for line in zero.output.splitlines()[:-1]]
        parts = [
            {line["step"]: line["loss"] for line in ledger(tmp_path, rank)} for rank in (0, 1)
        ]
        expected = [parts[0][step] + parts[1][step] for step in SAVED]
        assert said == pytest.approx(expected, abs=1e-4)

    def test_no_wrapper_outlives_the_group(self, tmp_path: Path) -> None:
        """It can abort a process that has done everything right."""
        prepare = partial(no_wrapper_at_the_end, tmp_path / "seen")
        assert not problem_of(start(small_live(tmp_path / "run", max_epochs=1), 2, prepare))
        assert [(tmp_path / f"seen-{rank}").read_text() for rank in (0, 1)] == ["0", "0"]
