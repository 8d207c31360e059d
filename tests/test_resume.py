"""Killed and resumed: bit for bit the same weights, each sample exactly once."""

from __future__ import annotations

import json
import shutil
from functools import partial
from itertools import combinations, product
from pathlib import Path
from typing import Any

import pytest
import torch

from rehearsal.faults.breaks import hide_checkpoints, kill, kill_after_save
from rehearsal.faults.jobs import codes_of, finish, small, start
from rehearsal.evidence.audit import audit_run
from rehearsal.evidence.run_records import read_jsonl
from trainer_core.resume import refuse_other_run
from trainer_core.settings import UserError

pytestmark = pytest.mark.ranks


def steps_per_epoch(world_size: int) -> int:
    """Of ``small``: 203 samples in global batches of 8 per rank."""
    return -(-203 // (8 * world_size))


def events(run_dir: Path, name: str, rank: int = 0) -> list[dict[str, Any]]:
    lines = read_jsonl(run_dir / "logs" / f"rank-{rank}.jsonl")
    return [line for line in lines if line["event"] == name]


def contents(folder: Path) -> dict[str, tuple[int, bytes]]:
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in files}


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> dict[int, dict[str, Any]]:
    """The summary of the uninterrupted run, by world size."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    return {w: finish(small(folder / str(w), dropout=0.2), w) for w in (1, 2, 3, 4)}


AXES: tuple[tuple[Any, ...], ...] = (
    (1, 2, 3, 4),  # ranks
    (0, 1, 2, 4),  # loader workers
    (False, True),  # async saves
    ("mid-epoch", "epoch-end", "last"),  # where the kill falls
)
MATRIX = list(product(*AXES))
# Sixteen of the 96 cells, in which every pair of values meets: most defects need one or two.
PAIRWISE = [
    (world_size, workers, (world_size + i) % 2 == 0, AXES[3][(world_size + i) % 3])
    for world_size in AXES[0]
    for i, workers in enumerate(AXES[1])
]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """The cells of the test that kills: sixteen, or with ``--full-matrix`` all."""
    names = ("world_size", "workers", "is_async", "place")
    if set(names) <= set(metafunc.fixturenames):
        cells = MATRIX if metafunc.config.getoption("--full-matrix") else PAIRWISE
        metafunc.parametrize(names, cells)


def test_the_sixteen_cells_cover_every_pair_of_values() -> None:
    """A pair that never meets hides what breaks only together."""
    for a, b in combinations(range(len(AXES)), 2):
        assert {(cell[a], cell[b]) for cell in PAIRWISE} == set(product(AXES[a], AXES[b]))


class TestBitExactResume:
    def test_killed_and_resumed_equals_uninterrupted(
        self,
        tmp_path: Path,
        uninterrupted: dict[int, dict[str, Any]],
        world_size: int,
        workers: int,
        is_async: bool,
        place: str,
    ) -> None:
        """A resume that differs in one bit has lost a piece of state.

        Sixteen cells by default; ``pytest tests/test_resume.py --full-matrix`` takes all 96.
        """
        per_epoch, rank = steps_per_epoch(world_size), world_size - 1
        prepare = {
            "mid-epoch": partial(kill, rank, per_epoch + 4),
            "epoch-end": partial(kill_after_save, rank, per_epoch),
            "last": partial(kill, rank, 2 * per_epoch - 1),
        }[place]
        cfg = small(tmp_path, dropout=0.2, num_workers=workers, async_checkpoint=is_async)
        killed = start(cfg, world_size, prepare)
        assert killed[rank].exitcode == -9
        resumed = finish(cfg, world_size)
        assert resumed["weights_sha256"] == uninterrupted[world_size]["weights_sha256"]
        assert resumed["step"] == 2 * per_epoch
        report = audit_run(tmp_path)
        assert report.status == "proved", report.findings
        assert len(events(tmp_path, "checkpoint_restored")) == 1
        validated = events(tmp_path, "resume_validated")
        assert [event["ok"] for event in validated] == [True], validated

    def test_two_kills_in_one_epoch(
        self, tmp_path: Path, uninterrupted: dict[int, dict[str, Any]]
    ) -> None:
        """A second resume that counts from the first one's start skips the steps in between."""
        cfg = small(tmp_path, dropout=0.2, num_workers=2)
        for step in (5, 10):
            start(cfg, 2, partial(kill, 0, step))
        assert finish(cfg, 2)["weights_sha256"] == uninterrupted[2]["weights_sha256"]
        report = audit_run(tmp_path)
        assert (report.status, report.attempts) == ("proved", 3)

    def test_the_last_checkpoint_of_a_finished_run_resumes_to_nothing(
        self, tmp_path: Path
    ) -> None:
        """A restart that trains or writes after the end changes a finished run."""
        first = finish(small(tmp_path), 2)
        before = contents(tmp_path)
        assert finish(small(tmp_path), 2) == first
        assert contents(tmp_path) == before


