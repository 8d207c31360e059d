"""What a host's agent sees of its rank, as a node exporter would: one line per step.

RUN/telemetry/rank-0.jsonl: heartbeat, memory, and figures of the rank's own training.
"""

from __future__ import annotations

import json
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from rehearsal.faults.breaks import wrap
from rehearsal.incidents.world import Host

TELEMETRY = "telemetry"  # below the run folder


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


@dataclass
class Position:
    """Where the training loop is."""

    sampler: Any = None
    is_first_done: bool = False  # the first forward pass
    # Of this rank alone, before the sync:
    local_grad_norm: float = 0.0
    local_loss: float = 0.0  # summed over the step's samples so far
    local_samples: int = 0

    @property
    def next_step(self) -> int:
        """The step that is being trained, from 1 over the whole run."""
        return 0 if self.sampler is None else int(self.sampler.position) + 1

    def add_loss(self, loss: Any, num_samples: int) -> None:
        """Count a micro-batch's summed loss; one without samples has a placeholder's."""
        if num_samples:
            self.local_loss += float(loss.detach())
            self.local_samples += num_samples


position = Position()


def follow_the_loop() -> None:
    """Remember the loop's sampler, which knows the step."""

    def looping(train_loop: Any, job: Any, stop: Any) -> Any:
        position.sampler = job.parts["sampler"]
        return train_loop(job, stop)

    wrap("train_loop", looping)


@dataclass
class Agent:
    """The node exporter of a rank: one line per step, as heartbeats and host memory."""

    rank: int
    attempt: int
    path: Path
    host: Host
    model: Any = None

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
            "samples": position.local_samples,
            "local_loss": round(position.local_loss / max(position.local_samples, 1), 6),
        }
        position.local_loss, position.local_samples = 0.0, 0
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
