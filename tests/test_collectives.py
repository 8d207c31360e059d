"""All ranks learn what happens on one: they stop, skip or save in the same step."""

from __future__ import annotations

import gc
import signal
import sys
import tempfile
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
import torch
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

from rehearsal.faults.breaks import (
    at_batches,
    before,
    both,
    fail,
    fail_in,
    fail_save,
    fill_the_disk,
    give_other_data,
    is_rank,
    kill,
    poison_step,
    signal_itself,
    slow_saves,
    slow_steps,
    this_rank,
    wrap,
)
from rehearsal.faults.jobs import Job, codes_of, finish, small, start, wait_for_step
from rehearsal.evidence.audit import audit_run
from rehearsal.evidence.run_records import read_jsonl
from trainer_core.local_launcher import LocalRanks

# Ranks cannot import a test module; its functions travel by value.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

pytestmark = pytest.mark.ranks


def lines(run_dir: Path, kind: str, rank: int) -> list[dict[str, Any]]:
    return list(read_jsonl(run_dir / kind / f"rank-{rank}.jsonl"))


class TestOneRankFails:
    def test_a_loader_error_on_one_rank_is_raised_on_all(self, tmp_path: Path) -> None:
        """A rank that raises alone leaves the others in the all-reduce, until the timeout."""
        began = time.monotonic()
        # Two reads a step and one for the empty batch: the sixth is in step 3.
        results = start(small(tmp_path), 3, partial(fail_in, "loader", fail, 1, 6))
        assert time.monotonic() - began < 30
        assert codes_of(results) == [1, 1, 1]
        assert all("a bug in the code" in result.failure.message for result in results)
        assert "[rank 1/3]" in results[0].failure.message
        trained = [line["step"] for line in lines(tmp_path, "ledger", 0)]
        assert trained == [1, 2], "the step of the error must not count as trained"

    @pytest.mark.parametrize("is_async", [False, True])
    def test_a_save_that_fails_is_raised_on_all(self, tmp_path: Path, is_async: bool) -> None:
        """A save that fails silently is discovered at the next crash."""
        cfg = small(tmp_path, async_checkpoint=is_async)
        results = start(cfg, 2, partial(fail_save, 6))
        assert codes_of(results) == [2, 2]
        assert all("No space left" in result.failure.message for result in results)
        # What was published before is intact, and the run resumes from it.
        assert finish(cfg, 2)["step"] == 26
        assert audit_run(tmp_path).status == "proved"

    def test_a_failed_async_save_stops_the_run_before_the_next_save(
        self, tmp_path: Path
    ) -> None:
        """Until then nothing is saved, however far away the next save is."""
        cfg = small(tmp_path, async_checkpoint=True, checkpoint_every_steps=10)
        prepare = partial(both, partial(fail_save, 10), slow_steps)
        results = start(cfg, 2, prepare)
        assert codes_of(results) == [2, 2]
        trained = [line["step"] for line in lines(tmp_path, "ledger", 0)]
        assert 10 <= trained[-1] < 13, "the next save is after step 13, at the epoch's end"

    def test_no_checkpoint_of_a_step_that_a_ledger_lacks(self, tmp_path: Path) -> None:
        """After a kill, the run would resume from a step whose samples nobody knows."""
        results = start(small(tmp_path), 2, partial(lose_a_line, 1, 3))
        assert codes_of(results) == [2, 2]
        assert list((tmp_path / "checkpoints").iterdir()) == []

    def test_the_last_save_fails_and_the_job_says_so(self, tmp_path: Path) -> None:
        """An exit that does not wait for the save reports a checkpoint that never existed."""
        cfg = small(tmp_path, async_checkpoint=True)
        results = start(cfg, 2, partial(fail_save, 26))
        assert codes_of(results) == [2, 2]

    def test_a_save_in_flight_is_finished_before_an_error_ends_the_rank(
        self, tmp_path: Path
    ) -> None:
        """A snapshot that is dropped is work that has to be trained again."""
        prepare = partial(both, partial(slow_saves, 1.0), partial(poison_step, 0, 4))
        results = start(small(tmp_path, async_checkpoint=True), 1, prepare)
        assert results[0].exitcode == 2
        assert (tmp_path / "checkpoints" / "step-00000003").is_dir()
        assert not list((tmp_path / "checkpoints").glob("tmp-*"))

    def test_ranks_with_different_data_all_refuse(self, tmp_path: Path) -> None:
        """A gradient over two datasets is the gradient of neither."""
        results = start(small(tmp_path), 2, partial(give_other_data, 1))
        assert codes_of(results) == [2, 2]
        # They name what differs, and leave out the ten facts that don't.
        for result in results:
            assert result.failure.message.count("'dataset_fingerprint': ") == 2
            assert "num_samples" not in result.failure.message
        assert not tmp_path.joinpath("logs").exists()

    def test_a_second_job_in_the_folder_is_refused(self, tmp_path: Path) -> None:
        """Two jobs delete each other's unfinished checkpoints."""
        # No saves: a save between the second job's decision and its lock is refused as well.
        long = {"dataset_size": 20_000, "checkpoint_every_steps": 10_000}
        cfg = small(tmp_path, num_workers=1, **long)
        with Job(cfg, 2, slow_steps) as first:
            wait_for_step(tmp_path, 5)
            second = start(cfg, 2)
            assert codes_of(second) == [2, 2]
            assert all("another job is training" in each.failure.message for each in second)
            # A kill frees the folder, loader workers or not.
            first.ranks[0].kill()
            first.wait()
        third = start(cfg, 2, partial(kill, 0, 60))
        assert third[0].exitcode == -9
        assert max(x["attempt"] for x in lines(tmp_path, "ledger", 0)) == 1


