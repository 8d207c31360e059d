"""Chapter 17: every scheme equals one process, sends what the text says, and breaks as told."""

from __future__ import annotations

import re
from collections import Counter

import pytest
import torch
from handbook_chapters import Chapter, run_chapter

from rehearsal.handbook.diagrams import FOLDER
from rehearsal.handbook.exchanges import farthest_apart
from rehearsal.handbook.group_calls import Call
from rehearsal.handbook.pipelines import gpipe, idle_fraction, one_forward_one_backward

pytestmark = pytest.mark.ranks

PARAMETERS = 132_872
SYNCED_ONCE = ["25 MB buckets, the default", "0.1 MB buckets"]


@pytest.fixture(scope="module")
def ran() -> Chapter:
    return run_chapter("17_parallelism")


def names(calls: list[Call]) -> Counter[str]:
    return Counter(call["name"] for call in calls)


def sent(ran: Chapter, scheme: str, world_size: int) -> float:
    calls = ran.splits[scheme][0]["calls"]
    return sum(ran.bytes_sent(call, world_size) for call in calls)


class TestDDP:
    def test_it_copies_the_weights_once_and_never_looks_again(self, ran: Chapter) -> None:
        """A rank that drifts, drifts for good."""
        first, second = ran.replicas
        assert first["made"] != second["made"]
        assert first["copied"] == second["copied"] == first["made"]
        after = [answer["after a step"][0] for answer in ran.replicas]
        assert [b - a for a, b in zip(*after, strict=True)] == pytest.approx([1, 1])

    def test_it_averages_what_the_collective_sums(self, ran: Chapter) -> None:
        assert ran.reduced == [{"all_reduce": 10.0, "DDP": 2.5}] * 4

    def test_it_refuses_no_partition(self, ran: Chapter) -> None:
        """Two of the three deals are wrong, and none of them raises."""
        off = {name: found["off"] for name, found in ran.dealt[0].items()}
        assert off["own half"] < 1e-6
        assert off["first half, twice"] > 0.05
        assert off["everything, twice"] < 1e-6
        samples = [answer["everything, twice"]["samples"] for answer in ran.dealt]
        assert samples == [list(range(8))] * 2

    def test_small_buckets_are_rebuilt_after_the_first_step(self, ran: Chapter) -> None:
        default, small = (ran.buckets[name] for name in SYNCED_ONCE)
        assert [len(step) for step in default] == [1, 1, 1]
        assert [len(step) for step in small] == [1, 4, 4]
        for step in default + small:
            assert sum(step) == 4 * PARAMETERS

    def test_accumulation_without_no_sync_sends_four_times_as_much(self, ran: Chapter) -> None:
        *_, waits, forgets = ran.buckets.values()
        assert [sum(step) for step in waits] == [4 * PARAMETERS] * 3
        assert [sum(step) for step in forgets] == [16 * PARAMETERS] * 3


