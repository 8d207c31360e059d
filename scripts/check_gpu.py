"""The checks for a first run on a GPU node, in order, with a report; ``make gpu`` runs them.

    python scripts/check_gpu.py                         needs one GPU; two for all checks
    python scripts/check_gpu.py --only stop,fp16        some of the groups
    python scripts/check_gpu.py --share-gpu             all checks on one GPU
    python scripts/check_gpu.py --device cpu            rehearses the same checks with gloo

Most checks start the trainer as its user would, and have the audit judge the run folder. Some
also stop or kill a rank mid-run. A check that needs more GPUs than there are is skipped, and
says so. With --share-gpu, its two ranks share the first GPU: NCCL treats them as two nodes and
connects them over sockets.

Exit codes: 0 every check that ran passed; 1 at least one failed; 2 no GPU, or a usage error.
"""

from __future__ import annotations

import argparse
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import torch

from rehearsal.engine.processes import processes_in
from rehearsal.evidence.audit import audit_run
from rehearsal.evidence.run_records import read_jsonl
from rehearsal.faults import breaks
from trainer_core import launch
from trainer_core.bio import launch as bio_launch

ROOT = Path(__file__).resolve().parents[1]
LAUNCH = ROOT / "scripts" / "launch.py"
# For one start; the first one on a node loads the CUDA libraries from a cold disk.
DEADLINE_S = 300.0
KILL_STEP = 5
SEQ_LEN = 8

# How a rank can break itself before it trains: --break=NAME.
BREAKS: dict[str, Callable[[], None]] = {
    "killed": partial(breaks.signal_itself, signal.SIGKILL, 0, KILL_STEP),
    "peer-killed-before-the-vote": partial(
        breaks.signal_at_the_vote, signal.SIGKILL, 1, KILL_STEP, "before"
    ),
    "peer-killed-after-the-vote": partial(
        breaks.signal_at_the_vote, signal.SIGKILL, 1, KILL_STEP, "after"
    ),
    "peer-stopped": partial(breaks.signal_itself, signal.SIGSTOP, 1, KILL_STEP),
    "peer-gets-sigterm": partial(breaks.signal_itself, signal.SIGTERM, 1, KILL_STEP),
    "huge-loss-scale": partial(breaks.start_the_scaler_at, 2.0**19),
    "deterministic": partial(torch.use_deterministic_algorithms, True),
    "names-backends": breaks.print_the_backends,
}


class Started(NamedTuple):
    """One start of the trainer that has ended."""

    code: int
    output: str
    seconds: float

    @property
    def summary(self) -> dict[str, Any]:
        """The JSON object that rank 0 prints last; empty if there is none."""
        lines = [line for line in self.output.splitlines() if line.startswith('{"status"')]
        return dict(json.loads(lines[-1])) if lines else {}


class Result(NamedTuple):
    """How one check ended."""

    name: str
    outcome: str  # passed, failed, skipped
    seconds: float
    detail: str


@dataclass(frozen=True)
class Check:
    """One thing to verify.

    Args:
        group: what ``--only`` names.
        run: returns what it saw, in one line.

    Raises from ``run``:
        AssertionError: it failed; the message says what was found.
    """

    group: str
    name: str
    run: Callable[[Node], str]
    needs_gpus: int = 1


