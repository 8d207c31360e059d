"""Chapter 19: what is refused, what is wrong and what is rejected, each for its own reason."""

from __future__ import annotations

import pytest
from handbook_chapters import Chapter, run_chapter

from rehearsal.handbook.seed_spread import half_interval, seeds_needed

pytestmark = pytest.mark.ranks


@pytest.fixture(scope="module")
def ran() -> Chapter:
    return run_chapter("19_configuration")


class TestVersion:
    def test_hash_differs_in_every_process_and_the_digest_in_none(self, ran: Chapter) -> None:
        """A digest that differs at every start can't be compared with anything."""
        assert len(set(ran.hashes)) == 3
        assert "another order of keys: True" in ran.printed
        assert "1 or 1.0:              False" in ran.printed

    def test_the_digest_knows_what_is_trained_and_not_where(self, ran: Chapter) -> None:
        same = {
            name
            for name, change in ran.changes.items()
            if ran.TrainConfig(**{"micro_batch_size": 16, **change}).digest()
            == ran.base.digest()
        }
        assert same == {"run_dir", "num_workers", "2 ranks, half each"}

    def test_a_change_of_config_or_data_is_another_version(self, ran: Chapter) -> None:
        assert len(set(ran.versions.values())) == 3

    def test_a_change_of_code_is_another_version(self, ran: Chapter) -> None:
        import rehearsal.evidence

        assert ran.code_version(rehearsal.evidence) != ran.code_version(ran.trainer_core)


class TestResume:
    def test_identity_is_refused_with_both_values(self, ran: Chapter) -> None:
        assert ran.answers["another seed"] == "refused: seed is 17 there, 18 here"
        refusal = "refused: global_batch_size is 8 there, 16 here"
        assert ran.answers["another global batch"] == refusal

    @pytest.mark.parametrize(
        ("change", "reported"),
        [
            ("more epochs", "'max_epochs': [1, 2]"),
            ("another learning rate", "'learning_rate': [0.001, 0.0005]"),
            ("cut differently", "'grad_accum_steps': [2, 4]"),
        ],
    )
    def test_the_rest_is_accepted_and_reported(
        self, ran: Chapter, change: str, reported: str
    ) -> None:
        """A change that nobody reports is found weeks later."""
        assert ran.answers[change].startswith("accepted")
        assert reported in ran.answers[change]


class TestReproducibility:
    def test_the_same_ranks_give_the_same_bits_and_others_do_not(self, ran: Chapter) -> None:
        assert ran.weights["2 ranks"] == ran.weights["2 ranks again"]
        assert len(set(ran.weights.values())) == 4

    def test_there_are_three_levels(self, ran: Chapter) -> None:
        again, ranks, dropout = ran.compared.values()
        assert (again.status, again.exact_steps) == ("equal", 13)
        assert (ranks.status, ranks.exact_steps) == ("equal", 0)
        assert dropout.status == "different"
        assert dropout.differences[0].step == 1

    def test_single_runs_are_spread_wider_than_the_gap(self, ran: Chapter) -> None:
        """The text says that one run of each decides nothing."""
        assert ran.gap < ran.spread
        assert 0.1 < ran.wins < 0.9

    def test_16_seeds_show_a_gap_as_large_as_the_spread(self) -> None:
        assert seeds_needed(1.2, 1.2) == 16
        assert seeds_needed(1.2, 0.6) == 63
        with pytest.raises(ValueError, match="no number of seeds"):
            seeds_needed(1.2, 0.0)

    def test_the_interval_is_that_of_the_mean(self) -> None:
        assert half_interval([0.0, 2.0]) == pytest.approx(1.96 * 2**0.5 / 2**0.5)


