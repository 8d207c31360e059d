"""Chapter 13: each resume, save and restart is broken in the way that the text says."""

from __future__ import annotations

import pytest
from handbook_chapters import Chapter, run_chapter

from rehearsal.evidence.cadence import best_interval, expected_goodput
from rehearsal.handbook import kill_points, restarts, resume_panels

pytestmark = pytest.mark.ranks

PIECES = ("optimizer", "scheduler", "scaler", "sampler", "rng", "identity")


@pytest.fixture(scope="module")
def ran() -> Chapter:
    return run_chapter("13_checkpointing")


def of(records: list[dict], key: str, rank: int = 0) -> dict:
    return resume_panels.of_rank(records, key, rank)


class TestResume:
    def test_a_complete_resume_is_the_uninterrupted_run(self, ran: Chapter) -> None:
        """Without this control, no other difference says anything about a missing piece."""
        for rank in (0, 1):
            for key in ("loss", "samples", "mask", "update", "scale", "lr"):
                ours, theirs = of(ran.complete, key, rank), of(ran.uninterrupted, key, rank)
                assert ours == theirs, key

    def test_every_broken_run_is_the_right_one_up_to_the_kill(self, ran: Chapter) -> None:
        assert tuple(ran.broken) == PIECES
        for records in ran.broken.values():
            losses, right = of(records, "loss"), of(ran.uninterrupted, "loss")
            assert [losses[step] for step in range(1, 19)] == [
                right[step] for step in range(1, 19)
            ]
            assert losses != right

    def test_without_the_moments_the_next_update_is_three_times_too_large(
        self, ran: Chapter
    ) -> None:
        right, stale = of(ran.uninterrupted, "update"), of(ran.broken["optimizer"], "update")
        assert stale[19] > 3 * right[19] > 0

    def test_without_the_scheduler_the_rate_falls_and_then_doubles(self, ran: Chapter) -> None:
        right, again = of(ran.uninterrupted, "lr"), of(ran.broken["scheduler"], "lr")
        assert again[19] < right[19] / 4
        assert again[26] > 2 * right[26]

    def test_without_the_scaler_steps_are_skipped_that_were_not_before(
        self, ran: Chapter
    ) -> None:
        assert of(ran.broken["scaler"], "scale")[19] == 2.0**16
        assert len(ran.skipped) >= 2
        moved = of(ran.uninterrupted, "update")
        assert all(moved[step] for step in range(10, 37))

    def test_without_the_position_half_the_samples_count_double(self, ran: Chapter) -> None:
        assert ran.times == [2, 4]

    def test_without_its_stream_a_rank_draws_the_first_masks_again(self, ran: Chapter) -> None:
        masks = of(ran.broken["rng"], "mask")
        assert masks[19] == masks[1] != of(ran.uninterrupted, "mask")[19]

    def test_another_seed_trains_on_other_samples_and_is_refused(self, ran: Chapter) -> None:
        common = resume_panels.samples_in_common(ran.broken["identity"], ran.uninterrupted)
        after = [common[step] for step in range(19, 37)]
        assert common[18] == 8
        assert sum(after) < 2 * len(after)
        assert "raised ValueError: the checkpoint is of another run" in ran.printed

    def test_one_stream_gives_all_ranks_the_same_masks(self, ran: Chapter) -> None:
        """The noise of the ranks no longer averages out, and nothing else shows it."""
        for step, mask in of(ran.shared, "mask", 0).items():
            assert mask == of(ran.shared, "mask", 1)[step]
        own = resume_panels.masks_in_common(ran.uninterrupted, ran.uninterrupted, 1, 0)
        assert max(own.values()) < 95

    def test_numpys_state_saves_and_does_not_load(self, ran: Chapter) -> None:
        assert "array: Weights only load failed" in ran.printed
        assert "list:  loads" in ran.printed


class TestChecks:
    def test_each_check_finds_what_the_text_says(self, ran: Chapter) -> None:
        """A table in which a check passes by accident would teach to trust it."""
        failing = {
            piece: {check for check, passed in checks.items() if not passed}
            for piece, checks in ran.verdicts.items()
        }
        assert failing == {
            "nothing": set(),
            "optimizer": {"optimizer"},
            "scheduler": {"lr"},
            "scaler": {"scaler"},
            "sampler": {"sampler"},
            "rng": set(),
            "identity": {"sampler"},
            "own streams": set(),
        }


