"""A row of tokens on one, two and three ranks gives the same logits and gradients."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import cloudpickle
import pytest
import torch
import torch.distributed as dist
import torch.distributed.nn.functional
from torch import Tensor
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from trainer_core.bio.context_parallel import (
    gathered_attention,
    merge_blocks,
    ring_attention,
    shard_bounds,
    shard_tokens,
)
from trainer_core.bio.pair_memory import SavedTensors
from trainer_core.bio.protein_model import ProteinEncoder, attend_in_segments, positions_within
from trainer_core.config import TrainConfig
from trainer_core.distributed import cleanup_dist, maybe_init_dist
from trainer_core.local_launcher import LocalRanks

# Ranks cannot import a test module; its functions travel by value.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

ATTENTIONS = {"ring": ring_attention, "gathered": gathered_attention}


class Rows(NamedTuple):
    tokens: Tensor
    segments: Tensor
    targets: Tensor  # -100 where nothing was masked


class Case(NamedTuple):
    """One step of the model: how it attends, and the length of the rows."""

    attention: str
    num_tokens: int
    checkpoints: bool = False


# Divisible by both world sizes; by neither; shorter than three ranks.
CASES = [Case(name, length) for name in ATTENTIONS for length in (12, 11, 2)]
CASES.append(Case("ring", 11, checkpoints=True))


def packed_rows(num_tokens: int) -> Rows:
    """Two rows: one sequence across all shards, and three packed ones with padding."""
    draw = torch.Generator().manual_seed(num_tokens)
    tokens = torch.randint(4, 24, (2, num_tokens), generator=draw)
    segments = torch.ones_like(tokens)
    fifth = num_tokens // 5
    for number, begin in enumerate((fifth, 2 * fifth, 4 * fifth), start=2):
        segments[1, begin:] = number % 4  # the last one is padding
    tokens[segments == 0] = 1
    hidden = (torch.rand(tokens.shape, generator=draw) < 0.5) & (segments > 0)
    hidden[0, 0] = True
    return Rows(tokens, segments, torch.where(hidden, tokens, -100))


def small_model(*, checkpoints: bool = False) -> ProteinEncoder:
    torch.manual_seed(3)
    return ProteinEncoder(16, 2, 2, checkpoint_activations=checkpoints)


def summed_loss(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")


def gradients(model: torch.nn.Module) -> list[Tensor]:
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


@cache
def on_one_rank(num_tokens: int) -> tuple[Tensor, list[Tensor]]:
    rows, model = packed_rows(num_tokens), small_model()
    logits = model(rows.tokens, rows.segments)
    (summed_loss(logits, rows.targets) / (rows.targets >= 0).sum()).backward()
    return logits.detach(), gradients(model)


def step_on_shards(case: Case, positions: Callable[[Rows], Tensor]) -> Any:
    """This rank's logits and the gradients after DDP's sync."""
    rows, world_size = packed_rows(case.num_tokens), dist.get_world_size()
    model = DistributedDataParallel(small_model(checkpoints=case.checkpoints))
    logits = model(
        shard_tokens(rows.tokens), rows.segments, positions(rows), ATTENTIONS[case.attention]
    )
    weight = world_size / (rows.targets >= 0).sum()
    (weight * summed_loss(logits, shard_tokens(rows.targets))).backward()
    return logits.detach(), gradients(model)


def true_positions(rows: Rows) -> Tensor:
    return shard_tokens(positions_within(rows.segments))


def positions_of_the_shard(rows: Rows) -> Tensor:
    return positions_within(shard_tokens(rows.segments))


def random_heads(dtype: torch.dtype, num_tokens: int = 7) -> list[Tensor]:
    draw = torch.Generator().manual_seed(1)
    shape = (2, 2, num_tokens, 4)
    heads = [torch.randn(shape, generator=draw, dtype=torch.float64) for _ in range(4)]
    return [tensor.to(dtype) for tensor in heads]


def attend_on_shards(
    attention: Callable[..., Tensor], dtype: torch.dtype, group: Any = None
) -> list[Tensor]:
    """Output and the gradients of q, k and v, all of this rank's tokens."""
    *heads, weights = random_heads(dtype)
    first, last = shard_bounds(7, dist.get_world_size(group))[dist.get_rank(group)]
    shards = [t[:, :, first:last].clone().requires_grad_() for t in heads]
    out = attention(*shards, packed_rows(7).segments, group)
    (out * weights[:, :, first:last]).sum().backward()
    return [out.detach(), *(t.grad for t in shards if t.grad is not None)]