class TestEvaluation:
    def test_exact_metrics_do_not_depend_on_the_ranks(self, ran: Chapter) -> None:
        for name in ("accuracy, exact", "AUROC, gathered"):
            assert len({of[name] for of in ran.metrics.values()}) == 1, name

    def test_each_of_the_wrong_ones_does(self, ran: Chapter) -> None:
        """A metric that moves with the number of ranks moves at the next resize."""
        for name in ("accuracy, padded", "accuracy, mean of ranks", "AUROC, mean of ranks"):
            values = [of[name] for of in ran.metrics.values()]
            assert len({round(value, 6) for value in values}) == 3, name
            exact = "AUROC, gathered" if "AUROC" in name else "accuracy, exact"
            assert values[0] == pytest.approx(ran.metrics[1][exact])

    def test_rank_0_alone_makes_the_others_time_out(self, ran: Chapter) -> None:
        assert all(report.failure for report in ran.slow_evaluation)
        assert "Timed out" in ran.slow_evaluation[1].failure.message

    def test_a_lone_collective_corrupts_a_gradient_and_then_hangs(self, ran: Chapter) -> None:
        """The text says 89 on both ranks: in a gradient here, in a metric there."""
        first, second = ran.alone
        assert first.exitcode is second.exitcode is None
        assert "evaluation: 89 of 103" in first.output
        assert "step 3: sum of gradients 89" in second.output
        assert "step 3: sum of gradients 3" in first.output

    def test_shuffling_again_leaks_most_of_the_validation_set(self, ran: Chapter) -> None:
        assert ran.leaks["by_shuffling"] > 50
        assert ran.leaks["by_hash"] == 0


class TestGate:
    def test_each_candidate_is_rejected_for_its_own_reason(self, ran: Chapter) -> None:
        """A gate that rejects for the wrong reason passes the next one by luck."""
        reasons = {
            name: reason and reason.split(":")[0] for name, reason in ran.verdicts.items()
        }
        assert reasons == {
            "better": None,
            "better, from a sick run": "run",
            "better, other holdout": "evaluated on another validation manifest",
            "features in another order": "smoke evaluation",
            "retrained, nothing new": "holdout",
            "wrong labels in a slice": "slice first feature > 1.3",
        }

    def test_the_one_with_wrong_labels_is_better_overall(self, ran: Chapter) -> None:
        candidate = ran.candidates["wrong labels in a slice"]
        assert ran.interval(candidate["right"] - ran.production["right"])[0] > 0

    def test_the_sick_run_trained_every_sample_all_the_same(self, ran: Chapter) -> None:
        """The audit alone would have let it through."""
        health = ran.health(ran.folder / "sick")
        assert health["audit"] == "proved"
        assert health["skipped"] > 0.2

    def test_the_interval_holds_the_mean_and_shrinks_with_more_samples(
        self, ran: Chapter
    ) -> None:
        differences = ran.torch.arange(100.0) % 3 - 1
        low, high = ran.interval(differences)
        assert low < differences.mean() < high
        few = ran.interval(differences[:30])
        assert few[1] - few[0] > high - low


class TestRollout:
    def test_the_canary_names_what_differs_first(self, ran: Chapter) -> None:
        found = ran.canaries
        assert found["cut differently"].status == "equal"
        assert found["off by one"].differences[0].what == "lr"
        assert found["off by one"].differences[0].step == 1

    def test_weight_decay_is_missed_in_the_seventh_digit(self, ran: Chapter) -> None:
        """The text says that a dashboard wouldn't show it."""
        difference = ran.canaries["no weight decay"].differences[0]
        assert (difference.what, difference.step) == ("loss", 2)
        first, second = float(difference.first), float(difference.second)
        assert 0 < abs(first - second) < 1e-5 * first

    def test_a_newer_format_is_refused_and_not_set_aside(self, ran: Chapter) -> None:
        assert "format 2, but this code reads up to 1" in ran.outcomes["hasty"].failure.message
        assert "step-00000052" in ran.printed.partition("still published:")[2]
        assert ran.restored == 26

    def test_the_old_version_reads_what_the_patient_one_wrote(self, ran: Chapter) -> None:
        report = ran.outcomes["patient"]
        assert (report.exitcode, report.answer["step"]) == (0, 78)
        restored = ran.read_telemetry(ran.folder / "patient").named("checkpoint_restored")
        assert [event["step"] for event in restored] == [26, 52]
