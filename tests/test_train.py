"""One optimizer step against the same step written by hand, in one process."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import cloudpickle
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from trainer_core.config import TrainConfig
from trainer_core.data import MicroBatch
from trainer_core.local_launcher import LocalRanks
from trainer_core.metrics import StepTimers
from trainer_core.model import build_model, build_optimizer, build_scaler, weights_sha256
from trainer_core.settings import UserError
from trainer_core.train import Trainer, read_records, train_step

# Ranks cannot import a test module; its functions travel by value.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

CPU = torch.device("cpu")
HAS_CUDA = torch.cuda.is_available()


def trainer_of(device: torch.device = CPU, **settings: Any) -> Trainer:
    sizes: dict[str, Any] = {"input_dim": 12, "hidden_dim": 16, "learning_rate": 1e-2}
    cfg = TrainConfig(**(sizes | settings))
    torch.manual_seed(0)
    model = build_model(cfg, 12, 5).to(device)
    optimizer, scaler = build_optimizer(cfg, model), build_scaler(cfg, device)
    return Trainer(cfg, device, model, optimizer, scaler, StepTimers(device))


def batch_of(count: int, seed: int = 0) -> MicroBatch:
    draw = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, 12, generator=draw)
    targets = torch.randint(5, (count,), generator=draw)
    return MicroBatch(torch.arange(count), inputs, targets)


def cut(batch: MicroBatch, *sizes: int) -> list[MicroBatch]:
    parts = zip(*(tensor.split(list(sizes)) for tensor in batch), strict=True)
    return [MicroBatch(*part) for part in parts]


def gradients(model: nn.Module) -> list[Tensor]:
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def mean_gradients(model: nn.Module, batch: MicroBatch) -> list[Tensor]:
    """By hand: the gradient of the mean loss over all samples at once."""
    twin = copy.deepcopy(model)
    twin.zero_grad()
    F.cross_entropy(twin(batch.inputs).flatten(0, -2), batch.targets.flatten()).backward()
    return gradients(twin)


def by_hand(settings: dict[str, Any], batches: list[MicroBatch], lr: float) -> nn.Module:
    """A plain fp32 training loop with clipping."""
    trainer = trainer_of(**settings)
    model, optimizer = trainer.model, trainer.optimizer
    for group in optimizer.param_groups:
        group["lr"] = lr
    for batch in batches:
        optimizer.zero_grad()
        F.cross_entropy(model(batch.inputs), batch.targets).backward()
        if trainer.cfg.max_grad_norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), trainer.cfg.max_grad_norm)
        optimizer.step()
    return model


def state_of(trainer: Trainer) -> dict[str, Any]:
    parts = trainer.model.state_dict(), trainer.optimizer.state_dict()["state"]
    return copy.deepcopy({"model": parts[0], "optimizer": parts[1]})


def assert_same_bits(ours: Any, theirs: Any) -> None:
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)


class TestPrecision:
    def test_without_amp_it_is_a_plain_float32_loop_bit_for_bit(self) -> None:
        """The handbook's use_amp=False runs bf16 autocast: its scaler is never None."""
        settings = {"max_grad_norm": None}
        batches = [batch_of(16, seed) for seed in range(5)]
        trainer = trainer_of(**settings)
        for batch in batches:
            train_step(trainer, [batch], 16, 0.003)
        expected = weights_sha256(by_hand(settings, batches, 0.003))
        assert weights_sha256(trainer.model) == expected
        other = trainer_of(amp="bf16", **settings)
        for batch in batches:
            train_step(other, [batch], 16, 0.003)
        assert weights_sha256(other.model) != expected

    def test_clipping_in_the_optimizer_is_clip_grad_norm_(self) -> None:
        """The fused kernel divides by norm / bound; torch multiplies, and adds 1e-6."""
        settings, batches = {"max_grad_norm": 0.1}, [batch_of(16, seed) for seed in range(5)]
        trainer, by_torch = trainer_of(**settings), by_hand(settings, batches, 0.003)
        for batch in batches:
            train_step(trainer, [batch], 16, 0.003)
        torch.testing.assert_close(
            trainer.model.state_dict(), by_torch.state_dict(), rtol=1e-4, atol=1e-5
        )
        unclipped = by_hand({"max_grad_norm": None}, batches, 0.003)
        with pytest.raises(AssertionError):
            torch.testing.assert_close(
                unclipped.state_dict(), by_torch.state_dict(), rtol=1e-4, atol=1e-5
            )

    @pytest.mark.parametrize(
        ("amp", "dtype"),
        [("no", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)],
    )
    def test_the_forward_pass_runs_in_the_configured_precision(
        self, amp: str, dtype: torch.dtype
    ) -> None:
        """A setting that is ignored costs twice the time, or half the digits."""
        trainer = trainer_of(amp=amp)
        seen = set()

        def watch(module: nn.Module, inputs: Any, output: Tensor) -> None:
            seen.add(output.dtype)

        for module in trainer.model.modules():
            if isinstance(module, nn.Linear):
                module.register_forward_hook(watch)
        skipped = train_step(trainer, [batch_of(16)], 16, 1e-3)
        assert seen == {dtype}
        assert {p.dtype for p in trainer.model.parameters()} == {torch.float32}
        assert skipped.item() == 0
        (record,) = read_records(trainer, 1)
        expected = sum(
            g.square().sum() for g in mean_gradients(trainer_of().model, batch_of(16))
        )
        assert record.grad_norm == pytest.approx(float(expected) ** 0.5, rel=0.02)

    def test_fp16_scales_the_loss_and_the_others_do_not(self) -> None:
        """Gradients below 6e-8 become zero in fp16 unless they are scaled."""
        for amp, scaled in (("no", False), ("bf16", False), ("fp16", True)):
            trainer = trainer_of(amp=amp)
            largest = []
            first = next(trainer.model.parameters())
            first.register_post_accumulate_grad_hook(
                lambda p, largest=largest: largest.append(p.grad.abs().max().item())
            )
            train_step(trainer, [batch_of(16)], 16, 1e-3)
            assert (largest[0] > 10) == scaled, amp
            assert first.grad is not None
            assert first.grad.abs().max() < 1  # unscaled before clipping and stepping