@dataclass
class Node:
    """Where the checks run: the device, a folder, and the hashes of reference runs so far."""

    device: str
    root: Path
    num_gpus: int
    shares_gpu: bool = False
    references: dict[tuple[str, ...], str] = field(default_factory=dict)

    def start(
        self,
        run_dir: Path,
        *flags: str,
        ranks: int = 1,
        breaks_: Sequence[str] = (),
        max_restarts: int = 0,
        plan: Sequence[str] | None = None,
    ) -> Started:
        """Start the trainer in ``run_dir`` and wait until it exits; no process outlives it."""
        plan = PLAN if plan is None else plan
        words = [str(Path(__file__).resolve())]
        words += [f"--break={name}" for name in breaks_]
        words += ["--share-gpu"] if self.shares_gpu else []
        words += ["--as-rank", "--run-dir", str(run_dir), "--device", self.device]
        command = [sys.executable, *words, *plan, *flags]
        if ranks > 1:
            launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
            launcher += [f"--nproc-per-node={ranks}", f"--max-restarts={max_restarts}"]
            command = [*launcher, *words, *plan, *flags]
        began = time.monotonic()
        with tempfile.TemporaryFile("w+") as output:
            process = subprocess.Popen(
                command,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd=ROOT,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
            try:
                code = process.wait(DEADLINE_S)
            except subprocess.TimeoutExpired:
                code = 124
            finally:
                end_session(process)
            output.seek(0)
            return Started(code, output.read(), time.monotonic() - began)

    def run_dir(self, name: str) -> Path:
        """A folder for one run."""
        return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self.root)) / "run"

    def reference(self, *flags: str, ranks: int = 1) -> str:
        """The weights' hash of an uninterrupted run; trained once for each set of flags."""
        key = (str(ranks), *flags)
        if key not in self.references:
            run_dir = self.run_dir("reference")
            done = self.start(run_dir, *flags, ranks=ranks)
            expect(done.code == 0, f"the uninterrupted run exited with {done.code}", done)
            prove(run_dir)
            self.references[key] = str(done.summary["weights_sha256"])
        return self.references[key]


# 203 samples in batches of 16: 13 steps, the last with 11 samples; a save every 3 steps.
PLAN = (
    "--dataset-size 203 --max-epochs 1 --micro-batch-size 4 --pinned-global-batch-size 16 "
    "--dropout 0.2 --checkpoint-every-steps 3 --log-every 1 --dist-timeout-s 60"
).split()
BIOTECH_PLAN = (
    "--max-epochs 2 --pinned-global-batch-size 8 --micro-batch-size 4 --dropout 0 "
    "--log-every 1 --dist-timeout-s 60"
).split()


def end_session(process: subprocess.Popen[bytes]) -> None:
    """Kill whatever is left of a start: a stopped rank does not end with its launcher."""
    for pid in processes_in({process.pid}):
        os.kill(pid, signal.SIGKILL)
    process.kill()
    process.wait()


def expect(is_true: bool, found: str, started: Started | None = None) -> None:
    """Fail the check with what was found, and the end of what the trainer printed."""
    if not is_true:
        raise AssertionError(found + (f"\n{started.output[-3000:]}" if started else ""))


def prove(run_dir: Path) -> None:
    """Fail the check unless the audit proves the run."""
    report = audit_run(run_dir)
    expect(report.status == "proved", f"audit of {run_dir}: {report.status}: {report.verdict}")


# ---------------------------------------------------------------- one GPU


def cuda_tests(node: Node) -> str:
    """The tests that are skipped on a machine without a GPU."""
    command = [sys.executable, "-m", "pytest", "-q", "-m", "cuda", "tests"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    expect(done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:])
    return done.stdout.strip().splitlines()[-1].strip("= ")


def empty_share(node: Node, data: str, amp: str) -> str:
    """A rank without samples takes part in the step: no error, and a gradient of zero."""
    from trainer_core.config import TrainConfig
    from trainer_core.data import TrainingView, build_dataset
    from trainer_core.metrics import StepTimers
    from trainer_core.model import build_model, build_optimizer, build_scaler
    from trainer_core.train import Trainer, train_step

    data = f"tokens:{tokens_file(node)}" if data == "tokens" else data
    cfg = TrainConfig(data=data, device=node.device, amp=amp, seq_len=SEQ_LEN, dataset_size=203)
    device, source = torch.device(node.device), build_dataset(cfg)
    empty = TrainingView(source, seed=cfg.seed, input_noise=0.0).__getitems__([])
    model = build_model(cfg, empty.inputs.shape[-1], source.num_classes).to(device)
    trainer = Trainer(
        cfg,
        device,
        model,
        build_optimizer(cfg, model),
        build_scaler(cfg, device),
        StepTimers(device),
    )
    train_step(trainer, [empty], 1, 1e-3)
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    expect(len(gradients) == len(list(model.parameters())), "a parameter has no gradient")
    worst = max(float(gradient.abs().max()) for gradient in gradients)
    expect(worst == 0.0, f"the largest gradient of an empty share is {worst}, not 0")
    return f"{len(gradients)} gradients, all 0"


