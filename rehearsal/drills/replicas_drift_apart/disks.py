"""Each rank's disk: who opens its files, and what was on it after each step. In the ranks."""

from __future__ import annotations

import os
import re
import sys
from itertools import groupby
from typing import Any

import torch.distributed as dist
from torch import nn

from rehearsal.engine.rank import RankContext
from rehearsal.kit.observe.listings import list_backward
from rehearsal.kit.observe.moments import Moment, files_in, when_written
from rehearsal.kit.observe.samples import OddNet, before_forward, weights_of

from .plan import Run


def watch_disks(context: RankContext) -> None:
    """Record as "foreign" what this rank opens on another one's disk; list folders backward."""

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(arguments[0], str | os.PathLike):
            path = os.path.abspath(arguments[0])
            node = re.search(r"/node-(\d+)/", path)
            if node and path.startswith(f"{context.folder}/") and int(node[1]) != context.rank:
                context.record("foreign", path=path.removeprefix(f"{context.folder}/"))

    sys.addaudithook(watch)
    list_backward()


class Snapshots:
    """What was on this rank's disk before each of its steps."""

    def __init__(self, context: RankContext, folder: str) -> None:
        self.context, self.folder = context, context.folder / folder
        self.before: list[tuple[dict[str, str], Moment]] = []  # with the step's weights

    def net(self, context: RankContext) -> nn.Module:
        """A rank's model, whose forward passes take the snapshots."""
        net = OddNet(seed=context.rank)
        before_forward(net, lambda _: self.before.append((weights_of(net), self.disk())))
        return net

    def disk(self) -> Moment:
        """What is on this rank's disk now."""
        files = files_in(self.folder)
        return Moment("", "", None, files, when_written(self.folder, files))

    def keep(self, run: Run) -> None:
        """Write this rank's disk of each of the run's ``disks``. Collective."""
        # A rank without samples may leave out a step, and others may take several passes in
        # one; the weights say which step a pass belongs to.
        own = [weights for weights, _ in groupby(weights for weights, _ in self.before)]
        by_rank: list[Any] = [None] * self.context.world_size
        dist.all_gather_object(by_rank, own)
        steps_begun = max(by_rank, key=len)
        # The steps of ranks that have drifted apart are their own.
        steps_begun = steps_begun if all(weights in steps_begun for weights in own) else own
        self.context.is_armed = False
        for number, steps in enumerate(run.disks):
            done = steps[self.context.rank]
            # As the disk was a step later, so that a writer in the background has finished.
            disk = Moment("", "", None, {})
            for weights, found in self.before:
                if done is not None and steps_begun.index(weights) <= done + 1:
                    disk = found
            target = self.context.folder / f"disks-{number}" / f"node-{self.context.rank}"
            disk.restore(target)
        self.context.is_armed = True