class TestGradient:
    @pytest.mark.parametrize("sizes", [(64,), (16,) * 4, (1,) * 64, (0, 0, 33, 31)])
    def test_how_a_step_is_split_does_not_change_it(self, sizes: tuple[int, ...]) -> None:
        """The handbook takes four steps where its metadata claims one step of four parts."""
        whole, parts = trainer_of(), trainer_of()
        for seed in range(4):
            batch = batch_of(64, seed)
            train_step(whole, [batch], 64, 1e-2)
            train_step(parts, cut(batch, *sizes), 64, 1e-2)
        # Adam's first steps divide by a gradient near zero, which magnifies rounding.
        ours, theirs = dict(parts.model.named_parameters()), whole.model.named_parameters()
        for name, parameter in theirs:
            torch.testing.assert_close(ours[name], parameter, rtol=1e-3, atol=1e-4)
        steps = {int(state["step"]) for state in parts.optimizer.state.values()}
        assert steps == {4}

    @pytest.mark.parametrize("sizes", [(4, 4, 1), (5, 4), (3, 3, 3), (0, 8, 1)])
    def test_an_uneven_step_weighs_each_sample_equally(self, sizes: tuple[int, ...]) -> None:
        """A mean of means gives the last part's one sample the weight of four."""
        trainer, batch = trainer_of(max_grad_norm=None), batch_of(9)
        expected = mean_gradients(trainer.model, batch)
        train_step(trainer, cut(batch, *sizes), 9, 1e-3)
        torch.testing.assert_close(gradients(trainer.model), expected)
        (record,) = read_records(trainer, 1)
        with torch.no_grad():
            logits = trainer_of().model(batch.inputs)
        assert record.loss == pytest.approx(F.cross_entropy(logits, batch.targets).item())

    @pytest.mark.parametrize("sizes", [(5, 5), (4, 3, 3), (1, 0), (3, 3, 2, 0), (9, 1)])
    def test_the_mean_over_ranks_is_the_mean_over_samples(self, sizes: tuple[int, ...]) -> None:
        """DDP averages over ranks, as if each had as many samples as the others."""
        batch = batch_of(sum(sizes))
        expected = mean_gradients(trainer_of().model, batch)
        per_rank = []
        for share in cut(batch, *sizes):
            trainer = trainer_of(max_grad_norm=None, world_size=len(sizes))
            train_step(trainer, [share], sum(sizes), 1e-3)
            per_rank.append(gradients(trainer.model))
        averaged = [torch.stack(grads).mean(0) for grads in zip(*per_rank, strict=True)]
        torch.testing.assert_close(averaged, expected)

    def test_the_loss_of_a_sample_is_the_mean_over_its_tokens(self) -> None:
        """Summed over tokens, the loss would tie the learning rate to a sample's length."""
        trainer = trainer_of(
            data="tokens:file", seq_len=12, hidden_dim=16, vocab_size=5, max_grad_norm=None
        )
        tokens = torch.randint(5, (7, 13), generator=torch.Generator().manual_seed(0))
        batch = MicroBatch(torch.arange(7), tokens[:, :-1], tokens[:, 1:])
        expected = mean_gradients(trainer.model, batch)
        train_step(trainer, cut(batch, 4, 3), 7, 1e-3)
        torch.testing.assert_close(gradients(trainer.model), expected)

    def test_the_gradient_of_the_last_step_does_not_linger(self) -> None:
        """Gradients that pile up look like a learning rate that grows."""
        trainer = trainer_of(max_grad_norm=None)
        train_step(trainer, [batch_of(16)], 16, 0.0)
        before = gradients(trainer.model)
        train_step(trainer, [batch_of(16)], 16, 0.0)
        assert_same_bits(gradients(trainer.model), before)

    def test_the_learning_rate_of_the_step_is_used(self) -> None:
        """If the schedule never reaches the optimizer, it keeps the configured rate."""
        trainer = trainer_of(weight_decay=0.0)
        before = weights_sha256(trainer.model)
        train_step(trainer, [batch_of(16)], 16, 0.0)
        assert weights_sha256(trainer.model) == before
        start = [p.detach().clone() for p in trainer.model.parameters()]
        train_step(trainer, [batch_of(16)], 16, 0.25)
        moved = [
            (p - q).abs().max().item()
            for p, q in zip(trainer.model.parameters(), start, strict=True)
        ]
        assert max(moved) == pytest.approx(0.25, rel=0.05)  # Adam moves by about the rate


