"""What the ranks of a run wrote about themselves, as plain records, and pictures of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from rehearsal.evidence.pictures import (
    RANK_MARKERS,
    VERMILLION,
    Style,
    new_figure,
    on_any_theme,
    rank_color,
)
from rehearsal.evidence.run_records import rank_files, read_jsonl

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Record = Mapping[str, Any]


class Telemetry(NamedTuple):
    """The records of all ranks, each list in order of time."""

    events: list[Record]  # logs/: an event, such as train_progress
    steps: list[Record]  # ledger/: a step that a rank has trained
    beats: list[Record]  # heartbeat/: a line every few milliseconds, if there is a heartbeat

    def named(self, event: str) -> list[Record]:
        """The events of that name."""
        return [record for record in self.events if record["event"] == event]

    def newest(self, event: str) -> dict[int, Record]:
        """The newest event of that name, by rank."""
        return last_by_rank(self.named(event))

    def phase_ms(
        self, summarize: Callable[[Iterable[float]], float] = median
    ) -> dict[int, dict[str, float]]:
        """Milliseconds per phase of each rank's typical step: the medians of what it logged.

        Args:
            summarize: ``min`` for a rank's best step, which other programs can't slow down.
        """
        logged: dict[int, list[Record]] = {}
        for record in self.named("train_progress"):
            logged.setdefault(record["rank"], []).append(record["phases"])
        return {
            rank: {name: summarize([phases[name]["p50"] for phases in of]) for name in of[0]}
            for rank, of in sorted(logged.items())
        }


def read_telemetry(run_dir: Path) -> Telemetry:
    """Everything that the ranks of a run have written so far."""
    return Telemetry(*(read_part(run_dir, part) for part in ("logs", "ledger", "heartbeat")))


def read_part(run_dir: Path, part: str) -> list[Record]:
    """The records of one kind, of all ranks, in order of time."""
    records = [record for path in rank_files(run_dir, part) for record in read_jsonl(path)]
    return sorted(records, key=lambda record: record["time"])


def last_by_rank(records: Sequence[Record]) -> dict[int, Record]:
    """The last of these records, by rank."""
    return dict(sorted({record["rank"]: record for record in records}.items()))


# %%
def liveness_picture(telemetry: Telemetry, seconds_before: float = 0.2) -> Figure:
    """Each rank's heartbeats above, and the step that it has completed below."""
    steps, beats = telemetry.steps, telemetry.beats
    stop = max(record["time"] for record in steps)
    begin, end = stop - seconds_before, max(record["time"] for record in beats)
    top = max(record["step"] for record in steps)
    title = "Every rank is alive, and no step completes"
    subtitle = "Marks: a rank's heartbeats. Lines: the last step that the rank has completed."
    figure, axes = new_figure(3.6, title, subtitle)
    beside: Style = {"textcoords": "offset points", "fontsize": 9, "annotation_clip": False}
    for rank in last_by_rank(steps):
        height, color = top + 2.5 + 1.8 * rank, rank_color(rank)
        times = [r["time"] - begin for r in beats if r["rank"] == rank and r["time"] > begin]
        mark: Style = {"color": color, "markersize": 8, "markeredgewidth": 2}
        axes.plot(times, [height] * len(times), "|", **mark)
        axes.annotate(f"rank {rank}", (end - begin, height), (8, -4), **beside)
        done = [(r["time"] - begin, r["step"]) for r in steps if r["rank"] == rank]
        done = [*((x, y) for x, y in done if x >= 0), (end - begin, top)]
        line: Style = {"marker": RANK_MARKERS[rank], "markersize": 5, "color": color}
        line |= {"linestyle": "-" if rank == 0 else "--", "label": f"rank {rank}"}
        line["markevery"] = range(len(done) - 1)  # the last point is no step
        axes.step(*zip(*done, strict=True), where="post", **line)
    axes.axvline(stop - begin, color=VERMILLION, linewidth=1.2, linestyle=":")
    axes.annotate("the last step", (stop - begin, 0.5), (5, 0), color=VERMILLION, **beside)
    axes.set_yticks(list(range(0, top + 1, 2)))
    axes.set(xlabel="time (s)", ylabel="step", xlim=(0, end - begin + 0.02), ylim=(-0.5, None))
    figure.legend(loc="outside lower left", ncols=3, frameon=False, fontsize=9)
    return on_any_theme(figure)


# %%
def alert_table(
    fired: Mapping[str, Sequence[str]], rules: Sequence[Callable[..., str | None]]
) -> str:
    """A row per run and a column per rule, by number; a mark where the rule fired."""
    names = [rule.__name__ for rule in rules]
    width = max(map(len, fired))
    lines = [f"{number}  {name}" for number, name in enumerate(names, 1)]
    lines += ["", " " * width + "".join(f"{number:3}" for number in range(1, len(names) + 1))]
    for run, alerts in fired.items():
        marks = "".join("  X" if name in alerts else "  ." for name in names)
        lines.append(f"{run:{width}}{marks}")
    return "\n".join(lines)