def attend_on_one_rank(
    dtype: torch.dtype, rounded_to: torch.dtype | None = None
) -> list[Tensor]:
    *heads, weights = (t.to(dtype) for t in random_heads(rounded_to or dtype))
    q, k, v = (t.requires_grad_() for t in heads)
    out = attend_in_segments(q, k, v, packed_rows(7).segments)
    (out * weights).sum().backward()
    return [out.detach(), *(t.grad for t in (q, k, v) if t.grad is not None)]


def gathered_without_peers(
    q: Tensor, k: Tensor, v: Tensor, segments: Tensor, group: Any = None
) -> Tensor:
    """Near miss: dist.all_gather, and my own shard put back so that there is a gradient."""
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    bounds = shard_bounds(segments.shape[1], world_size)
    joined = []
    for mine in (k, v):
        shards: list[Any] = [None] * world_size
        dist.all_gather_object(shards, mine.detach(), group=group)
        shards[rank] = mine
        joined.append(torch.cat(shards, dim=2))
    first, last = bounds[rank]
    same = segments[:, first:last, None] == segments[:, None, :]
    return F.scaled_dot_product_attention(q, *joined, attn_mask=same[:, None])


def refusal(attention: Callable[..., Tensor]) -> str:
    """What a rank says that passes its own segments instead of the whole row's."""
    shards = [
        shard_tokens(t.transpose(1, 2)).transpose(1, 2) for t in random_heads(torch.float)
    ]
    with pytest.raises(ValueError, match="this rank holds") as caught:
        attention(*shards[:3], shard_tokens(packed_rows(7).segments))
    return str(caught.value)


def bytes_kept(attention: Callable[..., Tensor]) -> int:
    """What autograd keeps of one call, besides this rank's q, k and v."""
    first, last = shard_bounds(7, dist.get_world_size())[dist.get_rank()]
    q, k, v, _ = (
        t[:, :, first:last].clone().requires_grad_() for t in random_heads(torch.float)
    )
    with SavedTensors() as saved:
        attention(q, k, v, packed_rows(7).segments)
    return saved.num_bytes - q.nbytes - k.nbytes - v.nbytes


def gradient_through(gather: Callable[[Tensor], Any]) -> tuple[float | None, str]:
    """Gradient of this rank's x if rank r's loss is (r + 1) times the sum; and the warning."""
    x = torch.ones(1, requires_grad=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loss = (dist.get_rank() + 1) * sum(part.sum() for part in gather(x))
    if not loss.requires_grad:
        return None, ""
    loss.backward()
    assert x.grad is not None
    return x.grad.item(), "".join(str(warning.message) for warning in caught)


def plain_all_gather(x: Tensor) -> list[Tensor]:
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, x)
    return parts


def every_case() -> dict[str, Any]:
    """What each rank runs: all cases in one job, since starting ranks takes the time."""
    info = maybe_init_dist(TrainConfig(device="cpu"))
    found: dict[str, Any] = {"cases": [step_on_shards(case, true_positions) for case in CASES]}
    found["from zero"] = step_on_shards(Case("ring", 12), positions_of_the_shard)
    for name, attention in ATTENTIONS.items():
        for dtype in (torch.float64, torch.bfloat16):
            found[f"{name} {dtype}"] = attend_on_shards(attention, dtype)
        with torch.autocast("cpu", torch.bfloat16):
            found[f"{name} autocast"] = attend_on_shards(attention, torch.float32)
        found[f"{name} refuses"] = refusal(attention)
        found[f"{name} bytes"] = bytes_kept(attention)
    found["plain"] = gradient_through(plain_all_gather)
    found["of torch"] = gradient_through(torch.distributed.nn.functional.all_gather)
    found["no peers"] = attend_on_shards(gathered_without_peers, torch.float64)
    # All ranks but 1: in the group, ranks have other numbers than in the job.
    members = [rank for rank in range(info.world_size) if rank != 1]
    group = dist.new_group(members)
    for name, attention in ATTENTIONS.items():
        if info.rank in members:
            found[f"{name} group"] = attend_on_shards(attention, torch.float64, group)
    cleanup_dist()
    return found


