"""What can be looked at, what it costs, and how it is shown.

Each source is a function from the evidence (and a scope) to a ``View``: plain data, text for a
terminal, and for most a picture. You get what you asked for, and no opinion.
"""

from __future__ import annotations

import base64
import difflib
import inspect
import io
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any, NamedTuple

from rehearsal.evidence import pictures
from rehearsal.incidents import plots
from rehearsal.incidents.deployed import (
    changed_modules,
    live_versions,
    module_names,
    module_text,
)
from rehearsal.incidents.evidence import Evidence, high, middle
from rehearsal.incidents.settings import HELP, table
from trainer_core.checkpoint_format import published_steps

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class BadLook(ValueError):
    """A source or a scope that doesn't exist; the clock hasn't moved."""


@dataclass(frozen=True)
class View:
    """One look: plain ``data``, ``str()`` for a terminal, and ``figure()`` for a notebook."""

    source: str
    scope: Mapping[str, Any]
    minutes: int
    data: Any
    text: str
    draw: Callable[[], Figure] | None = None

    def __str__(self) -> str:
        return self.text

    __repr__ = __str__

    def figure(self) -> Figure | None:
        """The picture, if this source has one."""
        return self.draw() if self.draw is not None else None

    def _repr_html_(self) -> str:
        text = f"<pre>{escape(self.text)}</pre>"
        if self.draw is None:
            return text
        file = io.BytesIO()
        self.draw().savefig(file, format="png", transparent=True)
        image = base64.b64encode(file.getvalue()).decode()
        title = escape(f"{self.source}: the figures are in the table below")
        return (
            f'<img alt="{title}" style="max-width:100%" src="data:image/png;base64,{image}">'
            f"<details><summary>as text</summary>{text}</details>"
        )


class Shown(NamedTuple):
    """What a source's function returns."""

    data: Any
    text: str
    draw: Callable[[], Figure] | None = None


