"""The networks, what the optimizer decays, the schedule, and the fingerprint of weights."""

from __future__ import annotations

import hashlib
import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from trainer_core.config import TrainConfig
from trainer_core.distributed import unwrap
from trainer_core.model import (
    TinyDecoder,
    TinyNet,
    build_model,
    build_optimizer,
    build_scaler,
    learning_rate_at,
    weights_sha256,
)

CPU = torch.device("cpu")


def tokens_config(**changes: Any) -> TrainConfig:
    sizes: dict[str, Any] = {"hidden_dim": 16, "num_heads": 2, "seq_len": 12, "vocab_size": 50}
    return TrainConfig(data="tokens:file", **sizes, **changes)


@pytest.fixture
def decoder() -> nn.Module:
    torch.manual_seed(0)
    return build_model(tokens_config(), 12, 50).eval()


class TestTinyNet:
    def test_it_has_the_configured_layers(self) -> None:
        """A width that is not used makes two configurations one network."""
        cfg = TrainConfig(hidden_dim=24, num_layers=3, dropout=0.3)
        model = build_model(cfg, 10, 7)
        assert isinstance(model, TinyNet)
        shapes = [tuple(p.shape) for p in model.parameters() if p.ndim == 2]
        assert shapes == [(24, 10), (24, 24), (24, 24), (7, 24)]
        dropouts = [m.p for m in model.modules() if isinstance(m, nn.Dropout)]
        assert dropouts == [0.3] * 3
        assert model(torch.zeros(5, 10)).shape == (5, 7)

    def test_the_same_random_state_makes_the_same_weights(self) -> None:
        """Ranks and restarts start from the same weights."""
        shas = []
        for seed in (1, 1, 2):
            torch.manual_seed(seed)
            shas.append(weights_sha256(build_model(TrainConfig(), 10, 7)))
        assert shas[0] == shas[1] != shas[2]

    def test_it_takes_an_empty_batch_through_forward_and_backward(self) -> None:
        """Training never passes one, but a share of an evaluation may be empty."""
        model = build_model(TrainConfig(), 10, 7)
        model(torch.zeros(0, 10)).sum().backward()
        assert all(p.grad is not None and not p.grad.any() for p in model.parameters())


class TestTinyDecoder:
    def test_a_later_token_does_not_change_earlier_predictions(
        self, decoder: nn.Module
    ) -> None:
        """A decoder that sees the answer has a great loss and has only learned to copy."""
        assert isinstance(decoder, TinyDecoder)
        tokens = torch.randint(50, (3, 12))
        for training in (False, True):
            decoder.train(training)
            logits = decoder(tokens)
            assert logits.shape == (3, 12, 50)
            for place in range(12):
                changed = tokens.clone()
                changed[:, place] = (changed[:, place] + 1) % 50
                difference = (decoder(changed) - logits).abs().amax(dim=(0, 2))
                assert (difference[:place] < 1e-6).all()
                assert (difference[place:] > 1e-6).all()

    def test_it_sees_the_positions_of_tokens(self, decoder: nn.Module) -> None:
        """Without them, the last prediction knows a set of words, but not their order."""
        tokens = torch.arange(12)[None]
        swapped = tokens.clone()
        swapped[0, [0, 1]] = swapped[0, [1, 0]]
        assert (decoder(tokens)[0, -1] - decoder(swapped)[0, -1]).abs().max() > 1e-6

    @pytest.mark.parametrize("training", [False, True])
    def test_it_takes_an_empty_batch_through_forward_and_backward(
        self, decoder: nn.Module, training: bool
    ) -> None:
        """Training never passes one, but a share of an evaluation may be empty."""
        decoder.train(training)
        logits = decoder(torch.zeros(0, 12, dtype=torch.int64))
        assert logits.shape == (0, 12, 50)
        logits.sum().backward()
        grads = [p.grad for p in decoder.parameters()]
        assert all(grad is not None and not grad.any() for grad in grads)

    def test_dropout_reaches_it(self) -> None:
        """A setting without effect is a lie."""
        torch.manual_seed(0)
        tokens = torch.zeros(1, 12, dtype=torch.int64)
        model = build_model(tokens_config(dropout=0.5), 12, 50)
        assert not torch.equal(model(tokens), model(tokens))
        plain = build_model(tokens_config(), 12, 50)
        assert torch.equal(plain(tokens), plain(tokens))


class TestOptimizer:
    @pytest.mark.parametrize(
        "cfg", [TrainConfig(weight_decay=0.3), tokens_config(weight_decay=0.3)]
    )
    def test_matrices_decay_and_nothing_else_does(self, cfg: TrainConfig) -> None:
        """By convention, decaying biases and norm gains regularizes nothing useful."""
        model = build_model(cfg, 12, 50)
        optimizer = build_optimizer(cfg, model)
        decay = {p: g["weight_decay"] for g in optimizer.param_groups for p in g["params"]}
        assert len(decay) == sum(len(g["params"]) for g in optimizer.param_groups)
        for name, parameter in model.named_parameters():
            is_gain_or_bias = name.endswith("bias") or "norm" in name
            assert decay.pop(parameter) == (0.0 if is_gain_or_bias else 0.3), name
        assert not decay

    def test_decay_shrinks_a_matrix_without_a_gradient(self) -> None:
        """The group's number must be the one that the fused kernel uses."""
        cfg = TrainConfig(weight_decay=0.5, learning_rate=0.1)
        model = build_model(cfg, 4, 3)
        before = {name: p.detach().clone() for name, p in model.named_parameters()}
        optimizer = build_optimizer(cfg, model)
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
        for name, parameter in model.named_parameters():
            factor = 1 - 0.1 * 0.5 if parameter.ndim == 2 else 1.0
            torch.testing.assert_close(parameter.detach(), before[name] * factor)

    @pytest.mark.parametrize(
        ("amp", "scales"), [("no", False), ("bf16", False), ("fp16", True)]
    )
    def test_only_fp16_has_a_scaler(self, amp: str, scales: bool) -> None:
        """A disabled scaler is still true, so the handbook's autocast is always on."""
        scaler = build_scaler(TrainConfig(amp=amp), CPU)
        assert (scaler is not None) == scales
        if scaler is not None:
            assert scaler.is_enabled()
            assert scaler.state_dict()


