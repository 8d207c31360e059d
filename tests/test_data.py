"""Which rank trains which sample when, for any ranks, workers and place to resume."""

from __future__ import annotations

import itertools
import os
import pickle
import subprocess
import sys
import time
import tracemalloc
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from rehearsal.engine.programs import Program
from rehearsal.engine.programs import run as run_program
from trainer_core.config import TrainConfig
from trainer_core.data import (
    MicroBatch,
    ResumeAwareDistributedSampler,
    SampleKey,
    StepSchedule,
    ToyClassificationDataset,
    TrainingView,
    build_dataloader,
    build_dataset,
    plan_steps,
)
from trainer_core.datasets import InMemoryDataset
from trainer_core.order import EpochOrder
from trainer_core.settings import UserError

CPU = torch.device("cpu")
Steps = list[list[list[SampleKey]]]


def sampler_of(
    schedule: StepSchedule,
    *,
    micro: int,
    rank: int = 0,
    world_size: int = 1,
    seed: int = 5,
    position: int = 0,
) -> ResumeAwareDistributedSampler:
    cfg = TrainConfig(micro_batch_size=micro, seed=seed)
    sampler = ResumeAwareDistributedSampler(schedule, cfg, rank=rank, world_size=world_size)
    sampler.load_state_dict({"position": position})
    return sampler


def samplers_of(
    schedule: StepSchedule, *, micro: int, world_size: int
) -> list[ResumeAwareDistributedSampler]:
    return [
        sampler_of(schedule, micro=micro, rank=rank, world_size=world_size)
        for rank in range(world_size)
    ]


def flat(micro_batches: list[list[SampleKey]]) -> list[SampleKey]:
    return list(itertools.chain.from_iterable(micro_batches))


def loader_of(
    cfg: TrainConfig, position: int = 0
) -> tuple[ResumeAwareDistributedSampler, DataLoader[MicroBatch]]:
    source = build_dataset(cfg)
    schedule = plan_steps(cfg, source)
    sampler = ResumeAwareDistributedSampler(schedule, cfg, rank=0, world_size=1)
    sampler.load_state_dict({"position": position})
    view = TrainingView(source, seed=cfg.seed, input_noise=cfg.input_noise)
    return sampler, build_dataloader(view, sampler, cfg, CPU)


class TestStepSchedule:
    @pytest.mark.parametrize(
        ("n", "batch", "steps", "last"),
        [(100, 10, 10, 10), (101, 10, 11, 1), (99, 10, 10, 9), (30, 64, 1, 30), (1, 1, 1, 1)],
    )
    def test_the_last_step_takes_what_is_left(
        self, n: int, batch: int, steps: int, last: int
    ) -> None:
        """The handbook drops the rest of each epoch, or all of an epoch of 30 samples."""
        schedule = StepSchedule(n, batch, 3)
        assert (schedule.steps_per_epoch, schedule.total_steps) == (steps, 3 * steps)
        assert schedule.slots(steps - 1) == (0, n - last, n)
        assert schedule.slots(steps) == (1, 0, min(batch, n))

    def test_a_place_far_ahead_costs_no_more_than_the_first(self) -> None:
        """Skipping samples one by one takes minutes at the scale of real runs."""
        schedule = StepSchedule(10**12, 1024, 1)
        assert schedule.slots(10**8) == (0, 1024 * 10**8, 1024 * 10**8 + 1024)
        micro_batches = sampler_of(schedule, micro=512).micro_batches(10**8)
        expected = EpochOrder(10**12, seed=5, epoch=0).samples(*schedule.slots(10**8)[1:])
        assert [key.sample for key in flat(micro_batches)] == expected.tolist()