def tokens_file(node: Node) -> Path:
    """Random tokens, enough for the plan's samples."""
    path = node.root / "tokens.bin"
    if not path.exists():
        generator = torch.Generator().manual_seed(0)
        ids = torch.randint(0, 256, (203 * SEQ_LEN + 1,), generator=generator)
        path.write_bytes(ids.to(torch.uint16).numpy().tobytes())
    return path


def resumes(node: Node, workers: int, is_async: bool) -> str:
    """Killed after a step and started again, a run with dropout ends with the same weights."""
    flags = ["--num-workers", str(workers)]
    flags += ["--async-checkpoint"] if is_async else []
    expected, run_dir = node.reference(*flags), node.run_dir("resume")
    killed = node.start(run_dir, *flags, breaks_=["killed"])
    expect(killed.code == -signal.SIGKILL, f"the kill left exit code {killed.code}", killed)
    resumed = node.start(run_dir, *flags)
    expect(resumed.code == 0, f"the resume exited with {resumed.code}", resumed)
    prove(run_dir)
    found = resumed.summary["weights_sha256"]
    expect(found == expected, f"weights {found[:12]}, uninterrupted {expected[:12]}")
    return f"weights {found[:12]}, the same as uninterrupted"


def decoder_repeats(node: Node) -> str:
    """Two runs of the decoder, and two with deterministic algorithms, which must match.

    Without those algorithms, attention's backward pass may add in any order.
    """
    flags = ("--data", f"tokens:{tokens_file(node)}", "--seq-len", str(SEQ_LEN))
    hashes: dict[bool, list[str]] = {False: [], True: []}
    for is_deterministic in (False, True):
        for _ in range(2):
            run_dir = node.run_dir("decoder")
            chosen = ["deterministic"] if is_deterministic else []
            # cuBLAS is deterministic only with a workspace of fixed size.
            os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
            done = node.start(run_dir, *flags, breaks_=chosen)
            expect(done.code == 0, f"the decoder's run exited with {done.code}", done)
            prove(run_dir)
            hashes[is_deterministic].append(str(done.summary["weights_sha256"])[:12])
    expect(len({*hashes[True]}) == 1, f"deterministic algorithms, weights {hashes[True]}")
    if len({*hashes[False]}) == 1:
        return f"two runs: {hashes[False][0]} both times"
    return (
        f"two runs differ ({', '.join(hashes[False])}): the attention kernel's backward pass "
        f"is not deterministic; with deterministic algorithms both end with {hashes[True][0]}"
    )


def fp16_overflows(node: Node) -> str:
    """A loss scale that overflows: the ledger marks the skipped steps, and the scale falls."""
    run_dir = node.run_dir("fp16")
    done = node.start(run_dir, "--amp", "fp16", breaks_=["huge-loss-scale"])
    expect(done.code == 0, f"exited with {done.code}", done)
    prove(run_dir)
    lines = list(read_jsonl(run_dir / "ledger" / "rank-0.jsonl"))
    skipped = [line["step"] for line in lines if line.get("skipped")]
    expect(bool(skipped), "no step was skipped at a loss scale of 2**19")
    expect(len(skipped) < len(lines), "every step was skipped: the scale never came down")
    return f"skipped steps {skipped} of {len(lines)}"


