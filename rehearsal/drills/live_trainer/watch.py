"""One start of the learner's run, watched: what it trained, with which rate and which noise."""

from __future__ import annotations

import gc
import hashlib
import json
import shutil
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

from .draws import SmallRun


class Watch:
    """Recognizes samples by their content, whatever the loop around the model looks like.

    Records "forward" with samples and random state, and "update" with what an optimizer is
    about to apply.
    """

    def __init__(self, context: RankContext, learner: SimpleNamespace, cfg: Any) -> None:
        dataset = learner.ToyClassificationDataset(cfg)
        rows = [dataset[i][0] for i in range(cfg.dataset_size)]
        self.ids = {row.contiguous().numpy().tobytes(): at for at, row in enumerate(rows)}
        self.context, self.kind, self.depth = context, learner.TinyNet, 0
        self.model: nn.Module | None = None
        hooks.register_module_forward_pre_hook(self.enters)
        hooks.register_module_forward_hook(self.leaves, always_call=True)
        register_optimizer_step_pre_hook(self.updates)

    def enters(self, module: Any, inputs: Any) -> None:
        """Only the outermost module counts: DDP, or the model itself."""
        if isinstance(self.kind, type) and isinstance(module, self.kind):
            self.model = cast(nn.Module, module)
        self.depth += 1
        if self.depth == 1 and torch.is_grad_enabled() and inputs:
            if self.model is None:
                self.model = getattr(module, "module", module)
            rows = [row.numpy().tobytes() for row in inputs[0].detach().contiguous().cpu()]
            ids = [self.ids.get(row, -1) for row in rows]
            if ids:
                self.context.record("forward", samples=ids, rng=random_state_digest())

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
        self.context.record("update", gradient=probe, rates=rates)


def digest_of(model: nn.Module) -> str:
    """Contract of the last stages: SHA-256 over names and bytes, in state-dict order."""
    digest = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        digest.update(name.encode() + tensor.cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def start(
    context: RankContext, learner: SimpleNamespace, plan: SmallRun, folder: str, **changes: Any
) -> dict[str, Any]:
    """Run it in ``folder``; what it returned, and what is true."""
    run_dir = context.folder / folder
    cfg = learner.TrainConfig(**plan.settings(run_dir, **changes))
    watch = Watch(context, learner, cfg)
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
        "plan": plan._asdict(),
        "lines": ledger_of(run_dir) if context.rank == 0 else None,
    }


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


def copy_folder(context: RankContext, source: str, target: str) -> None:
    """Copy a run, unseen by the recorder. Rank 0 does it; the others wait."""
    done = context.folder / f"copied-{target}"
    context.is_armed = False
    if context.rank == 0:
        shutil.copytree(context.folder / source, context.folder / target)
        done.touch()
    wait_until(done.exists, 3.0)
    context.is_armed = True


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