class TestDealing:
    @settings(max_examples=150)
    @given(
        n=st.integers(1, 400),
        batch=st.integers(1, 150),
        world_size=st.integers(1, 9),
        micro=st.integers(1, 40),
        data=st.data(),
    )
    def test_the_ranks_partition_each_step(
        self, n: int, batch: int, world_size: int, micro: int, data: st.DataObject
    ) -> None:
        """A sample on two ranks counts twice in the gradient; one on none is never trained."""
        schedule = StepSchedule(n, batch, 3)
        position = data.draw(st.integers(0, schedule.total_steps - 1), label="position")
        epoch, first, last = schedule.slots(position)
        shares = []
        for sampler in samplers_of(schedule, micro=micro, world_size=world_size):
            micro_batches = sampler.micro_batches(position)
            sizes = [len(keys) for keys in micro_batches]
            assert len(sizes) == sampler.micro_steps
            assert max(sizes) <= micro
            # Empty ones first: the last micro-batch of each rank is the one that synchronizes.
            assert 0 not in sizes[sizes.count(0) :]
            shares.append(flat(micro_batches))
        assert max(map(len, shares)) - min(map(len, shares)) <= 1
        dealt = Counter(itertools.chain.from_iterable(shares))
        order = EpochOrder(n, seed=5, epoch=epoch).samples(first, last).tolist()
        assert dealt == Counter(SampleKey(epoch, sample) for sample in order)

    @settings(max_examples=50)
    @given(
        n=st.integers(1, 200),
        batch=st.integers(1, 64),
        micro=st.integers(1, 16),
        world_sizes=st.lists(st.integers(1, 6), min_size=1, max_size=12),
        legs=st.lists(st.integers(1, 7), min_size=12, max_size=12),
    )
    def test_each_sample_once_an_epoch_however_often_the_ranks_change(
        self, n: int, batch: int, micro: int, world_sizes: list[int], legs: list[int]
    ) -> None:
        """From 2 ranks to 1 the handbook trains 321 of 1600 samples twice, and one never."""
        schedule, position, trained = StepSchedule(n, batch, 3), 0, []
        starts = itertools.cycle(zip(world_sizes, legs, strict=False))
        while position < schedule.total_steps:
            world_size, leg = next(starts)
            samplers = samplers_of(schedule, micro=micro, world_size=world_size)
            for sampler in samplers:
                sampler.load_state_dict({"position": position})
                for _ in range(min(leg, schedule.total_steps - position)):
                    trained += flat(sampler.micro_batches(sampler.position))
                    sampler.commit()
            (position,) = {sampler.state_dict()["position"] for sampler in samplers}
        every = {SampleKey(epoch, sample) for epoch in range(3) for sample in range(n)}
        assert Counter(trained) == Counter(every)

    @pytest.mark.parametrize(
        ("n", "batch", "world_size"), [(1601, 32, 2), (1630, 64, 2), (30, 64, 2), (1, 64, 4)]
    )
    def test_no_sample_is_dropped_and_none_is_padded(
        self, n: int, batch: int, world_size: int
    ) -> None:
        """The handbook trains one of 1601 twice, drops 30 of 1630, and all of 30."""
        schedule = StepSchedule(n, batch, 1)
        samplers = samplers_of(schedule, micro=16, world_size=world_size)
        seen = [key.sample for sampler in samplers for keys in sampler for key in keys]
        assert sorted(seen) == list(range(n))

    @pytest.mark.parametrize("batch", [8, 64, 10**6])
    def test_a_batch_above_the_epoch_adds_no_empty_micro_batches(self, batch: int) -> None:
        """A typo in the batch size would loop over millions of them in every step."""
        cfg = TrainConfig(micro_batch_size=2, pinned_global_batch_size=batch)
        sampler = ResumeAwareDistributedSampler(StepSchedule(7, batch, 1), cfg, 0, 2)
        assert [len(keys) for keys in sampler.micro_batches(0)] == [2, 2]

    @pytest.mark.parametrize("world_size", [2, 3, 7, 64])
    def test_the_last_ranks_of_a_small_step_get_empty_micro_batches(
        self, world_size: int
    ) -> None:
        """A rank with fewer micro-batches than the others misses the sync they wait in."""
        schedule = StepSchedule(65, 64, 1)
        for rank in range(world_size):
            sampler = sampler_of(schedule, micro=1, rank=rank, world_size=world_size)
            micro_batches = sampler.micro_batches(1)
            assert len(micro_batches) == sampler.micro_steps == -(-64 // world_size)
            assert len(flat(micro_batches)) == (rank == 0)

    @pytest.mark.parametrize("batch", [1000, 65_536, 70_000, 140_000])
    def test_a_step_may_cross_blocks_of_the_order(self, batch: int) -> None:
        """A step across the end of a cached block could get another block's samples."""
        schedule = StepSchedule(140_001, batch, 2)
        sampler = sampler_of(schedule, micro=batch, rank=3, world_size=16)
        steps = schedule.total_steps
        near = {65_536 * block // batch + shift for block in range(5) for shift in (-1, 0, 1)}
        near |= {schedule.steps_per_epoch + shift for shift in (-2, -1, 0, 1)} | {steps - 1}
        forward = sorted(position for position in near if 0 <= position < steps)
        for position in [*forward, *reversed(forward)]:
            epoch, first, last = schedule.slots(position)
            expected = EpochOrder(140_001, seed=5, epoch=epoch).samples(first, last)
            found = [key.sample for key in flat(sampler.micro_batches(position))]
            assert found == expected[3::16].tolist(), position


class TestPosition:
    def test_only_commit_moves_it(self) -> None:
        """The handbook counts what the loader fetched: a peek skips samples for good."""
        schedule = StepSchedule(100, 8, 2)
        sampler = sampler_of(schedule, micro=4)
        whole = list(sampler)
        assert sampler.state_dict() == {"position": 0}
        for _ in range(3):
            sampler.commit()
        peek = iter(sampler)
        next(peek), next(peek)
        assert sampler.state_dict() == {"position": 3}
        assert list(sampler) == list(sampler) == whole[3 * sampler.micro_steps :]

    def test_a_peek_at_the_loader_changes_nothing(self) -> None:
        """One batch shown in a notebook cell must not cost the training that batch."""
        sampler, loader = loader_of(TrainConfig(dataset_size=50, micro_batch_size=8))
        first = next(iter(loader))
        again = next(iter(loader))
        assert torch.equal(first.samples, again.samples)
        assert sampler.position == 0

    def test_a_resume_continues_with_the_next_sample(self) -> None:
        """The handbook shifts all batches by one (no workers) or by the prefetched ones."""
        schedule = StepSchedule(100, 8, 3)
        whole = list(sampler_of(schedule, micro=4))
        for position in (0, 1, 12, 13, 14, 38):
            state = {"position": position}
            resumed = sampler_of(schedule, micro=4)
            resumed.load_state_dict(state)
            assert resumed.state_dict() == state
            assert list(resumed) == whole[position * 2 :]

    def test_an_epoch_end_is_neither_repeated_nor_skipped(self) -> None:
        """Both obvious fixes to the handbook's sampler train an epoch twice, or not at all."""
        schedule = StepSchedule(10, 4, 2)
        at_the_end = list(sampler_of(schedule, micro=4, position=3))
        assert {key.epoch for keys in at_the_end for key in keys} == {1}
        assert sorted(key.sample for keys in at_the_end for key in keys) == list(range(10))
        assert list(sampler_of(schedule, micro=4, position=6)) == []

    def test_the_length_is_what_is_left(self) -> None:
        """A progress bar that ignores the resume stops halfway."""
        cfg = TrainConfig(dataset_size=100, micro_batch_size=4, grad_accum_steps=2)
        for position in (0, 3, 38, 39):
            sampler, loader = loader_of(cfg, position)
            assert len(loader) == len(sampler) == len(list(sampler)) == (39 - position) * 2


class TestLoader:
    @pytest.mark.ranks
    @pytest.mark.parametrize("position", [0, 5])
    def test_batches_do_not_depend_on_the_workers(self, position: int) -> None:
        """Prefetching workers moved the handbook's position 64 samples ahead per rank."""
        batches = {}
        for num_workers in (0, 1, 2):
            cfg = TrainConfig(
                dataset_size=41,
                micro_batch_size=4,
                grad_accum_steps=2,
                input_noise=0.3,
                max_epochs=2,
                num_workers=num_workers,
            )
            sampler, loader = loader_of(cfg, position)
            batches[num_workers] = list(loader)
            assert sampler.position == position
        expected = batches[0]
        assert len(expected) == (12 - position) * 2
        for num_workers in (1, 2):
            for ours, theirs in zip(batches[num_workers], expected, strict=True):
                assert all(map(torch.equal, ours, theirs)), num_workers

    def test_it_draws_nothing_from_the_global_random_stream(self) -> None:
        """Drawing a base seed for the loader would shift the dropout of every resumed run."""
        _, loader = loader_of(TrainConfig(dataset_size=64, input_noise=0.5))
        torch.manual_seed(1)
        before = torch.get_rng_state()
        for _ in loader:
            pass
        assert torch.equal(torch.get_rng_state(), before)

    def test_ids_travel_with_their_samples(self) -> None:
        """The ledger is evidence only if the id belongs to the tensor that was trained."""
        cfg = TrainConfig(dataset_size=40, micro_batch_size=7)
        dataset = ToyClassificationDataset(40, cfg.input_dim)
        _, loader = loader_of(cfg)
        for batch in loader:
            assert batch.samples.dtype == torch.int64
            assert torch.equal(batch.inputs, dataset.inputs[batch.samples])
            assert torch.equal(batch.targets, dataset.targets[batch.samples])


class TestNoise:
    def view(self, **changes: Any) -> TrainingView:
        source = ToyClassificationDataset(100, 16)
        return TrainingView(source, **({"seed": 3, "input_noise": 0.5} | changes))

    def test_it_is_a_function_of_seed_epoch_and_sample(self) -> None:
        """Noise from a worker's stream changes when the worker count or a rank does."""
        view, keys = self.view(), [SampleKey(2, sample) for sample in (5, 9, 70)]
        together = view.__getitems__(keys)
        for row in (2, 0, 1):
            torch.manual_seed(row)
            np.random.seed(row)
            alone = self.view().__getitems__([SampleKey(0, 1), keys[row]])
            assert torch.equal(alone.inputs[1], together.inputs[row])
            assert alone.targets[1] == together.targets[row]

    def test_each_seed_epoch_and_sample_has_its_own_noise(self) -> None:
        """The same noise in every epoch is not augmentation."""
        clean = ToyClassificationDataset(100, 16).inputs
        visits = [(3, 2, 5), (4, 2, 5), (3, 3, 5), (3, 2, 6), (2, 3, 5), (5, 2, 3)]
        noises = [
            self.view(seed=seed).__getitems__([SampleKey(epoch, at)]).inputs[0] - clean[at]
            for seed, epoch, at in visits
        ]
        for one, other in itertools.combinations(noises, 2):
            assert (one - other).abs().max() > 0.01

    def test_it_has_the_configured_size_and_leaves_the_dataset_alone(self) -> None:
        """Noise added in place would pile up epoch by epoch."""
        view = self.view()
        before = view.source.fingerprint, view.source.inputs.clone()  # type: ignore[attr-defined]
        keys = [SampleKey(0, sample) for sample in range(100)]
        noise = view.__getitems__(keys).inputs - before[1]
        assert noise.std().item() == pytest.approx(0.5, rel=0.1)
        assert torch.equal(view.source.inputs, before[1])  # type: ignore[attr-defined]
        assert torch.equal(self.view(input_noise=0.0).__getitems__(keys).inputs, before[1])

    def test_no_samples_make_an_empty_batch_of_the_right_shape(self) -> None:
        """A rank without samples still joins the sync with it."""
        batch = self.view().__getitems__([])
        assert batch.samples.shape == (0,)
        assert batch.inputs.shape == (0, 16)
        assert batch.targets.shape == (0,)
        assert (batch.samples.dtype, batch.targets.dtype) == (torch.int64, torch.int64)


class TestToy:
    def test_a_linear_probe_learns_the_labels(self) -> None:
        """On random labels a loss curve says nothing about a bug."""
        dataset = ToyClassificationDataset(3000, 32)
        train, test = slice(0, 2000), slice(2000, 3000)
        targets = torch.nn.functional.one_hot(dataset.targets, dataset.num_classes).float()
        probe = torch.linalg.lstsq(dataset.inputs[train], targets[train]).solution
        guessed = (dataset.inputs[test] @ probe).argmax(dim=1)
        accuracy = (guessed == dataset.targets[test]).float().mean().item()
        assert accuracy > 0.6  # chance is 1/8
        assert (torch.bincount(dataset.targets, minlength=8) > 3000 / 8 / 3).all()

    def test_its_content_does_not_depend_on_the_seed_of_the_run(self) -> None:
        """Two seeds are compared on the same data."""
        one, other = (build_dataset(TrainConfig(dataset_size=50, seed=seed)) for seed in (1, 2))
        assert one.fingerprint == other.fingerprint
        torch.manual_seed(0)
        assert ToyClassificationDataset(50, 32).fingerprint == one.fingerprint

    def test_what_does_not_fit_in_memory_is_refused(self) -> None:
        """The operating system would kill a rank without a message."""
        with pytest.raises(
            UserError, match=r"dataset_size=100000000, .*held in memory.*tokens:PATH"
        ):
            build_dataset(TrainConfig(dataset_size=100_000_000))


class TestDigits:
    def test_they_are_those_of_scikit_learn(self) -> None:
        """If the columns are off by one, labels are trained on as pixels."""
        sklearn = pytest.importorskip("sklearn.datasets")
        bunch, ours = sklearn.load_digits(), build_dataset(TrainConfig(data="digits"))
        assert (len(ours), ours.num_classes) == (1797, 10)
        inputs, targets = ours.batch(range(1797))
        assert np.array_equal(inputs.numpy(), bunch.data.astype(np.float32) / 16)
        assert np.array_equal(targets.numpy(), bunch.target)
        assert (inputs.dtype, targets.dtype) == (torch.float32, torch.int64)

    def test_without_scikit_learn_the_message_says_what_to_install(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The trainer needs torch and numpy only; the scans are an extra."""
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
        with pytest.raises(UserError, match=r"data=digits: .*pip install scikit-learn"):
            build_dataset(TrainConfig(data="digits"))


def write_tokens(path: Path, count: int, high: int = 256) -> np.ndarray[Any, Any]:
    tokens = np.random.default_rng(0).integers(0, high, count).astype("<u2")
    tokens.tofile(path)
    return tokens


def tokens_of(path: Path, **changes: Any) -> TrainConfig:
    return TrainConfig(data=f"tokens:{path}", **({"seq_len": 8} | changes))


ABANDON = """
import os, subprocess, sys, time, torch
torch.utils.data._utils.worker.MP_STATUS_CHECK_INTERVAL = 1000  # its own look for the parent
from trainer_core.config import TrainConfig
from trainer_core.data import (ResumeAwareDistributedSampler, StepSchedule, TrainingView,
                               build_dataloader, build_dataset)
cfg = TrainConfig(num_workers=2, dataset_size=1000)
sampler = ResumeAwareDistributedSampler(StepSchedule(1000, 16, 9), cfg, 0, 1)
view = TrainingView(build_dataset(cfg), seed=1, input_noise=0.0)
batches = iter(build_dataloader(view, sampler, cfg, torch.device("cpu")))
[next(batches) for _ in range(2)]  # one of each worker
pids = [str(worker.pid) for worker in batches._workers]
print(*pids)
if sys.argv[1] == "killed":
    sys.stdout.flush()
    os.kill(os.getpid(), 9)
if sys.argv[1] == "hit":  # by somebody else: their own process's SIGTERM they obey
    subprocess.run(["kill", "-TERM", *pids], check=True)
time.sleep(0.2)
[next(batches) for _ in range(9)]
keep = batches  # a global name, alive until the end
"""


@pytest.mark.ranks
class TestLoaderWorkers:
    @pytest.mark.skipif(
        sys.platform != "linux", reason="not checked: signals to loader workers"
    )
    @pytest.mark.parametrize("signals", ["hit", "spared"])
    def test_they_outlive_a_sigterm_but_not_their_process(self, signals: str) -> None:
        """An abandoned iterator must not make the interpreter wait at exit."""
        run = subprocess.run(
            [sys.executable, "-c", ABANDON, signals],
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert (run.returncode, run.stderr) == (0, "")
        pids = run.stdout.split()
        assert len(pids) == 2
        assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]

    @pytest.mark.skipif(
        sys.platform != "linux", reason="not checked: signals to loader workers"
    )
    def test_they_do_not_outlive_a_killed_process(self) -> None:
        """They keep its sockets open, so the other ranks would wait for a dead peer."""
        with Program("-c", ABANDON, "killed") as job:
            assert job.wait(60) == -9
            pids = job.stdout.split()
            assert len(pids) == 2
            deadline = time.monotonic() + 10
            while left := [pid for pid in pids if Path(f"/proc/{pid}").exists()]:
                assert time.monotonic() < deadline, left
                time.sleep(0.05)

    @pytest.mark.skipif(
        sys.platform != "linux", reason="not checked: signals to loader workers"
    )
    def test_one_whose_process_died_before_it_could_ask_ends_itself(self) -> None:
        """The operating system reports only a death that comes later."""
        script = (
            "import multiprocessing, os, types\n"
            "from trainer_core.datasets import exit_with_parent\n"
            "dead = types.SimpleNamespace(pid=os.getppid() + 1)\n"
            "multiprocessing.parent_process = lambda: dead\n"
            "exit_with_parent(0)\n"
        )
        assert run_program("-c", script).returncode == 1


class TestTokens:
    @pytest.mark.parametrize(
        ("count", "windows"), [(9, 1), (16, 1), (17, 2), (80, 9), (81, 10)]
    )
    def test_windows_follow_each_other_and_targets_are_the_next_tokens(
        self, tmp_path: Path, count: int, windows: int
    ) -> None:
        """A target off by one teaches the model to copy its input."""
        tokens = write_tokens(tmp_path / "x.bin", count)
        source = build_dataset(tokens_of(tmp_path / "x.bin"))
        assert len(source) == windows
        inputs, targets = source.batch(range(windows))
        assert (inputs.dtype, targets.dtype) == (torch.int64, torch.int64)
        assert inputs.flatten().tolist() == tokens[: windows * 8].tolist()
        assert targets.flatten().tolist() == tokens[1 : windows * 8 + 1].tolist()
        backwards, _ = source.batch([windows - 1, 0])
        assert backwards.tolist() == [inputs[windows - 1].tolist(), inputs[0].tolist()]

    def test_no_samples_make_an_empty_batch_of_the_right_shape(self, tmp_path: Path) -> None:
        """A rank without samples still joins the sync with it."""
        write_tokens(tmp_path / "x.bin", 100)
        inputs, targets = build_dataset(tokens_of(tmp_path / "x.bin")).batch([])
        assert inputs.shape == targets.shape == (0, 8)

    @pytest.mark.parametrize("num_workers", [0, pytest.param(1, marks=pytest.mark.ranks)])
    def test_batches_from_the_loader_are_contiguous(
        self, tmp_path: Path, num_workers: int
    ) -> None:
        """The copy of a strided tensor to the GPU goes through memory that is not pinned."""
        write_tokens(tmp_path / "x.bin", 100)
        cfg = tokens_of(tmp_path / "x.bin", micro_batch_size=4, num_workers=num_workers)
        _, loader = loader_of(cfg)
        for batch in loader:
            assert len(batch.samples) > 1  # one row is contiguous whatever its stride
            for name, tensor in batch._asdict().items():
                assert tensor.is_contiguous(), name
                # A view of a larger buffer would pin and send the buffer's other numbers too.
                assert tensor.untyped_storage().nbytes() == tensor.nbytes, name

    @pytest.mark.parametrize("size", [0, 1, 17, 16, 101])
    def test_a_file_of_odd_length_or_too_short_is_refused(
        self, tmp_path: Path, size: int
    ) -> None:
        """Half a token at the end means the file was truncated, or isn't uint16."""
        path = tmp_path / "x.bin"
        path.write_bytes(bytes(size))
        with pytest.raises(UserError, match=rf"x.bin: {size} bytes.*two bytes each.*8 \+ 1"):
            build_dataset(tokens_of(path))

    def test_a_missing_file_is_refused(self, tmp_path: Path) -> None:
        """A traceback from numpy does not name the flag."""
        for path in (tmp_path / "none.bin", tmp_path):
            with pytest.raises(UserError, match=f"data=tokens:{path}: no such file.*Check"):
                build_dataset(tokens_of(path))

    def test_a_token_outside_the_vocabulary_is_refused_by_its_number(
        self, tmp_path: Path
    ) -> None:
        """On CUDA an index that is too high fails a device assert that names nothing."""
        tokens = write_tokens(tmp_path / "x.bin", 100)
        tokens[50] = 256
        tokens.tofile(tmp_path / "x.bin")
        source = build_dataset(tokens_of(tmp_path / "x.bin"))
        source.batch([0])
        with pytest.raises(UserError, match=r"token 256 found, .*vocab_size=256.*Raise"):
            source.batch([0, 6])
        build_dataset(tokens_of(tmp_path / "x.bin", vocab_size=257)).batch([6])

    def test_a_spawned_worker_gets_the_path_and_not_the_content(self, tmp_path: Path) -> None:
        """Off Linux each loader worker would be sent the whole file through a pipe."""
        write_tokens(tmp_path / "x.bin", 100_000)
        source = build_dataset(tokens_of(tmp_path / "x.bin"))
        pickled = pickle.dumps(TrainingView(source, seed=1, input_noise=0.0))
        assert len(pickled) < 2000  # the content has 200,000 bytes
        copy = pickle.loads(pickled).source
        assert copy.fingerprint == source.fingerprint
        assert torch.equal(copy.batch([3, 7])[0], source.batch([3, 7])[0])

    def test_a_file_that_is_truncated_during_training_is_reported(self, tmp_path: Path) -> None:
        """Mapped into memory, the missing page killed the run with SIGBUS and no message."""
        path = tmp_path / "x.bin"
        write_tokens(path, 100_000)
        source = build_dataset(tokens_of(path))
        source.batch([0, 12_000])
        with path.open("rb+") as file:
            file.truncate(2 * 50_000 + 2)
        source.batch([0, 6249])
        with pytest.raises(UserError, match=r"had 100000 tokens.*fewer now.*Restore the file"):
            source.batch([0, 12_000])

    def test_a_file_of_8_gib_is_not_read_into_memory(self, tmp_path: Path) -> None:
        """We promise any file size; a copy in every rank would break that."""
        path = tmp_path / "big.bin"
        with path.open("wb") as file:
            file.truncate(2**33)  # sparse: takes no space
        tracemalloc.start()
        try:
            source = build_dataset(tokens_of(path))
            source.batch([0, len(source) - 1])
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert len(source) == (2**32 - 1) // 8
        assert peak < 2**20


class TestIdentity:
    def test_more_samples_than_there_are_is_refused(self) -> None:
        """Samples trained twice in an epoch, or an index error in a worker."""
        cfg = TrainConfig(data="digits", dataset_size=1798)
        with pytest.raises(UserError, match=r"dataset_size=1798: digits has 1797 samples"):
            plan_steps(cfg, build_dataset(cfg))

    def test_fewer_samples_than_there_are_take_the_first_ones(self) -> None:
        """The order depends on the plan's n, not the file's."""
        cfg = TrainConfig(data="digits", dataset_size=100)
        assert plan_steps(cfg, build_dataset(cfg)) == StepSchedule(100, 16, 3)

    def test_the_fingerprint_follows_the_content(self, tmp_path: Path) -> None:
        """A resume on different data would pass two trainings off as one run."""
        inputs, targets = torch.arange(12.0).reshape(4, 3), torch.arange(4)
        changed = inputs.clone()
        changed[2, 1] += 1
        prints = {
            InMemoryDataset(inputs, targets, 4).fingerprint,
            InMemoryDataset(changed, targets, 4).fingerprint,
            InMemoryDataset(inputs, targets.flip(0), 4).fingerprint,
            InMemoryDataset(inputs.reshape(4, 3)[:3], targets[:3], 4).fingerprint,
            InMemoryDataset(inputs.reshape(2, 6), targets[:2], 4).fingerprint,
        }
        assert len(prints) == 5
        assert InMemoryDataset(inputs.clone(), targets, 4).fingerprint in prints

    def test_the_fingerprint_covers_sixteen_pieces(self, tmp_path: Path) -> None:
        """Fewer pieces miss more changes, and every older run would be refused."""
        count, piece = 4 * 10**6, 32768
        tokens = write_tokens(tmp_path / "x.bin", count)
        prints = {build_dataset(tokens_of(tmp_path / "x.bin")).fingerprint}
        for number in range(16):
            changed = tokens.copy()
            changed[number * (count - piece) // 15 + piece // 2] ^= 1
            changed.tofile(tmp_path / "x.bin")
            prints.add(build_dataset(tokens_of(tmp_path / "x.bin")).fingerprint)
        assert len(prints) == 17

    @pytest.mark.parametrize(
        ("count", "where"),
        [(10_000, 0), (10_000, 1234), (10_000, 9999), (10**6, 0), (10**6, 10**6 - 1)],
    )
    def test_the_fingerprint_of_a_token_file_follows_its_content(
        self, tmp_path: Path, count: int, where: int
    ) -> None:
        """A file rewritten under the same name is a different dataset."""
        path = tmp_path / "x.bin"
        tokens = write_tokens(path, count)
        before = build_dataset(tokens_of(path)).fingerprint
        assert build_dataset(tokens_of(path)).fingerprint == before
        tokens[where] ^= 1
        tokens.tofile(path)
        after = build_dataset(tokens_of(path)).fingerprint
        tokens[:-1].tofile(path)
        shorter = build_dataset(tokens_of(path)).fingerprint
        assert len({before, after, shorter}) == 3
