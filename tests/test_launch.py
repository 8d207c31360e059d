"""scripts/launch.py, alone and under torchrun: exit codes, messages, restarts, preemption."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from torch.distributed import TCPStore

from rehearsal.engine.processes import stat_of
from rehearsal.evidence.audit import audit_run, read_jsonl
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


class Torchrun:
    """Starts torchrun with small sizes; output and errors go to files beside the run."""

    def __init__(self) -> None:
        self.jobs: list[subprocess.Popen[str]] = []

    def __call__(
        self,
        run_dir: Path,
        world_size: int,
        *flags: str,
        restarts: int = 0,
        meeting: Sequence[str] = ("--standalone",),
        script: Path = SCRIPT,
        **environment: str,
    ) -> subprocess.Popen[str]:
        command = [
            sys.executable, "-m", "torch.distributed.run", *meeting,
            f"--nproc-per-node={world_size}", f"--max-restarts={restarts}", str(script),
            "--run-dir", str(run_dir), *FLAGS.split(), *flags,
        ]  # fmt: skip
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
        with run_dir.with_suffix(".err").open("a") as errors:
            self.jobs.append(
                subprocess.Popen(
                    command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment
                )
            )
        return self.jobs[-1]

    def end(self) -> None:
        """End what a failed test has left: torchrun passes SIGTERM on to its ranks."""
        for job in self.jobs:
            if job.poll() is None:
                job.terminate()
        for job in self.jobs:
            job.communicate(timeout=60)


@pytest.fixture
def torchrun() -> Iterator[Torchrun]:
    """Torchrun that ends with the test."""
    starter = Torchrun()
    yield starter
    starter.end()


def wait_until_idle(pid: int) -> None:
    """Wait until the process has used no processor for half a second. Linux."""

    before, now = -1, stat_of(pid).cpu_ticks
    while before != now:
        time.sleep(0.5)
        before, now = now, stat_of(pid).cpu_ticks


def wait_for_step(run_dir: Path, rank: int, step: int, attempt: int = 0) -> int:
    """Wait until the rank's ledger shows the step in this attempt or a later one; its pid."""
    ledger, log = (run_dir / kind / f"rank-{rank}.jsonl" for kind in ("ledger", "logs"))
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        lines = list(read_jsonl(ledger)) if ledger.exists() else []
        if lines and lines[-1]["step"] >= step and lines[-1]["attempt"] >= attempt:
            starts = [line for line in read_jsonl(log) if line["event"] == "run_start"]
            return int(starts[-1]["pid"])
        time.sleep(0.01)
    raise AssertionError(f"rank {rank} did not reach step {step} within 60 s")


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
            ("--warmup-steps 60", "nothing is left to decay"),
        ],
    )
    def test_a_mistake_ends_with_2_and_a_short_message(
        self, launch: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str],
        flags: str, message: str,
    ) -> None:  # fmt: skip
        """A traceback says where the program was, not what the user can mend."""
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

    def test_a_mistake_on_another_node_is_said_there(
        self, launch: ModuleType, monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:  # fmt: skip
        """A flag may be wrong on one node only; its ranks would die without a word."""
        monkeypatch.setenv("RANK", "8")
        for local_rank, is_said in [("0", True), ("1", False)]:
            monkeypatch.setenv("LOCAL_RANK", local_rank)
            assert launch.main(["--datta", "toy"]) == 2
            assert ("The nearest is --data" in capsys.readouterr().err) == is_said

    def test_settings_that_the_run_does_not_read_are_said(
        self, launch: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Said, not refused: another --data or a pinned batch is one flag more on a command."""
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
            said = re.findall(r"^no effect in this run: (.*)$", capsys.readouterr().err, re.M)
            assert said == ([unread] if unread else [])
            log = list(read_jsonl(run_dir / "run" / "logs" / "rank-0.jsonl"))
            events = [line["flags"] for line in log if line["event"] == "settings_unread"]
            assert events == said

    def test_a_token_file_of_odd_length_is_refused(
        self, launch: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Half a token shifts every token behind it."""
        path = tmp_path / "tokens.bin"
        path.write_bytes(bytes(1001))
        assert (
            launch.main(["--run-dir", str(tmp_path / "run"), "--data", f"tokens:{path}"]) == 2
        )
        assert "1001 bytes" in capsys.readouterr().err

    def test_tokens_train_and_resume(
        self, launch: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """The decoder is part of the same trainer, not a demo beside it."""
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
    def test_a_folder_of_something_else_is_left_alone(
        self, launch: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str],
        content: bytes,
    ) -> None:  # fmt: skip
        """What a person keeps in a folder of that name would be overwritten."""
        (tmp_path / "config.json").write_bytes(content)
        assert launch.main(["--run-dir", str(tmp_path), *FLAGS.split()]) == 2
        assert "not written by this trainer" in capsys.readouterr().err
        assert [path.name for path in tmp_path.iterdir()] == ["config.json"]
        assert (tmp_path / "config.json").read_bytes() == content

    def test_a_run_dir_that_is_a_file_is_refused(
        self, launch: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """The message of mkdir does not say what to do."""
        (tmp_path / "file").write_text("mine")
        assert launch.main(["--run-dir", str(tmp_path / "file"), *FLAGS.split()]) == 2
        assert "Name a folder" in capsys.readouterr().err

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

    def test_start_over_goes_on_in_its_own_folder_after_a_restart(
        self, launch: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:  # fmt: skip
        """torchrun repeats the command at each restart; that must not begin again each time."""
        command = ["--run-dir", str(tmp_path / "run"), *FLAGS.split(), "--start-over"]
        folders = []
        for job in (None, "first", "first", "second"):
            if job is not None:
                monkeypatch.setenv("TORCHELASTIC_RUN_ID", job)
            assert launch.main(command) == 0
            summary = json.loads(capsys.readouterr().out.splitlines()[-1])
            folders.append(Path(summary["run_dir"]).name)
        assert folders == ["run", "run-2", "run-2", "run-3"]

    def test_start_over_goes_on_if_one_agent_of_the_first_start_is_left(
        self, tmp_path: Path
    ) -> None:
        """Rank 0 may come back on another node, because its own has died."""
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

    def test_a_bad_token_is_said_in_short_also_by_a_loader_worker(
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


class TestRefusal:
    def test_the_wrapper_is_gone_before_the_group_is(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Kept alive by the error's frames, it hung when they went: in 5 of 12 tries (D27)."""
        import trainer_core.launch as launch

        class Wrapper:
            """Weakly referable."""

        seen: list[weakref.ref[Wrapper]] = []

        def refuse(*_: object) -> None:
            wrapper = Wrapper()
            seen.append(weakref.ref(wrapper))
            raise UserError("what the user can mend")

        alive: list[object] = []
        monkeypatch.setattr(launch, "train_run", refuse)
        monkeypatch.setattr(launch, "cleanup_dist", lambda: alive.append(seen[0]()))
        with pytest.raises(UserError, match="can mend"):
            launch.run(TrainConfig(run_dir=tmp_path))
        assert alive == [None]


@pytest.mark.ranks
class TestTorchrun:
    def test_four_ranks_end_with_0_and_one_summary(
        self, tmp_path: Path, torchrun: Torchrun
    ) -> None:
        """Ranks that abort while tearing down fail a job that has done its work (D27)."""
        job = torchrun(tmp_path / "run", 4)
        output, _ = job.communicate(timeout=120)
        assert job.returncode == 0, (tmp_path / "run.err").read_text()
        (line,) = output.splitlines()
        assert json.loads(line)["status"] == "done"

    def test_a_rank_killed_three_times_is_restarted_three_times(
        self, tmp_path: Path, torchrun: Torchrun
    ) -> None:
        """Restarted ranks that read keys of the dead attempt wait for ever (D24)."""
        run_dir = tmp_path / "run"
        flags = ("--max-epochs", "12", "--checkpoint-every-steps", "10")
        job = torchrun(run_dir, 2, *flags, restarts=3)
        for attempt, step in enumerate((15, 40, 65)):
            pid = wait_for_step(run_dir, attempt % 2, step, attempt)
            os.kill(pid, signal.SIGKILL)
        output, _ = job.communicate(timeout=120)
        assert job.returncode == 0, run_dir.with_suffix(".err").read_text()
        assert json.loads(output.splitlines()[-1])["step"] == 12 * 26
        report = audit_run(run_dir)
        assert (report.status, report.attempts) == ("proved", 4)

    def test_sigterm_to_torchrun_saves_the_step(
        self, tmp_path: Path, torchrun: Torchrun
    ) -> None:
        """A scheduler that takes the node back sends SIGTERM and does not wait long (D17)."""
        run_dir = tmp_path / "run"
        flags = ("--max-epochs", "500", "--checkpoint-every-steps", "1000000")
        job = torchrun(run_dir, 2, *flags)
        wait_for_step(run_dir, 1, 30)
        job.terminate()
        job.communicate(timeout=60)
        last = list(read_jsonl(run_dir / "logs" / "rank-0.jsonl"))[-1]
        assert last["event"] == "preempted"
        assert (run_dir / "checkpoints" / f"step-{last['step']:08d}").is_dir()

    def test_sigterm_to_every_process_of_the_job_saves_the_step(self, tmp_path: Path) -> None:
        """A service manager signals every process; loader workers must not die of it first."""
        run_dir = tmp_path / "run"
        command = [sys.executable, str(SCRIPT), "--run-dir", str(run_dir), *FLAGS.split()]
        command += ["--max-epochs", "500", "--num-workers", "2"]
        job = subprocess.Popen(command, start_new_session=True, stderr=subprocess.DEVNULL)
        wait_for_step(run_dir, 0, 30)
        os.killpg(job.pid, signal.SIGTERM)
        assert job.wait(60) == 0
        last = list(read_jsonl(run_dir / "logs" / "rank-0.jsonl"))[-1]
        assert last["event"] == "preempted"
        assert (run_dir / "checkpoints" / f"step-{last['step']:08d}").is_dir()
        with pytest.raises(ProcessLookupError):
            os.killpg(job.pid, 0)  # no loader worker has stayed behind

    def test_sigterm_before_the_training_changes_nothing(self, tmp_path: Path) -> None:
        """143 makes a scheduler report a failure; nothing has failed, nothing was begun."""
        command = [sys.executable, str(SCRIPT), "--run-dir", str(tmp_path / "run")]
        job = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        while True:  # until the process catches the signal; torch is not imported by then
            status = Path(f"/proc/{job.pid}/status").read_text()
            caught = re.search(r"SigCgt:\s*(\w+)", status)
            if caught and int(caught[1], 16) >> (signal.SIGTERM - 1) & 1:
                break
        job.terminate()
        _, errors = job.communicate(timeout=60)
        assert (job.returncode, "SIGTERM while it was not training" in errors) == (0, True)
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize("rank", [0, 1])
    def test_sigterm_ends_a_rank_that_waits_for_its_peers(
        self, tmp_path: Path, rank: int
    ) -> None:
        """torchrun ends the others when a rank dies, and waits 30 s for one that does not end.

        Nor may it end with 0: torchrun would take its part of the job for done.
        """
        store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port)}
        meeting |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "RANK": str(rank)}
        command = [sys.executable, str(SCRIPT), "--run-dir", str(tmp_path / "run")]
        job = subprocess.Popen(command, env={**os.environ, **meeting, "WORLD_SIZE": "2"})
        store.wait(["attempts" if rank == 0 else "hello/1"])
        if rank == 1:
            wait_until_idle(job.pid)  # in C, where no handler of Python runs
        job.terminate()
        try:
            assert job.wait(10) == 1
        finally:
            job.kill()
            job.wait()
        assert list(tmp_path.iterdir()) == []

    def test_the_ranks_die_with_torchrun(self, tmp_path: Path, torchrun: Torchrun) -> None:
        """Ranks that train on hold the lock, and the command started again is refused."""
        run_dir = tmp_path / "run"
        job = torchrun(run_dir, 2, "--max-epochs", "500", "--num-workers", "1")
        pids = [wait_for_step(run_dir, rank, 10) for rank in (0, 1)]
        job.kill()
        deadline = time.monotonic() + 10
        while left := [pid for pid in pids if Path(f"/proc/{pid}").exists()]:
            if time.monotonic() > deadline:
                for pid in left:
                    os.kill(pid, signal.SIGKILL)
                raise AssertionError("the ranks outlive torchrun")
            time.sleep(0.01)

    def test_a_mistake_is_said_once_and_ends_all_ranks(
        self, tmp_path: Path, torchrun: Torchrun
    ) -> None:
        """Four ranks that print the same paragraph hide it."""
        run_dir = tmp_path / "run"
        job = torchrun(run_dir, 2, "--data", "tokens:/nowhere/tokens.bin")
        job.communicate(timeout=60)
        assert job.returncode == 1  # torchrun's own; the ranks ended with 2
        text = run_dir.with_suffix(".err").read_text()
        assert text.count("no such file") == 1
        assert re.search(r"exitcode\s*: 2", text)
        assert not re.search(r"launch\.py\", line", text), "torchrun's own traceback is enough"


# launch.py, but after five steps rank 0 stands still, and rank 1 meets an error in the sixth,
# while its vote is on the way to rank 0.
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
        """The interpreter's own end waits for what a peer owes; torchrun waits for the rank."""
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
        self, tmp_path: Path, torchrun: Torchrun
    ) -> None:
        """A job on machines that come and go would wait for them, or lose its place (D9)."""
        run_dir, script = tmp_path / "run", tmp_path / "pausing.py"
        script.write_text(PAUSING)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            endpoint = f"localhost:{free.getsockname()[1]}"

        def start_node(address: str) -> subprocess.Popen[str]:
            # The first node keeps the meeting point; of the two addresses its own sorts first,
            # so it stays the node of rank 0. A node is dead after five seconds of silence.
            return torchrun(
                run_dir, 1, "--max-epochs", "4", "--pinned-global-batch-size", "8",
                restarts=3, script=script,
                meeting=[
                    "--nnodes=1:2", "--rdzv-backend=c10d", f"--rdzv-endpoint={endpoint}",
                    f"--local-addr={address}", "--rdzv-conf=last_call_timeout=1,"
                    "keep_alive_interval=1,keep_alive_max_attempt=5",
                ],
                # Else the first agent tells the ranks' address in its first round only, and an
                # agent that joins later waits for it until it gives up (torch 2.13).
                TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1",
            )  # fmt: skip

        first = start_node("127.0.0.1")
        wait_for_step(run_dir, 0, 24)
        second = start_node("localhost")
        pid = wait_for_step(run_dir, 1, 49, attempt=1)
        second.kill()
        os.kill(pid, signal.SIGKILL)
        output, _ = first.communicate(timeout=120)
        assert first.returncode == 0, run_dir.with_suffix(".err").read_text()
        assert json.loads(output.splitlines()[-1])["step"] == 4 * 26
        starts = [
            line["world_size"]
            for line in read_jsonl(run_dir / "logs" / "rank-0.jsonl")
            if line["event"] == "run_start"
        ]
        assert starts == [1, 2, 1]
        report = audit_run(run_dir)
        assert (report.status, report.epochs) == ("proved", 4), report.findings