def refuse_empty_batches(model: nn.Module) -> None:
    """Do to an empty batch what attention's backward pass does on CUDA in torch 2.11."""

    def check(module: nn.Module, inputs: Any) -> None:
        assert len(inputs[0]) > 0, "a kernel that divides by the batch size"

    model.register_forward_pre_hook(check)


class TestWithoutSamples:
    @pytest.mark.parametrize("amp", ["no", "bf16", "fp16"])
    @pytest.mark.parametrize("data", ["toy", "tokens:file"])
    def test_the_model_gets_a_sample_of_weight_zero(self, data: str, amp: str) -> None:
        """Not every kernel takes an empty batch, and the peers wait for this backward pass."""
        trainer = trainer_of(
            data=data, amp=amp, seq_len=12, vocab_size=5, dropout=0.5, world_size=2
        )
        refuse_empty_batches(trainer.model)
        dtype = torch.float32 if data == "toy" else torch.int64
        none = torch.zeros(0, dtype=torch.int64)
        inputs = torch.zeros(0, 12, dtype=dtype)
        targets = none if data == "toy" else inputs
        before = torch.get_rng_state()
        skipped = train_step(trainer, [MicroBatch(none, inputs, targets)], 7, 1e-3)
        # Dropout drew for the placeholder; the rank's next samples must not notice.
        assert torch.equal(torch.get_rng_state(), before)
        assert skipped.item() == 0
        grads = gradients(trainer.model)
        assert len(grads) == len(list(trainer.model.parameters()))
        assert not any(grad.any() for grad in grads)
        (record,) = read_records(trainer, 1)
        assert (record.loss, record.grad_norm) == (0.0, 0.0)