@pytest.fixture(scope="module", params=[2, 3])
def ranks(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    results = LocalRanks(every_case, request.param).wait(120)
    assert not any(result.traceback for result in results), results
    return [result.value for result in results]


def joined(shards: list[list[Tensor]], dim: int) -> list[Tensor]:
    return [torch.cat(parts, dim) for parts in zip(*shards, strict=True)]


def assert_near(ours: Any, theirs: Any, atol: float) -> None:
    torch.testing.assert_close(ours, theirs, rtol=0, atol=atol)


@pytest.mark.ranks
class TestSeveralRanks:
    @pytest.mark.parametrize("number", range(len(CASES)), ids=map(str, CASES))
    def test_logits_and_gradients_equal_one_rank(
        self, ranks: list[dict[str, Any]], number: int
    ) -> None:
        """Otherwise the number of ranks is a hyperparameter that nobody set."""
        logits, grads = on_one_rank(CASES[number].num_tokens)
        shards = [found["cases"][number] for found in ranks]
        assert_near(torch.cat([shard[0] for shard in shards], dim=1), logits, 1e-6)
        for _, of_rank in shards:
            assert_near(of_rank, grads, 1e-6)

    @pytest.mark.parametrize("name", ATTENTIONS)
    def test_attention_and_its_gradients_are_exact_in_double(
        self, ranks: list[dict[str, Any]], name: str
    ) -> None:
        """A small error in the merge hides behind the rounding of float32."""
        shards = [found[f"{name} {torch.float64}"] for found in ranks]
        assert_near(joined(shards, 2), attend_on_one_rank(torch.float64), 1e-12)

    @pytest.mark.parametrize(("name", "rtol"), [("ring", 2**-8), ("gathered", 0.1)])
    def test_bfloat16_inputs_keep_their_type(
        self, ranks: list[dict[str, Any]], name: str, rtol: float
    ) -> None:
        """Blocks merged in bf16 lose a bit with each rotation; the ring rounds once."""
        shards = joined([found[f"{name} {torch.bfloat16}"] for found in ranks], 2)
        assert {tensor.dtype for tensor in shards} == {torch.bfloat16}
        exact = attend_on_one_rank(torch.float64, rounded_to=torch.bfloat16)
        ours = [tensor.double() for tensor in shards]
        torch.testing.assert_close(ours, exact, rtol=rtol, atol=rtol / 10)

    def test_autocast_does_not_round_the_ring(self, ranks: list[dict[str, Any]]) -> None:
        """Under autocast a matmul of float32 tensors runs in bf16, and lse with it."""
        shards = joined([found["ring autocast"] for found in ranks], 2)
        assert_near(shards, attend_on_one_rank(torch.float32), 1e-6)

    @pytest.mark.parametrize("name", ATTENTIONS)
    def test_a_group_may_be_a_part_of_the_job(
        self, ranks: list[dict[str, Any]], name: str
    ) -> None:
        """With data parallelism beside it, rank 1 of a group is another rank of the job."""
        shards = [found[f"{name} group"] for found in ranks if f"{name} group" in found]
        assert len(shards) == len(ranks) - 1
        assert_near(joined(shards, 2), attend_on_one_rank(torch.float64), 1e-12)

    @pytest.mark.parametrize("name", ATTENTIONS)
    def test_segments_of_a_shard_are_refused_on_every_rank(
        self, ranks: list[dict[str, Any]], name: str
    ) -> None:
        """A rank that expects a block of another size waits for it until the timeout."""
        for rank, found in enumerate(ranks):
            assert found[f"{name} refuses"].startswith(f"[rank {rank}/{len(ranks)}] queries of")
            assert "Pass segments of whole rows" in found[f"{name} refuses"]


@pytest.mark.ranks
class TestNearMisses:
    def test_positions_counted_on_the_shard_change_the_logits(
        self, ranks: list[dict[str, Any]]
    ) -> None:
        """Each rank's tokens then claim to be the first of the protein."""
        wrong = torch.cat([found["from zero"][0] for found in ranks], dim=1)
        assert (wrong - on_one_rank(12)[0]).abs().max() > 1e-2

    def test_a_gather_that_autograd_does_not_know_has_right_outputs_and_wrong_gradients(
        self, ranks: list[dict[str, Any]]
    ) -> None:
        """A test of the forward pass alone lets it through; so does a falling loss."""
        out, *grads = joined([found["no peers"] for found in ranks], 2)
        true_out, *true_grads = attend_on_one_rank(torch.float64)
        assert_near(out, true_out, 1e-12)
        assert_near(grads[0], true_grads[0], 1e-12)  # queries never travel
        for grad, true_grad in zip(grads[1:], true_grads[1:], strict=True):
            assert (grad - true_grad).abs().max() > 0.1


@pytest.mark.ranks
class TestCosts:
    def test_the_ring_keeps_its_own_shard_and_gathering_keeps_the_row(
        self, ranks: list[dict[str, Any]]
    ) -> None:
        """A ring that saves every block it has seen has saved the whole row."""
        for found, (first, last) in zip(ranks, shard_bounds(7, len(ranks)), strict=True):
            heads, width = 2 * 2, 4
            output_and_lse = heads * (last - first) * (width + 1) * 4
            assert found["ring bytes"] == output_and_lse
            keys_and_values = 2 * heads * 7 * width * 4
            assert found["gathered bytes"] >= keys_and_values

    def test_torch_s_gathers_are_wrong_here_or_on_their_way_out(
        self, ranks: list[dict[str, Any]]
    ) -> None:
        """Once one is right and there to stay, our own has no reason to exist."""
        total = sum(range(1, len(ranks) + 1))
        for found in ranks:
            assert found["plain"] == (None, "")
            gradient, warning = found["of torch"]
            assert gradient == total
            assert "all_gather is deprecated" in warning


class TestPieces:
    @pytest.mark.parametrize("world_size", [1, 2, 3, 7])
    @pytest.mark.parametrize("num_tokens", [0, 1, 5, 12])
    def test_shards_partition_the_row_evenly(self, num_tokens: int, world_size: int) -> None:
        """A token on two ranks counts twice in the loss."""
        bounds = shard_bounds(num_tokens, world_size)
        places = [place for first, last in bounds for place in range(first, last)]
        assert places == list(range(num_tokens))
        sizes = [last - first for first, last in bounds]
        assert max(sizes) - min(sizes) <= 1

    @pytest.mark.parametrize("cut", [1, 3])
    def test_merging_two_sets_of_keys_is_one_softmax(self, cut: int) -> None:
        """The sum of two softmaxes isn't one; each block counts by its share of exp(S)."""
        scores, values = 20 * torch.randn(2, 6, dtype=torch.float64), torch.randn(6, 3).double()
        blocks: list[Tensor] = []
        for keys in (slice(None, cut), slice(cut, None)):
            part = scores[:, keys]
            blocks += [part.softmax(-1) @ values[keys], part.logsumexp(-1, keepdim=True)]
        out, lse = merge_blocks(*blocks)
        assert_near(out, scores.softmax(-1) @ values, 1e-12)
        assert_near(lse, scores.logsumexp(-1, keepdim=True), 1e-12)

    def test_a_block_that_a_query_does_not_see_changes_nothing(self) -> None:
        """Packed proteins: most blocks of the ring hold nothing for a given query."""
        out, lse = torch.randn(1, 3), torch.zeros(1, 1)
        merged, total = merge_blocks(
            out, lse, torch.zeros(1, 3), torch.full((1, 1), -torch.inf)
        )
        assert torch.equal(merged, out)
        assert torch.equal(total, lse)
