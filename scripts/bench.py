"""How fast is the trainer, next to the alternatives?

    python scripts/bench.py
    python scripts/bench.py --only step,order --json figures.json
    python scripts/bench.py --quick

Alternatives take turns in one process, step by step or save by save, because on a shared
machine the speed of a minute ago says nothing. The output is a Markdown table; each target is
an upper bound.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import os
import platform
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass
from functools import partial
from itertools import repeat
from pathlib import Path
from statistics import median, quantiles
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rehearsal.engine.processes import stat_of
from rehearsal.evidence.run_records import read_jsonl
from trainer_core import job, launch, live
from trainer_core.checkpoint import save_checkpoint
from trainer_core.checkpoint_writer import CheckpointWriter
from trainer_core.config import TrainConfig
from trainer_core.data import (
    MicroBatch,
    ResumeAwareDistributedSampler,
    StepSchedule,
    TrainingView,
    build_dataloader,
    build_dataset,
    plan_steps,
)
from trainer_core.model import build_model, build_optimizer, learning_rate_at
from trainer_core.order import EpochOrder

ROOT = Path(__file__).resolve().parents[1]
now = time.perf_counter


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One line of the table; if there is no figure, the note says why."""

    section: str
    what: str
    figure: float | None = None
    unit: str = ""
    target: float | None = None
    note: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the figure is at most the target; None if either is missing."""
        if self.figure is None or self.target is None:
            return None
        return self.figure <= self.target

    def cells(self) -> list[str]:
        """The line's cells as text."""
        figure = "skipped" if self.figure is None else f"{self.figure:.4g} {self.unit}"
        target = "" if self.target is None else f"{self.target:g} {self.unit}"
        met = {None: "", True: "yes", False: "NO"}[self.met]
        return [self.section, self.what, figure, target, met, self.note]


def quartiles(values: Sequence[float], scale: float = 1.0) -> str:
    """The quartiles of some values, for a note."""
    return "quartiles " + ", ".join(f"{value * scale:.4g}" for value in quantiles(values, n=4))


# ---------------------------------------------------------------- the step

FRAMEWORKS = {"Lightning Fabric": "lightning_fabric", "Accelerate": "accelerate"}
WARM_UP = 40  # steps left out of the figures


def plain_loop(cfg: TrainConfig, device: torch.device, framework: str = "") -> Iterator[None]:
    """The loop you'd write by hand or in a framework: same loader, clipping and schedule."""
    source = build_dataset(cfg)
    sampler = ResumeAwareDistributedSampler(plan_steps(cfg, source), cfg, 0, 1)
    view = TrainingView(source, seed=cfg.seed, input_noise=0.0)
    loader: Any = build_dataloader(view, sampler, cfg, device)
    model: Any = build_model(cfg, cfg.input_dim, source.num_classes).to(device)
    optimizer: Any = build_optimizer(cfg, model)
    backward: Callable[[Tensor], None] = Tensor.backward
    clip: Callable[..., object] = nn.utils.clip_grad_norm_
    if framework == "Lightning Fabric":
        from lightning_fabric import Fabric

        fabric = Fabric(accelerator=device.type, devices=1)
        model, optimizer = fabric.setup(model, optimizer)
        loader = fabric.setup_dataloaders(loader, use_distributed_sampler=False)
        backward = fabric.backward

        def clip(_: object, limit: float) -> None:
            fabric.clip_gradients(model, optimizer, max_norm=limit)

    elif framework == "Accelerate":
        from accelerate import Accelerator

        accelerator = Accelerator(cpu=device.type == "cpu")
        model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
        backward, clip = accelerator.backward, accelerator.clip_grad_norm_
    for step, batch in enumerate(loader, 1):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate_at(cfg, step)
        inputs = batch.inputs.to(device, non_blocking=True)
        targets = batch.targets.to(device, non_blocking=True)
        optimizer.zero_grad(set_to_none=True)
        backward(F.cross_entropy(model(inputs), targets))
        clip(model.parameters(), 1.0)
        optimizer.step()
        yield


