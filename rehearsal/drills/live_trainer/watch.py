"""One start of the learner's run, watched: what it trained, with which rate and which noise."""

from __future__ import annotations

import gc
import hashlib
import json
import time
import zlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import torch
from torch import nn
from torch.nn.modules import module as hooks
from torch.optim.optimizer import register_optimizer_step_pre_hook

from rehearsal.engine.rank import RankContext
from rehearsal.kit.observe.random_state import random_state_digest
from rehearsal.kit.observe.waiting import all_arrive, wait_until

from .cells import steps_of
from .draws import SmallRun
from .parts import batch_of


class Watch:
    """Recognizes samples by their content, whatever the loop around the model looks like.

    Records "forward" with samples and random state, and "update" with what an optimizer is
    about to apply.
    """

    def __init__(
        self, context: RankContext, learner: SimpleNamespace, cfg: Any, *, compares: bool
    ) -> None:
        """Watch this process.

        Args:
            compares: record how far each gradient is from the one of the planned step. That
                needs a run that starts with step 1, and a model without noise.
        """
        dataset = learner.ToyClassificationDataset(cfg)
        self.inputs, self.labels = batch_of(dataset, cfg.dataset_size)
        rows = [row.contiguous().numpy().tobytes() for row in self.inputs]
        self.ids: dict[bytes, int] = {}  # of equal inputs, the first
        for at, row in enumerate(rows):
            self.ids.setdefault(row, at)
        alone = steps_of(learner, cfg, 0, 1, 0) if compares else []
        self.planned = [samples for _, samples, _ in alone]
        self.ledger = Path(cfg.run_dir, "ledger", f"rank-{context.rank}.jsonl")
        self.is_on = True
        self.context, self.kind, self.depth = context, learner.TinyNet, 0
        self.model: nn.Module | None = None
        self.slow_step, self.last_pass = 2 + cfg.seed % 3, 0.0
        hooks.register_module_forward_pre_hook(self.enters)
        hooks.register_module_forward_hook(self.leaves, always_call=True)
        register_optimizer_step_pre_hook(self.updates)

    def enters(self, module: Any, inputs: Any) -> None:
        """Only the outermost module counts: DDP, or the model itself."""
        if isinstance(self.kind, type) and isinstance(module, self.kind):
            self.model = cast(nn.Module, module)
        self.depth += 1
        if self.is_on and self.depth == 1 and torch.is_grad_enabled() and inputs:
            if self.model is None:
                self.model = getattr(module, "module", module)
            rows = [row.numpy().tobytes() for row in inputs[0].detach().contiguous().cpu()]
            ids = [self.ids.get(row, -1) for row in rows]
            if ids:
                seen = {"samples": ids, "rng": random_state_digest()}
                at = time.time()
                self.context.record("forward", **seen, at=at, pause=self.pauses())
                self.last_pass = at

    def pauses(self) -> float:
        """In one of the steps, wait three times as long as the step before took; seconds."""
        if self.context.count("update") != self.slow_step:
            return 0.0
        self.slow_step = -1
        pause = max(0.02, 3 * (time.time() - self.last_pass))
        time.sleep(pause)
        return pause

    def leaves(self, *_: Any) -> None:
        """Also called if the forward pass raised."""
        self.depth -= 1

    def updates(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """Learning rates, and a number that shows which gradient it is."""
        grads = [
            p.grad for g in optimizer.param_groups for p in g["params"] if p.grad is not None
        ]
        # Along a fixed direction: after clipping, two different gradients may have equal norms.
        probe = float(sum((g.flatten() * torch.arange(g.numel()).cos()).sum() for g in grads))
        rates = sorted({float(group["lr"]) for group in optimizer.param_groups})
        step = self.context.count("update")
        compared = {}
        if self.model is not None and step < len(self.planned):
            compared = {
                "apart": self.distance(self.model, step),
                "weights": digest_of(self.model),
                "lines": self.lines(),
            }
        self.context.record("update", gradient=probe, rates=rates, **compared)

    def distance(self, model: nn.Module, step: int) -> float:
        """How far the gradient is from that of the planned step, as a fraction of its norm."""
        self.is_on = False
        names, own = zip(*model.named_parameters(), strict=True)
        copies = [p.detach().clone().requires_grad_() for p in own]
        samples = self.planned[step]
        with torch.enable_grad():
            logits = torch.func.functional_call(
                model, dict(zip(names, copies, strict=True)), (self.inputs[samples],)
            )
            loss = nn.functional.cross_entropy(logits.float(), self.labels[samples])
            wanted = torch.autograd.grad(loss, copies)
        self.is_on = True
        norm = torch.cat([g.flatten() for g in wanted]).norm()
        bound = max(1.0, float(norm))
        apart = [
            (torch.zeros_like(p) if p.grad is None else p.grad) - g / bound
            for p, g in zip(own, wanted, strict=True)
        ]
        return float(torch.cat([part.flatten() for part in apart]).norm() / (norm / bound))

    def lines(self) -> int:
        """How many lines with samples this rank's ledger has."""
        if not self.ledger.exists():
            return 0
        return sum('"samples"' in line for line in self.ledger.read_text().split("\n"))


def digest_of(model: nn.Module) -> str:
    """Contract of the last stages: SHA-256 over names and bytes, in state-dict order."""
    digest = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        digest.update(name.encode() + tensor.cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def start(
    context: RankContext,
    learner: SimpleNamespace,
    plan: SmallRun,
    folder: str,
    *,
    compares: bool = False,
    **changes: Any,
) -> dict[str, Any]:
    """Run it in ``folder``; what it returned, and what is true."""
    run_dir = context.folder / folder
    cfg = learner.TrainConfig(**plan.settings(run_dir, **changes))
    watch = Watch(context, learner, cfg, compares=compares)
    # What nobody seeds is another number in each start and on each rank.
    torch.manual_seed(zlib.crc32(f"{folder} {context.world_size} {context.rank}".encode()))
    gc.freeze()  # a collection before the group closes inspects only what the run made
    context.record("begins")
    result = learner.run(cfg)
    context.record("ends")
    # Once all have arrived, every rank has written its ledger lines.
    all_arrive(context, f"ended-{folder}-{context.world_size}", 3.0)
    return {
        "result": plain(result),
        "true": digest_of(watch.model) if watch.model is not None else "",
        "rates": [float(learner.learning_rate_at(cfg, s + 1)) for s in range(plan.total)],
        "lines": ledger_of(run_dir) if context.rank == 0 else None,
    }


class Stopped(BaseException):
    """Ends a start; the learner's code doesn't catch it."""


def start_and_stop(context: RankContext, learner: SimpleNamespace, cfg: Any, steps: int) -> str:
    """A start that ends in the first pass after so many steps; an error, if it has another."""
    last = context.count("optimizer_step") + steps

    def stop(*_: Any) -> None:
        if context.count("optimizer_step") >= last:
            raise Stopped

    handle = hooks.register_module_forward_pre_hook(stop)
    try:
        learner.run(cfg)
    except NotImplementedError:
        raise
    except Stopped:
        return ""
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:160]
    finally:
        handle.remove()
    return ""


def plain(result: Any) -> dict[str, Any]:
    """What run returned, if it is a mapping."""
    try:
        return {str(name): value for name, value in dict(result).items()}
    except (TypeError, ValueError):
        return {"nothing": repr(result)}


def ledger_of(run_dir: Path) -> list[list[Any]]:
    """File and content of each ledger line that has samples; a line that isn't JSON as text."""
    found: list[list[Any]] = []
    for path in sorted((run_dir / "ledger").glob("rank-*.jsonl")):
        for line in path.read_text().split("\n"):
            try:
                fields = json.loads(line)
            except ValueError:
                if line:
                    found.append([path.name, line[:200]])
                continue
            if isinstance(fields, dict) and "samples" in fields:
                found.append([path.name, fields])
    return found


def files_of(run_dir: Path) -> dict[str, str]:
    """Every file and a digest of its content."""
    return {
        str(path.relative_to(run_dir)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(run_dir.rglob("*"))
        if path.is_file()
    }


def strike_before_line(context: RankContext, after_step: int) -> None:
    """Record ``strike`` on rank 1 after a step that all ranks have taken, before its line."""
    record, steps = context.record, 0
    taken = context.folder / f"taken-{after_step}"

    def watching(kind: str, **facts: Any) -> None:
        nonlocal steps
        record(kind, **facts)
        steps += kind == "optimizer_step"
        if kind == "optimizer_step" and steps == after_step:
            if context.rank == 0:
                context.is_armed = False  # a file of ours
                taken.touch()
                context.is_armed = True
            else:
                wait_until(taken.exists, 3.0)
                record("strike")

    context.record = watching  # type: ignore[method-assign]


def strike_in_save(context: RankContext, after_step: int, operation: int) -> None:
    """Record the n-th file operation after ``after_step`` steps as ``strike``."""
    record, steps, operations = context.record, 0, 0

    def watching(kind: str, **facts: Any) -> None:
        nonlocal steps, operations
        record(kind, **facts)
        steps += kind == "optimizer_step"
        if kind == "file" and steps >= after_step:
            operations += 1
            if operations == operation:
                record("strike")

    context.record = watching  # type: ignore[method-assign]
