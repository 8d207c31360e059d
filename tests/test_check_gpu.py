"""The script that a first run on a GPU node begins with, rehearsed on the CPU."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
import torch

from rehearsal.engine.programs import run as run_program
from scripts import check_gpu

ROOT = Path(__file__).resolve().parents[1]


def run_script(*words: str) -> subprocess.CompletedProcess[str]:
    return run_program("scripts/check_gpu.py", *words, folder=ROOT, timeout_s=250)


class TestWithoutAGpu:
    @pytest.mark.skipif(torch.cuda.is_available(), reason="not checked: a GPU is visible")
    def test_it_says_so_and_exits_with_2(self, capsys: pytest.CaptureFixture[str]) -> None:
        """Without a GPU, a report would read as if a GPU had passed."""
        assert check_gpu.main([]) == 2
        assert "no GPU is visible" in capsys.readouterr().err

    def test_an_unknown_group_is_refused(self, capsys: pytest.CaptureFixture[str]) -> None:
        """A typo must not check nothing and report success."""
        assert check_gpu.main(["--device", "cpu", "--only", "fp61"]) == 2
        assert "--only fp61: no such group" in capsys.readouterr().err

    @pytest.mark.parametrize(("shares_gpu", "outcome"), [(False, "skipped"), (True, "passed")])
    def test_a_check_for_two_gpus_needs_two_or_one_that_is_shared(
        self, tmp_path: Path, shares_gpu: bool, outcome: str
    ) -> None:
        """NCCL refuses two ranks of one host on one GPU, whatever the trainer does."""
        check = check_gpu.Check("tail", "a check", lambda node: "ran", needs_gpus=2)
        node = check_gpu.Node("cuda", tmp_path, 1, shares_gpu)
        (result,) = check_gpu.run_checks(node, [check])
        assert result.outcome == outcome
        assert ("--share-gpu" in result.detail) == (not shares_gpu)


@pytest.mark.ranks
class TestRehearsalOnTheCpu:
    def test_overflow_and_backends_pass_and_are_reported(self, tmp_path: Path) -> None:
        """A script that nobody has ever run checks nothing."""
        report = tmp_path / "report.json"
        words = "--device cpu --share-gpu --only empty,fp16,backends --report".split()
        done = run_script(*words, str(report))
        assert done.returncode == 0, done.stdout + done.stderr
        rows = json.loads(report.read_text())
        assert [row["outcome"] for row in rows] == ["passed"] * 8
        assert "cpu=gloo" in done.stdout

    def test_biotech_ranks_are_compared(self, tmp_path: Path) -> None:
        """Two ranks on a GPU once ended where one rank trained."""
        checks = [c for c in check_gpu.all_checks() if c.group == "biotech"]
        # One of them: that ranks agree on the other data, tests/test_bio_tasks.py shows.
        (result,) = check_gpu.run_checks(check_gpu.Node("cpu", tmp_path, 0), checks[-1:])
        assert result.outcome == "passed", result

    def test_a_trainer_that_fails_is_reported(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A report that cannot say no is worthless."""
        monkeypatch.setattr(check_gpu, "PLAN", [*check_gpu.PLAN, "--max-grad-norm", "-1"])
        checks = [c for c in check_gpu.all_checks() if c.group == "fp16"]
        (result,) = check_gpu.run_checks(check_gpu.Node("cpu", tmp_path, 0), checks)
        assert result.outcome == "failed"
        assert "--max-grad-norm" in result.detail