class TestFormats:
    def test_bytes_are_what_the_text_says(self, ran: Chapter) -> None:
        full, sharded = ran.costs["full"], ran.costs["sharded"]
        assert ran.per_parameter == pytest.approx(12, rel=0.01)
        assert sharded.files == 2
        assert sharded.total_mb == pytest.approx(full.total_mb, rel=0.01)
        assert sharded.largest_mb == pytest.approx(full.total_mb / 2, rel=0.01)

    def test_an_incremental_save_pays_only_if_something_is_frozen(self, ran: Chapter) -> None:
        full, frozen = ran.costs["full"], ran.costs["full, 1 of 8 trains"]
        assert ran.costs["incremental, all train"].total_mb == pytest.approx(
            full.total_mb, 0.01
        )
        # One layer's weights and moments, of eight layers' weights and one layer's moments.
        share = ran.costs["incremental, 1 of 8"].total_mb / frozen.total_mb
        assert share == pytest.approx(3 / 10, rel=0.05)

    def test_an_asynchronous_save_returns_before_the_file_is_there(self, ran: Chapter) -> None:
        cost = ran.costs["asynchronous"]
        assert cost.blocked_ms < cost.usable_ms


def skip_without_tracer(found: list) -> None:
    if not found:
        pytest.skip("no process may trace another here, so no save was killed")


class TestAtomicity:
    def test_the_protocol_survives_every_kill(self, ran: Chapter) -> None:
        """And the new checkpoint appears with the rename, not before."""
        found = ran.found["temporary name, manifest, rename"]
        skip_without_tracer(found)
        assert [kill.newest for kill in found] == [1] * (len(found) - 1) + [2]
        assert found[-2].call.startswith("rename")
        assert len(found) > 10

    def test_a_bare_save_is_torn_by_a_kill(self, ran: Chapter) -> None:
        for name in ("torch.save over latest.pt", "torch.save to step-2.pt"):
            found = ran.found[name]
            skip_without_tracer(found)
            assert (found[0].newest, found[-1].newest) == (1, 2)
            assert len(found) > 3
            assert all(kill.newest is None for kill in found[1:-1])

    def test_dcp_needs_a_folder_per_step(self, ran: Chapter) -> None:
        over, apart = (
            ran.found[f"DCP {how}"] for how in ("over the same folder", "to a folder per step")
        )
        skip_without_tracer(over)
        assert any(kill.newest is None for kill in over)
        assert {kill.newest for kill in apart} == {1, 2}

    def test_only_the_protocol_is_on_disk_when_it_is_published(self, ran: Chapter) -> None:
        skip_without_tracer(ran.found["temporary name, manifest, rename"])
        assert ran.unsynced["temporary name, manifest, rename"] == []
        assert ran.unsynced["the same, no fsync"] == ["state.pt", "manifest.json"]
        assert ran.unsynced["torch.save to step-2.pt"] == ["step-2.pt"]

    def test_the_saves_calls_come_in_the_order_of_the_diagram(self, ran: Chapter) -> None:
        found = ran.found["temporary name, manifest, rename"]
        skip_without_tracer(found)
        calls = [kill.call for kill in found]

        def last(call: str, file: str) -> int:
            return max(
                at for at, each in enumerate(calls)
                if each.startswith(call) and each.endswith(file)
            )  # fmt: skip

        order = [
            last("write", "/state.pt"),
            last("fsync", "/state.pt"),
            last("write", "/manifest.json"),
            last("fsync", "/manifest.json"),
            last("rename", "tmp-2"),
        ]
        assert order == sorted(order)

    def test_an_unsynced_file_is_one_written_after_its_last_fsync(self) -> None:
        calls = ["write 1 of t/a", "fsync 1 of t/a", "fsync 1 of t/b", "write 1 of t/b"]
        assert kill_points.unsynced_when_published([*calls, "rename 1 of t"]) == ["b"]
        assert kill_points.unsynced_when_published(
            ["rename 1 of t", "write 1 of t/log"]
        ) == []  # fmt: skip

    def test_where_nothing_may_be_traced_the_chapter_says_so(self) -> None:
        """An empty trace must not read as a save that is safe."""
        assert kill_points.unsynced_when_published([]) == ["(unknown: not traced)"]
        assert kill_points.kill_picture({"a save": []}).axes

    def test_a_flipped_bit_loads_and_the_restart_falls_back(self, ran: Chapter) -> None:
        assert "torch.load raises nothing; 1 weight is wrong" in ran.printed
        assert "the restart continues from step 1" in ran.printed

    def test_the_pointer_never_leads_to_a_torn_checkpoint(self, ran: Chapter) -> None:
        assert [entry[:2] for entry in ran.restarts_from] == [("step-1", 3)] * 5 + [
            ("step-2", 3)
        ]
        assert ("step-2", 1) in [entry[2:] for entry in ran.restarts_from]


