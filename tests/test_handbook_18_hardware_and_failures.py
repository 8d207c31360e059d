"""Chapter 18: what the published figures add up to, and which check sees which failure."""

from __future__ import annotations

import math
import os
import re

import pytest
from handbook_chapters import Chapter, run_chapter

from rehearsal.evidence.cadence import expected_goodput
from rehearsal.evidence.pictures import read_events
from rehearsal.evidence.run_records import read_jsonl
from rehearsal.handbook import failures

pytestmark = pytest.mark.ranks


@pytest.fixture(scope="module")
def ran() -> Chapter:
    before = os.environ.get("FAST")
    os.environ["FAST"] = "1"
    try:
        return run_chapter("18_hardware_and_failures")
    finally:
        os.environ.pop("FAST")
        if before is not None:
            os.environ["FAST"] = before


class TestRates:
    def test_the_published_causes_add_up_to_the_published_total(self) -> None:
        """A figure copied wrong would be quoted in an interview."""
        counts = [count for _, count in failures.LLAMA_3.values()]
        assert sum(counts) == 419
        assert counts == sorted(counts, reverse=True)
        assert round(148 / 419, 2) == 0.35

    def test_the_law_gives_what_the_text_says(self, ran: Chapter) -> None:
        """28.8 hours at 1,024 GPUs and 1.8 at 16,384 for RSC-1; 3.1 for Llama 3; 23 minutes."""
        assert ran.job_mtbf_h(1024, 6.5) == pytest.approx(28.8, abs=0.05)
        assert ran.job_mtbf_h(16_384, 6.5) == pytest.approx(1.8, abs=0.005)
        assert ran.job_mtbf_h(16_384, ran.llama_rate) == pytest.approx(54 * 24 / 419)
        assert ran.job_mtbf_h(131_072, ran.llama_rate) * 60 == pytest.approx(23, abs=0.5)
        assert round(28.8 / 7.9, 1) == 3.6

    def test_published_rates_differ_by_a_factor_of_ten(self) -> None:
        rates = [2.34, 6.5]
        rates += [24_000 / point.hours / (point.gpus / 8) for point in failures.PUBLISHED]
        assert 8 < max(rates) / min(rates) < 12

    def test_most_interruptions_are_the_gpu_and_its_memory(self, ran: Chapter) -> None:
        assert ran.totals["GPU"] / 419 == pytest.approx(0.64, abs=0.005)
        small = (failures.LLAMA_3[name][1] for name in ("CPU", "SSD", "power supply"))
        assert sum(small) == 8


class TestLoud:
    def test_a_line_of_the_kernel_log_leads_to_an_action(self, ran: Chapter) -> None:
        found = [ran.triage(line) for line in ran.LOG.splitlines()]
        assert [(gpu, code) for gpu, code, _ in found] == [
            ("0000:10:1c", 63),
            ("0000:06:00", 79),
        ]
        assert "drain" not in found[0][2]
        assert found[1][2].startswith("drain")

    def test_only_what_the_catalog_calls_fatal_drains_the_node(self) -> None:
        """Draining for 94 loses a healthy node; not draining for 95 keeps a bad one."""
        drained = {code for code, xid in failures.XIDS.items() if "drain" in xid.action}
        assert drained == {48, 64, 74, 79, 95}

    def test_three_flips_are_returned_as_corrected(self, ran: Chapter) -> None:
        """The text says that error correction makes memory errors rare, not impossible."""
        assert dict(ran.outcomes) == {
            (0, "clean", "right"): 16,
            (1, "corrected", "right"): 128,
            (2, "detected", "WRONG"): 448,
            (3, "corrected", "WRONG"): 896,
        }


