"""Chapter 15: the calculator agrees with what is counted, measured and published."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import pytest
from handbook_chapters import Chapter, run_chapter, text_of
from hypothesis import given as given_any
from hypothesis import settings
from hypothesis import strategies as st

from rehearsal.handbook import numbers, published
from rehearsal.handbook.number_pictures import SHARDINGS

pytestmark = pytest.mark.ranks


sizes = st.floats(1e6, 1e13)
ranks = st.integers(1, 100_000)
shardings = st.sampled_from([sharding for sharding, _ in SHARDINGS])
fractions = st.floats(0.01, 1.0)


def given(*drawn: st.SearchStrategy) -> Callable:
    """Without a deadline: a busy machine is no reason to fail."""
    return lambda test: settings(max_examples=50)(given_any(*drawn)(test))


@pytest.fixture(scope="module")
def ran() -> Chapter:
    return run_chapter("15_numbers")


def close(value: float, **tolerance: float) -> object:
    return pytest.approx(value, **{"rel": 1e-9, **tolerance})


class TestAlgebraOfCompute:
    @given(sizes, sizes)
    def test_training_flops_are_linear_in_both(self, parameters: float, tokens: float) -> None:
        flops = numbers.train_flops(parameters, tokens)
        assert flops == close(6 * parameters * tokens)
        assert numbers.train_flops(2 * parameters, tokens) == close(2 * flops)
        assert numbers.train_flops(parameters, 2 * tokens) == close(2 * flops)

    @given(sizes, st.floats(0, 1e12))
    def test_recomputation_costs_a_third_more(
        self, parameters: float, attention: float
    ) -> None:
        """8 N instead of 6 N; the attention of the forward pass is a third of all of it."""
        once = numbers.flops_per_token(parameters, attention)
        again = numbers.flops_per_token(parameters, attention, recomputes=True)
        assert once == close(6 * parameters + attention)
        assert again == close(once * 4 / 3)

    @given(st.integers(1, 200), st.integers(1, 20_000), st.integers(1, 10**6))
    def test_attention_is_s_over_6d_of_the_weights(
        self, layers: int, width: int, seq_len: int
    ) -> None:
        weights = 6 * numbers.transformer_parameters(layers, width)
        attention = numbers.attention_flops_per_token(layers, width, seq_len)
        assert attention / weights == close(seq_len / (6 * width))

    @given(sizes, fractions, fractions)
    def test_a_bill_gives_back_mfu_times_goodput(
        self, flops: float, mfu: float, goodput: float
    ) -> None:
        """The text multiplies the two to explain a bill."""
        hours = numbers.gpu_hours(flops, 989e12, mfu, goodput)
        assert numbers.implied_mfu(flops, hours, 989e12) == close(mfu * goodput)

    @given(sizes, fractions, st.integers(1, 10_000))
    def test_a_run_at_its_tokens_per_second_has_the_mfu_that_it_was_planned_with(
        self, parameters: float, mfu: float, gpus: int
    ) -> None:
        tokens = 20 * parameters
        hours = numbers.gpu_hours(numbers.train_flops(parameters, tokens), 989e12, mfu)
        seconds = numbers.train_days(hours, gpus) * 86_400
        needed = numbers.flops_per_token(parameters)
        assert numbers.mfu(tokens / seconds, needed, gpus, 989e12) == close(mfu)

    @given(sizes, st.integers(1, 10_000), st.floats(0.1, 10))
    def test_more_gpus_shorten_the_run_and_cost_the_same(
        self, flops: float, gpus: int, price: float
    ) -> None:
        hours = numbers.gpu_hours(flops, 989e12, 0.4)
        assert numbers.train_days(hours, 2 * gpus) == close(numbers.train_days(hours, gpus) / 2)
        days = numbers.train_days(hours, gpus)
        assert numbers.cost_usd(24 * days * gpus, price) == close(hours * price)

    @given(st.floats(1e15, 1e27), st.floats(1, 2000))
    def test_the_compute_optimal_plan_spends_the_budget(
        self, flops: float, per_parameter: float
    ) -> None:
        plan = numbers.compute_optimal(flops, per_parameter)
        assert numbers.train_flops(*plan) == close(flops)
        assert plan.num_tokens / plan.num_parameters == close(per_parameter)

    @given(st.integers(1, 10**6), st.integers(1, 10**5), st.integers(1, 10**5))
    def test_intensity_is_below_that_of_endless_reuse(
        self, rows: int, inner: int, columns: int
    ) -> None:
        """A matmul of T rows in bf16 has at most T FLOPs per byte, whatever the weights."""
        intensity = numbers.matmul_intensity(rows, inner, columns)
        assert 0 < intensity < rows + 1e-9
        roof = numbers.attainable_flop_per_s(intensity, 989e12, 3.35e12)
        assert roof == min(989e12, intensity * 3.35e12)


class TestAlgebraOfMemory:
    @given(sizes, ranks, st.sampled_from(list(numbers.STATES.values())))
    def test_each_stage_keeps_less_and_one_gpu_keeps_all(
        self, parameters: float, gpus: int, states: numbers.StateBytes
    ) -> None:
        kept = [
            numbers.memory_per_gpu_bytes(parameters, gpus, sharding, states)
            for sharding, _ in SHARDINGS
        ]
        assert kept == sorted(kept, reverse=True)
        assert kept[0] == close(parameters * states.total)
        assert kept[3] == close(parameters * states.total / gpus)
        alone = {
            numbers.memory_per_gpu_bytes(parameters, 1, sharding, states)
            for sharding, _ in SHARDINGS
        }
        assert min(alone) == close(max(alone))

    @given(sizes, ranks)
    def test_zero1_shares_the_optimizer_and_zero2_the_gradients_too(
        self, parameters: float, gpus: int
    ) -> None:
        kept = numbers.memory_per_gpu_bytes(parameters, gpus, "zero1")
        assert kept == close(parameters * (4 + 12 / gpus))
        kept = numbers.memory_per_gpu_bytes(parameters, gpus, "zero2")
        assert kept == close(parameters * (2 + 14 / gpus))

    @given(st.integers(1, 8192), st.integers(1, 64), st.integers(1, 128))
    def test_activations_grow_with_the_batch_and_faster_with_the_sequence(
        self, seq_len: int, batch: int, heads: int
    ) -> None:
        def size(seq_len: int, batch: int, **options: bool) -> float:
            return numbers.activation_bytes_per_layer(
                seq_len, batch, 128 * heads, heads, **options
            )

        assert size(seq_len, 2 * batch) == close(2 * size(seq_len, batch))
        assert size(2 * seq_len, batch) > 2 * size(seq_len, batch)
        fused = size(seq_len, batch, is_fused=True)
        assert size(2 * seq_len, batch, is_fused=True) == close(2 * fused)
        assert size(seq_len, batch, recomputes=True) < fused < size(seq_len, batch)

    def test_the_paper_s_formula_is_the_default(self) -> None:
        """34 + 5 a s / d: for 2048 tokens, width 4096 and 32 heads it's 34 + 80."""
        got = numbers.activation_bytes_per_layer(2048, 1, 4096, 32)
        assert got == close(2048 * 4096 * (34 + 80))


