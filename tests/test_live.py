"""The live trainer keeps every promise of its 200 lines."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rehearsal.evidence.audit import audit_run
from rehearsal.faults.breaks import kill
from rehearsal.faults.jobs import codes_of, finish, small_live, start
from trainer_core import live


def share(cfg: live.TrainConfig, rank: int, world_size: int, position: int = 0) -> list[Any]:
    """What the sampler deals a rank: (epoch, samples, S) of each step that is left."""
    steps = live.ResumeAwareDistributedSampler(cfg, rank, world_size, position)
    return [(epoch, samples.tolist(), S) for epoch, samples, S in steps]


class TestOrder:
    @given(st.integers(1, 500), st.integers(0, 99), st.integers(0, 99))
    def test_it_is_a_function_of_n_seed_and_epoch(self, n: int, seed: int, epoch: int) -> None:
        """A restart that shuffles again repeats some samples and loses others."""
        order = live.epoch_order(n, seed, epoch).tolist()
        assert sorted(order) == list(range(n))
        assert live.epoch_order(n, seed, epoch).tolist() == order


@pytest.mark.ranks
class TestResume:
    def test_killed_and_resumed_equals_uninterrupted(self, tmp_path: Path) -> None:
        """A resume that differs in one bit has lost a piece of state."""
        straight = finish(small_live(tmp_path / "straight"), 2)
        cfg = small_live(tmp_path / "killed")
        assert codes_of(start(cfg, 2, partial(kill, 1, 17)))[1] == -9
        assert finish(cfg, 2) == straight
        report = audit_run(cfg.run_dir)
        assert (report.status, report.attempts) == ("proved", 2), report.findings