class TestHung:
    def test_the_installed_torch_knows_every_variable(self, ran: Chapter) -> None:
        """A name of an older torch is ignored without a word."""
        assert ran.known == set(ran.VARIABLES)
        for old in ("TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_NCCL_TRACE_CPP_STACK"):
            assert f'"{old}"' in ran.headers
        assert "'ProcessGroupNCCL': '10'" in ran.printed
        assert "('TORCH_NCCL_ASYNC_ERROR_HANDLING', '1')" in ran.printed

    def test_rank_1_is_missing_from_the_collective_that_the_others_are_in(
        self, ran: Chapter
    ) -> None:
        last = [ran.read_dump(dump)["entries"][-1] for dump in ran.dumps]
        where = [(entry["process_group"][1], entry["collective_seq_id"]) for entry in last]
        assert where == [("replicas", 4), ("default_pg", 1), ("replicas", 4)]
        assert not any(entry["retired"] for entry in last)
        lines = re.findall(r"line (\d+) of epoch", ran.printed)
        assert len(set(lines)) == 2  # the all-reduce, and the barrier one line below
        assert int(lines[3]) == int(lines[0]) + 1

    def test_torch_s_own_analyzer_reports_both_sides(self, ran: Chapter) -> None:
        said = ran.analyze(ran.dumps)
        if "no torch.distributed.flight_recorder" in said:
            pytest.skip("this torch doesn't ship the analyzer")
        blocks = said.split("Not all ranks joining")[1:]
        missing = {
            re.findall(r"group info: \d:(\w+)", block)[0]: re.findall(
                r"missing ranks: (.+)", block
            )
            for block in blocks
        }
        assert missing == {"replicas": ["{1}"], "default_pg": ["{0, 2}"]}

    def test_an_analyzer_that_refuses_gloo_ends_in_a_sentence(
        self, ran: Chapter, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Torch 2.11's does, which is the one on Colab."""
        fr_trace = pytest.importorskip("torch.distributed.flight_recorder.fr_trace")

        def refuses(_: object) -> None:
            raise AssertionError("name formatting error? gloo != 'nccl' or 'xccl'")

        monkeypatch.setattr(fr_trace, "main", refuses)
        assert "reads only NCCL's records" in ran.analyze(ran.dumps)

    def test_gloo_aborts_on_other_sizes_and_the_debug_level_names_them(
        self, ran: Chapter
    ) -> None:
        assert re.search(r"OFF    rank \d: exit code -6 Received data size", ran.printed)
        assert "DETAIL rank 0: exit code  1 Detected mismatch [1] [1000]" in ran.printed
        assert "DETAIL rank 1: exit code  1 Detected mismatch [1000] [1]" in ran.printed


class TestSlow:
    """Times, because nothing else shows a slow part; fastest steps, and 60 ms to tell apart."""

    def fastest(self, ran: Chapter, case: str, key: str) -> list[float]:
        return [min(rank[key]) for rank in ran.cases[case]]

    def test_the_hot_rank_computes_longer_and_waits_less(self, ran: Chapter) -> None:
        computing = self.fastest(ran, "rank 2 is hot", "compute_ms")
        waiting = self.fastest(ran, "rank 2 is hot", "wait_ms")
        assert computing.index(max(computing)) == 2
        assert computing[2] > 2 * sorted(computing)[-2]
        assert waiting.index(min(waiting)) == 2

    def test_a_bad_link_makes_every_rank_wait_and_none_compute_longer(
        self, ran: Chapter
    ) -> None:
        computing = self.fastest(ran, "link 1 to 2 is bad", "compute_ms")
        waiting = self.fastest(ran, "link 1 to 2 is bad", "wait_ms")
        assert max(computing) < 20 + 60
        assert min(waiting) > 1000 * ran.SLOW_S
        assert ran.slowest == "1 to 2"
        assert ran.links["1 to 2"] >= 1000 * ran.SLOW_S


class TestSilent:
    def test_almost_no_bit_moves_the_loss_by_more_than_its_noise(self, ran: Chapter) -> None:
        assert ran.visible == {30}
        assert max(ran.changes[0]) < 1e-6

    def test_each_fault_has_the_one_check_that_sees_it(self, ran: Chapter) -> None:
        """The table is the point of the section: comparing, replaying, replaying elsewhere."""
        fired = {
            fault: {
                check: [step for step, record in enumerate(records, 1) if record[check]]
                for check in ("replicas differ", "replay, same rank", "replay, other rank")
            }
            for fault, records in ran.runs.items()
        }
        assert list(fired["none"].values()) == [[], [], []]
        assert fired["one weight"]["replicas differ"] == list(range(10, 21))
        assert fired["one weight"]["replay, same rank"] == []
        assert fired["one gradient"] == {
            "replicas differ": [],
            "replay, same rank": [10],
            "replay, other rank": [10],
        }
        assert fired["stuck unit"]["replicas differ"] == []
        assert fired["stuck unit"]["replay, same rank"] == []
        assert fired["stuck unit"]["replay, other rank"] == list(range(1, 21))

    def test_the_loss_of_every_run_looks_healthy(self, ran: Chapter) -> None:
        healthy = [record["loss"] for record in ran.runs["none"]]
        assert healthy[-1] < 0.6 * healthy[0]
        for records in ran.runs.values():
            assert [record["loss"] for record in records] == pytest.approx(healthy, abs=1e-3)


class TestSpares:
    def test_the_simulation_agrees_with_the_binomial(self, ran: Chapter) -> None:
        for spares, share in ran.simulated.items():
            assert share == pytest.approx(ran.formula[spares], rel=0.1, abs=2e-4), spares

    def test_the_numbers_of_spares_are_those_that_are_printed(self, ran: Chapter) -> None:
        assert ran.short_of_nodes(256, 7) <= 0.001 < ran.short_of_nodes(256, 6)
        assert "repair in 24 hours: 7 spares" in ran.printed
        assert ran.short_of_nodes(256, 24, 168) <= 0.001 < ran.short_of_nodes(256, 23, 168)
        assert "repair in a week: 24 spares" in ran.printed

    def test_a_larger_cluster_needs_a_smaller_share_of_spares(self, ran: Chapter) -> None:
        def share(nodes: int) -> float:
            enough = (s for s in range(nodes) if ran.short_of_nodes(nodes, s) <= 0.001)
            return next(enough) / nodes

        assert share(64) > share(256) > share(1024)


class TestElastic:
    def test_the_derived_batch_is_refused_with_the_flag_to_set(self, ran: Chapter) -> None:
        for report in ran.refused:
            assert "--pinned-global-batch-size 24" in report.failure.message

    def test_two_ranks_finish_what_three_began(self, ran: Chapter) -> None:
        assert [report.exitcode for report in ran.died] == [1, -9, 1]
        assert ran.proof.status == "proved"
        assert ran.proof.attempts == 2
        assert ran.proof.steps == ran.proof.total_steps == 18
        lines = read_jsonl(ran.runs_folder / "elastic/ledger/rank-0.jsonl")
        assert {(line["attempt"], line["world_size"]) for line in lines} == {(0, 3), (1, 2)}
        assert ran.proof.replayed_steps <= 1  # step 7, if its line was written before the end

    def test_their_losses_are_those_of_the_uninterrupted_run(self, ran: Chapter) -> None:
        losses = {}
        for name in ("uninterrupted", "elastic"):
            events = read_events(ran.runs_folder / name, "train_progress", rank=0)
            losses[name] = {event["step"]: event["loss"] for event in events}
        assert len(losses["elastic"]) == 18
        assert losses["elastic"] == pytest.approx(losses["uninterrupted"], rel=1e-5)


class TestGoodput:
    def test_the_simulation_agrees_with_the_closed_form(self, ran: Chapter) -> None:
        """Every point of the picture; they share no code but the costs."""
        compared = 0
        for name, jobs in ran.simulated_jobs.items():
            policy = ran.policies[name]
            for gpus, job in jobs.items():
                costs = policy.at(ran.job_mtbf_s(gpus))
                exact = expected_goodput(ran.interval_of(policy, costs.mtbf_s), costs)
                error = max(job.standard_error, 1e-4)
                assert abs(job.goodput - exact) < 4 * error, (name, gpus)
                compared += 1
        assert compared == 12

    def test_each_policy_is_better_than_the_one_before(self, ran: Chapter) -> None:
        for gpus in (16_384, 131_072):
            found = [jobs[gpus].goodput for jobs in ran.simulated_jobs.values()]
            assert found == sorted(found)

    def test_at_16384_the_restart_is_the_largest_part_once_saves_are_cheap(
        self, ran: Chapter
    ) -> None:
        hourly, _, cheap, _ = (jobs[16_384] for jobs in ran.simulated_jobs.values())
        assert hourly.lost == pytest.approx(1 / 7, abs=0.02)
        assert cheap.restarting > 2 * max(cheap.saving, cheap.lost)
        parts = cheap.goodput + cheap.saving + cheap.restarting + cheap.lost + cheap.straggling
        assert math.isclose(parts, 1)
