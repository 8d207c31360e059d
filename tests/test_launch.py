"""scripts/launch.py, alone and under torchrun: exit codes, messages, restarts, preemption."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import os
import re
import signal
import socket
import subprocess
import textwrap
import sys
import threading
import time
import weakref
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from torch.distributed import TCPStore

from rehearsal.engine.processes import stat_of
from rehearsal.engine.programs import Program
from rehearsal.evidence.audit import audit_run
from rehearsal.evidence.run_records import read_jsonl
from rehearsal.faults.jobs import arguments, small, wait_for_step, wait_until
from rehearsal.faults.torchrun import Torchrun
from trainer_core.config import TrainConfig
from trainer_core.settings import UserError

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "scripts" / "launch.py"
FLAGS = "--dataset-size 203 --input-dim 8 --hidden-dim 16 --micro-batch-size 4 --max-epochs 1"
FLAGS += " --device cpu"  # a machine with one GPU has a device for only one of two ranks


@pytest.fixture(scope="module")
def launch() -> ModuleType:
    """The script as a module, so that most cases need no process."""
    spec = importlib.util.spec_from_file_location("launch_script", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def wait_until_idle(pid: int) -> None:
    """Wait until the process has used no CPU time for half a second. Linux."""
    before, now = -1, stat_of(pid).cpu_ticks
    while before != now:
        time.sleep(0.5)
        before, now = now, stat_of(pid).cpu_ticks


def config(run_dir: Path, **changes: Any) -> TrainConfig:
    """The run that FLAGS describe: with two ranks 26 steps an epoch."""
    own = {"grad_accum_steps": 1, "max_epochs": 1, "checkpoint_every_steps": 200}
    return small(run_dir, **{**own, **changes})


def pause_at(step: int) -> None:
    """Keep a run busy after a step, so that it can't save before a second signal."""
    from rehearsal.faults.breaks import at_step

    at_step(step, lambda: time.sleep(60))


def pid_of(run_dir: Path, rank: int) -> int:
    """The process ID of a rank, as its newest start logged it."""
    log = read_jsonl(run_dir / "logs" / f"rank-{rank}.jsonl")
    return int([line["pid"] for line in log if line["event"] == "run_start"][-1])