Wrap = Callable[[Iterator[Any]], Iterator[Any]]


def take_turns(
    train: Callable[[Wrap], object],
    steps: int,
    device: torch.device,
    loops: Mapping[str, Iterator[None]],
) -> dict[str, list[float]]:
    """Seconds of each step of a trainer, called "trainer", and of the other loops.

    The trainer is the real one, started by ``train``. Only what it iterates over is wrapped,
    one item per step: its clock stops, each of the other loops takes one step, in random order,
    and its clock starts again. From one request to the next is one full step, including
    everything written to ledger, log and trace.
    """
    seconds: dict[str, list[float]] = {name: [] for name in ("trainer", *loops)}
    names, draw = list(loops), random.Random(0)

    def clock() -> float:
        if device.type == "cuda":
            torch.cuda.synchronize()  # each loop pays for the work it launched
        return now()

    def wrap(batches: Iterator[Any]) -> Iterator[Any]:
        for _ in range(steps):
            draw.shuffle(names)
            for name in names:
                start = clock()
                next(loops[name])
                seconds[name].append(clock() - start)
            start = clock()
            yield next(batches)
            seconds["trainer"].append(clock() - start)

    train(wrap)
    # The last step doesn't count: it includes a save, and the trainer may never ask for more.
    counted = slice(WARM_UP, steps - 1)
    return {name: times[counted] for name, times in seconds.items()}


def train_hardened(cfg: TrainConfig, wrap: Wrap) -> None:
    """Run the trainer on a wrapped loader."""

    def wrapped_loader(*arguments: Any) -> Iterator[MicroBatch]:
        return wrap(iter(build_dataloader(*arguments)))

    with (
        (cfg.run_dir.parent / "progress.txt").open("w") as progress,
        patch.object(job, "build_dataloader", wrapped_loader),
        redirect_stdout(progress),
    ):
        launch.run(cfg)


def bench_step(
    quick: bool, folder: Path, section: str = "step", device: str = "cpu"
) -> Iterator[Row]:
    """The trainer with logs, phases and ledger on, vs. loops that have none of them."""
    installed = [
        name for name, module in FRAMEWORKS.items() if importlib.util.find_spec(module)
    ]
    for name in [name for name in FRAMEWORKS if name not in installed]:
        note = "not installed: pip install -e '.[bench]'"
        yield Row(section=section, what=f"trainer / {name}", target=1.0, note=note)
    for input_dim, hidden_dim, steps in ((256, 512, 1200), (8, 8, 2400)):
        steps = 300 if quick else steps
        cfg = TrainConfig(
            run_dir=folder / f"{section}-{hidden_dim}",
            device=device,
            input_dim=input_dim,
            hidden_dim=hidden_dim,
            dataset_size=16 * steps,
            max_epochs=1,
            decay_steps=steps,
            checkpoint_every_steps=steps,
        )
        for name in ["hand-written", *installed]:
            # Two loops at a time: a third would evict their data from the caches.
            framework = "" if name == "hand-written" else name
            other = plain_loop(cfg, torch.device(device), framework)
            loops = {name: other, "nothing": repeat(None)}
            seconds = take_turns(
                partial(train_hardened, cfg), steps, torch.device(device), loops
            )
            yield from step_rows(section, f"{input_dim}/{hidden_dim}", name, seconds)
            shutil.rmtree(cfg.run_dir)


def us(values: Sequence[float]) -> float:
    """A typical step of one run, in microseconds.

    A plain median would hide what only every 20th step does; a mean would show the noise.
    """
    logs = [value for step, value in enumerate(values, WARM_UP + 1) if step % 20 == 0]
    rest = [value for step, value in enumerate(values, WARM_UP + 1) if step % 20]
    return (0.95 * median(rest) + 0.05 * median(logs)) * 1e6


