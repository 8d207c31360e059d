"""A second audit, written from contracts 3 and 5 alone: slow, plain, and it shares no code.

``scripts/fuzz_audit.py`` compares the audit with it on damaged run folders. It leaves out
what no verdict depends on, live.py, and runs of versions whose manifests name no attempt.

    S      (attempt, step): the ledger lines of a step in an attempt
    done   (attempt, step) that every rank has recorded, according to a log or a manifest
    said   (attempt, step, rank) that one rank says it has finished
"""

import hashlib
import json
import re
from pathlib import Path
from typing import Any

from trainer_core.order import EpochOrder

Record = dict[str, Any]


def entries(folder: Path, pattern: str) -> list[Path]:
    """What the folder has under such a name; a missing one has nothing."""
    if not folder.exists() and not folder.is_symlink():
        return []
    return sorted(path for path in folder.iterdir() if re.fullmatch(pattern, path.name))


def objects(folder: Path) -> list[Record]:
    """The JSON objects in the ranks' files of lines; anything else is what a kill left."""
    found = []
    for path in entries(folder, r"rank-[0-9]+\.jsonl"):
        for line in path.read_bytes().decode("utf-8", "replace").split("\n"):
            try:
                found.append(json.loads(line))
            except (ValueError, RecursionError):
                continue
    return [record for record in found if isinstance(record, dict)]


def counts(record: Record, *names: str) -> bool:
    """Whether these are whole numbers from 0."""
    return all(type(record.get(name)) is int and record[name] >= 0 for name in names)


def is_ledger_line(line: Record) -> bool:
    """Whether the line has the contract's fields: counts, and a list of 64-bit ids."""
    ids = line.get("samples")
    has_numbers = counts(line, "attempt", "step", "epoch", "rank", "world_size")
    has_ids = isinstance(ids, list) and all(type(x) is int and x < 2**63 for x in ids)
    return has_numbers and has_ids and line["step"] > 0 and line["world_size"] > 0


def manifest_of(folder: Path) -> Record | None:
    """The manifest of a published checkpoint; None if it isn't intact. OSError: unreadable."""
    try:
        manifest = json.loads((folder / "manifest.json").read_text())
        claimed = manifest.pop("sha256")
        text = json.dumps(manifest, sort_keys=True).encode()
        is_intact = claimed == hashlib.sha256(text).hexdigest()
        is_named = manifest["step"] == int(folder.name[5:])
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return None
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None
    return manifest if is_intact and is_named else None


def verdict(run_dir: Path) -> int:
    """0 proved, 1 refuted, 2 no evidence."""
    try:
        config = json.loads((run_dir / "config.json").read_text())
        plan = {**config["identity"], "total": config["total_steps"]}
        n, G, total, seed = (
            plan[x] for x in ("num_samples", "global_batch_size", "total", "seed")
        )
        if not counts(plan, "num_samples", "global_batch_size", "total", "seed"):
            return 2
        if min(n, G, total) < 1 or max(n, total) > 2**63 or min(n, G) > 2**24:
            return 2  # no run has such a plan
        ledger, logs = objects(run_dir / "ledger"), objects(run_dir / "logs")
        folders = entries(run_dir / "checkpoints", r"step-[0-9]{1,18}")
        manifests = {int(folder.name[5:]): manifest_of(folder) for folder in folders}
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return 2

    S: dict[tuple[int, int], list[Record]] = {}
    for line in filter(is_ledger_line, ledger):
        S.setdefault((line["attempt"], line["step"]), []).append(line)
    logs = [x for x in logs if counts(x, "attempt", "step", "rank")]
    ends = ("checkpoint_saved", "run_end", "preempted")
    done = {(x["attempt"], x["step"]) for x in logs if x.get("event") in ends}
    savers = {step: m["attempt"] for step, m in manifests.items() if m and counts(m, "attempt")}
    done |= {(attempt, step) for step, attempt in savers.items()}
    said = {
        (x["attempt"], x["step"], x["rank"]) for x in logs if x.get("event") == "train_progress"
    }

    # What the newest weights have seen: the last attempt that trained, up to its last step.
    known = {*S, *done, *((attempt, step) for attempt, step, _ in said)}
    if not known:
        return 2
    newest = max(attempt for attempt, _ in known)
    end = max(step for attempt, step in known if attempt == newest)
    while (newest, end) in S and not any(a == newest and s >= end for a, s in done):
        ranks = {line["rank"] for line in S[newest, end]}
        world_size = max(line["world_size"] for line in S[newest, end])
        lost = any(a == newest and s >= end and r not in ranks for a, s, r in said)
        if lost or len(ranks) >= world_size:
            break
        end -= 1  # in flight at a kill: a rank hasn't recorded it, and none says it had
    if end < 1:
        return 2

    attempt, last = newest, end
    while last > 0:
        start = min((step for of, step in S if of == attempt), default=last) - 1
        own = [x for x in logs if x["attempt"] == attempt]
        restored = [x for x in own if x.get("event") == "checkpoint_restored"]
        begun = any(x.get("event") == "run_start" for x in own)
        if restored and {x["step"] for x in restored} != {start}:
            return 1
        if begun and not restored and start > 0:
            return 1
        if start >= last and attempt != newest:
            return 1  # it can't have saved what the next attempt restored
        for step in range(start + 1, last + 1):
            lines = sorted(S.get((attempt, step), []), key=lambda line: line["rank"])
            if not lines or step > total:
                return 1
            epoch, at = divmod(step - 1, -(-n // G))
            order = EpochOrder(n, seed=seed, epoch=epoch)
            batch = order.samples(at * G, min((at + 1) * G, n)).tolist()
            for rank, line in enumerate(lines):
                share = rank, len(lines), epoch, batch[rank :: len(lines)]
                if share != tuple(line[x] for x in ("rank", "world_size", "epoch", "samples")):
                    return 1
        if start == 0:
            break
        named = {
            x["saved_by_attempt"] if counts(x, "saved_by_attempt") else None for x in restored
        } or {None}
        saver = named.pop()
        if named or (saver is not None and saver >= attempt):
            return 1  # the ranks restored different weights, or weights from the future
        if saver is None and savers.get(start, attempt) < attempt:
            saver = savers[start]
        if saver is None:  # nobody names it: who logged that save, or got there, or began?
            saves = [x for x in logs if x.get("event") == "checkpoint_saved"]
            logged = [x["attempt"] for x in saves if x["step"] == start]
            ranges = {a: [s for b, s in S if b == a] for a, _ in S}
            began = [a for a in ranges if min(ranges[a]) <= start and a < attempt]
            reached = [a for a in began if max(ranges[a]) >= start]
            earlier = [a for a in logged if a < attempt] or reached or began
            saver = max(earlier, default=None)
        if saver is None:
            return 1
        attempt, last = saver, start
    unknown = [step for step, manifest in manifests.items() if manifest is None]
    return 2 if max(unknown, default=0) > end else 0
