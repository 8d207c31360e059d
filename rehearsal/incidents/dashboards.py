"""The dashboards: loss, throughput, phases, saves, heartbeats, restarts, memory, fingerprints.

Each function shows one source: data, text for a terminal, and for most a picture.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rehearsal.incidents import plots
from rehearsal.incidents.evidence import Evidence
from rehearsal.incidents.job_records import high, middle
from rehearsal.incidents.view import Shown, a_rank, a_step, rows_of, shorten


def loss(evidence: Evidence) -> Shown:
    """Loss, learning rate and gradient norm per step, over all attempts."""
    return loss_in(evidence, "cross-entropy loss (nats)")


def loss_in(evidence: Evidence, unit: str) -> Shown:
    """The same, for a loss of this name."""
    found = [
        {name: record[name] for name in ("attempt", "step", "loss", "lr", "grad_norm")}
        for record in evidence.progress.get(0, [])
    ]
    rows = [
        [r["attempt"], r["step"], number(r["loss"]), f"{r['lr']:.3g}", number(r["grad_norm"])]
        for r in found
    ]
    short = "loss (nats)" if "nats" in unit else "loss"
    text = rows_of(["attempt", "step", short, "lr", "grad_norm"], rows)
    return Shown(found, text, lambda: plots.loss_and_rate(found, unit))


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
    """Per rank and step: a sum over weights, and the rank's own loss and gradient norm."""
    seen = {
        key: sorted(records, key=lambda record: int(record["rank"]))
        for key, records in evidence.agents_at.items()
    }
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
    columns = (
        "attempt", "step", "rank", "weights", "samples", "local_loss", "local_grad_norm", "mode"
    )  # fmt: skip
    found = [{n: r[n] for n in columns} for key in sorted(seen) for r in seen[key]]
    near = range(max(1, at - 2), at + 5) if step or differing else range(1, 10**9, 7)
    rows = [list(row.values()) for row in found if row["step"] in near]
    head = [
        "attempt", "step", "rank", "sum of |weights|", "samples", "own mean loss",
        "own grad_norm", "mode",
    ]  # fmt: skip
    return Shown(found, text + "\n" + rows_of(head, rows))