class TestFrequency:
    def test_a_cheaper_save_is_made_more_often_and_loses_less(self, ran: Chapter) -> None:
        assert ran.mtbf_s / 3600 == pytest.approx(49.5, abs=0.1)
        bests = [best_interval(costs) for costs in ran.ways.values()]
        goodputs = [
            expected_goodput(best, costs)
            for best, costs in zip(bests, ran.ways.values(), strict=True)
        ]
        assert bests[0] > bests[1] > bests[2]
        assert goodputs == sorted(goodputs)

    def test_half_or_twice_the_best_interval_costs_a_quarter_more_at_most(
        self, ran: Chapter
    ) -> None:
        for costs in ran.ways.values():
            best = best_interval(costs)
            bill = 1 - expected_goodput(best, costs)
            for factor in (0.5, 2):
                assert 1 - expected_goodput(factor * best, costs) < 1.26 * bill


class TestRestarts:
    def test_an_exception_costs_the_steps_since_the_last_save(self, ran: Chapter) -> None:
        first, second = restarts.attempts_of(ran.stories["exception"])
        assert (first.last, first.lost) == (10, 2)
        assert (second.first, second.last, second.lost) == (9, 25, 0)
        assert "rank 1: ArithmeticError" in ran.printed

    def test_the_job_continues_without_the_lost_node(self, ran: Chapter) -> None:
        first, second = restarts.attempts_of(ran.stories["node lost"])
        assert (first.world_size, second.world_size) == (4, 2)
        assert (first.last, first.lost, second.last) == (14, 2, 25)
        assert "each sample due by step 25 of 25 was trained exactly once" in ran.printed

    def test_a_full_disk_stops_every_rank_until_there_is_space(self, ran: Chapter) -> None:
        attempts = restarts.attempts_of(ran.stories["disk full"])
        assert [attempt.last for attempt in attempts] == [12, 12, 25]
        assert [attempt.first for attempt in attempts] == [1, 9, 9]
        assert ran.printed.count("No space left on device") == 4  # two ranks, two attempts

    def test_a_slow_disk_stalls_synchronous_saves(self, ran: Chapter) -> None:
        """Three of a save's fsyncs of 20 ms come one after the other."""
        assert ran.stalls["synchronous"].waited >= 60
        assert ran.printed.count("chronous, rank 0: done at step 25") == 2

    def test_a_bad_sample_fails_every_restart_in_the_same_step(self, ran: Chapter) -> None:
        attempts = restarts.attempts_of(ran.stories["bad sample"])
        assert len(attempts) == 3
        assert len({attempt.last for attempt in attempts}) == 1
        assert all(attempt.lost for attempt in attempts)

    def test_a_late_rank_poisons_the_group_for_good(self, ran: Chapter) -> None:
        """Both ranks are alive, so a restart of dead ranks would restart nobody."""
        assert ran.printed.count("on time: 2") == 2
        assert ran.printed.count("everybody is back: ") == 2
        assert "everybody is back: 2" not in ran.printed
        assert ran.printed.count("a new group: 2") == 2

    def test_with_gloo_a_dead_peer_is_an_error(self, ran: Chapter) -> None:
        assert ran.dead.exitcode == -9
        assert ran.survivor.exitcode == 0
        assert ran.survivor.answer is not None
        assert "10 minutes for NCCL" in ran.timeout

    def test_three_ranks_load_what_two_have_saved(self, ran: Chapter) -> None:
        assert ran.on_three == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
