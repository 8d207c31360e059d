"""The audit of real runs: while they train, after what users do to them, and when damaged."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from reference_audit import verdict
from rehearsal.evidence.audit import audit_run
from rehearsal.evidence.run_records import read_jsonl
from rehearsal.faults.breaks import kill
from rehearsal.faults.jobs import Job, finish, last_record, small, start
from scripts.fuzz_audit import TINY, Case, Fuzzer, build_runs, describe, fuzz, main
from trainer_core.run_folder import next_attempt
from trainer_core.settings import UserError

pytestmark = pytest.mark.ranks


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A few real runs, stripped of their tensors."""
    return build_runs(tmp_path_factory.mktemp("runs"))


@pytest.fixture
def fuzzer(runs: dict[str, Path], tmp_path: Path) -> Iterator[Fuzzer]:
    """Both audits. The user nobody must be able to reach the folders."""
    top = Path(tempfile.gettempdir())
    folders = [folder for folder in (tmp_path, *tmp_path.parents) if top in folder.parents]
    modes = [folder.stat().st_mode for folder in folders]
    for folder in folders:
        folder.chmod(0o755)
    yield Fuzzer(runs, tmp_path)
    for folder, mode in zip(folders, modes, strict=True):
        folder.chmod(mode)


class TestRealRuns:
    def test_each_is_proved_by_both_audits(self, runs: dict[str, Path]) -> None:
        """Killed, resumed, resized, extended, or with an older copy put back."""
        for name, folder in runs.items():
            report = audit_run(folder)
            assert (report.status, report.findings) == ("proved", []), name
            assert verdict(folder) == 0, name

    def test_an_older_copy_leads_to_the_attempt_that_saved_it(
        self, runs: dict[str, Path], tmp_path: Path
    ) -> None:
        """Attempt 1 trained step 4 of its own; the newest weights have attempt 0's."""
        folder = shutil.copytree(runs["older"], tmp_path / "older")
        path = folder / "ledger" / "rank-0.jsonl"
        lines = path.read_text().splitlines(keepends=True)
        for attempt, expected in ((1, "proved"), (0, "refuted")):
            kept = [x for x in lines if f'"step": 4, "epoch": 0, "rank": 0, "world_size": 1, '
                    f'"attempt": {attempt},' not in x]  # fmt: skip
            assert len(kept) == len(lines) - 1
            path.write_text("".join(kept))
            assert audit_run(folder).status == expected, attempt

    def test_a_fuzzed_sample_is_judged_as_the_reference_judges_it(self, fuzzer: Fuzzer) -> None:
        """``python scripts/fuzz_audit.py`` judges 10,000."""
        score = fuzz(fuzzer, 300, seed=1, num_commands=3)
        assert not score.wrong, describe(*score.wrong[0])
        # Damage that is always noticed, or never, would show nothing.
        assert min(score.verdicts[code] for code in (0, 1, 2)) > 5

    def test_a_case_that_cannot_be_read_is_2_with_what_it_should_be(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """It was a traceback with 1, which means that the audits disagree."""
        monkeypatch.setattr("sys.argv", ["fuzz_audit.py", "--case", "one:x"])
        with pytest.raises(SystemExit) as exit_:
            main()
        assert exit_.value.code == 2
        expected = "--case: one:x: the seeds must be whole numbers, as in resumed:12,907."
        assert expected in capsys.readouterr().err

    def test_an_audit_that_is_wrong_is_noticed(self, fuzzer: Fuzzer) -> None:
        """A fuzzer that can't fail proves nothing."""
        fuzzer.main = lambda arguments: 0
        score = fuzz(fuzzer, 30, seed=1)
        assert score.wrong
        case, outcome = score.wrong[0]
        assert isinstance(case, Case)
        assert (outcome.code, outcome.expected in (1, 2)) == (0, True)


class TestARunInProgress:
    def test_it_is_never_refuted(self, tmp_path: Path) -> None:
        """It saves after every step, and is killed and restarted, while it is audited."""
        cfg = small(tmp_path / "run", checkpoint_every_steps=1, keep_last=2, max_epochs=8)
        found = []
        for breaks in (partial(kill, 1, 40), partial(kill, 0, 70), None):
            with Job(cfg, 2, breaks) as job:
                while any(rank.poll() is None for rank in job.ranks):
                    found.append(audit_run(cfg.run_dir))
                job.wait()
        texts = [report.findings for report in found if report.status == "refuted"]
        assert not texts
        # Before its first step there is nothing to judge.
        assert {report.status for report in found} >= {"proved"}
        assert audit_run(cfg.run_dir).steps == 8 * 13


class TestAttemptNumbers:
    def test_without_its_logs_a_run_does_not_count_from_0_again(self, tmp_path: Path) -> None:
        """Two attempts with one number can't be told apart: the ledger would be refuted."""
        cfg = small(tmp_path / "run", **TINY)
        start(cfg, 2, partial(kill, 1, 8))
        shutil.rmtree(tmp_path / "run" / "logs")
        finish(cfg, 2)
        report = audit_run(tmp_path / "run")
        assert (report.status, report.attempts) == ("proved", 2)
        assert last_record(tmp_path / "run" / "ledger" / "rank-0.jsonl")["attempt"] == 1

    @pytest.mark.parametrize(
        ("name", "content"),
        [
            ("ledger/rank-1.jsonl", '{"step": 1, "attempt": 6, "samples": []}\n{"attempt": 9'),
            ("logs/rank-1.jsonl", '{"attempt": 6}\n'),
            ("checkpoints/step-00000003/manifest.json", '{\n "attempt": 6\n}'),
            ("ledger/rank-0.jsonl", '{"attempt": 6, "samples": [' + "1, " * 99_999 + "1]}\n"),
        ],
    )
    def test_the_highest_number_counts_wherever_it_is(
        self, name: str, content: str, tmp_path: Path
    ) -> None:
        """Each of the files may be the only one that is left."""
        for path in (tmp_path / "logs" / "rank-0.jsonl", tmp_path / name):
            path.parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "logs" / "rank-0.jsonl").write_text('{"attempt": 5}\n')
        (tmp_path / name).write_text(content)
        assert next_attempt(tmp_path) == 7

    @pytest.mark.parametrize(
        ("name", "remedy"),
        [
            ("logs/rank-0.jsonl", "Remove that line"),
            ("checkpoints/step-00000003/manifest.json", "Move that checkpoint away"),
        ],
    )
    def test_an_absurd_number_comes_with_what_to_do(
        self, tmp_path: Path, name: str, remedy: str
    ) -> None:
        """A manifest has a hash of itself: taking a line out would damage it once more."""
        path = tmp_path / name
        path.parent.mkdir(parents=True)
        path.write_text('{"attempt": 12345678901}\n')
        with pytest.raises(UserError, match=f"12345678901... of 11 digits.* {remedy}, or use"):
            next_attempt(tmp_path)

    def test_the_log_and_the_manifest_say_whose_checkpoint_it_was(self, tmp_path: Path) -> None:
        """The audit follows the lineage by it."""
        cfg = small(tmp_path / "run", **TINY)
        start(cfg, 1, partial(kill, 0, 5))
        start(cfg, 1, partial(kill, 0, 8))
        finish(cfg, 1)
        log = list(read_jsonl(tmp_path / "run" / "logs" / "rank-0.jsonl"))
        restored = [x for x in log if x["event"] == "checkpoint_restored"]
        assert [(x["attempt"], x["step"], x["saved_by_attempt"]) for x in restored] == [
            (1, 3, 0),
            (2, 6, 1),
        ]
