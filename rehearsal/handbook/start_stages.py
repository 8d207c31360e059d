"""In which order a start of the trainer does what, recorded while it starts.

``record_stages`` is called in each rank before the trainer runs; ``stages_of`` reads what the
ranks wrote down, and ``stage_picture`` draws it.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rehearsal.evidence.pictures import new_figure, on_any_theme
from rehearsal.faults.breaks import wrap
from rehearsal.handbook.planes import PLANES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# The functions of trainer_core that a start calls, and the plane that each is about.
STAGES = {
    "maybe_init_dist": ("join the process group", "control"),
    "build_dataset": ("open the dataset", "data"),
    "agree_on_start": ("agree on the checkpoint", "control"),
    "build_parts": ("build model and optimizer", "training"),
    "restore_if_present": ("restore them", "artifact"),
    "wrap_model": ("wrap the model in DDP", "training"),
    "restore_rng": ("restore the random states", "artifact"),
    "prepare_run_dir": ("claim the run folder", "control"),
    "log_start": ("open log and ledger", "observability"),
    "build_dataloader": ("build the loader", "data"),
    "next_step": ("first batch", "data"),
    "train_step": ("first step", "training"),
    "save": ("first save", "artifact"),
}


class Stage(NamedTuple):
    """One call on one rank; times in unix seconds."""

    name: str
    rank: int
    begin: float
    end: float

    @property
    def text(self) -> str:
        """What the stage does."""
        return STAGES[self.name][0]

    @property
    def plane(self) -> str:
        """The plane that it is about."""
        return STAGES[self.name][1]


def record_stages(folder: Path) -> None:
    """In a rank: from here on, write down when each stage of the start begins and ends."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"rank-{os.environ.get('RANK', '0')}.jsonl"
    for name in STAGES:
        wrap(name, partial(timed, name, path, []))


def timed(
    name: str, path: Path, seen: list[str], call: Any, *arguments: Any, **named: Any
) -> Any:
    """Call a function, and write down the first call's times."""
    if seen:
        return call(*arguments, **named)
    seen.append(name)
    begin = time.time()
    try:
        return call(*arguments, **named)
    finally:
        with path.open("a") as file:
            file.write(json.dumps({"name": name, "begin": begin, "end": time.time()}) + "\n")


def stages_of(folder: Path) -> list[Stage]:
    """What the ranks wrote down, in the order in which rank 0 began it."""
    stages = []
    for path in sorted(folder.glob("rank-*.jsonl")):
        rank = int(path.stem[5:])
        for line in path.read_text().splitlines():
            stages.append(Stage(rank=rank, **json.loads(line)))
    order = {stage.name: stage.begin for stage in stages if stage.rank == 0}
    return sorted(stages, key=lambda stage: (order.get(stage.name, stage.begin), stage.rank))


def stage_picture(stages: Sequence[Stage], started: float) -> Figure:
    """The stages from top to bottom; a bar per rank, from the start of the launcher.

    Args:
        started: when the launcher was started, in unix seconds.
    """
    names = list(dict.fromkeys(stage.name for stage in stages))
    num_ranks = 1 + max(stage.rank for stage in stages)
    last_ms = 1e3 * (max(stage.end for stage in stages) - started)
    figure, axes = new_figure(
        0.33 * len(names) + 1.9,
        "The order of a start",
        "One bar per rank, rank 0 on top, colored by plane. At the end: rank 0's milliseconds.",
    )
    height = 0.7 / num_ranks
    beside: dict[str, Any] = {"textcoords": "offset points", "va": "center"}
    for stage in stages:
        y = names.index(stage.name) + 1 - 0.35 + (stage.rank + 0.5) * height
        begin_ms, spent_ms = 1e3 * (stage.begin - started), 1e3 * (stage.end - stage.begin)
        drawn_ms = max(spent_ms, last_ms / 400)
        axes.barh(y, drawn_ms, 0.8 * height, begin_ms, color=PLANES[stage.plane])
    for row, name in enumerate(names, 1):
        of_stage = [stage for stage in stages if stage.name == name]
        spent_ms = 1e3 * (of_stage[0].end - of_stage[0].begin)  # rank 0's
        end_ms = 1e3 * (max(stage.end for stage in of_stage) - started) + last_ms / 400
        text = f"{spent_ms:.0f}" if spent_ms >= 1 else "< 1"
        axes.annotate(text, (end_ms, row), (4, 0), fontsize=9, **beside)
    launch_ms = 1e3 * (min(stage.begin for stage in stages) - started)
    axes.barh(0, launch_ms, 0.8 * height, color=PLANES["control"])
    axes.annotate(f"{launch_ms:.0f}", (launch_ms, 0), (4, 0), fontsize=9, **beside)
    texts = ["{}  ({})".format(*STAGES[name]) for name in names]
    axes.set_yticks(range(1 + len(names)), ["torchrun starts the ranks  (control)", *texts])
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(names) + 0.6, -0.6)
    axes.set_xlim(0, last_ms * 1.06)
    axes.set_xlabel("milliseconds since torchrun was started")
    return on_any_theme(figure)