def lose_a_line(rank: int, step: int) -> None:
    """Have one rank's disk refuse the ledger line of a step."""

    def losing(emit: Any, sink: Any, record: Any) -> None:
        if is_rank(rank) and "samples" in record and record["step"] == step:
            fill_the_disk()
        emit(sink, record)

    wrap("JsonlSink.emit", losing)


def count_syncs(folder: Path) -> None:
    """Have each rank append a byte to a file whenever DDP reduces a bucket of gradients."""

    def counted(wrap_model: Any, *arguments: Any) -> Any:
        wrapped = wrap_model(*arguments)

        def hook(_, bucket):  # type: ignore[no-untyped-def] # torch takes no annotation as text
            with (folder / str(this_rank())).open("ab") as file:
                file.write(b".")
            return allreduce_hook(None, bucket)

        wrapped.register_comm_hook(None, hook)
        return wrapped

    wrap("wrap_model", counted)


class TestSync:
    def test_gradients_are_reduced_once_a_step(self, tmp_path: Path) -> None:
        """With accumulation, gradients add up locally; each extra sync is wasted traffic."""
        cfg = small(tmp_path / "run", grad_accum_steps=3, dataset_size=50, max_epochs=1)
        results = start(cfg, 2, partial(count_syncs, tmp_path))
        assert codes_of(results) == [0, 0]
        steps = results[0].answer["step"]
        assert steps > 1
        for rank in (0, 1):
            assert len((tmp_path / str(rank)).read_bytes()) == steps


def swap_the_samples() -> None:
    """Have the loader deliver different samples than the order says, as a broken cache does."""

    def swap(_: int, batches: list[Any]) -> None:
        batches[:] = [batch._replace(samples=batch.samples + 1000) for batch in batches]

    at_batches(swap)


class TestLedger:
    def test_it_says_what_was_trained_and_not_what_was_planned(self, tmp_path: Path) -> None:
        """A ledger of the plan would prove every run, whatever it trained."""
        cfg = small(tmp_path, dataset_size=50, max_epochs=1)
        assert start(cfg, 1, swap_the_samples)[0].exitcode == 0
        trained = [
            sample for line in lines(tmp_path, "ledger", 0) for sample in line["samples"]
        ]
        assert sorted(trained) == list(range(1000, 1050))
        assert audit_run(tmp_path).status == "refuted"


class TestRandomStreams:
    def test_each_rank_draws_its_own_dropout(self, tmp_path: Path) -> None:
        """With the same stream on all ranks, samples of a step share their masks."""
        finish(small(tmp_path, dropout=0.2, dataset_size=50, max_epochs=1), 2)
        newest = max((tmp_path / "checkpoints").iterdir())
        first, second = (torch.load(newest / f"rng-rank-{rank}.pt") for rank in (0, 1))
        assert not torch.equal(first["torch"], second["torch"])


class TestNonFinite:
    def test_a_nan_on_one_rank_stops_all_and_reaches_no_checkpoint(
        self, tmp_path: Path
    ) -> None:
        """If NaN weights are saved as the newest checkpoint, every restart is worthless."""
        results = start(small(tmp_path, log_every=100), 2, partial(poison_step, 1, 5))
        assert codes_of(results) == [2, 2]
        assert all("step 5: loss nan" in result.failure.message for result in results)
        (newest, *_) = sorted((tmp_path / "checkpoints").glob("step-*"), reverse=True)
        assert newest.name == "step-00000003"
        model = torch.load(newest / "state.pt", weights_only=True)["model"]
        assert all(tensor.isfinite().all() for tensor in model.values())

    def test_skip_withholds_the_update_on_all_ranks_and_training_continues(
        self, tmp_path: Path
    ) -> None:
        """Ranks that skip different updates have different weights from then on."""
        results = start(small(tmp_path, on_nonfinite="skip"), 2, partial(poison_step, 1, 5))
        assert codes_of(results) == [0, 0]
        assert len({result.answer["weights_sha256"] for result in results}) == 1
        for rank in (0, 1):
            skipped = [x["step"] for x in lines(tmp_path, "ledger", rank) if x.get("skipped")]
            assert skipped == [5]
        assert audit_run(tmp_path).status == "proved"

    def test_a_run_with_a_skipped_nan_resumes(self, tmp_path: Path) -> None:
        """A resume check that cannot read a NaN loss turns a skipped step into a crash loop."""
        cfg = small(tmp_path, on_nonfinite="skip")
        start(cfg, 1, partial(both, partial(poison_step, 0, 5), partial(kill, 0, 8)))
        assert finish(cfg, 1)["step"] == 52

    @pytest.mark.parametrize("amp", ["bf16", "fp16"])
    def test_reduced_precision_runs_and_resumes(self, tmp_path: Path, amp: str) -> None:
        """A scaler that starts over after a resume skips different steps."""
        straight = finish(small(tmp_path / "straight", amp=amp), 2)
        cfg = small(tmp_path / "killed", amp=amp)
        start(cfg, 2, partial(kill, 0, 8))
        assert finish(cfg, 2)["weights_sha256"] == straight["weights_sha256"]