def rows_of(head: list[str], rows: list[list[Any]]) -> str:
    """A table with aligned columns."""
    cells = [head, *([str(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["  ".join(c.rjust(w) for c, w in zip(row, widths, strict=True)) for row in cells]
    return "\n".join(line.rstrip() for line in lines)


def a_rank(evidence: Evidence, rank: Any) -> int:
    """The rank that a scope names. Raises BadLook."""
    if type(rank) is not int or rank not in evidence.ranks:
        ranks = ", ".join(map(str, evidence.ranks))
        raise BadLook(f"rank={rank!r}: there is no such rank here. The ranks are {ranks}.")
    return rank


def a_step(evidence: Evidence, step: Any) -> int:
    """The step that a scope names. Raises BadLook."""
    last = max((line["step"] for line in evidence.ledger), default=0)
    if type(step) is not int or not 1 <= step <= last:
        raise BadLook(f"step={step!r}: the ledger has steps 1 to {last}.")
    return step


def clock(moment: float) -> str:
    """A log's time of day."""
    return time.strftime("%H:%M:%S", time.gmtime(moment)) + f".{moment % 1:.3f}"[2:]


# ---------------------------------------------------------------- dashboards


def loss(evidence: Evidence) -> Shown:
    """Loss, learning rate and gradient norm per step, over all attempts."""
    found = [
        {name: record[name] for name in ("attempt", "step", "loss", "lr", "grad_norm")}
        for record in evidence.progress.get(0, [])
    ]
    rows = [
        [r["attempt"], r["step"], number(r["loss"]), f"{r['lr']:.3g}", number(r["grad_norm"])]
        for r in found
    ]
    text = rows_of(["attempt", "step", "loss (nats)", "lr", "grad_norm"], rows)
    return Shown(found, text, lambda: plots.loss_and_rate(found))


def number(value: float | None) -> str:
    """Three decimals; the log has null for what isn't finite."""
    return "not finite" if value is None else f"{value:.3f}"


def throughput(evidence: Evidence) -> Shown:
    """Samples per second, over the whole job, per step."""
    found = [
        {name: record[name] for name in ("attempt", "step", "samples_per_s")}
        for record in evidence.progress.get(0, [])
    ]
    rates = [r["samples_per_s"] for r in found]
    head = (
        f"median {middle(rates):.0f} samples/s, slowest tenth below "
        f"{high(rates, 0.1):.0f}, fastest tenth above {high(rates, 0.9):.0f}"
    )
    rows = [[r["attempt"], r["step"], f"{r['samples_per_s']:.0f}"] for r in found]
    text = head + "\n" + rows_of(["attempt", "step", "samples/s"], rows)
    return Shown(found, text, lambda: plots.throughput(found))


def phases(evidence: Evidence, rank: int | None = None) -> Shown:
    """Each rank's phases of a step: p50, p95 and max in milliseconds, without first steps."""
    ranks = list(evidence.ranks) if rank is None else [a_rank(evidence, rank)]
    found: dict[int, dict[str, dict[str, float]]] = {}
    for of in ranks:
        steps = evidence.steady.get(of, [])
        names = steps[0] if steps else {}
        found[of] = {
            name: {
                "p50": round(middle(s[name] for s in steps), 1),
                "p95": round(high((s[name] for s in steps), 0.95), 1),
                "max": round(max(s[name] for s in steps), 1),
            }
            for name in names
        }
    rows = [
        [of, name, *(f"{ms:.1f}" for ms in values.values())]
        for of, table_ in found.items()
        for name, values in table_.items()
    ]
    text = rows_of(["rank", "phase", "p50 ms", "p95 ms", "max ms"], rows)
    return Shown(found, text, lambda: plots.phase_table(found))


def checkpoint_age(evidence: Evidence) -> Shown:
    """Each save: at which step, how long it took, and how many steps since the one before."""
    found, before = [], 0
    begin = evidence.attempts[0]["began"] if evidence.attempts else 0.0
    for record in evidence.events("checkpoint_saved"):
        found.append(
            {
                "attempt": record["attempt"],
                "step": record["step"],
                "at_s": round(record["time"] - begin, 2),
                "save_ms": round(1e3 * record["seconds"]),
                "steps_since": record["step"] - before,
            }
        )
        before = record["step"]
    last = max((line["step"] for line in evidence.ledger), default=0)
    head = (
        f"The newest checkpoint is of step {before}; {max(0, last - before)} later steps "
        f"aren't saved. At most {evidence.checkpoint_gap()} steps were trained without a save."
    )
    rows = [list(save.values()) for save in found]
    text = head + "\n" + rows_of(["attempt", "step", "at s", "save ms", "steps since"], rows)
    draw = (lambda: plots.saves(found)) if found else None
    return Shown(found, text, draw)


def heartbeats(evidence: Evidence) -> Shown:
    """Each rank's host, its last sign of life and step, and what its kernel printed."""
    found = []
    newest = max((record["time"] for record in evidence.agents), default=0.0)
    for rank in evidence.ranks:
        lines = [record for record in evidence.agents if record["rank"] == rank]
        last = lines[-1] if lines else None
        kernel = [record["kernel"] for record in lines if "kernel" in record]
        found.append(
            {
                "rank": rank,
                "host": evidence.plan.placement[rank],
                "age_s": round(newest - last["time"], 1) if last else None,
                "attempt": last["attempt"] if last else None,
                "step": last["step"] if last else 0,
                "kernel": f"{kernel[0]} ({len(kernel)}x)" if kernel else "",
            }
        )
    rows = [list(row.values()) for row in found]
    head = ["rank", "host", "heartbeat age s", "attempt", "last step", "kernel log"]
    return Shown(found, rows_of(head, rows))


def restarts(evidence: Evidence) -> Shown:
    """Each attempt: how long it ran, which steps it trained, and how each rank ended."""
    found = []
    for attempt in evidence.attempts:
        steps = [
            line["step"] for line in evidence.ledger if line["attempt"] == attempt["attempt"]
        ]
        found.append(
            {
                "attempt": attempt["attempt"],
                "seconds": round(attempt["ended"] - attempt["began"], 1),
                "steps": f"{min(steps)} to {max(steps)}" if steps else "none",
                "ranks": [end_of(rank) for rank in attempt["ranks"]],
                "hangs": [
                    f"rank {', '.join(map(str, record['ranks']))} {record['reason']}"
                    for record in evidence.events("hang")
                    if record["attempt"] == attempt["attempt"]
                ],
            }
        )
    lines = []
    for row in found:
        lines.append(f"attempt {row['attempt']}: {row['seconds']} s, steps {row['steps']}")
        lines += [f"  rank {rank}: {end}" for rank, end in enumerate(row["ranks"])]
        lines += [f"  watchdog: {reason}" for reason in row["hangs"]]
    if not evidence.is_done():
        lines.append("The supervisor gave up.")
    return Shown(found, "\n".join(lines))


def end_of(rank: Mapping[str, Any]) -> str:
    """How a rank ended, in a line."""
    code = rank["exitcode"]
    if code is None:
        return "still running at the supervisor's deadline, killed"
    if code == 0:
        return f"exit code 0, {rank['answer']['status']} at step {rank['answer']['step']}"
    if code < 0:
        return f"killed by signal {-code}"
    error = rank["error"] or ("see the logs" if rank["output"] else "no message")
    return f"exit code {code}: {shorten(error)}"


def shorten(text: str, most: int = 300) -> str:
    """The first line, cut."""
    line = " ".join(text.split())
    return line if len(line) <= most else line[:most] + " ..."


def host_memory(evidence: Evidence, rank: int | None = None) -> Shown:
    """Each rank's own memory on its host, per step, in MiB."""
    ranks = list(evidence.ranks) if rank is None else [a_rank(evidence, rank)]
    found: dict[int, list[dict[str, Any]]] = {
        of: [
            {name: record[name] for name in ("attempt", "step", "memory_mib")}
            for record in evidence.agents
            if record["rank"] == of
        ]
        for of in ranks
    }
    rows = []
    for of, records in found.items():
        for attempt in sorted({record["attempt"] for record in records}):
            used = [r["memory_mib"] for r in records if r["attempt"] == attempt]
            half = used[len(used) // 2]
            rows.append([of, evidence.plan.placement[of], attempt, used[0], half, used[-1]])
    text = rows_of(["rank", "host", "attempt", "first MiB", "halfway MiB", "last MiB"], rows)
    limits = {
        f"{name}: {host.memory_limit_mib} MiB above its start"
        for name, host in evidence.plan.world.hosts.items()
        if host.memory_limit_mib
    }
    if limits:
        text += "\nThe hosts limit a rank's memory: " + "; ".join(sorted(limits))
    draw = (lambda: plots.memory(found)) if any(found.values()) else None
    return Shown(found, text, draw)


def fingerprints(evidence: Evidence, step: int | None = None) -> Shown:
    """Per rank and step: a sum over weights, the gradient norm before the sync, the mode."""
    seen: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for record in evidence.agents:
        seen.setdefault((record["attempt"], record["step"]), []).append(record)
    for records in seen.values():
        records.sort(key=lambda record: int(record["rank"]))
    differing = [
        key
        for key, records in seen.items()
        if len({record["weights"] for record in records}) > 1
    ]
    text = f"The ranks' weights are equal after each of {len(seen)} steps."
    if differing:
        attempt, first = min(differing)
        text = (
            f"The ranks' weights differ after {len(differing)} of {len(seen)} steps, first "
            f"after step {first} of attempt {attempt}."
        )
    at = a_step(evidence, step) if step is not None else min(differing)[1] if differing else 1
    columns = ("attempt", "step", "rank", "weights", "local_grad_norm", "mode")
    found = [{n: r[n] for n in columns} for key in sorted(seen) for r in seen[key]]
    near = range(max(1, at - 2), at + 5) if step or differing else range(1, 10**9, 7)
    rows = [list(row.values()) for row in found if row["step"] in near]
    head = ["attempt", "step", "rank", "sum of |weights|", "local grad_norm", "mode"]
    return Shown(found, text + "\n" + rows_of(head, rows))


# ---------------------------------------------------------------- records


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
    return Shown(shown, left + "\n".join(shown[-last:]) or "no line")


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


def trace(evidence: Evidence, step: int | None = None, num_steps: int = 3) -> Shown:
    """What each rank did when, over a few steps; by default the last ones."""
    if step is not None:
        a_step(evidence, step)
    if type(num_steps) is not int or not 1 <= num_steps <= 10:
        raise BadLook(f"num_steps={num_steps!r}: must be 1 to 10.")
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
    from rehearsal.evidence.run_records import read_manifest

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
    per_epoch = evidence.audit.total_steps // 2 if evidence.audit.total_steps else "?"
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
    names = module_names()
    if module not in names:
        near = difflib.get_close_matches(str(module), names, n=1)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise BadLook(f"module={module!r}: there is no such module.{hint} {', '.join(names)}")
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
        raise BadLook(f"version={version!r}: there is no such deployment. {', '.join(ids)}")
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


SOURCES: dict[str, tuple[int, Callable[..., Shown]]] = {
    "loss": (1, loss),
    "throughput": (1, throughput),
    "phases": (3, phases),
    "checkpoint_age": (1, checkpoint_age),
    "heartbeats": (1, heartbeats),
    "restarts": (1, restarts),
    "host_memory": (2, host_memory),
    "fingerprints": (4, fingerprints),
    "logs": (4, logs),
    "trace": (6, trace),
    "run_folder": (3, run_folder),
    "ledger": (6, ledger),
    "data": (5, data),
    "audit": (5, audit),
    "settings": (1, settings),
    "code": (8, code),
    "deploys": (2, deploys),
}  # fmt: skip


def scope_of(source: str) -> list[str]:
    """The names by which a look at a source can be narrowed."""
    return list(inspect.signature(SOURCES[source][1]).parameters)[1:]


def check_look(source: str, scope: Mapping[str, Any]) -> None:
    """Raise BadLook for an unknown source or scope."""
    if source not in SOURCES:
        near = difflib.get_close_matches(str(source), SOURCES, n=1)
        hint = f"Did you mean {near[0]}? " if near else ""
        raise BadLook(
            f"{source!r} is not a source, and the clock hasn't moved. {hint}"
            f"The sources: {', '.join(SOURCES)}."
        )
    known = scope_of(source)
    for name in scope:
        if name not in known:
            can = ", ".join(known) or "nothing: it takes no scope"
            raise BadLook(f"{source} can't be narrowed by {name!r}. It takes {can}.")
    needed = [
        name
        for name, p in inspect.signature(SOURCES[source][1]).parameters.items()
        if p.default is p.empty and name != "evidence"
    ]
    for name in needed:
        if name not in scope:
            more = f" The modules: {', '.join(module_names())}." if name == "module" else ""
            raise BadLook(f'{source} needs {name}: look("{source}", {name}=...).{more}')


def look_at(evidence: Evidence, source: str, scope: Mapping[str, Any]) -> View:
    """One look. Raises BadLook."""
    check_look(source, scope)
    minutes, show = SOURCES[source]
    shown = show(evidence, **scope)
    return View(source, dict(scope), minutes, *shown)


__all__ = ["HELP", "SOURCES", "BadLook", "View", "live_versions", "look_at", "scope_of"]