# ---------------------------------------------------------------- two GPUs


def two_ranks_start(node: Node) -> str:
    """Two ranks start, train and exit with 0 five times, and end with the same weights."""
    hashes = set()
    for _ in range(5):
        run_dir = node.run_dir("two")
        done = node.start(run_dir, ranks=2)
        expect(done.code == 0, f"exited with {done.code}", done)
        expect("Warning" not in done.output, "a warning was printed", done)
        prove(run_dir)
        hashes.add(done.summary["weights_sha256"])
    expect(len(hashes) == 1, f"the same command gave weights {hashes}")
    return "5 of 5 exited with 0 and the same weights"


def short_tail(node: Node) -> str:
    """The last step of an epoch has one sample for two ranks."""
    run_dir = node.run_dir("tail")
    done = node.start(run_dir, "--dataset-size", "33", "--max-epochs", "2", ranks=2)
    expect(done.code == 0, f"exited with {done.code}", done)
    prove(run_dir)
    lines = read_jsonl(run_dir / "ledger" / "rank-1.jsonl")
    empty = [line["step"] for line in lines if not line["samples"]]
    expect(empty == [3, 6], f"rank 1 had no samples in steps {empty}, not in 3 and 6")
    return "rank 1 joined steps 3 and 6 without samples"


def backends(node: Node) -> str:
    """Gradients travel over NCCL, votes and objects over gloo on the CPU."""
    done = node.start(node.run_dir("backends"), ranks=2, breaks_=["names-backends"])
    found = {line for line in done.output.splitlines() if line.startswith("backends: ")}
    wanted = "cpu=gloo" if node.device == "cpu" else "cpu=gloo cuda=nccl"
    expect(found == {f"backends: {wanted}"}, f"found {found}, not {wanted}", done)
    return wanted


def peer_gets_sigterm(node: Node) -> str:
    """SIGTERM on one rank: all ranks save the same step and exit with 0; then it resumes."""
    run_dir, expected = node.run_dir("sigterm"), node.reference(ranks=2)
    stopped = node.start(run_dir, ranks=2, breaks_=["peer-gets-sigterm"])
    expect(stopped.code == 0, f"exited with {stopped.code}", stopped)
    last = list(read_jsonl(run_dir / "logs" / "rank-0.jsonl"))[-1]
    expect(last["event"] == "preempted", f"the last event is {last['event']}", stopped)
    resumed = node.start(run_dir, ranks=2)
    prove(run_dir)
    found = resumed.summary.get("weights_sha256")
    expect(found == expected, f"weights {found}, uninterrupted {expected}", resumed)
    return f"preempted after step {last['step']}, resumed to the same weights"


def peer_fails(node: Node, what: str, *flags: str) -> str:
    """One rank fails; torchrun restarts the job, which ends with the same weights."""
    run_dir, expected = node.run_dir(what), node.reference(ranks=2)
    done = node.start(run_dir, *flags, ranks=2, breaks_=[what], max_restarts=1)
    expect(done.code == 0, f"exited with {done.code} after {done.seconds:.0f} s", done)
    prove(run_dir)
    found = done.summary.get("weights_sha256")
    expect(found == expected, f"weights {found}, uninterrupted {expected}", done)
    starts = [
        event["time"]
        for event in read_jsonl(run_dir / "logs" / "rank-0.jsonl")
        if event["event"] in ("run_start", "train_progress")
    ]
    gap_s = max(later - before for before, later in pairwise(starts))
    return f"restarted to the same weights; {gap_s:.1f} s without a step"