class TestAlgebraOfCommunication:
    @given(sizes, ranks)
    def test_an_all_reduce_sends_less_than_twice_the_bytes(
        self, num_bytes: float, num_ranks: int
    ) -> None:
        seconds = numbers.allreduce_seconds(num_bytes, num_ranks, 1e9)
        assert 0 <= seconds < 2 * num_bytes / 1e9
        if num_ranks > 1:
            assert seconds >= num_bytes / 1e9

    @given(sizes, st.integers(2, 100_000), st.floats(0, 1e-3))
    def test_a_tree_differs_from_a_ring_by_its_hops(
        self, num_bytes: float, num_ranks: int, latency_s: float
    ) -> None:
        ring = numbers.allreduce_seconds(num_bytes, num_ranks, 1e9, latency_s)
        tree = numbers.tree_allreduce_seconds(num_bytes, num_ranks, 1e9, latency_s)
        hops = 2 * (num_ranks - 1 - math.ceil(math.log2(num_ranks)))
        assert ring - tree == pytest.approx(hops * latency_s, rel=1e-6, abs=1e-9 * ring)

    @given(sizes, st.integers(2, 100_000), shardings)
    def test_zero3_sends_half_as_much_again(
        self, num_bytes: float, num_ranks: int, sharding: numbers.Sharding
    ) -> None:
        sent = numbers.sharding_traffic_bytes(num_bytes, num_ranks, sharding)
        in_all_reduce = numbers.allreduce_seconds(num_bytes, num_ranks, 1.0)
        assert sent == close(in_all_reduce * (1.5 if sharding == "zero3" else 1))

    @given(st.floats(1e8, 1e12), st.floats(1e12, 1e16), st.floats(1e9, 1e12))
    def test_whether_it_hides_does_not_depend_on_the_model(
        self, parameters: float, flop_per_s: float, bandwidth: float
    ) -> None:
        tokens = numbers.hidden_allreduce_tokens(flop_per_s, bandwidth)
        backward_s = 4 * parameters * tokens / flop_per_s
        endless_ring_s = 2 * 2 * parameters / bandwidth
        assert backward_s == close(endless_ring_s)

    @given(st.floats(1e-6, 100), st.floats(0, 100), st.floats(0, 1))
    def test_a_step_is_between_the_longer_part_and_the_sum(
        self, compute_s: float, communication_s: float, overlapped: float
    ) -> None:
        step_s = numbers.step_seconds(compute_s, communication_s, overlapped)
        assert max(compute_s, communication_s) <= step_s * (1 + 1e-12)
        assert step_s <= (compute_s + communication_s) * (1 + 1e-12)
        assert numbers.step_seconds(compute_s, communication_s) == close(
            compute_s + communication_s
        )