def step_rows(
    section: str, width: str, name: str, seconds: Mapping[str, Sequence[float]]
) -> Iterator[Row]:
    """The table's rows for the step times of the trainer and of the loop ``name``."""

    row = partial(Row, section=section)
    typical = {loop: us(values) for loop, values in seconds.items()}
    # Differences within one turn drift less than the difference of two medians.
    extra = [a - b for a, b in zip(seconds["trainer"], seconds[name], strict=True)]
    targets = {"256/512 hand-written": (1.03, None), "8/8 hand-written": (None, 100.0)}
    ratio_target, us_target = targets.get(f"{width} {name}", (1.0, None))
    ratio, note = 1 + us(extra) / typical[name], f"{len(extra)} steps of {typical[name]:.4g} us"
    yield row(what=f"{width} trainer / {name}", figure=ratio, target=ratio_target, note=note)
    note = f"{quartiles(extra, 1e6)}; switching loops costs {typical['nothing']:.2g}"
    what = f"{width} trainer - {name}"
    yield row(what=what, figure=us(extra), unit="us", target=us_target, note=note)


# ---------------------------------------------------------------- the live trainer


def train_live(cfg: live.TrainConfig, wrap: Wrap) -> None:
    """Run live.py on a wrapped sampler."""
    sampler = live.ResumeAwareDistributedSampler

    def wrapped_sampler(*arguments: Any) -> Iterator[Any]:
        return wrap(iter(sampler(*arguments)))

    with (
        Path(cfg.run_dir).with_name("progress.txt").open("w") as progress,
        patch.object(live, "ResumeAwareDistributedSampler", wrapped_sampler),
        redirect_stdout(progress),
    ):
        live.run(cfg)


def plain_live_loop(cfg: live.TrainConfig, steps: Iterator[Any]) -> Iterator[None]:
    """What is left of live.py without ledger, phases, random streams and accumulation."""
    dataset, model = live.ToyClassificationDataset(cfg), live.TinyNet(cfg)
    optimizer = torch.optim.AdamW(model.parameters())
    for step, (_, samples, _) in enumerate(steps, 1):
        optimizer.param_groups[0]["lr"] = live.learning_rate_at(cfg, step)
        inputs, labels = dataset[samples]
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), labels).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        yield


def bench_live(quick: bool, folder: Path) -> Iterator[Row]:
    """What live.py and the hardened trainer add to a step of the same network and batch.

    Each is measured against a hand-written loop with its own optimizer (live.py's isn't
    fused), in turns of a few hundred steps: now one, now the other.
    """
    rounds, steps, cpu = (
        (2, 300, torch.device("cpu")) if quick else (6, 800, torch.device("cpu"))
    )
    extra: dict[str, list[float]] = {"live.py": [], "hardened trainer": []}
    full: dict[str, list[float]] = {name: [] for name in extra}
    sizes: dict[str, Any] = {"dataset_size": 16 * steps, "max_epochs": 1, "device": "cpu"}
    sizes |= {"checkpoint_every_steps": steps, "dropout": 0.1}
    for number in range(rounds):
        run_dir = folder / f"live-{number}"
        ours = live.TrainConfig(
            run_dir=str(run_dir), global_batch_size=16, micro_batch_size=16, **sizes
        )
        theirs = TrainConfig(
            run_dir=folder / f"hardened-{number}",
            input_dim=8,
            hidden_dim=64,
            num_layers=1,
            micro_batch_size=16,
            decay_steps=steps,
            **sizes,
        )
        dealt = live.ResumeAwareDistributedSampler(ours, 0, 1, 0)
        pairs: list[tuple[str, Callable[[Wrap], object], Iterator[None]]] = [
            ("live.py", partial(train_live, ours), plain_live_loop(ours, iter(dealt))),
            ("hardened trainer", partial(train_hardened, theirs), plain_loop(theirs, cpu)),
        ]
        for name, train, plain in pairs:
            seconds = take_turns(train, steps, cpu, {"plain": plain})
            both = zip(seconds["trainer"], seconds["plain"], strict=True)
            extra[name].append(us([a - b for a, b in both]))
            full[name].append(us(seconds["trainer"]))
    target = median(extra["hardened trainer"])
    for name, figures in extra.items():
        note = f"a step of {median(full[name]):.4g} us; {quartiles(figures)} of {rounds} runs"
        yield Row(
            section="live",
            what=f"{name} - hand-written",
            figure=median(figures),
            unit="us",
            target=target if name == "live.py" else None,
            note=note,
        )