class TestFSDP2:
    def test_an_all_reduce_is_a_reduce_scatter_and_an_all_gather(self, ran: Chapter) -> None:
        for rank, (_, shard, gathered, at_once) in enumerate(ran.halves):
            assert gathered == at_once == [60.0, 64.0, 68.0, 72.0]
            assert shard == [at_once[rank]]

    @pytest.mark.parametrize("world_size", [2, 4])
    def test_it_gathers_twice_and_scatters_once(self, ran: Chapter, world_size: int) -> None:
        """Four blocks twice and the head once; a reduce-scatter for each of the five."""
        calls = ran.runs["FSDP2", world_size]["calls"]
        assert names(calls) == {"all_gather": 9, "reduce_scatter": 5}
        assert ran.runs["FSDP2", world_size]["in_forward"] == 5
        scattered = [call["bytes"] for call in calls if call["name"] == "reduce_scatter"]
        assert sum(scattered) == 4 * PARAMETERS

    def test_it_prefetches_in_the_backward_pass(self, ran: Chapter) -> None:
        run = ran.runs["FSDP2", 2]
        backward = [call["name"] for call in run["calls"][run["in_forward"] :]]
        assert backward[:3] == ["all_gather", "all_gather", "reduce_scatter"]

    def test_it_sends_one_and_a_half_times_as_much(self, ran: Chapter) -> None:
        """Less the head, which is gathered once: a third of its part."""
        assert ran.sent["DDP", 2] == 4 * PARAMETERS
        for world_size in (2, 4):
            formula = 2 * (world_size - 1) / world_size * 4 * PARAMETERS
            assert ran.sent["FSDP2", world_size] / formula == pytest.approx(1.5, abs=0.01)

    def test_it_holds_a_share_of_everything(self, ran: Chapter) -> None:
        everything = {"parameters": 4, "gradients": 4, "moments": 8}
        for (name, world_size), run in ran.runs.items():
            shares = world_size if name == "FSDP2" else 1
            expected = {part: size * PARAMETERS / shares for part, size in everything.items()}
            assert run["held"] == expected

    def test_its_losses_are_those_of_ddp(self, ran: Chapter) -> None:
        assert max(ran.gaps) < 1e-5
        losses = ran.runs["FSDP2", 2]["losses"]
        assert len(set(losses)) == len(losses) >= 4

    def test_gloo_runs_a_reduce_scatter_as_an_all_reduce(self, ran: Chapter) -> None:
        """So what the recorder shows isn't what NCCL would do, and the text says so."""
        done = names(ran.done)
        assert done["all_gather"] == 9
        assert done["reduce_scatter"] == 0
        assert done["all_reduce"] == 5 + 2

    def test_the_old_policy_wraps_from_a_hundred_million_parameters(self, ran: Chapter) -> None:
        assert ran.wraps_from == 100_000_000


class TestMistakes:
    def test_an_optimizer_made_first_moves_nothing(self, ran: Chapter) -> None:
        assert "0 of 18 parameters moved" in ran.printed

    def test_a_guard_by_type_syncs_every_micro_step(self, ran: Chapter) -> None:
        """The gradient is right, so only the traffic shows it."""
        guarded, switched = ran.ways["isinstance"], ran.ways["set_requires_gradient_sync"]
        assert guarded["norm"] == pytest.approx(switched["norm"], rel=1e-5)
        assert names(guarded["calls"])["reduce_scatter"] == 20
        assert names(switched["calls"])["reduce_scatter"] == 5
        assert names(guarded["calls"])["all_gather"] == names(switched["calls"])["all_gather"]

    def test_a_norm_of_local_shards_is_too_small_and_differs(self, ran: Chapter) -> None:
        local = [answer["local shards"] for answer in ran.norms_seen]
        assert max(local) < 0.9 * ran.norm_alone
        assert local[0] != pytest.approx(local[1], rel=1e-3)
        assert sum(norm**2 for norm in local) ** 0.5 == pytest.approx(ran.norm_alone, rel=1e-5)
        for answer in ran.norms_seen:
            assert answer["full_tensor"] == pytest.approx(ran.norm_alone, rel=1e-5)

    def test_dcp_resumes_on_three_ranks_and_plain_state_dicts_lose_the_moments(
        self, ran: Chapter
    ) -> None:
        """Nothing raises; the loss is the only other sign."""
        after = ran.straight[ran.half :]
        gaps = {
            way: max(abs(a - b) for a, b in zip(run["losses"], after, strict=True))
            for way, run in ran.resumed.items()
        }
        assert {way: run["restored"] for way, run in ran.resumed.items()} == {
            "plain": 0,
            "DCP's": 18,
        }
        assert gaps["DCP's"] < 1e-5 < 1e-3 < gaps["plain"]

    def test_one_rank_alone_in_a_gather_hangs_both(self, ran: Chapter) -> None:
        assert "entries on each: [18, 0]" in ran.printed
        assert [report.exitcode for report in ran.hung] == [None, None]
        stuck = [report.collectives[-1]["name"] for report in ran.hung]
        assert stuck == ["all_gather", "barrier"]