class TestMistakes:
    def test_a_percentage_is_refused_with_the_fraction_to_give(self) -> None:
        """mfu=40 would make every run a hundred times too short."""
        with pytest.raises(numbers.CalculatorError, match=r"mfu=40: .* For 40%, give 0.4"):
            numbers.gpu_hours(1e22, 989e12, mfu=40)
        with pytest.raises(numbers.CalculatorError, match="goodput_fraction=0: "):
            numbers.gpu_hours(1e22, 989e12, mfu=0.4, goodput_fraction=0)
        with pytest.raises(numbers.CalculatorError, match="overlapped_fraction=90"):
            numbers.step_seconds(1, 1, 90)

    def test_an_unknown_sharding_gets_the_nearest(self) -> None:
        with pytest.raises(numbers.CalculatorError, match=r"'ZeRO-3'\. Use 'zero3'"):
            numbers.memory_per_gpu_bytes(1e9, 8, "ZeRO-3")  # type: ignore[arg-type]

    def test_no_gpu_is_refused(self) -> None:
        with pytest.raises(numbers.CalculatorError, match="num_gpus=0: "):
            numbers.train_days(100, 0)

    def test_every_formula_names_its_source(self) -> None:
        """A number without one is an opinion."""
        names = re.findall(r"^    (\S.*?)  +\S+\.\S+/", numbers.__doc__ or "", re.M)
        assert "Kaplan" in names
        assert "nccl-tests" in names
        sourced = [
            function.__doc__
            for name, function in vars(numbers).items()
            if callable(function) and getattr(function, "__module__", "") == numbers.__name__
            if not name.startswith("_") and not isinstance(function, type)
        ]
        plain = ("hours", "price", "exposed", "MFU x goodput", "4 N T")  # arithmetic
        for text in sourced:
            assert any(word in text for word in (*names, *plain)), text