class TestLocalRanks:
    def test_ranks_that_hang_are_killed_and_leave_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A notebook in which a rank hangs ten times would fill /tmp."""
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        workers = LocalRanks(partial(time.sleep, 600), 2)
        with pytest.raises(TimeoutError, match=r"2 rank\(s\) still running after 0.5 s"):
            workers.wait(0.5)
        assert [process.exitcode for process in workers.processes] == [-9, -9]
        assert list(tmp_path.glob("workers-*")) == []

    def test_an_answer_that_does_not_pickle_is_reported(self) -> None:
        """Without a traceback it would look like a kill."""
        (result,) = LocalRanks(partial(iter, []), 1).wait(60.0)
        assert result.exitcode == 0
        (result,) = LocalRanks(threading.Lock, 1).wait(60.0)
        assert result.exitcode == 1
        assert "cannot pickle" in result.traceback


class TestSigterm:
    def test_sigterm_to_one_rank_saves_the_next_step_and_ends_all(self, tmp_path: Path) -> None:
        """A preempted job that does not save loses the work since the last checkpoint."""
        rare = {"checkpoint_every_steps": 10_000}
        straight = finish(small(tmp_path / "straight", **rare), 2)
        cfg = small(tmp_path / "preempted", **rare)
        results = start(cfg, 2, partial(signal_itself, signal.SIGTERM, 1, 5))
        assert codes_of(results) == [0, 0]
        for rank in (0, 1):
            summary = results[rank].answer
            assert (summary["status"], summary["step"]) == ("preempted", 6)
            assert lines(tmp_path / "preempted", "logs", rank)[-1]["event"] == "preempted"
            assert lines(tmp_path / "preempted", "ledger", rank)[-1]["step"] == 6
        assert (tmp_path / "preempted" / "checkpoints" / "step-00000006").is_dir()
        assert finish(cfg, 2)["weights_sha256"] == straight["weights_sha256"]
        report = audit_run(tmp_path / "preempted")
        assert (report.status, report.replayed_steps) == ("proved", 0)


def count_wrappers(folder: Path) -> None:
    """Have each rank write down how many DDP wrappers are alive when its process group ends."""
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel as DDP

    def count() -> None:
        alive = sum(type(thing) is DDP for thing in gc.get_objects())
        with (folder / f"wrappers-{this_rank()}").open("a") as file:
            file.write(f"{alive} ")

    before(dist, "destroy_process_group", lambda *_: count())
    gc.disable()  # otherwise a collection might come by itself, just in time


class TestCleanup:
    def test_no_wrapper_outlives_the_group(self, tmp_path: Path) -> None:
        """It would keep gloo's threads alive, which abort one rank in fifteen at exit."""
        results = start(small(tmp_path / "run"), 2, partial(count_wrappers, tmp_path))
        assert codes_of(results) == [0, 0]
        assert [(tmp_path / f"wrappers-{rank}").read_text() for rank in (0, 1)] == ["0 ", "0 "]


class TestLogs:
    def test_every_rank_logs_the_mean_over_the_global_batch(self, tmp_path: Path) -> None:
        """Rank 0's own loss hides what happens on the other ranks' samples."""
        finish(small(tmp_path), 2)
        losses = [
            [line["loss"] for line in lines(tmp_path, "logs", rank) if "loss" in line]
            for rank in (0, 1)
        ]
        assert losses[0] == losses[1]
        assert len(losses[0]) == 26
        alone = finish(small(tmp_path / "alone", pinned_global_batch_size=16), 1)
        assert losses[0][-1] == pytest.approx(alone["loss"], rel=1e-4)

    def test_phases_cover_the_step_on_every_rank(self, tmp_path: Path) -> None:
        """You can't find time that no phase shows."""
        large: dict[str, Any] = {"hidden_dim": 512, "num_layers": 3, "micro_batch_size": 32}
        finish(small(tmp_path, **large, dataset_size=1280, log_every=2), 2)
        for rank in (0, 1):
            shares = []
            for line in lines(tmp_path, "logs", rank):
                if line["event"] == "train_progress":
                    spent = {name: phase["p50"] for name, phase in line["phases"].items()}
                    assert spent["grad_sync"] > 0
                    shares.append(spent["other"] / sum(spent.values()))
            # The smallest of ten: time that other programs take may fall into any phase,
            # while a phase that nobody times is missing from every line.
            assert len(shares) == 10
            assert min(shares) < 0.1
