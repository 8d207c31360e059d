"""What live.py's ledger says, in the form that the pictures draw.

A collapsed cell. The trainer you type in an interview keeps no log and no trace besides its
ledger: each line has a rank's part of the loss and the seconds of each phase. The hardened
trainer writes those to logs/ and traces/, and this module derives the same records.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

# %% active="py"
from rehearsal.evidence.run_records import live_starts, rank_files, read_jsonl

# %%
Records = list[dict[str, Any]]
# What a step does after writing its line is in the next step's line, before its phases.
AFTER_THE_LINE = ("log", "checkpoint")


def live_lines(run_dir: Path | str) -> Iterator[Records]:
    """The lines of each step and attempt that every rank has recorded, by rank."""
    found: dict[tuple[int, int], Records] = {}
    for path in rank_files(run_dir, "ledger"):
        for record in read_jsonl(path):
            match record:
                case {"attempt": int(attempt), "step": int(step), "phases": dict()}:
                    found.setdefault((attempt, step), []).append(record)
    for _, lines in sorted(found.items(), key=lambda pair: pair[0]):
        if len(lines) == lines[0]["world_size"]:
            yield sorted(lines, key=lambda line: int(line["rank"]))


def summarize_phases(lines: Records) -> dict[str, dict[str, float]]:
    """p50, p95 and max of each phase over a rank's steps, in milliseconds."""
    summary = {}
    for name in dict.fromkeys(name for line in lines for name in line["phases"]):
        times_ms = [1e3 * line["phases"].get(name, 0.0) for line in lines]
        p50, p95 = np.percentile(times_ms, [50, 95])
        summary[name] = {"p50": float(p50), "p95": float(p95), "max": max(times_ms)}
    return summary


def live_events(run_dir: Path | str) -> Records:
    """Each rank's train_progress and checkpoint_restored events.

    The loss is the mean over the global batch: the sum of the ranks' parts. An attempt's phases
    are summarized once, in its last record.
    """
    restored = [start for start in live_starts(run_dir) if start.get("step")]
    events: Records = [start | {"event": "checkpoint_restored"} for start in restored]
    of_rank: dict[tuple[int, int], Records] = {}
    last: dict[tuple[int, int], dict[str, Any]] = {}
    for lines in live_lines(run_dir):
        loss = sum(line["loss"] for line in lines)
        for line in lines:
            key = line["attempt"], line["rank"]
            of_rank.setdefault(key, []).append(line)
            last[key] = line | {"event": "train_progress", "loss": loss, "phases": None}
            events.append(last[key])
    for key, record in last.items():
        record["phases"] = summarize_phases(of_rank[key])
        record["num_steps"] = len(of_rank[key])
    return events


def live_trace(run_dir: Path | str) -> Records:
    """The phases of every step as events of a Chrome trace, in microseconds.

    With accumulation, forward and backward alternate; each is one event of its total time.
    """
    events: Records = []
    for lines in live_lines(run_dir):
        for line in lines:
            start_us = 1e6 * (line["time"] - sum(line["phases"].values()))
            for name, seconds in line["phases"].items():
                step = line["step"] - (name in AFTER_THE_LINE)
                events.append(
                    {
                        "name": name,
                        "ph": "X",
                        "ts": start_us,
                        "dur": 1e6 * seconds,
                        "pid": line["rank"],
                        "args": {"step": step, "attempt": line["attempt"]},
                    }
                )
                start_us += 1e6 * seconds
    return events