class TestPublished:
    @pytest.mark.parametrize("run", published.RUNS, ids=lambda run: run.name)
    def test_6nd_is_within_3_percent_of_published_flops(self, run: published.Run) -> None:
        flops = numbers.train_flops(run.num_parameters, run.num_tokens)
        if run.flops:
            assert flops / run.flops == pytest.approx(1, abs=0.03)
        else:
            assert run.gpu_hours

    @pytest.mark.parametrize(
        ("name", "implied"),
        [
            ("Llama 2 70B", 0.435),
            ("Llama 3.1 405B", 0.345),
            ("Llama 3.1 70B", 0.253),
            ("Llama 3.1 8B", 0.139),
        ],
    )
    def test_bills_imply_the_mfu_that_the_text_quotes(self, name: str, implied: float) -> None:
        run = published.RUN[name]
        assert run.gpu_hours
        assert run.accelerator
        flops = numbers.train_flops(run.num_parameters, run.num_tokens)
        got = numbers.implied_mfu(flops, run.gpu_hours, run.accelerator.peak_flop_per_s)
        assert got == pytest.approx(implied, abs=0.001)

    def test_the_mfu_of_palm_comes_out_to_a_tenth_of_a_percent(self, ran: Chapter) -> None:
        assert ran.palm_mfu["6 N"] == pytest.approx(0.457, abs=0.0005)
        assert ran.palm_mfu["with attention"] == pytest.approx(0.462, abs=0.0005)
        assert (
            ran.palm_mfu["with attention"] < published.PALM_HFU < ran.palm_mfu["all recomputed"]
        )

    def test_deepseek_s_bill_is_hours_times_price(self) -> None:
        usd = numbers.cost_usd(published.DEEPSEEK_HOURS, published.DEEPSEEK_USD_PER_HOUR)
        assert usd == close(published.DEEPSEEK_USD)

    def test_the_hardware_has_the_ridges_that_the_text_quotes(self) -> None:
        assert published.H100.ridge == pytest.approx(295, abs=0.5)
        assert published.A100.ridge == pytest.approx(153, abs=0.5)

    def test_every_published_figure_has_a_link_in_the_text(self) -> None:
        """A reader must be able to check it."""
        text = text_of("15_numbers")
        sources = {source for run in published.RUNS for source in run.sources}
        sources |= {entry.source for entry in published.UTILIZATIONS}
        sources |= {published.H100.source, published.A100.source, published.DEEPSEEK_PAPER}
        assert not {source for source in sources if source not in text}


class TestCounted:
    def test_a_parameter_costs_two_flops_forward_and_four_backward(self, ran: Chapter) -> None:
        assert (ran.forward_flops, ran.backward_flops) == (2, 4)

    def test_6n_with_attention_is_exactly_what_the_counter_finds(self, ran: Chapter) -> None:
        assert ran.num_parameters == ran.formula
        for seq_len, ratio in ran.ratios.items():
            attention = numbers.attention_flops_per_token(ran.LAYERS, ran.WIDTH, seq_len)
            needed = numbers.flops_per_token(ran.num_parameters, attention)
            assert ratio == close(needed / numbers.flops_per_token(ran.num_parameters))
        assert ran.ratios[32] < 1.05 < 1.9 < ran.ratios[768]

    def test_the_counter_does_not_see_the_fused_kernel(self, ran: Chapter) -> None:
        """The text says that it counts as if attention were free."""
        assert ran.fused_ratio == close(1)

    def test_recomputation_is_8nd_except_where_the_last_matmul_is_skipped(
        self, ran: Chapter
    ) -> None:
        reentrant = [passes for (_, old), passes in ran.recomputed.items() if old]
        assert reentrant == [4, 4]
        assert ran.recomputed[0.1, False] == 4
        # Of a layer's 12 d^2 + attention (s/6d of it), the last matmul is 4 d^2.
        skipped = 4 / (12 * (1 + 64 / (6 * ran.WIDTH)))
        assert ran.recomputed[0.0, False] == close(4 - skipped)

    def test_states_hold_as_many_bytes_as_the_table_says(self, ran: Chapter) -> None:
        assert ran.kept.keys() == numbers.STATES.keys()
        for name, parts in ran.kept.items():
            assert parts == tuple(numbers.STATES[name]), name
        assert "in bf16, 1 + 0.003 is 1.0" in ran.printed

    def test_two_ranks_hold_what_sharding_says(self, ran: Chapter) -> None:
        fp32 = numbers.STATES["fp32, Adam"]
        for kept in ran.on_two:
            assert kept == {
                kind: numbers.memory_per_gpu_bytes(1, 2, kind, fp32)
                for kind in ("ddp", "zero1", "zero3")
            }
        assert ran.on_two[0] == {"ddp": 16, "zero1": 12, "zero3": 8}

    def test_saved_activations_are_within_a_percent_of_the_formula(self, ran: Chapter) -> None:
        assert len(ran.activations) == 4
        for kind, rows in ran.activations.items():
            for row in rows:
                assert row.measured_bytes == pytest.approx(row.formula_bytes, rel=0.01), kind

    def test_only_unfused_attention_is_quadratic(self, ran: Chapter) -> None:
        def growth(kind: str) -> float:
            by_length = {row.seq_len: row.measured_bytes for row in ran.activations[kind]}
            return by_length[512] / by_length[256]

        assert growth("with dropout") > 2.5
        assert growth("no dropout") > 2.5
        assert growth("fused attention") == growth("recomputed") == 2

    def test_the_ring_sums_and_sends_one_and_a_half_tensors(self, ran: Chapter) -> None:
        for rank in ran.ring:
            assert rank["equal"]
            assert rank["sent"] == 1.5 == numbers.allreduce_seconds(1, 4, 1)
            assert len(rank["history"]) == 7
            assert rank["history"][-1] == [4, 4, 4, 4]
            # After the reduce-scatter, one chunk is finished.
            assert rank["history"][3].count(4) == 1

    def test_a_large_all_reduce_takes_longer_than_a_small_one(self, ran: Chapter) -> None:
        """4 bytes against 4 MiB; the text says no more than that."""
        smallest, *_, largest = ran.measured_s.values()
        assert largest > 2 * smallest
        assert ran.bytes_per_s > 0

    def test_the_roofline_has_its_points_where_the_text_says(self, ran: Chapter) -> None:
        add, square, *rows = ran.points
        assert [point.intensity for point in rows] == sorted(p.intensity for p in rows)
        assert add.intensity < ran.peak / ran.bandwidth < square.intensity
        assert add.flop_per_s < 0.3 * square.flop_per_s
        assert rows[0].flop_per_s < 0.5 * rows[-1].flop_per_s
        for point in ran.points:
            roof = numbers.attainable_flop_per_s(point.intensity, ran.peak, ran.bandwidth)
            assert point.flop_per_s <= roof * (1 + 1e-9)

    def test_a_wider_model_gets_more_of_the_peak(self, ran: Chapter) -> None:
        shares = ran.mfu_by_width
        assert 0 < shares[32] < 0.8 * shares[256]
        assert shares[256] < 1