class TestSchedule:
    def curve(self, steps: int, **settings: Any) -> list[float]:
        cfg = TrainConfig(learning_rate=2.0, **settings)
        return [learning_rate_at(cfg, step) for step in range(1, steps + 1)]

    def test_it_warms_up_linearly_to_the_peak(self) -> None:
        """A first step at the full rate can throw off AdamW's moments, which start at zero."""
        curve = self.curve(20, warmup_steps=8, decay_steps=20)
        assert curve[:8] == pytest.approx([2.0 * step / 8 for step in range(1, 9)])
        assert max(curve) == curve[7] == 2.0

    def test_it_falls_along_a_cosine_to_the_floor_and_stays(self) -> None:
        """Beyond the horizon a cosine would rise again; more epochs must not restart it."""
        curve = self.curve(60, warmup_steps=10, decay_steps=30, min_lr_fraction=0.25)
        assert curve[19] == pytest.approx(0.5 + 1.5 * 0.5)  # half of the way down
        assert curve[14] == pytest.approx(0.5 + 1.5 * 0.5 * (1 + math.cos(math.pi / 4)))
        assert curve[29:] == pytest.approx([0.5] * 31)
        assert all(earlier > later for earlier, later in pairwise(curve[9:30]))

    def test_without_a_warm_up_it_begins_near_the_peak(self) -> None:
        """0 / 0 in the first step would be NaN in all weights."""
        curve = self.curve(100, warmup_steps=0, decay_steps=100, min_lr_fraction=0.0)
        assert curve[0] == pytest.approx(2.0, rel=1e-3)
        assert curve[-1] == pytest.approx(0.0, abs=1e-12)
        assert min(curve) >= 0

    def test_the_shortest_horizon_works(self) -> None:
        """A run of one step is the first test people write."""
        assert self.curve(3, warmup_steps=0, decay_steps=1) == pytest.approx([0.2] * 3)

    def test_a_longer_plan_with_the_same_horizon_leaves_it_alone(self) -> None:
        """More epochs on a resume must not change the rate of past steps."""
        assert self.curve(50, decay_steps=30, max_epochs=1) == self.curve(
            50, decay_steps=30, max_epochs=9
        )


class TestWeightsSha:
    def test_a_single_bit_changes_it(self) -> None:
        """A hash that overlooks a bit proves nothing about bit-exactness."""
        torch.manual_seed(0)
        model = build_model(TrainConfig(), 10, 7)
        seen = {weights_sha256(model)}
        for parameter in model.parameters():
            parameter.data.view(torch.int32).flatten()[-1] ^= 1
            seen.add(weights_sha256(model))
        assert len(seen) == 1 + len(list(model.parameters()))

    def test_names_and_buffers_are_part_of_it(self) -> None:
        """A norm's running statistics affect the model's output."""
        norm = nn.BatchNorm1d(3)
        before = weights_sha256(norm)
        norm.running_mean += 1  # type: ignore[operator]
        assert weights_sha256(norm) != before
        same, other = nn.Sequential(nn.Linear(2, 2)), nn.ModuleDict({"a": nn.Linear(2, 2)})
        other.load_state_dict({k.replace("0.", "a."): v for k, v in same.state_dict().items()})
        assert weights_sha256(same) != weights_sha256(other)

    def test_it_is_the_hash_that_the_contract_describes(self) -> None:
        """Others compute it themselves and compare."""
        model = build_model(TrainConfig(), 10, 7).to(torch.bfloat16)
        digest = hashlib.sha256()
        for name, tensor in model.state_dict().items():
            digest.update(name.encode())
            digest.update(bytes(tensor.contiguous().untyped_storage().tolist()))
        assert weights_sha256(model) == digest.hexdigest()

    def test_the_layout_in_memory_does_not_change_it(self) -> None:
        """A transposed copy of the same numbers is the same weights."""
        linear = nn.Linear(5, 3)
        before = weights_sha256(linear)
        linear.weight.data = linear.weight.data.T.contiguous().T
        assert not linear.weight.is_contiguous()
        assert weights_sha256(linear) == before

    def test_the_wrapper_of_ddp_does_not_change_it(self) -> None:
        """Names that start with module. don't load on one rank."""
        model = build_model(TrainConfig(), 10, 7)
        # Made without its constructor, which wants a process group.
        wrapper = DistributedDataParallel.__new__(DistributedDataParallel)
        nn.Module.__init__(wrapper)
        wrapper.module = model
        assert all(name.startswith("module.") for name in wrapper.state_dict())
        assert unwrap(wrapper) is unwrap(model) is model
        assert weights_sha256(unwrap(wrapper)) == weights_sha256(model)
