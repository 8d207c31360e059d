"""One rank of an incident's job: deploy the code, build the world around it, train.

Everything that takes time here sleeps, so two busy cores show the same picture as two idle
ones: a stand-in for the accelerator, for the storage and for the network. What goes wrong goes
wrong in the trainer's own functions, and the trainer's own log, ledger and traces show it.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils.data import get_worker_info

from rehearsal.faults.breaks import at_step, wrap
from rehearsal.incidents.world import Host, Plan, Storage

if TYPE_CHECKING:
    from rehearsal.engine.rank import RankContext

TELEMETRY = "telemetry"  # below the run folder: what a node exporter would collect


def train(
    context: RankContext, plan: Plan, attempt: int, run_dir: str, code: str | None
) -> Any:
    """Called in each rank of each attempt; returns what ``trainer_core.launch.run`` returns."""
    if code is not None:
        use_code_in(code)
    from trainer_core.config import TrainConfig
    from trainer_core.launch import run

    enter(plan, context.rank, attempt, Path(run_dir))
    names = [spec for spec in TrainConfig.__dataclass_fields__ if spec in plan.settings]
    chosen = {name: plan.settings[name] for name in names}
    cfg = TrainConfig(**{**plan.fixed, **chosen, "run_dir": Path(run_dir)})
    return run(cfg)


def use_code_in(folder: str) -> None:
    """Import trainer_core from ``folder`` from now on."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "trainer_core"]:
        del sys.modules[name]
    sys.path.insert(0, folder)


# ---------------------------------------------------------------- the world around a rank


def enter(plan: Plan, rank: int, attempt: int, run_dir: Path) -> None:
    """Wrap the trainer's functions, so that they meet the plan's world."""
    host, world = plan.host_of(rank), plan.world
    pass_time_in_compute(world.compute_ms / 1e3, host, world.mib_per_sample)
    pass_time_in_reads(world.read_ms / 1e3, host)
    follow_the_loop()
    pass_time_in_sync(plan.sync_ms / 1e3, host)
    pass_time_in_writes(plan.storage, plan.settings["retry_backoff_s"])
    if host.clock_skew_s:
        clock = time.time
        time.time = lambda: clock() + host.clock_skew_s
    if host.ballast_mib:
        held.append(bytearray(os.urandom(2**20) * host.ballast_mib))
    memory.limit_mib, memory.at_start_mib = host.memory_limit_mib, anonymous_mib()
    watch(rank, attempt, run_dir, host)
    change_samples(plan)
    for kill in world.kills:
        if (kill.attempt, kill.rank) == (attempt, rank):
            at_step(kill.step, lambda: os.kill(os.getpid(), signal.SIGKILL), "after the ledger")


held: list[Any] = []  # memory that stays allocated until this process ends


@dataclass
class Memory:
    """This rank's share of its host's memory."""

    limit_mib: int | None = None
    at_start_mib: float = 0.0

    def check(self) -> None:
        """Kill this rank if it has grown beyond its limit, as the kernel's OOM killer does."""
        if self.limit_mib is not None and anonymous_mib() > self.at_start_mib + self.limit_mib:
            print("kernel: Out of memory: Killed process (python)", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)


memory = Memory()


class TakesTime(torch.autograd.Function):
    """An accelerator's stand-in: waits in forward, and twice as long in backward."""

    @staticmethod
    def forward(ctx: Any, loss: Tensor, seconds: float) -> Tensor:
        """The loss as it is, after the wait."""
        ctx.seconds = seconds
        time.sleep(seconds)
        return loss.view_as(loss)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        """The gradient as it is, after the wait."""
        time.sleep(2 * ctx.seconds)
        return grads[0], None


def pass_time_in_compute(seconds: float, host: Host, mib_per_sample: float) -> None:
    """Make each forward and backward pass take the host's time."""
    waits = iter([host.first_step_ms / 1e3])

    def computing(summed_loss: Any, *arguments: Any) -> Tensor:
        time.sleep(next(waits, 0.0))
        if mib_per_sample and not position.is_first_done:
            # Once per start: the peak is the same each time, and touching it takes time.
            position.is_first_done = True
            activations = bytearray(int(mib_per_sample * 2**20) * len(arguments[1]))
            activations[::4096] = b"x" * len(activations[::4096])  # touched, so that it counts
            memory.check()
            del activations
        apply: Any = TakesTime.apply
        loss: Tensor = apply(summed_loss(*arguments), seconds * host.compute_factor)
        return loss

    wrap("summed_loss", computing)


def pass_time_in_reads(seconds: float, host: Host) -> None:
    """Make each read of samples take the host's time, in a loader process if there is one."""

    def reading(batch: Any, source: Any, samples: Any) -> Any:
        if len(samples):
            worker = get_worker_info()
            is_slow = worker is not None and worker.id == 0
            factor = host.read_factor * (host.slow_worker_factor if is_slow else 1.0)
            time.sleep(seconds * factor)
        return batch(source, samples)

    wrap("ToyClassificationDataset.batch", reading)


def pass_time_in_sync(seconds: float, host: Host) -> None:
    """Make the gradient sync take the network's time, after the last local gradient."""

    def syncing(group: Any, bucket: Any) -> Any:
        if host.stalls_at_step == position.next_step:
            threading.Event().wait()  # until the watchdog ends this process
        from_step, gradients = host.bad_gradients_from_step, bucket.buffer()
        if from_step is not None and position.next_step >= from_step:
            gradients.mul_(-25)
        position.local_grad_norm = float(gradients.norm())
        time.sleep(seconds)
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

        return allreduce_hook(group, bucket)

    syncing.__annotations__ = {}  # torch would compare them with its types, as text

    def wrapping(wrap_model: Any, *arguments: Any) -> Any:
        model = wrap_model(*arguments)
        if hasattr(model, "register_comm_hook"):
            model.register_comm_hook(None, syncing)
        return model

    wrap("wrap_model", wrapping)


