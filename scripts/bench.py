"""How fast the trainer is, beside what it could be compared with.

    python scripts/bench.py
    python scripts/bench.py --only step,order --json figures.json
    python scripts/bench.py --quick

Two things that are compared run in one process and take turns, step by step or save by save:
on a shared machine the speed of a minute ago says nothing. The table is Markdown; a target is
always "at most".
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
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stderr
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from statistics import median, quantiles
from typing import Any
from unittest.mock import patch

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from rehearsal.audit import read_jsonl
from trainer_core import launch
from trainer_core.checkpoint import save_checkpoint
from trainer_core.config import TrainConfig
from trainer_core.data import MicroBatch, ResumeAwareDistributedSampler, StepSchedule
from trainer_core.data import TrainingView, build_dataloader, build_dataset, plan_steps
from trainer_core.model import build_model, build_optimizer, learning_rate_at
from trainer_core.order import EpochOrder
from trainer_core.publish import CheckpointWriter

ROOT = Path(__file__).resolve().parents[1]
now = time.perf_counter


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One line of the table; without a figure the note says why."""

    section: str
    what: str
    figure: float | None = None
    unit: str = ""
    target: float | None = None
    note: str = ""

    @property
    def met(self) -> str:
        """``yes``, ``no``, or nothing where there is no target or no figure."""
        if self.figure is None or self.target is None:
            return ""
        return "yes" if self.figure <= self.target else "no"

    def cells(self) -> list[str]:
        """The line, as text."""
        figure = "skipped" if self.figure is None else f"{self.figure:.4g} {self.unit}".strip()
        target = "" if self.target is None else f"{self.target:g} {self.unit}".strip()
        return [self.section, self.what, figure, target, self.met, self.note]


def quartiles(values: Sequence[float], scale: float = 1.0) -> str:
    """The spread of some values, for a note."""
    low, middle, high = (f"{value * scale:.4g}" for value in quantiles(values, n=4))
    return f"quartiles {low}, {middle}, {high}"


# ---------------------------------------------------------------- the step

FRAMEWORKS = {"Lightning Fabric": "lightning_fabric", "Accelerate": "accelerate"}


def plain_loop(cfg: TrainConfig, device: torch.device, framework: str = "") -> Iterator[None]:
    """The loop that one writes by hand, or in a framework: same loader, clipping, schedule."""
    source = build_dataset(cfg)
    sampler = ResumeAwareDistributedSampler(plan_steps(cfg, source), cfg, 0, 1)
    view = TrainingView(source, seed=cfg.seed, input_noise=0.0)
    loader: Any = build_dataloader(view, sampler, cfg, device)
    model: Any = build_model(cfg, cfg.input_dim, source.num_classes).to(device)
    optimizer: Any = build_optimizer(cfg, model)
    backward: Callable[[Tensor], None] = Tensor.backward
    clip: Callable[[], object] = partial(_clip, model)
    if framework == "Lightning Fabric":
        from lightning_fabric import Fabric

        fabric = Fabric(accelerator=device.type, devices=1)
        model, optimizer = fabric.setup(model, optimizer)
        loader = fabric.setup_dataloaders(loader, use_distributed_sampler=False)
        backward = fabric.backward
        clip = partial(fabric.clip_gradients, model, optimizer, max_norm=1.0)
    elif framework == "Accelerate":
        from accelerate import Accelerator

        accelerator = Accelerator(cpu=device.type == "cpu")
        model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
        backward = accelerator.backward
        clip = partial(_clip, model, accelerator.clip_grad_norm_)
    for step, batch in enumerate(loader, 1):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate_at(cfg, step)
        inputs = batch.inputs.to(device, non_blocking=True)
        targets = batch.targets.to(device, non_blocking=True)
        optimizer.zero_grad(set_to_none=True)
        backward(F.cross_entropy(model(inputs), targets))
        clip()
        optimizer.step()
        yield


def _clip(model: nn.Module, clip: Callable[..., object] = nn.utils.clip_grad_norm_) -> None:
    clip(model.parameters(), 1.0)


