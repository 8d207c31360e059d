"""What the graders of cells 5 to 8 share: the package's own answer, host reads, gradients.

The trainer's cells are an importable package, and a drill on a cell asks for what one of its
modules holds: whoever calls that instead of typing it is told so.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from rehearsal.engine.reports import RankReport
from rehearsal.engine.rank import CHANGES, WRITES, RankContext
from rehearsal.grading.verdict import Finding

# ---------------------------------------------------------------- in the ranks


def close_the_answer(context: RankContext, module: str, names: Sequence[str]) -> None:
    """From here on, calling one of the package's own ``names`` is written down and raises."""
    answer = importlib.import_module(module)

    def note(*arguments: object, **keywords: object) -> None:
        context.record("answer", module=module)
        raise RuntimeError(f"{module} holds the answer of this drill; type your own")

    vars(answer)["_rehearsal_note"] = note
    scope: dict[str, Any] = {}
    exec("def stub(*arguments, **keywords):\n    _rehearsal_note()", scope)
    for name in names:
        found: Any = getattr(answer, name, None)
        # Its code, not its name: whoever has imported it already holds the function itself.
        for function in vars(found).values() if isinstance(found, type) else [found]:
            if hasattr(function, "__code__"):
                function.__code__ = scope["stub"].__code__


def num_collectives() -> int:
    """Collectives that this rank has issued so far."""
    dump: Any = getattr(torch._C._distributed_c10d, "_dump_fr_trace_json")  # noqa: B009
    return len(json.loads(dump(True, False)).get("entries", []))


