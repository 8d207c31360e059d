"""The records: logs, traces, files, the ledger, the audit, settings, code and deployments.

Each function shows one source: data, text for a terminal, and for some a picture.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from rehearsal.evidence import pictures
from rehearsal.evidence.run_records import read_manifest
from rehearsal.incidents.deployed import changed_modules, module_names, module_text
from rehearsal.incidents.evidence import Evidence
from rehearsal.incidents.settings import table
from rehearsal.incidents.view import BadLook, Shown, a_rank, a_step, clock, rows_of, shorten
from trainer_core.checkpoint_format import published_steps


def logs(
    evidence: Evidence,
    rank: int | None = None,
    contains: str = "",
    attempt: int | None = None,
    last: int = 30,
) -> Shown:
    """The logs' last lines, of one rank or all, or those that contain a text."""
    ranks = list(evidence.ranks) if rank is None else [a_rank(evidence, rank)]
    if type(last) is not int or last < 1:
        raise BadLook(f"last={last!r}: must be a number of lines, at least 1.")
    lines = [(r["time"], r["attempt"], r["rank"], log_line(r)) for r in evidence.logs]
    for record in evidence.agents:
        if "kernel" in record:
            text = f"kernel: {record['kernel']}"
            lines.append((record["time"], record["attempt"], record["rank"], text))
    for record in evidence.attempts:
        for end in record["ranks"]:
            for text in stderr_of(end):
                lines.append((record["ended"], record["attempt"], end["rank"], text))
    # By attempt first: a host's clock may be wrong.
    lines.sort(key=lambda line: (line[1], line[0]))
    shown = [
        f"{clock(moment)} attempt {of} rank {by} {text}"
        for moment, of, by, text in lines
        if by in ranks and attempt in (None, of) and str(contains).lower() in text.lower()
    ]
    left = f"({len(shown) - last} earlier lines aren't shown)\n" if len(shown) > last else ""
    none = f"No line has {contains!r}." if contains else "No line."
    return Shown(shown, left + "\n".join(shown[-last:]) or none)


def log_line(record: Mapping[str, Any]) -> str:
    """An event without what all lines share."""
    common = (
        "time event rank local_rank attempt run_id phases total_steps seconds_left data_wait_s"
    ).split()
    fields = {name: value for name, value in record.items() if name not in common}
    if record["event"] == "hang":
        places = [f"rank {n}: {place_of(report)}" for n, report in enumerate(fields["reports"])]
        fields["reports"] = "; ".join(places)
    named = " ".join(f"{name}={short(value)}" for name, value in fields.items())
    return f"{record['event']} {named}"


def place_of(report: Mapping[str, Any]) -> str:
    """Where a rank was when the watchdog asked, in a line."""
    frames = re.findall(r"line \d+, in (\w+)", str(report.get("stack", "")))
    within = " > ".join(frames[-4:]) or "unknown"
    return f"after step {report.get('step', '?')}, in {report.get('doing', '?')}: {within}"


def short(value: Any) -> str:
    """A value in a log line."""
    return f"{value:.5g}" if isinstance(value, float) else shorten(str(value), 700)


def stderr_of(end: Mapping[str, Any]) -> list[str]:
    """What a rank raised or printed at its end, without rank 0's progress lines."""
    printed = [
        line
        for line in end["output"].splitlines()
        if line.strip() and "samples/s" not in line and "total_steps" not in line
    ]
    error = [shorten(end["error"], 600)] if end["error"] else []
    return [*printed[-40:], *error]


def check_num_steps(num_steps: Any) -> None:
    """Raise BadLook if a look can't show so many steps."""
    if type(num_steps) is not int or not 1 <= num_steps <= 10:
        raise BadLook(f"num_steps={num_steps!r}: must be 1 to 10.")


def trace(evidence: Evidence, step: int | None = None, num_steps: int = 3) -> Shown:
    """What each rank did when, over a few steps; by default the last ones."""
    if step is not None:
        a_step(evidence, step)
    check_num_steps(num_steps)
    last = max((r["step"] for r in evidence.progress.get(0, [])), default=0)
    first = step or max(1, last - num_steps + 1)
    found = [
        {
            "rank": rank,
            "step": record["step"],
            "attempt": record["attempt"],
            "ms": {name: round(p["max"], 1) for name, p in record["phases"].items()},
        }
        for rank, records in evidence.progress.items()
        for record in records
        if first <= record["step"] < first + num_steps
    ]
    names = list(found[0]["ms"]) if found else []
    rows = [[r["step"], r["rank"], r["attempt"], *r["ms"].values()] for r in found]
    rows.sort(key=lambda row: row[:3])
    text = rows_of(["step", "rank", "attempt", *(f"{n} ms" for n in names)], rows)
    return Shown(
        found, text, lambda: pictures.rank_timeline(evidence.run_dir, first, num_steps)
    )