def take_turns(
    cfg: TrainConfig, device: torch.device, loops: Mapping[str, Iterator[None]]
) -> dict[str, list[float]]:
    """Seconds of each step, of ``run(cfg)`` ("trainer") and of the loops beside it.

    The trainer is the real one, from ``run`` on; only its loader is wrapped. The loop asks the
    loader once per step. Then its clock stops, each of the others makes one step, in an order
    drawn anew, and its clock starts again: from one call to the next it has seen all of a step,
    the writing of ledger, logs and trace included.
    """
    seconds: dict[str, list[float]] = {name: [] for name in ("trainer", *loops)}
    names, draw = list(loops), random.Random(0)

    def settled() -> float:
        """The time when the device has done what it was asked for."""
        if device.type == "cuda":
            torch.cuda.synchronize()
        return now()

    def loader_between_others(*arguments: Any) -> Iterator[MicroBatch]:
        for batches in [iter(build_dataloader(*arguments))]:
            while True:
                draw.shuffle(names)
                for name in names:
                    start = settled()
                    next(loops[name])
                    seconds[name].append(settled() - start)
                start = settled()
                batch = next(batches, None)
                if batch is None:
                    return
                yield batch
                seconds["trainer"].append(settled() - start)

    with patch.object(launch, "build_dataloader", loader_between_others):
        with (cfg.run_dir.parent / "progress.txt").open("w") as file, redirect_stderr(file):
            launch.run(cfg)
    # The last step is left out: it saves a checkpoint. The first ones warm up.
    return {name: times[40 : cfg.dataset_size // 16 - 1] for name, times in seconds.items()}


def bench_step(section: str, device: torch.device, quick: bool, folder: Path) -> Iterator[Row]:
    """The trainer with logs, phases and ledger on, against loops without any of them."""
    loops: dict[str, Loop] = {"hand-written": hand_written, "again": hand_written}
    loops["nothing"] = nothing
    for name, (package, loop) in FRAMEWORKS.items():
        if importlib.util.find_spec(package):
            loops[name] = loop
        else:
            note = f"{package} is not installed: pip install -e '.[bench]'"
            yield Row(section=section, what=f"trainer / {name}", target=1.0, note=note)
    for input_dim, hidden_dim, steps in ((256, 512, 1500), (8, 8, 3000)):
        steps = 300 if quick else steps
        width = f"{input_dim}/{hidden_dim}"
        cfg = TrainConfig(
            run_dir=folder / f"{section}-{hidden_dim}", device=device.type, dropout=0.0,
            input_dim=input_dim, hidden_dim=hidden_dim, dataset_size=16 * steps, max_epochs=1,
            decay_steps=steps, checkpoint_every_steps=10 * steps,
        )  # fmt: skip
        running = {name: loop(cfg, device) for name, loop in loops.items()}
        seconds = take_turns(cfg, device, running)
        yield from step_rows(section, width, cfg.log_every, seconds)


def step_rows(
    section: str, width: str, log_every: int, seconds: dict[str, list[float]]
) -> Iterator[Row]:
    """What the seconds per step say."""

    def typical(values: Sequence[float]) -> float:
        # A median alone would hide what only every 20th step does, a mean would show the noise.
        logs = [value for index, value in enumerate(values, 41) if index % log_every == 0]
        rest = [value for index, value in enumerate(values, 41) if index % log_every]
        return ((log_every - 1) * median(rest) + median(logs)) / log_every

    def difference(name: str, other: str) -> list[float]:
        return [a - b for a, b in zip(seconds[name], seconds[other], strict=True)]

    us = {name: typical(values) * 1e6 for name, values in seconds.items()}
    row = partial(Row, section=section)
    for name in us:
        if name not in ("again", "nothing"):
            plain = median(seconds[name]) * 1e6
            note = f"median of {len(seconds[name])} steps {plain:.4g}"
            yield row(what=f"{width} {name}, step", figure=us[name], unit="us", note=note)
    extra = difference("trainer", "hand-written")
    is_wide = width == "256/512"
    yield row(
        what=f"{width} trainer / hand-written", figure=us["trainer"] / us["hand-written"],
        target=1.03 if is_wide else None,
        note=f"the same loop against itself {us['again'] / us['hand-written']:.3f}",
    )  # fmt: skip
    yield row(
        what=f"{width} trainer - hand-written", figure=typical(extra) * 1e6, unit="us",
        target=None if is_wide else 100,
        note=f"{quartiles(extra, 1e6)}; handing over costs {us['nothing']:.2g}",
    )  # fmt: skip
    for name in FRAMEWORKS:
        if name in us:
            note = f"{quartiles(difference('trainer', name), 1e6)} us"
            ratio = us["trainer"] / us[name]
            yield row(what=f"{width} trainer / {name}", figure=ratio, target=1.0, note=note)


# ---------------------------------------------------------------- the order


def bench_order(quick: bool) -> Iterator[Row]:
    """The bijection in blocks, and the first batch after a resume anywhere."""
    row, block = partial(Row, section="order"), 65536
    draw = random.Random(0)
    for num_samples in (10**6, 2 * 10**6, 10**7, 10**8, 10**9, 10**12):
        order, times = EpochOrder(num_samples, seed=1, epoch=0), []
        for _ in range(10 if quick else 100):
            first = draw.randrange(num_samples - block)
            start = now()
            order.samples(first, first + block)
            times.append((now() - start) / block)
        what = f"n = {num_samples:.0e}, per index"
        note = quartiles(times, 1e9)
        yield row(what=what, figure=median(times) * 1e9, unit="ns", target=40, note=note)
    tracemalloc.start()
    EpochOrder(10**12, seed=1, epoch=0).samples(10**11, 10**11 + block)
    peak = tracemalloc.get_traced_memory()[1] / 2**20
    tracemalloc.stop()
    yield row(what="n = 1e+12, peak memory of a block", figure=peak, unit="MiB", target=8)

    schedule = StepSchedule(10**12, 16, 1)
    last = schedule.total_steps - 1
    positions = {"start": 0, "middle": last // 2 + 1777, "end": last}
    milliseconds: dict[str, list[float]] = {name: [] for name in positions}
    for _ in range(5 if quick else 50):
        for name, position in positions.items():
            start = now()
            sampler = ResumeAwareDistributedSampler(schedule, TrainConfig(), 0, 1)
            sampler.load_state_dict({"position": position})
            next(iter(sampler))
            milliseconds[name].append((now() - start) * 1e3)
    fresh = median(milliseconds["start"])
    for name in ("middle", "end"):
        later = median(milliseconds[name])
        yield row(
            what=f"n = 1e+12, first batch at the {name}, later than at the start",
            figure=later - fresh, unit="ms", target=5, note=f"{later:.3g} against {fresh:.3g}",
        )  # fmt: skip


# ---------------------------------------------------------------- the checkpoint


def seconds_of(action: Callable[[], object]) -> float:
    """How long a call takes."""
    start = now()
    action()
    return now() - start


def bench_checkpoint(quick: bool, folder: Path) -> Iterator[Row]:
    """Saves of 400 MB in 100 tensors, each beside what no save could do without."""
    row, pairs = partial(Row, section="checkpoint"), 3 if quick else 20
    state = {"model": {f"layer{i}": torch.randn(10**6) for i in range(100)}}
    tensors = list(state["model"].values())
    spare = [torch.empty_like(tensor).copy_(tensor) for tensor in tensors]
    steps = count(1)
    written: list[float] = []

    def save(writer: CheckpointWriter) -> None:
        save_checkpoint(writer, state, {"step": next(steps)})

    def copy() -> None:
        for target, tensor in zip(spare, tensors, strict=True):
            target.copy_(tensor)

    def write() -> None:
        with (folder / "raw").open("wb", buffering=0) as file:
            for tensor in tensors:
                file.write(tensor.numpy())
            os.fsync(file.fileno())

    def digest() -> None:
        whole = hashlib.sha256()
        for tensor in tensors:
            whole.update(tensor.numpy())

    # With the default retention: in full, what the background has to do while the run trains.
    writer = CheckpointWriter(folder / "async", 3, True, lambda _, s: written.append(s))
    save(writer)
    writer.wait()
    blocked, copied = [], []
    for _ in range(pairs):
        copied.append(seconds_of(copy))
        blocked.append(seconds_of(lambda: save(writer)))
        writer.wait()
    ratios = [a / b for a, b in zip(blocked, copied, strict=True)]
    note = f"{median(blocked):.3f} s; {quartiles(ratios)}"
    what = "async save blocks, of a memcpy"
    yield row(what=what, figure=median(blocked) / median(copied), target=1.5, note=note)
    note = (
        f"{quartiles(written)}; from the fourth on it reads the newest back, deletes the oldest"
    )
    yield row(what="async save, in the background", figure=median(written), unit="s", note=note)

    # Nothing is retained or deleted in here: the target is about writing and hashing.
    writer = CheckpointWriter(folder / "sync", 10 * pairs, False, lambda *_: None)
    saved, parts = [], []
    for pair in range(pairs):
        rounds = [lambda: saved.append(seconds_of(lambda: save(writer))),
                  lambda: parts.append((seconds_of(write), seconds_of(digest)))]  # fmt: skip
        for action in rounds if pair % 2 else reversed(rounds):
            os.sync()  # what the round before has left to the disk is not this one's
            action()
        (folder / "raw").unlink()
        shutil.rmtree(folder / "sync")
    floor = [written + hashed for written, hashed in parts]
    ratios = [a / b for a, b in zip(saved, floor, strict=True)]
    note = (
        f"{pairs} pairs; {median(saved):.3f} s against {median(a for a, _ in parts):.3f} + "
        f"{median(b for _, b in parts):.3f}; {quartiles(ratios)}"
    )
    what = "published and hashed, of raw write + fsync + SHA-256"
    yield row(what=what, figure=median(saved) / median(floor), target=1.2, note=note)


# ---------------------------------------------------------------- the restart

LIMIT_S = 30.0


def kill_and_wait(run_dir: Path, victim: int) -> dict[str, float] | None:
    """SIGKILL one of two ranks in mid-training; seconds to what follows, or None for a hang."""
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2",
        "--max-restarts=3", str(ROOT / "scripts/launch.py"), "--run-dir", str(run_dir),
        "--max-epochs=1000", "--checkpoint-every-steps=20",
    ]  # fmt: skip
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    job = subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )

    def first(kind: str, rank: int, attempt: int, **wanted: Any) -> dict[str, Any]:
        """The first line of a rank's file with these values, once it is there."""
        while time.time() < deadline:
            for line in read_jsonl(run_dir / kind / f"rank-{rank}.jsonl"):
                if {**line, "attempt": attempt, **wanted} == line:
                    return line
            time.sleep(0.02)
        raise TimeoutError

    try:
        deadline = time.time() + LIMIT_S
        pid = first("logs", victim, 0, event="run_start")["pid"]
        first("ledger", victim, 0, step=50)
        killed = time.time()
        os.kill(pid, signal.SIGKILL)
        deadline = killed + LIMIT_S
        began = [first("logs", rank, 1, event="run_start") for rank in (0, 1)]
        stepped = [first("ledger", rank, 1) for rank in (0, 1)]
        ready, done = (max(line["time"] for line in lines) for lines in (began, stepped))
        born = max(process_start(line["pid"]) for line in began)
        return {"born": born - killed, "ready": ready - killed, "stepped": done - killed}
    except TimeoutError:
        return None
    finally:
        job.terminate()  # the agent passes it on, and kills what does not end
        job.wait(2 * LIMIT_S)


def process_start(pid: int) -> float:
    """When a process was started, in seconds since the epoch, to a hundredth. Linux only."""
    ticks = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    uptime = time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.time() - uptime + ticks / os.sysconf("SC_CLK_TCK")


def bench_restart(quick: bool, folder: Path) -> Iterator[Row]:
    """From the kill -9 of a rank under torchrun to the first step of all ranks after it."""
    row, tries = partial(Row, section="restart"), 3 if quick else 20
    if sys.platform != "linux":
        yield row(what="kill -9 to the first new step", target=3.5, note="needs Linux's /proc")
        return
    outcomes = [kill_and_wait(folder / f"restart-{n}", victim=n % 2) for n in range(tries)]
    whole = [outcome for outcome in outcomes if outcome]
    note = f"within {LIMIT_S:.0f} s, of {tries}; rank 0 and 1 killed in turn"
    yield row(what="restarts that hang", figure=tries - len(whole), target=0, note=note)
    if len(whole) > 1:
        seconds = [outcome["stepped"] for outcome in whole]
        note = f"{quartiles(seconds)}, longest {max(seconds):.3g}"
        what = "kill -9 to the first new step"
        yield row(what=what, figure=median(seconds), unit="s", target=3.5, note=note)
        for name, start, end in (
            ("until torchrun has started the ranks again", "", "born"),
            ("from there until the ranks are ready to train", "born", "ready"),
            ("from there until all have made a step", "ready", "stepped"),
        ):
            figure = median(outcome[end] - outcome.get(start, 0.0) for outcome in whole)
            yield row(what=f"- {name}", figure=figure, unit="s")


# ---------------------------------------------------------------- all together


def bench_cuda(quick: bool, folder: Path) -> Iterator[Row]:
    """The step on a GPU, waited for at each hand-over so that each loop pays for its own."""
    if torch.cuda.is_available():
        yield from bench_step("cuda", torch.device("cuda", 0), quick, folder)
    else:
        note = "no CUDA device: not measured"
        yield Row(section="cuda", what="256/512 trainer / hand-written", target=1.03, note=note)
        yield Row(
            section="cuda", what="8/8 trainer - hand-written", unit="us", target=100, note=note
        )


def show(cells: Sequence[Sequence[str]]) -> None:
    """A Markdown table, its columns aligned."""
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for index, line in enumerate(cells):
        padded = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        print("|", " | ".join(padded), "|")
        if index == 0:
            print("|", " | ".join("-" * width for width in widths), "|")


def main() -> None:
    """Measure, print, save."""
    torch.set_num_threads(1)
    (ROOT / "runs").mkdir(exist_ok=True)  # on the disk that runs use: /tmp may be memory
    with tempfile.TemporaryDirectory(dir=ROOT / "runs", prefix="bench-") as name:
        folder = Path(name)
        sections: dict[str, Callable[[bool], Iterator[Row]]] = {
            "step": partial(bench_step, "step", torch.device("cpu"), folder=folder),
            "order": bench_order,
            "checkpoint": partial(bench_checkpoint, folder=folder),
            "restart": partial(bench_restart, folder=folder),
            "cuda": partial(bench_cuda, folder=folder),
        }
        parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
        parser.add_argument("--only", default=",".join(sections), help="some of the default")
        parser.add_argument("--json", type=Path, help="a file for the figures")
        parser.add_argument("--quick", action="store_true", help="few repeats, rough figures")
        options = parser.parse_args()
        wanted = options.only.split(",")
        if unknown := set(wanted) - set(sections):
            parser.error(f"--only {', '.join(unknown)}: choose from {', '.join(sections)}")
        rows = []
        for section in wanted:
            print(f"{section} ...", file=sys.stderr, flush=True)
            rows += list(sections[section](quick=options.quick))
    show([["section", "what", "figure", "target", "met", "note"], *(r.cells() for r in rows)])
    machine = {
        "time": time.strftime("%Y-%m-%d %H:%M"), "python": platform.python_version(),
        "torch": torch.__version__, "cores": os.cpu_count(), "platform": platform.platform(),
        "quick": options.quick,
    }  # fmt: skip
    if options.json:
        content = {"machine": machine, "rows": [{**asdict(r), "met": r.met} for r in rows]}
        options.json.write_text(json.dumps(content, indent=1))


if __name__ == "__main__":
    main()