# ---------------------------------------------------------------- the order


def bench_order(quick: bool, folder: Path) -> Iterator[Row]:
    """The bijection, computed in blocks, and the first batch after a resume anywhere."""
    row, block, draw = partial(Row, section="order"), 65536, random.Random(0)
    for num_samples in (10**6, 2 * 10**6, 10**7, 10**8, 10**9, 10**12):
        order, ns = EpochOrder(num_samples, seed=1, epoch=0), []
        for _ in range(10 if quick else 100):
            first = draw.randrange(num_samples - block)
            ns.append(seconds_of(lambda: order.samples(first, first + block)) / block * 1e9)  # noqa: B023
        what = f"n = {num_samples:.0e}, one index"
        yield row(what=what, figure=median(ns), unit="ns", target=40, note=quartiles(ns))
    tracemalloc.start()
    EpochOrder(10**12, seed=1, epoch=0).samples(10**11, 10**11 + block)
    peak = tracemalloc.get_traced_memory()[1] / 2**20
    tracemalloc.stop()
    yield row(what="n = 1e+12, peak memory of a block", figure=peak, unit="MiB", target=8)

    schedule = StepSchedule(10**12, 16, 1)

    def first_batch(position: int) -> None:
        sampler = ResumeAwareDistributedSampler(schedule, TrainConfig(), 0, 1)
        sampler.load_state_dict({"position": position})
        next(iter(sampler))

    positions = {"start": 0, "middle": 31_250_001_777, "end": schedule.total_steps - 1}
    rounds = [
        {name: seconds_of(partial(first_batch, at)) * 1e3 for name, at in positions.items()}
        for _ in range(5 if quick else 50)
    ]
    ms = {name: median(a_round[name] for a_round in rounds) for name in positions}
    for name in ("middle", "end"):
        yield row(
            what=f"n = 1e+12, first batch at the {name} minus first batch at the start",
            unit="ms",
            figure=ms[name] - ms["start"],
            target=5,
            note=f"{ms[name]:.3g} - {ms['start']:.3g}",
        )


def seconds_of(action: Callable[[], object]) -> float:
    """Seconds that one call takes."""
    start = now()
    action()
    return now() - start


# ---------------------------------------------------------------- the checkpoint