class TestClipping:
    @pytest.mark.parametrize("amp", ["no", "fp16"])
    def test_the_whole_step_is_clipped_once_by_its_global_norm(self, amp: str) -> None:
        """Clipped part by part, or while still scaled, the step has a different length."""
        trainer, batch = trainer_of(max_grad_norm=0.05, amp=amp), batch_of(64)
        expected = mean_gradients(trainer.model, batch)
        norm = float(sum(grad.square().sum() for grad in expected)) ** 0.5
        assert norm > 0.1
        train_step(trainer, cut(batch, 16, 16, 16, 16), 64, 1e-3)
        (record,) = read_records(trainer, 1)
        tolerance = 1e-5 if amp == "no" else 2e-2
        assert record.grad_norm == pytest.approx(norm, rel=tolerance)
        clipped = [grad * 0.05 / norm for grad in expected]
        torch.testing.assert_close(
            gradients(trainer.model), clipped, rtol=tolerance, atol=tolerance * 0.05
        )

    def test_a_short_gradient_is_left_as_it_is(self) -> None:
        """Clipping is a bound, not a normalization."""
        trainer, batch = trainer_of(max_grad_norm=1e6), batch_of(16)
        expected = mean_gradients(trainer.model, batch)
        train_step(trainer, [batch], 16, 1e-3)
        assert_same_bits(gradients(trainer.model), expected)


def poisoned(value: float, count: int = 16) -> MicroBatch:
    batch = batch_of(count)
    batch.inputs[3, 4] = value
    return batch