def peer_stopped(node: Node) -> str:
    """SIGSTOP on one rank: the watchdog names it, and torchrun restarts the job."""
    flags = ("--hang-timeout-s", "10", "--dist-timeout-s", "20")
    run_dir = node.run_dir("sigstop")
    done = node.start(run_dir, *flags, ranks=2, breaks_=["peer-stopped"], max_restarts=1)
    expect(done.code == 0, f"exited with {done.code} after {done.seconds:.0f} s", done)
    prove(run_dir)
    line = next((line for line in done.output.splitlines() if "no step for" in line), "")
    expect("rank 1" in line, f"the watchdog does not name rank 1: {line!r}", done)
    return line.partition("launch: ")[2][:90]


def biotech_losses(node: Node, flags: Sequence[str]) -> str:
    """Two ranks with other bins each report the losses of one rank with all of them."""
    found: list[dict[int, float]] = []
    for ranks in (1, 2):
        run_dir = node.run_dir(f"biotech-{ranks}")
        done = node.start(run_dir, *flags, ranks=ranks, plan=BIOTECH_PLAN)
        expect(done.code == 0, f"{ranks} rank(s) exited with {done.code}", done)
        prove(run_dir)
        events = read_jsonl(run_dir / "logs" / "rank-0.jsonl")
        found.append({e["step"]: e["loss"] for e in events if e["event"] == "train_progress"})
    one, two = found
    expect(one.keys() == two.keys(), f"steps {sorted(one)} on one rank, {sorted(two)} on two")
    apart = max(abs(two[step] - loss) / abs(loss) for step, loss in one.items())
    expect(apart < 1e-5, f"a step's loss differs by {apart:.1e} of itself")
    return f"{len(one)} steps, losses at most {apart:.1e} of themselves apart"


def all_checks() -> Iterator[Check]:
    """In the order in which a failure of one explains the later ones."""
    yield Check("tests", "tests that need CUDA", cuda_tests)
    for data in ("toy", "tokens"):
        for amp in ("no", "bf16", "fp16"):
            name = f"empty share, {data}, amp {amp}"
            yield Check("empty", name, partial(empty_share, data=data, amp=amp))
    for workers in (0, 2):
        for is_async in (False, True):
            how = "asynchronous" if is_async else "synchronous"
            name = f"kill and resume, {workers} workers, {how} saves"
            yield Check("resume", name, partial(resumes, workers=workers, is_async=is_async))
    yield Check("decoder", "the decoder twice", decoder_repeats)
    yield Check("fp16", "fp16 overflow", fp16_overflows)
    yield Check("start", "two ranks, five times", two_ranks_start, 2)
    yield Check("tail", "fewer samples than ranks", short_tail, 2)
    yield Check("backends", "backend of each device", backends, 2)
    yield Check("stop", "SIGTERM to one rank", peer_gets_sigterm, 2)
    for when in ("before", "after"):
        what = f"peer-killed-{when}-the-vote"
        run = partial(peer_fails, what=what)
        yield Check("kill", f"SIGKILL of a peer {when} the vote", run, 2)
    yield Check("hang", "SIGSTOP of a peer", peer_stopped, 2)
    for words in ("--data proteins", "--data graphs --budget 64"):
        run = partial(biotech_losses, flags=words.split())
        yield Check("biotech", f"two ranks as one, {words}", run, 2)


# ---------------------------------------------------------------- the command


def run_checks(node: Node, checks: Sequence[Check]) -> list[Result]:
    """Run them in order, with a line for each."""
    results = []
    for check in checks:
        began, outcome = time.monotonic(), "passed"
        print(f"{check.name:46}", end="", flush=True)
        if node.device == "cuda" and node.num_gpus < check.needs_gpus and not node.shares_gpu:
            outcome = "skipped"
            detail = f"needs {check.needs_gpus} GPUs, or --share-gpu; found {node.num_gpus}"
        else:
            try:
                detail = check.run(node)
            except AssertionError as error:
                outcome, detail = "failed", str(error)
            except Exception:  # a check that breaks is no reason to miss the later ones
                outcome, detail = "failed", traceback.format_exc()
        seconds = time.monotonic() - began
        print(f"{outcome:8}{seconds:6.1f} s  {detail.partition(chr(10))[0]}", flush=True)
        results.append(Result(check.name, outcome, round(seconds, 1), detail))
    return results