def bench_checkpoint(quick: bool, folder: Path) -> Iterator[Row]:
    """Saves of 400 MB in 100 tensors, each next to the least any save has to do."""
    row, pairs = partial(Row, section="checkpoint"), 3 if quick else 20
    state = {"model": {f"layer{i}": torch.randn(10**6) for i in range(100)}}
    tensors = list(state["model"].values())
    spare = [tensor.clone() for tensor in tensors]

    def save(writer: CheckpointWriter, step: int) -> None:
        save_checkpoint(writer, state, {"step": step})

    def copy() -> None:
        for target, tensor in zip(spare, tensors, strict=True):
            target.copy_(tensor)

    def write() -> None:
        with (folder / "raw").open("wb", buffering=0) as file:
            for tensor in tensors:
                file.write(tensor.numpy().data)
            os.fsync(file.fileno())

    def digest() -> None:
        sha256 = hashlib.sha256()
        for tensor in tensors:
            sha256.update(tensor.numpy().data)

    # With the trainer's retention: everything the writer does while the run trains.
    background: list[float] = []
    writer = CheckpointWriter(
        folder / "async", 3, True, lambda _, step, seconds: background.append(seconds)
    )
    save(writer, 0)
    copied, blocked = [], []
    for step in range(1, pairs + 1):
        writer.wait()
        copied.append(seconds_of(copy))
        blocked.append(seconds_of(partial(save, writer, step)))
    writer.wait()
    shutil.rmtree(folder / "async")
    ratios = [a / b for a, b in zip(blocked, copied, strict=True)]
    note = f"{median(blocked):.3g} s / {median(copied):.3g} s, {pairs} pairs; "
    note += quartiles(ratios)
    what = "async save, time blocked / memcpy of the state"
    yield row(what=what, figure=median(blocked) / median(copied), target=1.5, note=note)
    note = f"{quartiles(background)}; the newest is read back before the oldest is deleted"
    what = "async save, total in the background"
    yield row(what=what, figure=median(background), unit="s", note=note)

    # The writer deletes nothing here: the target is about writing and hashing.
    writer = CheckpointWriter(folder / "sync", 2, False, lambda *_, **__: None)
    saved, written, hashed = [], [], []
    for pair in range(pairs):
        for is_ours in random.Random(pair).sample((True, False), 2):
            os.sync()  # so that neither side pays for the other's unwritten pages
            if is_ours:
                saved.append(seconds_of(partial(save, writer, pair)))
            else:
                written.append(seconds_of(write))
                hashed.append(seconds_of(digest))
        (folder / "raw").unlink()
        shutil.rmtree(folder / "sync")
    floor = [a + b for a, b in zip(written, hashed, strict=True)]
    ratios = [a / b for a, b in zip(saved, floor, strict=True)]
    note = f"{median(saved):.3g} s / ({median(written):.3g} s + {median(hashed):.3g} s), "
    note += f"{pairs} pairs; {quartiles(ratios)}"
    what = "published and hashed / (raw write + fsync) + SHA-256"
    yield row(what=what, figure=median(saved) / median(floor), target=1.2, note=note)


# ---------------------------------------------------------------- the restart

LIMIT_S = 30.0
TORCHRUN = "-m torch.distributed.run --standalone --nproc-per-node 2 --max-restarts 3".split()
# Two ranks on the CPU: a machine with one GPU has a device for only one of them.
FLAGS = "--max-epochs 1000 --checkpoint-every-steps 20 --device cpu".split()


def kill_and_wait(run_dir: Path, victim: int) -> dict[str, float] | None:
    """SIGKILL one of two ranks mid-training; seconds to each later event, None for a hang."""
    script = [str(ROOT / "scripts/launch.py"), "--run-dir", str(run_dir), *FLAGS]
    job = subprocess.Popen(
        [sys.executable, *TORCHRUN, *script],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )

    def first(kind: str, rank: int, deadline: float, **wanted: Any) -> dict[str, Any]:
        """Wait for the first line of a rank's file that has these values, and return it."""
        path = run_dir / kind / f"rank-{rank}.jsonl"
        while time.time() < deadline:
            for line in read_jsonl(path) if path.exists() else ():
                if wanted.items() <= {name: line.get(name) for name in wanted}.items():
                    return line
            time.sleep(0.02)
        raise TimeoutError

    try:
        limit = time.time() + 2 * LIMIT_S
        pid = first("logs", victim, limit, attempt=0, event="run_start")["pid"]
        first("ledger", victim, limit, step=50)
        killed = time.time()
        os.kill(pid, signal.SIGKILL)
        limit = killed + LIMIT_S
        starts = [first("logs", r, limit, attempt=1, event="run_start") for r in (0, 1)]
        born = max(process_start(line["pid"]) for line in starts)
        ready = max(line["time"] for line in starts)
        stepped = max(first("ledger", r, limit, attempt=1)["time"] for r in (0, 1))
        return {
            "all": stepped - killed,
            "again": born - killed,
            "ready": ready - born,
            "step": stepped - ready,
        }
    except TimeoutError:
        return None
    finally:
        job.terminate()  # torchrun passes it on to the ranks, and kills any that don't exit
        job.wait(2 * LIMIT_S)