class TestNonFinite:
    @pytest.mark.parametrize("value", [float("nan"), float("inf")])
    @pytest.mark.parametrize("policy", ["stop", "skip"])
    def test_the_update_is_withheld(self, policy: str, value: float) -> None:
        """One NaN sample makes all weights NaN, and the handbook saves them as good."""
        trainer = trainer_of(on_nonfinite=policy)
        assert train_step(trainer, [batch_of(16)], 16, 1e-2).item() == 0
        before = state_of(trainer)
        assert train_step(trainer, [poisoned(value)], 16, 1e-2).item() == 1
        assert_same_bits(state_of(trainer), before)

    def test_the_update_is_withheld_in_the_very_first_step(self) -> None:
        """The optimizer has no state yet, and must not get one full of NaN."""
        trainer = trainer_of()
        before = weights_sha256(trainer.model)
        train_step(trainer, [poisoned(float("nan"))], 16, 1e-2)
        assert weights_sha256(trainer.model) == before
        for state in trainer.optimizer.state.values():
            assert all(not tensor.any() for tensor in state.values())

    def test_a_bad_part_withholds_the_whole_step(self) -> None:
        """The parts are summed before anyone looks."""
        trainer = trainer_of()
        before = weights_sha256(trainer.model)
        parts = cut(poisoned(float("nan")), 8, 8)
        assert train_step(trainer, parts, 16, 1e-2).item() == 1
        assert weights_sha256(trainer.model) == before

    def test_stop_names_the_step_also_when_later_ones_were_good(self) -> None:
        """On CUDA the host reads later, but before each save: none has what followed."""
        trainer = trainer_of(on_nonfinite="stop")
        train_step(trainer, [poisoned(float("nan"))], 16, 1e-2)
        train_step(trainer, [batch_of(16)], 16, 1e-2)
        with pytest.raises(UserError, match=r"step 6: loss nan, .*--on-nonfinite skip"):
            read_records(trainer, 7)

    def test_skip_continues_with_the_next_step(self) -> None:
        """If the user says so, one bad sample must not cost the whole night."""
        trainer, clean = trainer_of(on_nonfinite="skip"), trainer_of(on_nonfinite="skip")
        for seed in range(3):
            train_step(trainer, [batch_of(16, seed)], 16, 1e-2)
            train_step(clean, [batch_of(16, seed)], 16, 1e-2)
            assert train_step(trainer, [poisoned(float("inf"))], 16, 1e-2).item() == 1
        assert weights_sha256(trainer.model) == weights_sha256(clean.model)
        records = read_records(trainer, 6)
        assert [record.skipped for record in records] == [False, True] * 3

    def test_fp16_overflow_skips_the_step_and_halves_the_scale(self) -> None:
        """A silently skipped step shifts the schedule, or counts as trained."""
        trainer = trainer_of(amp="fp16")
        scaler = trainer.scaler
        assert scaler is not None
        train_step(trainer, [batch_of(16)], 16, 1e-2)
        scaler.load_state_dict(scaler.state_dict() | {"scale": 2.0**40})
        before, weights = state_of(trainer), weights_sha256(trainer.model)
        assert train_step(trainer, [batch_of(16)], 16, 1e-2).item() == 1
        assert_same_bits(state_of(trainer), before)
        assert scaler.get_scale() == 2.0**39
        while train_step(trainer, [batch_of(16)], 16, 1e-2).item():
            assert weights_sha256(trainer.model) == weights
            assert scaler.get_scale() > 1
        assert 1 < scaler.get_scale() < 2.0**30
        *skipped, last = read_records(trainer, 100)[1:]
        assert [record.skipped for record in skipped] == [True] * len(skipped)
        assert not last.skipped
        assert weights_sha256(trainer.model) != weights

    def test_fp16_withholds_what_it_reports_as_withheld(self) -> None:
        """If finite gradients have a norm that overflows, ledger and scaler could disagree."""
        trainer = trainer_of(amp="fp16")
        train_step(trainer, [batch_of(16)], 16, 1e-2)
        before = state_of(trainer)

        def grow(parameter: Tensor) -> None:
            assert parameter.grad is not None
            parameter.grad.fill_(3e38)

        for parameter in trainer.model.parameters():
            parameter.register_post_accumulate_grad_hook(grow)
        assert train_step(trainer, [batch_of(16)], 16, 1e-2).item() == 1
        assert all(grad.isfinite().all() for grad in gradients(trainer.model))
        assert_same_bits(state_of(trainer), before)

    def test_fp16_stops_at_a_loss_that_is_not_finite(self) -> None:
        """The scaler would keep halving its scale and train nothing."""
        trainer = trainer_of(amp="fp16")
        train_step(trainer, [poisoned(float("nan"))], 16, 1e-2)
        with pytest.raises(UserError, match="step 1: loss nan"):
            read_records(trainer, 1)

    @pytest.mark.parametrize(("scale", "stops"), [(0.5, True), (1.0, False)])
    def test_fp16_stops_once_its_scale_is_below_one(self, scale: float, stops: bool) -> None:
        """Gradients that overflow at any scale are not the scaler's search for one."""
        trainer = trainer_of(amp="fp16")
        scaler = trainer.scaler
        assert scaler is not None
        train_step(trainer, [batch_of(16)], 16, 1e-2)
        read_records(trainer, 1)
        scaler.load_state_dict(scaler.state_dict() | {"scale": 2 * scale})

        def overflow(parameter: Tensor) -> None:
            assert parameter.grad is not None
            parameter.grad.fill_(float("inf"))

        for parameter in trainer.model.parameters():
            parameter.register_post_accumulate_grad_hook(overflow)
        assert train_step(trainer, [batch_of(16)], 16, 1e-2).item() == 1
        assert scaler.get_scale() == scale
        if stops:
            with pytest.raises(UserError, match="step 2: loss"):
                read_records(trainer, 2)
        else:
            assert read_records(trainer, 2)[0].skipped


