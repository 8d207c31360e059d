"""What takes time in a rank, and what its storage refuses: stand-ins that sleep.

One for the accelerator, one for the storage that samples come from, one for the network, and
one for the storage that checkpoints go to.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import get_worker_info

from rehearsal.faults.breaks import wrap
from rehearsal.incidents.agent import memory, position
from rehearsal.incidents.world import Host, Storage


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
        position.add_loss(loss, len(arguments[1]))
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