def process_start(pid: int) -> float:
    """When a process was started, in seconds since the epoch, to a hundredth. Linux only."""
    since_boot = stat_of(pid).start_ticks / os.sysconf("SC_CLK_TCK")
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + since_boot


def bench_restart(quick: bool, folder: Path) -> Iterator[Row]:
    """From kill -9 of one rank under torchrun to the first step by all ranks after it."""
    row, tries = partial(Row, section="restart"), 4 if quick else 20
    outcomes = [kill_and_wait(folder / f"restart-{n}", victim=n % 2) for n in range(tries)]
    finished = [outcome for outcome in outcomes if outcome]
    note = (
        f"of {tries}; rank 0 and rank 1 killed in turn; a hang is {LIMIT_S:g} s without a step"
    )
    yield row(what="restarts that hang", figure=tries - len(finished), target=0, note=note)
    for part, what in (
        ("all", "kill -9 to a new step on all ranks"),
        ("again", "- until torchrun has restarted the ranks"),
        ("ready", "- until they are ready to train"),
        ("step", "- until all have taken a step"),
    ):
        seconds = [outcome[part] for outcome in finished]
        if len(seconds) > 1:
            note = f"{quartiles(seconds)}; longest {max(seconds):.3g}"
            target = 3.5 if part == "all" else None
            yield row(what=what, figure=median(seconds), unit="s", target=target, note=note)


# ---------------------------------------------------------------- the checks

COMMON_WORK = """
import os
import torch, torch.distributed as dist

def work(rank=None, port=None):
    if rank is not None:
        os.environ.update(RANK=str(rank), WORLD_SIZE="2")
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(20):
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()
    dist.destroy_process_group()

if __name__ == "__main__":
"""


FIRST_JOB = """
import time
began = time.perf_counter()
import rehearsal
from rehearsal.engine.ranks import run_ranks
rehearsal.warm_up()
run_ranks(lambda context: context.init_group(), world_size=2)
print(time.perf_counter() - began)
"""


def bench_checks(quick: bool, folder: Path) -> Iterator[Row]:
    """How long a learner waits, next to the same job under torchrun and mp.spawn."""
    from rehearsal import drills, grade_source
    from rehearsal.engine import ranks

    row, tries = partial(Row, section="checks"), 3 if quick else 15

    def hang(context: Any) -> None:
        time.sleep(60)

    def same_work(context: Any) -> None:
        scope: dict[str, Any] = {"__name__": "work"}
        exec(COMMON_WORK + "    pass", scope)
        scope["work"]()

    # In a separate process: a fresh kernel has imported nothing yet.
    (folder / "first.py").write_text(FIRST_JOB)
    first = [
        float(subprocess.check_output([sys.executable, str(folder / "first.py")], cwd=ROOT))
        for _ in range(2 if quick else 5)
    ]
    what = "setup cell and first job of a fresh kernel"
    yield row(what=what, figure=median(first), unit="s", target=3.5, note=quartiles(first))
    ours = [seconds_of(lambda: ranks.run_ranks(same_work, world_size=2)) for _ in range(tries)]
    what = "20 steps on 2 ranks: "
    yield row(
        what=what + "run_ranks, warm", figure=median(ours), unit="s", note=quartiles(ours)
    )
    (folder / "by_torchrun.py").write_text(COMMON_WORK + "    work()")
    spawning = "    torch.multiprocessing.spawn(work, args=(os.environ['PORT'],), nprocs=2)"
    (folder / "by_spawn.py").write_text(COMMON_WORK + spawning)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PORT": str(free_port())}
    others = {
        "torchrun": [*TORCHRUN, str(folder / "by_torchrun.py")],
        "mp.spawn": [str(folder / "by_spawn.py")],
    }
    for name, arguments in others.items():
        command = [sys.executable, *arguments]
        run = partial(subprocess.run, command, env=environment, check=True, capture_output=True)
        theirs = [seconds_of(run) for _ in range(2 if quick else 5)]
        yield row(what=what + name, figure=median(theirs), unit="s", note=quartiles(theirs))
    late = [
        seconds_of(lambda: ranks.run_ranks(hang, world_size=2, deadline_s=1.0)) - 1.0
        for _ in range(tries)
    ]
    what = "hang reported, after its deadline"
    yield row(what=what, figure=median(late), unit="s", target=0.5, note=quartiles(late))
    for drill in drills():
        check = partial(grade_source, drill.id, drill.solution)
        checks = [seconds_of(check) for _ in range(tries)]
        target = {"cell": 0.3}.get(drill.kind, 2.0 if "resume" in drill.id else None)
        sizes = sorted({scenario.world_size for scenario in drill.scenarios(0)})
        note = f"{quartiles(checks)}; world sizes {sizes}"
        yield row(what=drill.id, figure=median(checks), unit="s", target=target, note=note)