class TestProblems:
    """What the spoken answers say is what the calculator says, rounded."""

    def test_days_and_dollars(self, ran: Chapter) -> None:
        assert 16 < ran.days_1 < 21
        assert numbers.cost_usd(ran.hours_1, 2) == pytest.approx(50e3, rel=0.2)

    def test_rounding_costs_no_more_than_15_percent(self, ran: Chapter) -> None:
        assert ran.worst < 0.155

    def test_seventy_billion_parameters_take_14_cards(self) -> None:
        assert numbers.memory_per_gpu_bytes(70e9, 14, "zero3") == close(80e9)
        assert numbers.memory_per_gpu_bytes(70e9, 8, "zero3") > 80e9

    def test_7b_fits_with_zero1_and_13b_hardly(self) -> None:
        def gb(size: float, sharding: numbers.Sharding) -> float:
            return numbers.memory_per_gpu_bytes(size, 8, sharding) / 1e9

        assert gb(7e9, "ddp") == close(112)
        assert gb(7e9, "zero1") == close(38.5)
        assert gb(13e9, "zero1") == close(71.5)

    def test_the_all_reduce_hides_eight_times_over(self, ran: Chapter) -> None:
        backward_s = 4 * 3e9 * 8192 / (0.4 * published.H100.peak_flop_per_s)
        assert backward_s / ran.sync_s == pytest.approx(8, rel=0.1)
        assert numbers.hidden_allreduce_tokens(0.4 * 989e12, 400e9) == pytest.approx(1000, 0.02)

    def test_3000_tokens_a_second_is_13_percent(self, ran: Chapter) -> None:
        assert ran.mfu_4 == pytest.approx(0.13, abs=0.005)

    def test_a_million_dollars_is_73_billion_parameters(self, ran: Chapter) -> None:
        assert ran.plan.num_parameters == pytest.approx(73e9, rel=0.01)
        assert ran.plan.num_tokens == pytest.approx(1.5e12, rel=0.03)
        assert ran.tokens_for_20b == pytest.approx(5e12, rel=0.1)