def pass_time_in_writes(storage: Storage, backoff_s: float) -> None:
    """Make each save take the storage's time, and fail or tear as the storage does."""
    # The machine's own disk plays no part: what an fsync costs here, the world decides.
    os.fsync = lambda fd: None

    def writing(write_tensors: Any, folder: Path, state: Any, rng_states: Any) -> None:
        step = state["step"]
        slow = storage.hiccup_ms if step == storage.hiccup_at_step else 0.0
        time.sleep((storage.write_ms + slow) / 1e3)
        if storage.throttles:
            wait_for_the_store(step, backoff_s)
        write_tensors(folder, state, rng_states)
        refuse_beyond(storage.capacity, folder.parent)

    def publishing(publish: Any, temporary: Path, target: Path, facts: Any) -> None:
        publish(temporary, target, facts)
        if facts["step"] == storage.tears_step and facts["attempt"] == 0:
            with (target / "state.pt").open("r+b") as file:
                file.truncate(4096)

    wrap("write_tensors", writing)
    wrap("publish", publishing)


def wait_for_the_store(step: int, backoff_s: float, quiet_s: float = 0.05) -> None:
    """Retry until the store answers: once it was left alone, or after half a second."""
    began, retries = time.monotonic(), 1
    while backoff_s < quiet_s and time.monotonic() < began + 0.5:
        time.sleep(backoff_s)
        retries += 1
    time.sleep(min(backoff_s, quiet_s))
    print(f"store: 503 Slow Down, step {step} written after {retries} retries", flush=True)


def refuse_beyond(capacity: int | None, checkpoints: Path) -> None:
    """Raise what a full disk raises. ``checkpoints`` includes the one being written."""
    if capacity is not None and len(list(checkpoints.iterdir())) > capacity:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(checkpoints))


def change_samples(plan: Plan) -> None:
    """Put a NaN into a sample, or wrong labels into one step."""
    poisoned, loud = plan.world.poisoned_sample, plan.world.loud_step
    if poisoned in plan.settings["restored_samples"]:
        poisoned = None

    def poisoning(batch: Any, source: Any, samples: Any) -> Any:
        inputs, targets = batch(source, samples)
        inputs[torch.as_tensor(samples) == poisoned] = float("nan")
        return inputs, targets

    def relabeling(train_step: Any, trainer: Any, batches: Any, *rest: Any) -> Any:
        if position.next_step == loud:
            batches = [batch._replace(targets=(batch.targets + 3) % 8) for batch in batches]
        return train_step(trainer, batches, *rest)

    if poisoned is not None:
        wrap("ToyClassificationDataset.batch", poisoning)
    if loud is not None:
        wrap("train_step", relabeling)


@dataclass
class Position:
    """Where the training loop is."""

    sampler: Any = None
    is_first_done: bool = False  # the first forward pass
    local_grad_norm: float = 0.0  # of this rank alone, before the sync

    @property
    def next_step(self) -> int:
        """The step that is being trained, from 1 over the whole run."""
        return 0 if self.sampler is None else int(self.sampler.position) + 1


position = Position()


def follow_the_loop() -> None:
    """Remember the loop's sampler, which knows the step."""

    def looping(train_loop: Any, job: Any, stop: Any) -> Any:
        position.sampler = job.parts["sampler"]
        return train_loop(job, stop)

    wrap("train_loop", looping)


# ---------------------------------------------------------------- what the host's agent sees


@dataclass
class Agent:
    """The node exporter of a rank: one line per step, as heartbeats and host memory."""

    rank: int
    attempt: int
    path: Path
    host: Host
    model: Any = None
    local_loss: float = 0.0

    def line(self, step: int) -> None:
        """Append one line."""
        used = anonymous_mib()
        record: dict[str, Any] = {
            "time": time.time(),
            "step": step,
            "attempt": self.attempt,
            "rank": self.rank,
            "memory_mib": round(used, 1),
            "weights": fingerprint(self.model),
            "mode": "train" if self.model is None or self.model.training else "eval",
            "local_grad_norm": round(position.local_grad_norm, 4),
        }
        if self.host.warning and step % 17 == 5:
            record["kernel"] = self.host.warning
        with self.path.open("a") as file:
            file.write(json.dumps(record) + "\n")
        memory.check()


def anonymous_mib() -> float:
    """This process's own memory, without what it shares with the server that forked it."""
    text = Path("/proc/self/status").read_text()
    return int(text.partition("RssAnon:")[2].split()[0]) / 1024


def fingerprint(model: Any) -> float:
    """A number that differs as soon as two ranks' weights do."""
    if model is None:
        return 0.0
    return round(sum(float(p.detach().double().abs().sum()) for p in model.parameters()), 6)


def watch(rank: int, attempt: int, run_dir: Path, host: Host) -> None:
    """Write a line after each step; corrupt the weights if the host's memory is bad."""
    path = run_dir / TELEMETRY / f"rank-{rank}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    agent = Agent(rank, attempt, path, host)

    def stepping(train_step: Any, trainer: Any, *rest: Any) -> Any:
        agent.model = trainer.model
        return train_step(trainer, *rest)

    def adding(add: Any, ledger: Any, step: int, *rest: Any) -> None:
        from_step = host.bad_memory_from_step
        if from_step is not None and step >= from_step:
            with torch.no_grad():
                next(iter(agent.model.parameters()))[0] += 0.02
        add(ledger, step, *rest)
        agent.line(step)

    wrap("train_step", stepping)
    wrap("Ledger.add", adding)
