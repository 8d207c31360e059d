"""What ranks record, and a judge can read with ``report.of(kind)``. Plain data.

``docs/extending.md`` shows this table, and the grader that ``python -m rehearsal new`` writes
lists the kinds.
"""

from __future__ import annotations

from typing import NamedTuple


class Kind(NamedTuple):
    """One kind of event."""

    fields: tuple[str, ...]
    recorded: str  # when


# Of any rank. A grader's own kinds are recorded by its body: context.record("kind", field=...).
EVENTS: dict[str, Kind] = {
    "begin": Kind((), "before the learner's code is loaded"),
    "joining": Kind((), "at the start of context.init_group()"),
    "joined": Kind((), "at the end of context.init_group(), once all ranks have joined"),
    "optimizer_step": Kind((), "after each step of any torch optimizer"),
    "collective": Kind(
        ("name", "elements", "bytes", "group"),
        "for each collective, including DDP's; at the end of the job or at the deadline",
    ),
    "transfer": Kind(("name", "peer", "bytes"), "before each send, isend, recv or irecv"),
    "file": Kind(
        ("op", "path", "to"),
        "before an operation in context.folder: open (to write), torch.save, fsync, rename, "
        "remove, mkdir, rmdir, truncate, link, symlink; `to`, the new name, with rename and "
        "link only. `path` is the new name too if the old one is outside the folder",
    ),
    "destroyed": Kind(
        ("live_wrappers",), "before destroy_process_group(): how many DDP wrappers are alive"
    ),
    "peek": Kind(("path",), "when the code opens a drill's file, which fails any check"),
    "answer": Kind(
        ("module", "name"), "when the code calls the answer in trainer_core, which also fails"
    ),
    "forward": Kind(
        ("samples",), "by watch_samples(context, model): the ids in each batch that is trained"
    ),
    "step_begins": Kind(
        ("weights",), "by WatchedSteps: the first pass of a step, with the weights it uses"
    ),
    "restarted": Kind(("folder",), "by starting_in: a start after a kill"),
    "ended": Kind(("folder", "answer"), "by starting_in: train has returned"),
    "saved": Kind(
        ("steps", "in_thread"), "by keeping_saves: the steps after which files have changed"
    ),
    "kept": Kind(
        ("folder", "where", "steps", "is_after"),
        "by keeping_saves: a folder with what a kill would have left",
    ),
    "before_step": Kind(("settings",), "by UpdateWatch: before an update of the weights"),
    "stepped": Kind(("weights",), "by UpdateWatch: after an update"),
    "first_forward": Kind(("weights",), "by the restart kit: the weights a run begins with"),
}


def table() -> str:
    """The events as a Markdown table."""
    rows = [
        f"| `{kind}` | {', '.join(f'`{field}`' for field in event.fields)} | {event.recorded} |"
        for kind, event in EVENTS.items()
    ]
    return "\n".join(["| kind | fields | recorded |", "|---|---|---|", *rows])