class TestChangedWorldSize:
    def test_two_three_one_ranks_train_each_sample_once(self, tmp_path: Path) -> None:
        """A different world size trains the rest of the epoch: nothing twice, nothing lost."""
        pinned = {"pinned_global_batch_size": 32, "micro_batch_size": 5}
        straight = finish(small(tmp_path / "straight", **pinned), 2)
        cfg = small(tmp_path / "chain", **pinned)
        start(cfg, 2, partial(kill, 1, 5))
        start(cfg, 3, partial(kill, 2, 9))
        end = finish(cfg, 1)
        assert end["step"] == straight["step"]
        report = audit_run(tmp_path / "chain")
        assert report.status == "proved", report.findings
        states = [
            torch.load(
                tmp_path / name / "checkpoints" / f"step-{end['step']:08d}" / "state.pt",
                weights_only=True,
            )["model"]
            for name in ("straight", "chain")
        ]
        for name, weights in states[0].items():
            # A different world size sums in a different order; only the last bits may differ.
            torch.testing.assert_close(states[1][name], weights, rtol=1e-4, atol=1e-5)

    def test_an_unpinned_batch_is_refused_and_the_flag_named(self, tmp_path: Path) -> None:
        """With a different global batch, the position would mean different samples."""
        start(small(tmp_path), 2, partial(kill, 1, 5))
        before = contents(tmp_path)
        results = start(small(tmp_path), 3)
        assert codes_of(results) == [2, 2, 2]
        for result in results:
            assert "--pinned-global-batch-size 16" in result.failure.message
        assert contents(tmp_path) == before

    def test_a_rank_without_samples_joins_the_sync(self, tmp_path: Path) -> None:
        """A rank that stays away from the last, small step leaves the others waiting."""
        cfg = small(tmp_path, dataset_size=9, pinned_global_batch_size=4)
        assert finish(cfg, 3)["step"] == 6
        assert audit_run(tmp_path).status == "proved"

    def test_two_ranks_give_the_gradient_of_one(self, tmp_path: Path) -> None:
        """A mean of means weighs the samples of the smaller share more."""
        cfg = small(tmp_path / "1", pinned_global_batch_size=7, dataset_size=31)
        one = finish(cfg, 1)
        two = finish(small(tmp_path / "2", pinned_global_batch_size=7, dataset_size=31), 2)
        assert two["loss"] == pytest.approx(one["loss"], rel=1e-4)