class TestSplits:
    """Each scheme against one process, and its bytes against the formula in the text."""

    def test_every_scheme_equals_one_process(self, ran: Chapter) -> None:
        assert len(ran.splits) == 7
        for name, answers in ran.splits.items():
            assert max(answer["apart"] for answer in answers) < 1e-3, name

    def test_tensor_and_sequence_parallel_send_the_same_bytes(self, ran: Chapter) -> None:
        plain, along = "tensor parallel", "with sequence parallel"
        assert names(ran.splits[plain][0]["calls"]) == {"all_reduce": 2}
        both = {"all_gather": 2, "reduce_scatter": 2}
        assert names(ran.splits[along][0]["calls"]) == both
        per_pass = ran.SEQUENCE * ran.WIDTH * 4
        assert sent(ran, plain, 2) == sent(ran, along, 2) == 2 * per_pass
        assert [ran.splits[name][0]["rows"] for name in (plain, along)] == [32, 16]

    def test_the_ring_passes_each_block_on_and_the_causal_mask_is_unfair(
        self, ran: Chapter
    ) -> None:
        answers = ran.splits["context parallel"]
        assert names(answers[0]["calls"]) == {"send": 6}
        block = 2 * ran.SEQUENCE // 4 * ran.WIDTH * 4
        assert sent(ran, "context parallel", 4) == 6 * block
        needed = [answer["needed"] for answer in answers]
        assert sum(needed) == ran.SEQUENCE * (ran.SEQUENCE + 1) // 2
        assert needed[3] > 6 * needed[0]

    def test_experts_get_tokens_by_all_to_all_and_not_equally(self, ran: Chapter) -> None:
        answers = ran.splits["expert parallel"]
        assert names(answers[0]["calls"]) == {"all_to_all": 5}
        tokens = [answer["tokens"] for answer in answers]
        assert sum(tokens) == 64
        assert max(tokens) > 16

    def test_a_pipeline_idles_as_the_formula_says(self, ran: Chapter) -> None:
        sizes = [(2, 4), (4, 8), (4, 8)]
        for orders, (stages, micro) in zip(ran.orders.values(), sizes, strict=True):
            assert len(orders) == stages
            expected = (stages - 1) / (micro + stages - 1)
            assert idle_fraction(orders) == pytest.approx(expected)

    def test_one_forward_one_backward_holds_fewer_micro_batches(self, ran: Chapter) -> None:
        held = {name: [a["held"] for a in ran.splits[name]] for name in ran.orders}
        assert held["GPipe, 8 micro-batches"] == [8, 8, 8, 8]
        assert held["1F1B, 8 micro-batches"] == [4, 3, 2, 1]
        for name in list(held)[1:]:
            sends = [names(answer["calls"])["send"] for answer in ran.splits[name]]
            assert sends == [8, 16, 16, 8], name

    def test_the_diagram_names_the_collectives_that_ran(self, ran: Chapter) -> None:
        source = (FOLDER / "what_each_splits.dot").read_text("utf-8")
        drawn = dict(re.findall(r'(c\d) \[label="([^"]*)"', source))
        ran_as = {
            "c1": ran.runs["DDP", 2]["calls"],
            "c2": ran.runs["FSDP2", 2]["calls"],
            "c3": ran.splits["tensor parallel"][0]["calls"],
            "c4": ran.splits["with sequence parallel"][0]["calls"],
            "c5": ran.splits["context parallel"][0]["calls"],
            "c6": ran.splits["expert parallel"][0]["calls"],
            "c7": ran.splits["GPipe, 8 micro-batches"][0]["calls"],
        }
        known = {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send"}
        for key, calls in ran_as.items():
            assert {name for name in known if name in drawn[key]} == set(names(calls)), key


@pytest.mark.parametrize("schedule", [gpipe, one_forward_one_backward])
@pytest.mark.parametrize(("stages", "micro"), [(1, 3), (2, 1), (4, 2), (4, 32), (8, 63)])
def test_the_bubble_is_the_formula_at_any_size(schedule, stages: int, micro: int) -> None:
    """The text says 9 percent with 32 micro-batches, and 10 with 8 stages and 63."""
    orders = [schedule(stage, stages, micro) for stage in range(stages)]
    assert all(len(order) == len({*order}) == 2 * micro for order in orders)
    assert idle_fraction(orders) == pytest.approx((stages - 1) / (micro + stages - 1))


def test_tensors_of_other_shapes_are_never_called_equal() -> None:
    """Broadcasting would compare a row with every row, and a missing gradient with nothing."""
    with pytest.raises(ValueError, match=r"\(2,\) and \(1,\).*Cut both the same way"):
        farthest_apart((torch.zeros(2), torch.zeros(1)))
    with pytest.raises(ValueError, match="None and"):
        farthest_apart((None, torch.zeros(1)))
    not_a_number = torch.tensor([float("nan"), 0.0])
    assert farthest_apart((not_a_number, not_a_number), (torch.ones(1), torch.ones(1))) > 1


class TestActivations:
    def test_checkpointing_keeps_inputs_and_runs_forward_twice(self, ran: Chapter) -> None:
        plain, saved = ran.activations["plain"], ran.activations["checkpoint"]
        assert saved["kept"] < plain["kept"] / 10
        assert (plain["calls"], saved["calls"]) == (6, 12)
        assert saved["gradient"].equal(plain["gradient"])

    def test_without_the_random_state_the_gradient_is_of_another_network(
        self, ran: Chapter
    ) -> None:
        plain, careless = ran.activations["plain"], ran.activations["without the RNG state"]
        off = (careless["gradient"] - plain["gradient"]).norm() / plain["gradient"].norm()
        assert off > 0.01

    def test_the_default_variant_loses_the_first_blocks_gradient(self, ran: Chapter) -> None:
        assert "{'use_reentrant': False}: the first block has a gradient: True" in ran.printed
        assert "{'use_reentrant': True}: the first block has a gradient: False" in ran.printed
        assert "{}: the first block has a gradient: False" in ran.printed


class TestStretchPath:
    def test_each_step_keeps_the_loss_of_the_one_before(self, ran: Chapter) -> None:
        alone, ddp, autocast, fsdp, bf16 = (run["losses"] for run in ran.path.values())
        assert ddp == pytest.approx(alone, abs=1e-5)
        assert fsdp == pytest.approx(ddp, abs=1e-5)
        for losses in (autocast, bf16):
            assert losses != ddp
            assert losses == pytest.approx(ddp, abs=0.01)

    def test_the_bytes_change_as_the_text_says(self, ran: Chapter) -> None:
        names_of = list(ran.path)[1:]
        held = {name: sum(ran.path[name]["held"].values()) for name in names_of}
        wire = {
            name: sum(ran.bytes_sent(call, 2) for call in ran.path[name]["calls"])
            for name in names_of
        }
        ddp, autocast, fsdp, bf16 = names_of
        assert held[autocast] == held[ddp] == 2 * held[fsdp] == 2 * held[bf16]
        assert wire[autocast] == wire[ddp]
        assert wire[fsdp] / wire[ddp] == pytest.approx(1.5, abs=0.01)
        assert wire[bf16] / wire[ddp] == pytest.approx(1.0, abs=0.01)

    def test_every_phase_was_timed(self, ran: Chapter) -> None:
        for run in ran.path.values():
            for part in ("forward", "backward", "optimizer"):
                assert run["times"][part]["p50"] > 0