class TestRecords:
    def test_each_step_is_read_once_under_its_number(self) -> None:
        """A log that repeats or shifts steps can't be compared with the ledger."""
        trainer, losses = trainer_of(), []
        for seed in range(3):
            with torch.no_grad():
                batch = batch_of(8, seed)
                losses.append(
                    F.cross_entropy(trainer.model(batch.inputs), batch.targets).item()
                )
            train_step(trainer, [batch], 8, 1e-2)
        records = read_records(trainer, 12)
        assert [record.step for record in records] == [10, 11, 12]
        assert [record.loss for record in records] == pytest.approx(losses)
        train_step(trainer, [batch_of(8)], 8, 1e-2)
        assert [record.step for record in read_records(trainer, 13)] == [13]


@pytest.fixture
def no_reads(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], Any]]:
    """Every way in which python asks a tensor for its value raises, once it is called."""
    names = ["item", "tolist", "numpy", "cpu", "__array__"]
    names += ["__bool__", "__float__", "__int__", "__index__"]

    def refuse(self: Tensor, *_: Any, **__: Any) -> None:
        raise AssertionError("the step reads a tensor: on CUDA the host would wait here")

    def forbid() -> None:
        for name in names:
            monkeypatch.setattr(Tensor, name, refuse)

    yield forbid
    monkeypatch.undo()


class TestSync:
    @pytest.mark.parametrize("amp", ["no", "bf16", "fp16"])
    @pytest.mark.parametrize("policy", ["stop", "skip"])
    def test_a_step_asks_no_tensor_for_its_value(
        self, amp: str, policy: str, no_reads: Callable[[], Any]
    ) -> None:
        """With one .item() per step, device and host take turns waiting for each other."""
        trainer = trainer_of(amp=amp, on_nonfinite=policy)
        parts = cut(batch_of(64), 16, 16, 16, 16)
        train_step(trainer, parts, 64, 1e-3)
        no_reads()
        with pytest.raises(AssertionError, match="reads a tensor"):
            bool(torch.ones(()))
        for _ in range(3):
            train_step(trainer, parts, 64, 1e-3)

    @pytest.mark.cuda
    # torch says at every call that the mode is a prototype.
    @pytest.mark.filterwarnings("ignore:Synchronization debug mode")
    @pytest.mark.skipif(
        not HAS_CUDA, reason="not checked: whether a step syncs with the device"
    )
    @pytest.mark.parametrize("amp", ["no", "bf16", "fp16"])
    def test_a_step_does_not_wait_for_the_device(self, amp: str) -> None:
        """The same claim, watched by CUDA itself."""
        device = torch.device("cuda", 0)
        trainer = trainer_of(device, amp=amp)
        pinned = [
            MicroBatch(*(tensor.pin_memory() for tensor in part))
            for part in cut(batch_of(64), 16, 16, 16, 16)
        ]
        train_step(trainer, pinned, 64, 1e-3)
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            for _ in range(3):
                train_step(trainer, pinned, 64, 1e-3)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        assert len(read_records(trainer, 4)) == 4


class Trained(NamedTuple):
    losses: list[float]  # of ten steps
    norms: list[float]  # of their gradients
    has_moved: bool
    reduce_scatters: int


def train_under(wrapper: str, *, optimizer_first: bool = False) -> tuple[Any, ...]:
    """What each rank runs: ten steps of two micro-batches."""
    from trainer_core.distributed import cleanup_dist, maybe_init_dist

    cfg = TrainConfig(device="cpu", input_dim=12, hidden_dim=16, learning_rate=1e-2)
    info = maybe_init_dist(cfg)
    # In a function of its own: the wrapper has to be gone before the group is.
    trained = ten_steps(
        replace(cfg, world_size=info.world_size), info, wrapper, optimizer_first
    )
    cleanup_dist()
    return trained