class TestDamage:
    def spoil(self, folder: Path) -> None:
        path = folder / "state.pt"
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)

    def test_a_flipped_bit_falls_back_to_the_checkpoint_before(
        self, tmp_path: Path, uninterrupted: dict[int, dict[str, Any]]
    ) -> None:
        """torch.load accepts a flipped bit, so training would continue with wrong weights."""
        cfg = small(tmp_path, dropout=0.2)
        start(cfg, 2, partial(kill, 1, 8))
        self.spoil(tmp_path / "checkpoints" / "step-00000006")
        assert finish(cfg, 2)["weights_sha256"] == uninterrupted[2]["weights_sha256"]
        rejected = events(tmp_path, "checkpoint_rejected")
        assert [event["folder"] for event in rejected] == ["step-00000006"]
        assert "state.pt" in rejected[0]["reason"]
        assert events(tmp_path, "checkpoint_restored")[0]["folder"] == "step-00000003"
        assert list((tmp_path / "checkpoints").glob("rejected-step-00000006-*"))
        assert audit_run(tmp_path).status == "proved"

    def test_with_no_intact_checkpoint_the_run_is_refused_and_nothing_is_written(
        self, tmp_path: Path
    ) -> None:
        """Silently starting over throws away what was trained."""
        start(small(tmp_path), 2, partial(kill, 1, 8))
        for folder in (tmp_path / "checkpoints").glob("step-*"):
            self.spoil(folder)
        before = contents(tmp_path)
        results = start(small(tmp_path), 2)
        assert codes_of(results) == [2, 2]
        assert all("--start-over" in result.failure.message for result in results)
        assert contents(tmp_path) == before
        over = finish(small(tmp_path, start_over=True), 2)
        assert over["run_dir"] == f"{tmp_path}-2"
        assert contents(tmp_path) == before
        shutil.rmtree(over["run_dir"])

    def test_ranks_that_see_different_checkpoints_all_refuse(self, tmp_path: Path) -> None:
        """Ranks that choose different checkpoints train different weights; nobody notices."""
        start(small(tmp_path), 2, partial(kill, 1, 8))
        results = start(small(tmp_path), 2, partial(hide_checkpoints, 1))
        assert codes_of(results) == [2, 2]
        assert all("disk that all nodes share" in result.failure.message for result in results)


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one rank that was killed after step 8."""
    folder = tmp_path_factory.mktemp("started")
    start(small(folder), 1, partial(kill, 0, 8))
    return folder


class TestChangedSettings:
    @pytest.mark.parametrize(
        ("field", "value", "named"),
        [
            ("seed", 18, "--seed 17"),
            ("dataset_size", 204, "--dataset-size 203"),
            ("micro_batch_size", 5, "--pinned-global-batch-size 8"),
            ("hidden_dim", 32, "--hidden-dim 16"),
            ("num_layers", 3, "--num-layers 2"),
            ("data", "digits", "--data toy"),
            ("input_dim", 9, "--input-dim 8"),
        ],
    )
    def test_a_changed_identity_is_refused_by_name(
        self, started: Path, field: str, value: Any, named: str
    ) -> None:
        """Silently accepted, it would replay or skip samples."""
        from trainer_core.launch import run

        with pytest.raises(UserError, match=named):
            run(small(started, **{field: value}))

    def test_the_way_back_to_tokens_names_a_path(self, tmp_path: Path) -> None:
        """The manifest has no path, and --data tokens alone would be refused in turn."""
        identity = {"data": "toy", "num_samples": 3}
        with pytest.raises(UserError, match="Use --data tokens:PATH; or another"):
            refuse_other_run(tmp_path, identity, {"data": "tokens", "num_samples": 9})

    def test_a_new_learning_rate_takes_effect_and_is_reported(self, tmp_path: Path) -> None:
        """The optimizer's saved state would silently bring the old one back."""
        start(small(tmp_path), 1, partial(kill, 0, 8))
        finish(small(tmp_path, learning_rate=5e-4, weight_decay=0.1, max_epochs=3), 1)
        changed = events(tmp_path, "config_changed")[0]["changes"]
        assert changed["learning_rate"] == [1e-3, 5e-4]
        assert changed["weight_decay"] == [0.01, 0.1]
        assert changed["max_epochs"] == [2, 3]
        assert "decay_steps" not in changed
        progress = events(tmp_path, "train_progress")
        rates = {line["step"]: line["lr"] for line in progress if line["attempt"] == 1}
        # The horizon stays that of the first plan; beyond it the rate is the floor.
        assert rates[52] == pytest.approx(5e-5)
        assert rates[60] == pytest.approx(5e-5)
        assert json.loads((tmp_path / "config.json").read_text())["config"]["decay_steps"] == 52