def run_folder(evidence: Evidence) -> Shown:
    """The run's files with their sizes; for checkpoints also the size in the manifest."""
    found = []
    for path in sorted(evidence.run_dir.rglob("*")):
        if path.is_file() and "telemetry" not in path.parts and path.name != "lock":
            name = str(path.relative_to(evidence.run_dir))
            found.append({"file": name, "bytes": path.stat().st_size, "manifest": None})
    for folder in published_steps(evidence.run_dir / "checkpoints").values():
        files = (read_manifest(folder) or {}).get("files", {})
        for row in found:
            parent, _, name = str(row["file"]).rpartition("/")
            if parent == f"checkpoints/{folder.name}" and name in files:
                row["manifest"] = files[name]["size"]
    rows = [
        [r["bytes"], "-" if r["manifest"] is None else r["manifest"], r["file"]] for r in found
    ]
    lines = rows_of(["bytes", "manifest says", "file"], rows).splitlines()
    return Shown(found, "\n".join(lines))


def ledger(
    evidence: Evidence, step: int | None = None, rank: int | None = None, num_steps: int = 3
) -> Shown:
    """Which samples each rank trained in a few steps; by default the first ones."""
    first = 1 if step is None else a_step(evidence, step)
    check_num_steps(num_steps)
    if rank is not None:
        a_rank(evidence, rank)
    found = [
        line
        for line in evidence.ledger
        if first <= line["step"] < first + num_steps and rank in (None, line["rank"])
    ]
    found.sort(key=lambda line: (line["attempt"], line["step"], line["rank"]))
    rows = [
        [line["attempt"], line["epoch"], line["step"], line["rank"], clock(line["time"]),
         " ".join(map(str, line["samples"]))]
        for line in found
    ]  # fmt: skip
    epochs = evidence.plan.fixed["max_epochs"]
    per_epoch = evidence.audit.total_steps // epochs if evidence.audit.total_steps else "?"
    head = f"{len(evidence.ledger)} lines; an epoch has {per_epoch} steps\n"
    return Shown(
        found, head + rows_of(["attempt", "epoch", "step", "rank", "time", "samples"], rows)
    )


def data(evidence: Evidence, step: int) -> Shown:
    """The samples of a step, as the reader finds them now."""
    a_step(evidence, step)
    bad = evidence.plan.world.poisoned_sample
    if bad in evidence.plan.settings["restored_samples"]:
        bad = None
    lines = {line["rank"]: line for line in evidence.ledger if line["step"] == step}
    found = [
        {"sample": sample, "rank": rank, "finite": sample != bad}
        for rank, line in sorted(lines.items())
        for sample in line["samples"]
    ]
    rows = [[r["sample"], r["rank"], "finite" if r["finite"] else "NaN"] for r in found]
    return Shown(found, rows_of(["sample", "rank", "features"], rows))


def audit(evidence: Evidence) -> Shown:
    """The verdict of scripts/audit_run.py on the run folder."""
    report = evidence.audit
    names = (
        "status verdict epochs steps total_steps duplicates misses wrong_lines "
        "incomplete_steps holes replayed_steps attempts goodput findings notes"
    ).split()
    found = {name: getattr(report, name) for name in names}
    lines = [f"{name:<17} {value}" for name, value in found.items() if name not in names[-2:]]
    lines += [f"found  {text}" for text in report.findings[:8]]
    lines += [f"note   {text}" for text in report.notes]
    draw = None
    if report.status != "no_evidence":
        draw = lambda: pictures.sample_map(evidence.run_dir)  # noqa: E731
    return Shown(found, "\n".join(lines), draw)


def settings(evidence: Evidence) -> Shown:
    """What can be changed, with its value."""
    return Shown(dict(evidence.plan.settings), table(evidence.plan))


def code(evidence: Evidence, module: str) -> Shown:
    """A module's text as it is deployed."""
    return module_in(evidence, module, module_names())


def module_in(evidence: Evidence, module: str, names: Sequence[str]) -> Shown:
    """A module's text as it is deployed, if it is one of these."""
    if module not in names:
        near = difflib.get_close_matches(str(module), names, n=1, cutoff=0.7)
        hint = f"Did you mean {near[0]}? " if near else ""
        raise BadLook(
            f"module={module!r}: there is no such module. {hint}The modules: "
            f"{', '.join(names)}."
        )
    text = module_text(evidence.plan, module)
    return Shown(text, text)


def deploys(evidence: Evidence, version: str | None = None) -> Shown:
    """The deployments; with ``version``, what that one changed."""
    plan = evidence.plan
    ids = [item.id for item in plan.versions]
    if version is None:
        live = plan.settings["code_version"]
        found = [
            {
                "version": v.id,
                "minutes_ago": v.minutes_ago,
                "by": v.author,
                "message": v.message,
            }
            for v in plan.versions
        ]
        rows = [[*row.values(), "live" if row["version"] == live else ""] for row in found]
        return Shown(found, rows_of(["version", "minutes ago", "by", "message", ""], rows))
    if version not in ids:
        raise BadLook(
            f"version={version!r}: there is no such deployment. The deployments: "
            f"{', '.join(ids)}."
        )
    at = ids.index(version)
    before = changed_modules(plan.with_settings(code_version=ids[at - 1])) if at else {}
    after = changed_modules(plan.with_settings(code_version=version))
    diff: list[str] = []
    for module in sorted({edit.module for edit in plan.versions[at].edits}):
        old = before.get(module) or module_text(plan.with_settings(code_version=ids[0]), module)
        diff += difflib.unified_diff(
            old.splitlines(), after[module].splitlines(), module, module, n=2, lineterm=""
        )
    text = "\n".join(diff) or "comments and docstrings only, no change of a statement"
    return Shown(text, f"{version}: {plan.versions[at].message}\n{text}")