class HostReads(TorchDispatchMode):
    """Notes each place where a tensor's value becomes a Python number: there the host waits."""

    def __init__(self, places: list[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.places = places

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            ours = os.path.dirname(__file__), os.path.dirname(torch.__file__)
            frame = sys._getframe(1)  # the traceback module would open source files
            while frame.f_back and frame.f_code.co_filename.startswith(ours):
                frame = frame.f_back
            self.places.append(f"line {frame.f_lineno} in {frame.f_code.co_name}")
        return func(*args, **(kwargs or {}))


def sums_per_micro_batch(
    model: nn.Module, inputs: Tensor, targets: Tensor, cuts: Iterable[Sequence[int]]
) -> list[list[float]]:
    """Per micro-batch: its summed loss, and the gradient of that by every trained parameter."""
    used = [p for p in model.parameters() if p.requires_grad]
    rows = []
    for ids in cuts:
        logits = model(inputs[list(ids)])
        loss = nn.functional.cross_entropy(logits, targets[list(ids)], reduction="sum")
        found = torch.autograd.grad(loss, used)
        rows.append([loss.item(), *torch.cat([g.flatten() for g in found]).tolist()])
    return rows


def die_at_each_file_operation(
    prepare: Callable[[int], Path], act: Callable[[Path], None], at_most: int = 40
) -> Iterator[tuple[Path, str]]:
    """Run ``act`` in copies of this process, the n-th of which dies before its n-th change of a
    file; give each folder that is left, and where it died. The last one lives.

    Args:
        prepare: makes the folder of the n-th.
    """
    for number in range(1, at_most):
        folder = prepare(number)
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            code = 3
            try:
                _die_before_change(number, writer)
                act(folder)
                code = 0
            finally:
                os._exit(code)
        os.close(writer)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        with os.fdopen(reader) as lines:
            where = lines.read()
        yield folder, where if status == -signal.SIGKILL else ""
        if status != -signal.SIGKILL:
            return


def _die_before_change(number: int, writer: int) -> None:
    changes = 0

    def count(what: str, path: object) -> None:
        nonlocal changes
        changes += 1
        if changes == number:
            os.write(writer, f"{what} {os.path.basename(os.fsdecode(str(path)))}".encode())
            os.kill(os.getpid(), signal.SIGKILL)

    def audit(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITES:
            count("the opening of", arguments[0])
        elif event in CHANGES:
            count(f"the {event.removeprefix('os.')} of", arguments[0])

    def counted(fd: Any) -> None:  # a kill loses no page of the cache: nothing to wait for
        number = fd if isinstance(fd, int) else fd.fileno()
        count("the fsync of", os.readlink(f"/proc/self/fd/{number}"))

    os.fsync = counted
    sys.addaudithook(audit)


# ---------------------------------------------------------------- in the judges

Vector = Sequence[float]


def own_answer(reports: Sequence[RankReport]) -> Iterable[Finding]:
    """A finding if the package's own answer was called."""
    for report in reports:
        for event in report.of("answer")[:1]:
            yield Finding(
                "walkthroughs-own",
                f"rank {report.rank}: the call went to {event['module']}, which is the answer",
                "a rehearsal is of what you can type",
                "at your imports",
            )
            return


def norm(vector: Vector) -> float:
    """Its length."""
    return math.sqrt(sum(x * x for x in vector))


def weighted(vectors: Sequence[Vector], weights: Vector) -> list[float]:
    """The sum of the vectors, each times its weight."""
    return [
        sum(w * x for w, x in zip(weights, column, strict=True))
        for column in zip(*vectors, strict=True)
    ]


def shortened(vector: Vector, most: float) -> list[float]:
    """The vector, scaled to the length ``most`` if it is longer."""
    return [x * min(1.0, most / (norm(vector) or 1.0)) for x in vector]


def candidate_gradients(
    sums: Sequence[Sequence[Vector]],
    sizes: Sequence[Sequence[int]],
    parts: Sequence[slice],
    groups: Sequence[Sequence[slice]],
    most: float,
) -> Iterator[tuple[str, str, list[float]]]:
    """Code, words and value of gradients that a step may have followed, the right one first.

    Args:
        sums: of each rank and micro-batch, the gradient of the summed loss.
        sizes: their samples.
        parts: where each tensor lies in a vector; ``groups`` gathers them by optimizer group.
        most: the bound of the norm.
    """
    world_size, total = len(sums), sum(map(sum, sizes))
    flat = [vector for rank in sums for vector in rank]
    counts = [size for rank in sizes for size in rank]
    by_rank = [weighted(rank, [1.0] * len(rank)) for rank in sums]
    shares = [max(1, sum(rank)) for rank in sizes]
    averages = [[x / share for x in v] for v, share in zip(by_rank, shares, strict=True)]
    by_sample = [1 / total] * len(flat)
    by_micro = [1 / max(1, n) / world_size for n in counts]
    per_rank = [max(1, sum(n > 0 for n in rank)) for rank in sizes]
    each = [per_rank[at // len(sums[0])] for at in range(len(flat))]
    last = [(at + 1) % len(sums[0]) == 0 for at in range(len(flat))]
    means = "mean-of-means"
    raw = [
        ("", "the mean over its samples", weighted(flat, by_sample)),
        (
            means,
            "the mean over ranks of each rank's own mean",
            weighted(averages, [1 / world_size] * world_size),
        ),
        (
            means,
            "a mean in which each micro-batch of a rank weighs the same",
            weighted(flat, [w / n for w, n in zip(by_micro, each, strict=True)]),
        ),
        (
            means,
            "a mean in which each micro-batch of a rank weighs the same, empty ones too",
            weighted(flat, [w / len(sums[0]) for w in by_micro]),
        ),
        (means, "the sum of the means of the micro-batches", weighted(flat, by_micro)),
        ("scale", "the sum over its samples", weighted(flat, [1.0] * len(flat))),
        (
            "scale",
            "the sum over its samples, divided by the number of ranks",
            weighted(flat, [1 / world_size] * len(flat)),
        ),
        (
            "scale",
            "the mean over its samples, divided by the number of ranks",
            weighted(flat, [1 / total / world_size] * len(flat)),
        ),
        (
            "scale",
            "the mean over its samples, times the number of ranks",
            weighted(flat, [world_size / total] * len(flat)),
        ),
        (
            "only-the-last-micro-batch",
            "the sum over the last micro-batches, divided by all samples",
            weighted(flat, [float(is_last) / total for is_last in last]),
        ),
    ]
    code, clipped, vector = "clipping", "the mean over its samples, ", raw[0][2]
    yield "", raw[0][1], shortened(vector, most)
    yield code, clipped + "scaled up to the bound", [x * most / norm(vector) for x in vector]
    for name, words, wrong in raw[1:]:
        yield name, words, shortened(wrong, most)
    yield code, clipped + "not clipped", vector
    for name, places in (("tensor", [[part] for part in parts]), ("group", groups)):
        by_place = list(vector)
        for place in places:
            inside = [x for part in place for x in vector[part]]
            factor = min(1.0, most / (norm(inside) or 1.0))
            for part in place:
                by_place[part] = [x * factor for x in vector[part]]
        yield code, clipped + f"each {name} clipped by its own norm", by_place
    yield code, clipped + "each element clipped", [max(-most, min(most, x)) for x in vector]
    own = [[x * world_size / total for x in v] for v in by_rank]
    so_far = [[0.0] * len(vector) for _ in sums]
    for at in range(len(sums[0])):
        for rank, row in enumerate(sums):
            kept = shortened(so_far[rank], most)
            so_far[rank] = weighted([kept, row[at]], [1.0, world_size / total])
    mean = weighted(so_far, [1 / world_size] * world_size)
    words = "the mean over ranks of gradients that each had clipped after each micro-batch"
    yield code, words, shortened(mean, most)
    for local in (own, averages):
        mean = weighted([shortened(v, most) for v in local], [1 / world_size] * world_size)
        yield code, "the mean over ranks of what each rank had clipped by its own norm", mean


def away(ours: Vector, theirs: Vector) -> tuple[float, int]:
    """The largest difference, relative to the largest element of ``theirs``, and its place."""
    size = max(map(abs, theirs)) or 1.0
    gaps = [abs(a - b) / size for a, b in zip(ours, theirs, strict=True)]
    worst = next((at for at, gap in enumerate(gaps) if not math.isfinite(gap)), None)
    place = worst if worst is not None else max(range(len(gaps)), key=gaps.__getitem__)
    return (gaps[place] if worst is None else math.inf), place