def ten_steps(
    cfg: TrainConfig, info: Any, wrapper: str, optimizer_first: bool
) -> tuple[Any, ...]:
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(0)
    model: Any = build_model(cfg, 12, 5)
    optimizer = build_optimizer(cfg, model)
    if wrapper == "DDP":
        model = DistributedDataParallel(model)
    else:
        fully_shard(model)
    if not optimizer_first:
        optimizer = build_optimizer(cfg, model)
    # torch 2.13 renamed reduce_scatter_tensor.
    name = "reduce_scatter_single" if hasattr(dist, "reduce_scatter_single") else ""
    calls = count_calls(dist, name or "reduce_scatter_tensor")
    before = [weight.detach().clone() for weight in model.parameters()]
    trainer = Trainer(cfg, info.device, model, optimizer, None, StepTimers(info.device))
    for step in range(10):
        batch = batch_of(13, seed=step)
        share = MicroBatch(*(tensor[info.rank :: info.world_size] for tensor in batch))
        train_step(trainer, cut(share, 4, len(share.samples) - 4), 13, 1e-2)
    records = read_records(trainer, 10)
    losses, norms = [r.loss for r in records], [r.grad_norm for r in records]
    pairs = zip(before, model.parameters(), strict=True)
    has_moved = any(not torch.equal(old, new) for old, new in pairs)
    return losses, norms, has_moved, len(calls)


def count_calls(owner: Any, name: str) -> list[None]:
    """A list that grows with each call of a function."""
    original, calls = getattr(owner, name), list[None]()

    def counting(*arguments: Any, **named: Any) -> Any:
        calls.append(None)
        return original(*arguments, **named)

    setattr(owner, name, counting)
    return calls


def wrapped_once() -> tuple[bool, ...]:
    """What each rank runs: wrap a model with dropout that refuses empty batches."""
    from trainer_core.distributed import cleanup_dist, maybe_init_dist, wrap_model

    info = maybe_init_dist(TrainConfig(device="cpu"))
    torch.manual_seed(0)
    model = build_model(TrainConfig(dropout=0.5), 12, 5)
    refuse_empty_batches(model)
    before = torch.get_rng_state()
    wrap_model(model, info, torch.zeros(0, 12))
    is_unchanged = torch.equal(torch.get_rng_state(), before)
    has_gradient = any(p.grad is not None for p in model.parameters())
    cleanup_dist()
    return is_unchanged, has_gradient


@pytest.mark.ranks
class TestWrapModel:
    def test_no_empty_batch_no_draw_no_gradient(self) -> None:
        """A start that draws differs from an uninterrupted run; one that fails never trains."""
        results = LocalRanks(wrapped_once, 2).wait(120)
        assert [result.value for result in results] == [(True, False)] * 2


@pytest.mark.ranks
class TestWrappers:
    def test_the_same_step_trains_under_ddp_and_fsdp2(self) -> None:
        """A step that checks for DDP by type syncs every micro-batch under FSDP2."""
        trained = {}
        for wrapper in ("DDP", "FSDP2"):
            results = LocalRanks(partial(train_under, wrapper), 2).wait(120)
            first, second = [Trained(*result.value) for result in results]
            assert first == second
            assert first.has_moved
            trained[wrapper] = first
        assert trained["FSDP2"].reduce_scatters == 10
        assert trained["DDP"].losses == pytest.approx(trained["FSDP2"].losses, rel=1e-5)
        assert trained["DDP"].norms == pytest.approx(trained["FSDP2"].norms, rel=1e-5)
        assert trained["DDP"].losses[0] != trained["DDP"].losses[-1]

    def test_an_optimizer_made_before_fully_shard_updates_nothing(self) -> None:
        """It silently updates parameters that are no longer the model's."""
        job = partial(train_under, "FSDP2", optimizer_first=True)
        results = LocalRanks(job, 2).wait(120)
        assert [Trained(*result.value).has_moved for result in results] == [False, False]