def share_the_gpu() -> None:
    """Let this rank use the first GPU together with its peers.

    NCCL refuses two ranks of one host on one GPU. With a host ID of its own, each rank looks
    like a node of its own.
    """
    os.environ["CUDA_VISIBLE_DEVICES"] = "0"
    os.environ["NCCL_HOSTID"] = f"rank-{os.environ.get('RANK', '0')}"
    os.environ["NCCL_SOCKET_IFNAME"] = "lo"
    for module in (launch, bio_launch):
        breaks.intercept(module, "refuse_shared_device", lambda _, info: None)


def as_rank(words: Sequence[str], names: Sequence[str], shares_gpu: bool) -> None:
    """Run launch.py as one rank, with the named breaks on the first attempt."""
    if shares_gpu:
        share_the_gpu()
    if os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0":
        for name in names:
            BREAKS[name]()
    sys.argv = [str(LAUNCH), *words]
    runpy.run_path(str(LAUNCH), run_name="__main__")


def main(arguments: Sequence[str]) -> int:
    """Run what the command line asks for; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    groups = list(dict.fromkeys(check.group for check in all_checks()))
    parser.add_argument(
        "--only", metavar="GROUPS", help=f"separated by commas, from: {', '.join(groups)}"
    )
    parser.add_argument(
        "--device",
        choices=("cuda", "cpu"),
        default="cuda",
        help="cpu rehearses the checks with gloo (default: cuda)",
    )
    parser.add_argument(
        "--share-gpu",
        action="store_true",
        help="let two ranks share one GPU, so that no check is skipped",
    )
    parser.add_argument(
        "--report", type=Path, metavar="FILE", help="also write the results as JSON"
    )
    options = parser.parse_args(arguments)
    wanted = options.only.split(",") if options.only else groups
    if unknown := set(wanted) - set(groups):
        print(
            f"check_gpu: --only {','.join(sorted(unknown))}: no such group, so nothing was "
            f"checked. Choose from {', '.join(groups)}.",
            file=sys.stderr,
        )
        return 2
    num_gpus = torch.cuda.device_count()
    if options.device == "cuda" and not num_gpus:
        print(
            "check_gpu: no GPU is visible to torch "
            f"{torch.__version__}, so nothing was checked. Run this on a GPU node with a torch "
            "built for CUDA; --device cpu rehearses the same checks with gloo.",
            file=sys.stderr,
        )
        return 2
    names = [torch.cuda.get_device_name(index) for index in range(num_gpus)]
    print(
        f"torch {torch.__version__}, device {options.device}, GPUs visible: {names or 'none'}"
    )
    root = Path(tempfile.mkdtemp(prefix="check-gpu-"))
    node = Node(options.device, root, num_gpus, options.share_gpu)
    results = run_checks(node, [check for check in all_checks() if check.group in wanted])
    if options.report:
        rows = [result._asdict() for result in results]
        options.report.write_text(json.dumps(rows, indent=1) + "\n")
    outcomes = [result.outcome for result in results]
    counts = {name: outcomes.count(name) for name in ("passed", "failed", "skipped")}
    print(", ".join(f"{count} {name}" for name, count in counts.items()))
    for result in results:
        if result.outcome == "failed":
            print(f"\n{result.name}\n{result.detail}")
    print(f"The run folders are in {root}")
    return 1 if counts["failed"] else 0


if __name__ == "__main__":
    if "--as-rank" in sys.argv:
        at = sys.argv.index("--as-rank")
        own = sys.argv[1:at]
        names = [word.removeprefix("--break=") for word in own if word != "--share-gpu"]
        as_rank(sys.argv[at + 1 :], names, shares_gpu="--share-gpu" in own)
    else:
        sys.exit(main(sys.argv[1:]))