class TestFlags:
    def test_the_last_line_of_stdout_is_the_summary(
        self, launch: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """A script that starts runs reads this line."""
        assert launch.main(["--run-dir", str(tmp_path / "run"), *FLAGS.split()]) == 0
        summary = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert list(summary) == ["status", "step", "epoch", "loss", "weights_sha256", "run_dir"]
        assert (summary["status"], summary["step"], summary["epoch"]) == ("done", 51, 1)

    def test_each_field_has_a_flag_with_a_help_text(
        self, launch: ModuleType, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """A setting without a flag cannot be set by whoever runs the job."""
        with pytest.raises(SystemExit) as exit_:
            launch.main(["--help"])
        assert exit_.value.code == 0
        text = capsys.readouterr().out
        for flag in (
            "--data --dataset-size --max-epochs --micro-batch-size --grad-accum-steps "
            "--pinned-global-batch-size --num-workers --learning-rate --seed --dropout --amp "
            "--checkpoint-every-steps --keep-last --async-checkpoint --log-every --device "
            "--start-over --run-dir"
        ).split():
            assert re.search(rf"^  {flag}[ ,\n]", text, re.MULTILINE), flag
        assert "--world-size" not in text, "the world size is torchrun's to say"

    @pytest.mark.parametrize(
        ("flags", "message"),
        [
            ("--micro-batchsize 4", "nearest is --micro-batch-size"),
            ("--foo 4", "unknown flags are never ignored. --help"),
            ("--output-dir somewhere", "never ignored. --help"),
            ("--max-epochs 1000000000000000", "at most 1000000000"),
            ("--num-workers 100000", "--num-workers 100000: 1 rank(s) on this machine would"),
            ("--hidden-dim 10000000", "this machine has"),
            ("--num-layers 1000000000000", "this machine has"),
            ("--run-dir /", "the root of the file system"),
            ("--run-dir=", "an empty path"),
            ("--world-size 4", "no such flag"),
            ("--amp fp8", "one of no, bf16, fp16"),
            ("--micro-batch-size 0", "at least 1"),
            ("--micro-batch-size four", "invalid int value: 'four'"),
            ("--learning-rate nan", "at least 0.0 and finite"),
            ("--data imagenet", "Choose toy, digits, or tokens:PATH"),
            ("--data tokens:/nowhere/tokens.bin", "no such file"),
            ("--data digits --dataset-size 1798", "1797 or less"),
            ("--dataset-size 0", "at least 1"),
            ("--dataset-size 1000000000000", "held in memory"),
            ("--device cuda", "GPU"),
            ("--export nowhere", "tensorboard or prometheus"),
            ("--warmup-steps 60", "no step is left to decay in"),
        ],
    )
    def test_a_mistake_ends_with_2_and_a_short_message(
        self,
        launch: ModuleType,
        tmp_path: Path,
        capsys: pytest.CaptureFixture[str],
        flags: str,
        message: str,
    ) -> None:
        """A traceback says where the program was, not what the user can fix."""
        if flags == "--device cuda" and __import__("torch").cuda.is_available():
            pytest.skip("a GPU is visible, so --device cuda is no mistake here")
        run_dir = tmp_path / "run"
        assert launch.main(["--run-dir", str(run_dir), *FLAGS.split(), *flags.split()]) == 2
        printed = capsys.readouterr()
        assert message in printed.err
        assert "Traceback" not in printed.err
        assert len(printed.err) < 500
        assert printed.out == ""
        assert not run_dir.exists(), "a refused start writes nothing"

    def test_loader_workers_are_counted_over_all_ranks_of_the_machine(
        self, launch: ModuleType, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """256 workers a rank look harmless on 16 cores until eight ranks start 2048 of them."""
        monkeypatch.setattr("os.sched_getaffinity", lambda _: range(16), raising=False)
        launch.refuse_workers_that_starve_the_machine(256)
        monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
        launch.refuse_workers_that_starve_the_machine(32)
        found = r"num_workers=33: 8 rank\(s\) .* 264 loader .* 16 core\(s\), .* most 32;"
        with pytest.raises(UserError, match=found):
            launch.refuse_workers_that_starve_the_machine(33)

    @pytest.mark.parametrize(
        ("environment", "message"),
        [
            ({"RANK": "abc"}, "RANK=abc: it must be a whole number"),
            ({"LOCAL_RANK": "x"}, "LOCAL_RANK=x: it must be a whole number"),
            ({"WORLD_SIZE": "2"}, "sets WORLD_SIZE=2, but not RANK"),
            ({"WORLD_SIZE": "2", "RANK": "0", "MASTER_PORT": "1"}, "not MASTER_ADDR"),
            ({"RANK": "1"}, "RANK=1 of WORLD_SIZE=1"),
            ({"WORLD_SIZE": "0"}, "WORLD_SIZE=0"),
        ],
    )
    def test_a_broken_launcher_ends_with_2_and_a_short_message(
        self,
        launch: ModuleType,
        tmp_path: Path,
        capsys: pytest.CaptureFixture[str],
        monkeypatch: pytest.MonkeyPatch,
        environment: dict[str, str],
        message: str,
    ) -> None:
        """A KeyError in the rendezvous names no variable that the user has heard of."""
        for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
            monkeypatch.delenv(name, raising=False)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        assert launch.main(["--run-dir", str(tmp_path / "run"), *FLAGS.split()]) == 2
        assert message in capsys.readouterr().err
        assert not (tmp_path / "run").exists()

    def test_a_file_or_a_dangling_link_in_the_way_is_named_with_the_way_out(
        self, launch: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """'Is a directory: lock' says neither whose fault it is nor what to do."""
        for name in ("checkpoints", "logs", "ledger", "traces", "lock", "config.json", "."):
            run_dir = tmp_path / f"link-{name}" / "run"
            (run_dir if name != "." else run_dir.parent).mkdir(parents=True)
            (run_dir / name).symlink_to("/nowhere/x")
            assert launch.main(["--run-dir", str(run_dir), *FLAGS.split()]) == 2
            assert "Create or mount what it points to" in capsys.readouterr().err
        (tmp_path / "run" / "lock").mkdir(parents=True)
        assert launch.main(["--run-dir", str(tmp_path / "run"), *FLAGS.split()]) == 2
        assert "lock: this is a folder" in capsys.readouterr().err

    def test_a_huge_attempt_or_a_deeply_nested_record_is_refused(
        self, launch: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Both were tracebacks from deep inside Python."""
        (tmp_path / "logs").mkdir()
        (tmp_path / "logs" / "rank-0.jsonl").write_text('{"attempt": ' + "9" * 5000 + "}\n")
        assert launch.main(["--run-dir", str(tmp_path), *FLAGS.split()]) == 2
        assert "of 5000 digits" in capsys.readouterr().err
        (tmp_path / "config.json").write_text("[" * 100_000 + "]" * 100_000)
        assert launch.main(["--run-dir", str(tmp_path), *FLAGS.split()]) == 2
        assert "not written by this trainer" in capsys.readouterr().err

    def test_start_over_of_a_parent_makes_no_folder_inside_the_run(
        self, launch: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """RUN/.. with a number behind it is RUN/..-2."""
        run_dir = tmp_path / "outer" / "run"
        run_dir.mkdir(parents=True)
        flags = ["--run-dir", f"{run_dir}/..", *FLAGS.split(), "--start-over"]
        assert launch.main(flags) == 0
        summary = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert summary["run_dir"] == str(tmp_path / "outer-2")
        assert list(run_dir.iterdir()) == []

    @pytest.mark.parametrize(
        ("error", "reason"),
        [
            (MemoryError(), "MemoryError."),  # Python's own says nothing
            (MemoryError("Unable to allocate 8 TiB\nfor x"), "Unable to allocate 8 TiB."),
            (RuntimeError("can't allocate memory: you tried 8."), "you tried 8."),
        ],
    )
    def test_what_does_not_fit_in_memory_is_explained_and_exits_at_once(
        self,
        launch: ModuleType,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
        error: Exception,
        reason: str,
    ) -> None:
        """A defect in the message leaves through a normal exit, which waits for the peers."""

        def run(*_: object, **__: object) -> None:
            raise error

        def leave(code: int) -> None:
            raise SystemExit(code)

        monkeypatch.setattr("trainer_core.launch.run", run)
        monkeypatch.setattr(os, "_exit", leave)
        with pytest.raises(SystemExit, match="2"):
            launch.main(["--run-dir", str(tmp_path / "run"), *FLAGS.split()])
        assert f"{reason} A rank holds its data" in capsys.readouterr().err

    def test_a_batch_above_the_epoch_is_reported(
        self, launch: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """A run of one step per epoch is rarely what anyone wants."""
        command = ["--run-dir", str(tmp_path / "run"), *FLAGS.split()]
        assert launch.main([*command, "--grad-accum-steps", "1000000000"]) == 0
        assert "lower --grad-accum-steps" in capsys.readouterr().out

    def test_the_remedy_for_a_large_token_works(
        self, launch: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Raising --vocab-size alone was refused: the folder belongs to the smaller model."""
        path = tmp_path / "tokens.bin"
        np.full(1000, 300, dtype="<u2").tofile(path)
        flags = f"--data tokens:{path} --seq-len 16 --hidden-dim 16 --max-epochs 1 --device cpu"
        command = ["--run-dir", str(tmp_path / "run"), *flags.split()]
        assert launch.main(command) == 2
        assert "--start-over" in capsys.readouterr().err
        assert launch.main([*command, "--vocab-size", "301", "--start-over"]) == 0

    def test_a_hash_of_all_data_sees_what_the_fingerprint_cannot(
        self, launch: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """A file edited in place between two sampled pieces is different data."""
        path, tokens = tmp_path / "tokens.bin", np.ones(10**6, dtype="<u2")
        tokens.tofile(path)
        flags = f"--data tokens:{path} --seq-len 2048 --hidden-dim 8 --device cpu"
        command = ["--run-dir", str(tmp_path / "run"), *flags.split(), "--num-layers", "1"]
        command += ["--dataset-size", "16", "--max-epochs"]
        assert launch.main([*command, "1", "--hash-all-data"]) == 0
        tokens[40_000] = 2  # between the first piece and the second
        tokens.tofile(path)
        assert launch.main([*command, "2"]) == 0, "16 pieces can't see this change"
        assert launch.main([*command, "3", "--hash-all-data"]) == 2
        assert "the data with SHA-256" in capsys.readouterr().err

    def test_a_mistake_on_another_node_is_reported_there(
        self,
        launch: ModuleType,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        """A flag may be wrong on one node only; its ranks would die without a message."""
        monkeypatch.setenv("RANK", "8")
        for local_rank, is_said in [("0", True), ("1", False)]:
            monkeypatch.setenv("LOCAL_RANK", local_rank)
            assert launch.main(["--datta", "toy"]) == 2
            assert ("The nearest is --data" in capsys.readouterr().err) == is_said

    def test_settings_that_the_run_does_not_read_are_reported(
        self, launch: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Not refused: a different --data, or a pinned batch, just makes another flag moot."""
        for flags, unread in [
            ("--data digits --seq-len 9", "--input-dim 8, --seq-len 9"),
            ("--num-heads 2 --vocab-size 9 --input-dim 9", "--num-heads 2, --vocab-size 9"),
            ("--grad-accum-steps 3 --pinned-global-batch-size 8", "--grad-accum-steps 3"),
            ("--grad-accum-steps 3 --seq-len 64", ""),
            ("--hang-timeout-s 60", "--hang-timeout-s 60.0"),
        ]:
            run_dir = tmp_path / unread.replace(" ", "")
            command = ["--run-dir", str(run_dir / "run"), *FLAGS.split(), *flags.split()]
            assert launch.main(command) == 0
            said = re.findall(r"^no effect in this run: (.*)$", capsys.readouterr().out, re.M)
            assert said == ([unread] if unread else [])
            log = list(read_jsonl(run_dir / "run" / "logs" / "rank-0.jsonl"))
            events = [line["flags"] for line in log if line["event"] == "settings_unread"]
            assert events == said

    def test_a_token_file_of_odd_length_is_refused(
        self, launch: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Half a token shifts every token after it."""
        path = tmp_path / "tokens.bin"
        path.write_bytes(bytes(1001))
        assert (
            launch.main(["--run-dir", str(tmp_path / "run"), "--data", f"tokens:{path}"]) == 2
        )
        assert "1001 bytes" in capsys.readouterr().err

    def test_tokens_train_and_resume(
        self, launch: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """The decoder is part of the trainer, not a separate demo."""
        path = tmp_path / "tokens.bin"
        np.tile(np.arange(50, dtype="<u2"), 100).tofile(path)
        flags = (
            f"--data tokens:{path} --seq-len 16 --vocab-size 64 --hidden-dim 16 --dropout 0.1"
        )
        flags = ["--run-dir", str(tmp_path / "run"), *flags.split()]
        assert launch.main([*flags, "--max-epochs", "1"]) == 0
        assert launch.main([*flags, "--max-epochs", "2"]) == 0
        summary = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert summary["epoch"] == 2
        assert audit_run(tmp_path / "run").status == "proved"

    @pytest.mark.parametrize("content", [b"{}", b"not json", b'{"config": 1}'])
    def test_a_folder_that_is_not_a_run_is_left_alone(
        self,
        launch: ModuleType,
        tmp_path: Path,
        capsys: pytest.CaptureFixture[str],
        content: bytes,
    ) -> None:
        """Somebody's own files in a folder of that name would be overwritten."""
        (tmp_path / "config.json").write_bytes(content)
        assert launch.main(["--run-dir", str(tmp_path), *FLAGS.split()]) == 2
        assert "not written by this trainer" in capsys.readouterr().err
        assert [path.name for path in tmp_path.iterdir()] == ["config.json"]
        assert (tmp_path / "config.json").read_bytes() == content

    def test_a_run_dir_that_is_a_file_is_refused(
        self, launch: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """mkdir's message doesn't say what to do."""
        (tmp_path / "file").write_text("mine")
        assert launch.main(["--run-dir", str(tmp_path / "file"), *FLAGS.split()]) == 2
        assert "Move it away, or use a --run-dir" in capsys.readouterr().err

    def test_a_newer_format_is_refused_and_not_set_aside(
        self, launch: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """A checkpoint of a newer version is good; this version just cannot read it."""
        from trainer_core.checkpoint_format import manifest_sha256

        run_dir = tmp_path / "run"
        assert launch.main(["--run-dir", str(run_dir), *FLAGS.split()]) == 0
        path = run_dir / "checkpoints" / "step-00000051" / "manifest.json"
        manifest = {**json.loads(path.read_text()), "format": 99}
        path.write_text(json.dumps({**manifest, "sha256": manifest_sha256(manifest)}))
        assert launch.main(["--run-dir", str(run_dir), *FLAGS.split()]) == 2
        assert "format 99" in capsys.readouterr().err
        assert path.exists()

    def test_start_over_resumes_in_its_own_folder_after_a_restart(
        self,
        launch: ModuleType,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        """torchrun repeats the command at each restart; it must not start over each time."""
        command = ["--run-dir", str(tmp_path / "run"), *FLAGS.split(), "--start-over"]
        folders = []
        for job in (None, "first", "first", "second"):
            if job is not None:
                monkeypatch.setenv("TORCHELASTIC_RUN_ID", job)
            assert launch.main(command) == 0
            summary = json.loads(capsys.readouterr().out.splitlines()[-1])
            folders.append(Path(summary["run_dir"]).name)
        assert folders == ["run", "run-2", "run-2", "run-3"]

    def test_start_over_resumes_if_one_agent_of_the_first_start_is_left(
        self, tmp_path: Path
    ) -> None:
        """Rank 0 may come back on another node after its own has died."""
        from trainer_core.run_folder import choose_run_dir

        cfg = TrainConfig(run_dir=tmp_path / "run", start_over=True)
        record = {"run_id": "r", "config": {}, "identity": {"data": "toy"}}
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "config.json").write_text(
            json.dumps({**record, "agents": ["job/a/1", "job/b/1"]})
        )
        assert choose_run_dir(cfg, ["job/b/1", "job/c/1"]).name == "run"
        assert choose_run_dir(cfg, ["job/c/1"]).name == "run-2"
        assert choose_run_dir(cfg, []).name == "run-2"

    @pytest.mark.ranks
    def test_a_bad_token_is_reported_in_one_line_even_by_a_loader_worker(
        self, launch: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """The worker's traceback is torch's; the user needs the sentence in it."""
        path = tmp_path / "tokens.bin"
        np.full(1000, 300, dtype="<u2").tofile(path)
        flags = f"--data tokens:{path} --num-workers 1 --seq-len 16 --hidden-dim 16".split()
        assert launch.main(["--run-dir", str(tmp_path / "run"), *flags]) == 2
        message = capsys.readouterr().err.splitlines()[-1]
        assert message.startswith("launch.py: --data tokens:")
        assert "token 300" in message


class TestHandlers:
    def test_a_signal_while_it_prints_still_ends_it(
        self, launch: ModuleType, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Python refuses to print in the middle of a print; the exit must not depend on it."""
        codes: list[int] = []

        class Interrupted(io.RawIOBase):
            def writable(self) -> bool:
                return True

            def write(self, text: Any) -> int:
                launch.not_training(signal.SIGTERM, None)
                return len(text)

        stderr = io.TextIOWrapper(io.BufferedWriter(Interrupted()), line_buffering=True)
        monkeypatch.delenv("WORLD_SIZE", raising=False)
        monkeypatch.setattr(sys, "stderr", stderr)
        monkeypatch.setattr(launch, "first_exit", threading.Lock())
        monkeypatch.setattr(signal, "getsignal", lambda _: launch.not_training)
        monkeypatch.setattr(os, "_exit", codes.append)
        print("a line", file=sys.stderr, flush=True)
        assert codes == [0]

    @pytest.mark.parametrize("fails", [False, True])
    def test_a_run_gives_the_signal_handlers_back(self, tmp_path: Path, fails: bool) -> None:
        """In a notebook, Ctrl-C after a run would set an event that nobody reads."""
        from trainer_core.launch import run

        before = [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)]
        cfg = config(tmp_path / "run", data="tokens:/nowhere" if fails else "toy")
        with pytest.raises(UserError) if fails else contextlib.nullcontext():
            run(cfg)
        assert [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)] == before

    def test_a_second_interrupt_does_what_it_did_before(self) -> None:
        """In a notebook, that is a KeyboardInterrupt: the only way out of a step that hangs."""
        from trainer_core.signals import stop_on_sigterm

        with stop_on_sigterm() as stop:
            signal.raise_signal(signal.SIGINT)
            assert stop.is_set()
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)


class TestRefusal:
    def test_the_wrapper_is_gone_before_the_group_is(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Kept alive by the error's frames, it hung when they were freed: in 5 of 12 tries."""
        import trainer_core.launch as launch

        class Wrapper:
            """Weakly referable."""

        seen: list[weakref.ref[Wrapper]] = []

        def refuse(*_: object) -> None:
            wrapper = Wrapper()
            seen.append(weakref.ref(wrapper))
            raise UserError("what the user can fix")

        alive: list[object] = []
        monkeypatch.setattr(launch, "train_run", refuse)
        monkeypatch.setattr(launch, "cleanup_dist", lambda: alive.append(seen[0]()))
        with pytest.raises(UserError, match="can fix"):
            launch.run(TrainConfig(run_dir=tmp_path))
        assert alive == [None]


@pytest.mark.ranks
class TestTorchrun:
    def test_four_ranks_exit_with_0_and_print_one_summary_last(self, tmp_path: Path) -> None:
        """Ranks that abort during shutdown fail a job that has done its work.

        In real interpreters, because it is about how they shut down.
        """
        with Torchrun(config(tmp_path / "run"), 4) as job:
            assert job.wait() == 0, job.stderr
            *progress, last = job.stdout.splitlines()
            assert "total_steps" in progress[0], "a notebook shows stderr as an error"
            assert "  loss " in progress[-1]
            assert "  loss " not in job.stderr
        assert [line for line in progress if line.startswith("{")] == []
        assert json.loads(last)["status"] == "done"

    def test_a_rank_killed_three_times_is_restarted_three_times(self, tmp_path: Path) -> None:
        """Restarted ranks that read the dead attempt's keys wait forever."""
        cfg = config(tmp_path / "run", max_epochs=12, checkpoint_every_steps=10)
        with Torchrun(cfg, 2, restarts=3, forks=True) as job:
            for attempt, step in enumerate((15, 40, 65)):
                wait_for_step(cfg.run_dir, step, rank=attempt % 2, attempt=attempt)
                os.kill(pid_of(cfg.run_dir, attempt % 2), signal.SIGKILL)
            assert job.wait() == 0, job.stderr
            assert json.loads(job.stdout.splitlines()[-1])["step"] == 12 * 26
        report = audit_run(cfg.run_dir)
        assert (report.status, report.attempts) == ("proved", 4)

    def test_sigterm_to_torchrun_saves_the_step(self, tmp_path: Path) -> None:
        """A scheduler that reclaims the node sends SIGTERM and does not wait long."""
        cfg = config(tmp_path / "run", max_epochs=500, checkpoint_every_steps=1_000_000)
        with Torchrun(cfg, 2, forks=True) as job:
            wait_for_step(cfg.run_dir, 30, rank=1)
            job.agent.terminate()
            job.wait(60)
        last = list(read_jsonl(cfg.run_dir / "logs" / "rank-0.jsonl"))[-1]
        assert last["event"] == "preempted"
        assert (cfg.run_dir / "checkpoints" / f"step-{last['step']:08d}").is_dir()

    def test_the_ranks_die_with_torchrun(self, tmp_path: Path) -> None:
        """Ranks that keep training hold the lock, so the restarted command is refused."""
        cfg = config(tmp_path / "run", max_epochs=500, num_workers=1)
        with Torchrun(cfg, 2, forks=True) as job:
            for rank in (0, 1):
                wait_for_step(cfg.run_dir, 10, rank=rank)
            ranks = job.ranks()
            job.agent.kill()
            wait_until(
                lambda: not any(stat_of(pid).is_alive for pid in ranks), "the ranks to exit", 10
            )

    def test_an_account_of_a_hang_has_the_stacks_of_ranks_and_workers(
        self, tmp_path: Path
    ) -> None:
        """A hang seen once in a thousand starts must explain itself the first time."""
        cfg = config(tmp_path / "run", max_epochs=500, num_workers=1)
        with Torchrun(cfg, 2, forks=True) as job:
            for rank in (0, 1):
                wait_for_step(cfg.run_dir, 10, rank=rank)
            account = str(job.hang("no step"))
        assert account.count(" in train_loop") == 2, account
        assert account.count(" in _worker_loop") == 2, account

    def test_a_mistake_is_reported_once_and_ends_all_ranks(self, tmp_path: Path) -> None:
        """Four ranks that print the same paragraph hide it."""
        cfg = config(tmp_path / "run", data="tokens:/nowhere/tokens.bin")
        with Torchrun(cfg, 2, forks=True) as job:
            assert job.wait(60) == 1  # torchrun's own; the ranks exited with 2
            text = job.stderr
        assert text.count("no such file") == 1
        assert re.search(r"exitcode\s*: 2", text)
        assert not re.search(r"launch\.py\", line", text), "torchrun's own traceback is enough"


@pytest.mark.ranks
class TestSigterm:
    def test_sigterm_to_every_process_of_the_job_saves_the_step(self, tmp_path: Path) -> None:
        """A service manager signals every process; loader workers must not die of it first."""
        cfg = config(tmp_path / "run", max_epochs=500, num_workers=2)
        with Program(str(SCRIPT), *arguments(cfg)) as job:
            wait_for_step(cfg.run_dir, 30)
            os.killpg(job.pid, signal.SIGTERM)
            assert job.wait(60) == 0
            last = list(read_jsonl(cfg.run_dir / "logs" / "rank-0.jsonl"))[-1]
            assert last["event"] == "preempted"
            assert (cfg.run_dir / "checkpoints" / f"step-{last['step']:08d}").is_dir()
            with pytest.raises(ProcessLookupError):
                os.killpg(job.pid, 0)  # no loader worker has stayed behind

    @pytest.mark.parametrize("presses", [1, 2])
    def test_ctrl_c_saves_the_step_and_a_second_one_exits_at_once(
        self, tmp_path: Path, presses: int
    ) -> None:
        """It printed up to 138 lines and saved nothing. A terminal signals the workers too."""
        cfg = config(tmp_path / "run", max_epochs=500, num_workers=2)
        stay = partial(pause_at, 40) if presses == 2 else None
        with Program(str(SCRIPT), *arguments(cfg), prepare=stay) as job:
            wait_for_step(cfg.run_dir, 39)
            os.killpg(job.pid, signal.SIGINT)
            if presses == 2:
                wait_until(lambda: "Press it again" in job.stderr, "the first one's message")
                time.sleep(0.1)  # closer together, they count as one
                os.killpg(job.pid, signal.SIGINT)
            assert job.wait(60) == presses - 1
            assert "Traceback" not in job.stderr
        last = list(read_jsonl(cfg.run_dir / "logs" / "rank-0.jsonl"))[-1]
        assert (last["event"] == "preempted") == (presses == 1)
        saved = cfg.run_dir / "checkpoints" / f"step-{last['step']:08d}"
        assert saved.is_dir() == (presses == 1)

    def test_ctrl_c_on_torchrun_saves_the_step(self, tmp_path: Path) -> None:
        """torchrun passes it on to its ranks; then it exits with 1 and its own traceback."""
        cfg = config(tmp_path / "run", max_epochs=500, checkpoint_every_steps=1_000_000)
        with Torchrun(cfg, 2, forks=True) as job:
            wait_for_step(cfg.run_dir, 30, rank=1)
            job.agent.send_signal(signal.SIGINT)
            assert job.wait(60) == 1
        last = list(read_jsonl(cfg.run_dir / "logs" / "rank-0.jsonl"))[-1]
        assert last["event"] == "preempted"
        assert (cfg.run_dir / "checkpoints" / f"step-{last['step']:08d}").is_dir()

    @pytest.mark.parametrize(("stream", "kind"), [(1, "full"), (2, "full"), (2, "closed")])
    def test_a_full_or_closed_stream_does_not_fail_the_run(
        self, tmp_path: Path, stream: int, kind: str
    ) -> None:
        """In a real interpreter: it flushes its streams on exit, and else exits with 120."""
        target = "/dev/full" if kind == "full" else "&-"
        command = f'exec "$@" {stream}>{target}'
        flags = ["--run-dir", str(tmp_path / "run"), *FLAGS.split()]
        done = subprocess.run(
            ["sh", "-c", command, "sh", sys.executable, str(SCRIPT), *flags],
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        events = [line["event"] for line in read_jsonl(tmp_path / "run/logs/rank-0.jsonl")]
        assert ("sink_failed" in events) == (stream == 1)
        if stream == 1:
            assert "Console failed" in done.stderr
            assert "stdout didn't take the summary" in done.stderr.splitlines()[-1]
        else:
            line = done.stdout.splitlines()[-1]
            assert json.loads(line)["status"] == "done"

    def test_sigterm_before_the_training_changes_nothing(self, tmp_path: Path) -> None:
        """143 makes a scheduler report a failure, but nothing failed: nothing had started.

        In a real interpreter, because it is about the time before torch is imported.
        """
        command = [sys.executable, str(SCRIPT), "--run-dir", str(tmp_path / "run")]
        job = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        while True:  # until the process catches the signal; torch is not imported by then
            status = Path(f"/proc/{job.pid}/status").read_text()
            caught = re.search(r"SigCgt:\s*(\w+)", status)
            if caught and int(caught[1], 16) >> (signal.SIGTERM - 1) & 1:
                break
        job.terminate()
        _, errors = job.communicate(timeout=60)
        assert (job.returncode, "while it was not training" in errors) == (0, True)
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize("moment", ["while listening starts", "as training takes over"])
    def test_a_signal_between_two_handlers_is_not_lost(self, moment: str) -> None:
        """Both gaps are microseconds wide, so the signal comes from the line before them."""
        kill = "os.kill(os.getpid(), signal.SIGTERM)"
        if moment == "while listening starts":
            program = f"""
                install = signal.signal
                def install_and_kill(number, handler):
                    install(number, handler)
                    if number == signal.SIGTERM:
                        {kill}
                signal.signal = install_and_kill
                launch.listen_to_signals()
            """
        else:
            program = f"""
                launch.listen_to_signals()
                sys.setswitchinterval(60)  # the listener wakes up after the next two lines
                {kill}
                signal.signal(signal.SIGTERM, lambda *_: None)
            """
        program = "import os, signal, sys, time, launch\n" + textwrap.dedent(program)
        done = subprocess.run(
            [sys.executable, "-c", program + "time.sleep(1)\nsys.exit('lost')"],
            env={**os.environ, "PYTHONPATH": f"{SCRIPT.parent}:{SCRIPT.parent.parent}"},
            capture_output=True,
            text=True,
        )
        assert "exiting on SIGTERM" in done.stderr
        assert done.returncode == 0

    @pytest.mark.parametrize("rank", [0, 1])
    def test_sigterm_ends_a_rank_that_waits_for_its_peers(
        self, tmp_path: Path, rank: int
    ) -> None:
        """torchrun stops the others when a rank dies, and waits 30 s for one that doesn't exit.

        It must not exit with 0 either: torchrun would take its part of the job for done.
        """
        store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port)}
        meeting |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "RANK": str(rank)}
        environment = {**os.environ, **meeting, "WORLD_SIZE": "2"}
        flags = arguments(config(tmp_path / "run"))
        with Program(str(SCRIPT), *flags, environment=environment) as job:
            store.wait(["attempts" if rank == 0 else "hello/1"])
            if rank == 1:
                wait_until_idle(job.pid)  # in C, where no handler of Python runs
            job.terminate()
            assert job.wait(10) == 1
        assert list(tmp_path.iterdir()) == []


# launch.py, except that rank 0 stalls after five steps, and rank 1 fails in the sixth while its
# vote is on the way to rank 0.
FAILING = f"""
import os, pathlib, runpy, signal
import trainer_core.launch as launch
from trainer_core.data import ResumeAwareDistributedSampler as Sampler

commit, train_step, taken = Sampler.commit, launch.train_step, []

def commit_and_pause(self):
    commit(self)
    if (self.rank, self.position) == (0, 5):
        signal.pause()

def step_or_raise(trainer, *arguments):
    taken.append(None)
    if (os.environ["RANK"], len(taken)) == ("1", 6):
        pathlib.Path(__file__).with_name("raised").touch()
        raise RuntimeError("a defect of the model")
    return train_step(trainer, *arguments)

Sampler.commit, launch.train_step = commit_and_pause, step_or_raise
runpy.run_path({str(SCRIPT)!r}, run_name="__main__")
"""


@pytest.mark.ranks
class TestFailure:
    def test_a_rank_that_fails_alone_ends_at_once(self, tmp_path: Path) -> None:
        """The interpreter's own shutdown would wait for a peer, and torchrun for the rank.

        In real interpreters, because it is about how they shut down.
        """
        (tmp_path / "failing.py").write_text(FAILING)
        store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port)}
        meeting |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "WORLD_SIZE": "2"}
        command = [sys.executable, str(tmp_path / "failing.py"), *FLAGS.split()]
        command += ["--run-dir", str(tmp_path / "run")]
        jobs = [
            subprocess.Popen(command, env={**os.environ, **meeting, "RANK": rank})
            for rank in ("0", "1")
        ]
        try:
            deadline = time.monotonic() + 120
            while not (tmp_path / "raised").exists() and time.monotonic() < deadline:
                time.sleep(0.01)
            assert jobs[1].wait(10) == 1
            assert jobs[0].poll() is None, "rank 0 was to stand still"
            assert (tmp_path / "raised").exists(), "rank 1 failed before the sixth step"
        finally:
            for job in jobs:
                job.kill()
                job.wait()


# launch.py, but one rank stops after a step until a signal comes: alone for the SIGTERM of a
# membership change, in a group of two for the SIGKILL that its node dies of.
PAUSING = f"""
import runpy, signal
from trainer_core.data import ResumeAwareDistributedSampler as Sampler

commit = Sampler.commit

def commit_and_pause(self):
    commit(self)
    if (self.world_size, self.rank, self.position) in [(1, 0, 25), (2, 1, 50)]:
        signal.pause()

Sampler.commit = commit_and_pause
runpy.run_path({str(SCRIPT)!r}, run_name="__main__")
"""


@pytest.mark.ranks
class TestMembership:
    def test_a_node_joins_and_dies_and_each_sample_is_trained_once(
        self, tmp_path: Path
    ) -> None:
        """Otherwise a job whose machines come and go waits for them, or loses its place."""
        script = tmp_path / "pausing.py"
        script.write_text(PAUSING)
        cfg = config(tmp_path / "run", max_epochs=4, pinned_global_batch_size=8)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            endpoint = f"localhost:{free.getsockname()[1]}"

        def start_node(address: str) -> Torchrun:
            # The first node hosts the rendezvous; of the two addresses its own sorts first, so
            # it stays the node of rank 0. A node counts as dead after five seconds of silence.
            output = tmp_path / address
            output.mkdir()
            return Torchrun(
                cfg,
                1,
                restarts=3,
                script=script,
                output=output,
                forks=True,
                meeting=[
                    "--nnodes=1:2",
                    "--rdzv-backend=c10d",
                    f"--rdzv-endpoint={endpoint}",
                    f"--local-addr={address}",
                    "--rdzv-conf=last_call_timeout=1,keep_alive_interval=1,"
                    "keep_alive_max_attempt=5",
                ],
                # Otherwise the first agent announces the ranks' address only in its first
                # round, and one that joins later waits for it in vain (torch 2.13).
                TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1",
            )

        with start_node("127.0.0.1") as first:
            wait_for_step(cfg.run_dir, 24)
            with start_node("localhost") as second:
                wait_for_step(cfg.run_dir, 49, rank=1, attempt=1)
                second.end()
            assert first.wait() == 0, first.stderr
            assert json.loads(first.stdout.splitlines()[-1])["step"] == 4 * 26
        starts = [
            line["world_size"]
            for line in read_jsonl(cfg.run_dir / "logs" / "rank-0.jsonl")
            if line["event"] == "run_start"
        ]
        assert starts == [1, 2, 1]
        report = audit_run(cfg.run_dir)
        assert (report.status, report.epochs) == ("proved", 4), report.findings
