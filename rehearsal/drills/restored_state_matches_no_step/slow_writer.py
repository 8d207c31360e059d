"""Threads that write late, what a run's state was, and the run in one process. In the ranks."""

from __future__ import annotations

import mmap
import os
import sys
import threading
import time
from pathlib import Path
from types import FrameType

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from rehearsal.kit.observe.samples import OddNet, before_forward, marked_samples, weights_of

from .on_disk import digest
from .plan import Run

LIBRARIES = (sys.prefix, sys.base_prefix, os.path.dirname(torch.__file__), "<frozen")
WAITS = ("wait", "join", "_wait_for_tstate_lock")  # in threading: until another thread is done
REHEARSAL = str(Path(__file__).parents[2])


class LateThreads:
    """Lets every thread but the main one run only in the last step before each fourth save.

    As if the disk were slow, or the operating system had better things to do. By then, there
    are three saves that have not been written. If the main thread waits for another one, the
    threads run, until it continues. A process that it forks begins two steps later, or after a
    second: whoever waits for it at once is still seen.
    """

    def __init__(self, run: Run, folder: Path, model: nn.Module) -> None:
        self.period = 4 * run.checkpoint_every
        self.folder, self.saves = folder, run.saves
        self.begun = 0  # forward passes, which count the steps begun
        self.shared = mmap.mmap(-1, 8)  # the same, for forked processes
        self.waits_at: object = None  # where the main thread was last seen to wait
        self.waited_for: list[int] = []
        self.waited_in: list[tuple[int, int]] = []  # a step without a save, and the save
        self.missing: list[int] = []  # saves not yet on disk when the main thread waits
        self.main = threading.main_thread().ident
        before_forward(model, self.began)
        threading.setprofile(self.called)
        os.register_at_fork(after_in_child=self.forked)

    def forked(self) -> None:
        """Wait in a new process, before it does anything."""
        since = time.monotonic()
        while int.from_bytes(self.shared[:]) < self.begun + 2 and time.monotonic() - since < 1:
            time.sleep(0.001)

    def end(self) -> None:
        """Let new threads run as they like."""
        threading.setprofile(None)

    def began(self, _: Tensor) -> None:
        """A step begins: is the save of two steps ago on disk, although it had no time?"""
        self.begun += 1
        self.shared[:] = self.begun.to_bytes(8)
        save = self.begun - 2
        if save in self.saves and self.is_on_disk(save):
            self.waited_for.append(save)
        step = self.begun - 1
        done = [save for save in self.missing if self.is_on_disk(save)]
        if step not in self.saves or step in done:
            self.waited_in += [(step, save) for save in done[-1:]]
        self.missing = []

    def is_on_disk(self, save: int) -> bool:
        """Whether a checkpoint has its name."""
        return (self.folder / f"step-{save}.pt").exists()

    def called(self, frame: FrameType, event: str, _: object) -> None:
        """Profiles a thread: before each call that the learner's own code makes, it waits."""
        caller = frame if event == "c_call" else frame.f_back
        if event in ("call", "c_call") and (is_own(caller) or is_own(frame)):
            self.hold()

    def hold(self) -> None:
        """Wait until this thread may run."""
        last: object = None
        since = time.monotonic()
        while self.begun % self.period or not self.begun:
            frame = sys._current_frames().get(self.main or 0)
            if frame is None:
                return
            place = (self.begun, id(frame), frame.f_lasti)
            if place == self.waits_at:
                return  # it still waits
            if place != last:
                last, since = place, time.monotonic()
            # In threading, it waits for another thread; in its own code, it may just be slow.
            in_threading = frame.f_code.co_filename.endswith("threading.py")
            patience = 0.01 if in_threading else 0.3 if is_own(frame) else 2.0
            if time.monotonic() - since > patience:
                self.waits_at = place
                if in_threading and frame.f_code.co_name in WAITS:
                    due = [save for save in self.saves if save <= self.begun]
                    self.missing = [save for save in due if not self.is_on_disk(save)]
            time.sleep(0.001)


def is_own(frame: FrameType | None) -> bool:
    """Whether a frame is in the learner's code."""
    return frame is not None and not frame.f_code.co_filename.startswith(
        (*LIBRARIES, REHEARSAL)
    )


class LiveStates:
    """What a rank's model and optimizer contain after each of its steps, as digests."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.after: list[dict[str, str]] = []
        register_optimizer_step_post_hook(self.stepped)

    def stepped(self, optimizer: Optimizer, *_: object) -> None:
        """A step is complete."""
        states = {"model": self.model.state_dict(), "optimizer": optimizer.state_dict()}
        self.after.append({part: digest(state) for part, state in states.items()})


def expected(run: Run) -> dict[str, str]:
    """One process; SGD with momentum, written out."""
    model, (inputs, targets) = OddNet(seed=0), marked_samples(run.num_samples)
    used = [p for name, p in model.named_parameters() if name != "unused"]
    speeds = [torch.zeros_like(parameter) for parameter in used]
    for first in [*range(0, run.num_samples, run.global_batch_size)] * run.epochs:
        batch = slice(first, first + run.global_batch_size)
        loss = (model(inputs[batch]) - targets[batch]).pow(2).sum(1).mean()
        grads = torch.autograd.grad(loss, used)
        for parameter, speed, grad in zip(used, speeds, grads, strict=True):
            speed.mul_(0.9).add_(grad)
            parameter.data.sub_(run.lr * speed)
    return weights_of(model)