def free_port() -> int:
    """A port that nobody is listening on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


# ---------------------------------------------------------------- CUDA, and all sections


def bench_cuda(quick: bool, folder: Path) -> Iterator[Row]:
    """The step on a GPU."""
    if torch.cuda.is_available():
        yield from bench_step(quick, folder, "cuda", "cuda")
        return
    for what in ("256/512 trainer / hand-written", "8/8 trainer - hand-written"):
        yield Row(section="cuda", what=what, note="not measured: no CUDA device here")


SECTIONS = {
    "step": bench_step,
    "live": bench_live,
    "order": bench_order,
    "checkpoint": bench_checkpoint,
    "restart": bench_restart,
    "checks": bench_checks,
    "cuda": bench_cuda,
}


def show(lines: Sequence[Sequence[str]]) -> None:
    """Print a Markdown table with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    head, *rest = [[c.ljust(w) for c, w in zip(line, widths, strict=True)] for line in lines]
    for line in (head, ["-" * width for width in widths], *rest):
        print("|", " | ".join(line), "|")


def main() -> None:
    """Measure, print, save."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    text = "sections to run, separated by commas (default: %(default)s)"
    parser.add_argument("--only", metavar="SECTIONS", default=",".join(SECTIONS), help=text)
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="also write the figures to FILE"
    )
    parser.add_argument("--quick", action="store_true", help="few repeats, rough figures")
    options = parser.parse_args()
    wanted = options.only.split(",")
    if unknown := set(wanted) - set(SECTIONS):
        parser.error(f"--only {','.join(unknown)}: choose from {','.join(SECTIONS)}")
    torch.set_num_threads(1)
    rows: list[Row] = []
    (ROOT / "runs").mkdir(exist_ok=True)  # on the same disk as real runs: /tmp may be in memory
    with tempfile.TemporaryDirectory(dir=ROOT / "runs", prefix="bench-") as folder:
        for section in wanted:
            print(f"{section} ...", file=sys.stderr, flush=True)
            rows += SECTIONS[section](options.quick, Path(folder))
    show([["section", "what", "figure", "target", "met", "note"], *(r.cells() for r in rows)])
    machine = {
        "time": time.strftime("%Y-%m-%d %H:%M"),
        "platform": platform.platform(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "quick": options.quick,
    }
    print(", ".join(f"{name} {value}" for name, value in machine.items()))
    if options.json:
        figures = [asdict(row) | {"met": row.met} for row in rows]
        options.json.write_text(json.dumps({"machine": machine, "rows": figures}, indent=1))


if __name__ == "__main__":
    main()
