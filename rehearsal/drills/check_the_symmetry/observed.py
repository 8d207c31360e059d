"""One job in a rank: every network tested, and what that has left behind."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rehearsal.engine.rank import RankContext
from rehearsal.kit.observe.random_state import global_changes
from rehearsal.kit.observe.waiting import all_arrive

from .equivariant import Network
from .networks import network
from .plan import ELEMENTS, Case, Job, Molecule

NAMES = "rotation", "reflection", "translation", "permutation"
PATIENCE_S = 8.0  # how long a rank waits for one that is still testing


def tensors_of(molecules: Sequence[Molecule]) -> dict[str, Tensor]:
    """A rank's batch: one graph per molecule, each atom joined to every other of its own."""
    sizes = torch.tensor([len(molecule.elements) for molecule in molecules])
    batch = torch.repeat_interleave(torch.arange(len(molecules)), sizes)
    elements = [element for molecule in molecules for element in molecule.elements]
    joined = (batch[:, None] == batch).fill_diagonal_(False)
    return {
        "features": nn.functional.one_hot(torch.tensor(elements), ELEMENTS).float(),
        "positions": torch.tensor([p for m in molecules for p in m.positions]),
        "edge_index": joined.nonzero().T.contiguous(),
        "batch": batch,
    }


def state_of(model: nn.Module) -> dict[str, Any]:
    """What a test must leave as it was, by what it is called in a finding."""
    return {
        "weights": {name: value.detach().clone() for name, value in model.named_parameters()},
        "buffers": {name: value.clone() for name, value in model.named_buffers()},
        "gradients": {name: clone_of(value.grad) for name, value in model.named_parameters()},
        "requires_grad flags": {n: v.requires_grad for n, v in model.named_parameters()},
        "modes": {name: module.training for name, module in model.named_modules()},
    }


def clone_of(tensor: Tensor | None) -> Tensor | None:
    """A copy, of nothing too."""
    return None if tensor is None else tensor.clone()


def is_same(old: Any, new: Any) -> bool:
    """Whether two values are equal; tensors in type as well."""
    if isinstance(old, Tensor) and isinstance(new, Tensor):
        return old.dtype == new.dtype and torch.equal(old, new)
    return type(old) is type(new) and bool(old == new)


def changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """What differs, by the name of its kind: "modes of norm.1"."""
    found = []
    for kind, before in old.items():
        after = new[kind]
        places = [name for name in before if not is_same(before[name], after.get(name))]
        if places or before.keys() != after.keys():
            found.append(f"{kind} of {places[0] or 'the network' if places else 'the network'}")
    return found


def with_gradients(model: Network) -> Network:
    """As between backward and the optimizer's step."""
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.full_like(parameter, 0.5)
    return model


def tested(model: Network, given: Mapping[str, Tensor], learner: SimpleNamespace) -> Any:
    """One call: what it returned or raised, how it called the network, and what it changed."""
    passed = {name: tensor.clone() for name, tensor in given.items()}
    before, raised, returned = state_of(model), None, None
    try:
        returned = learner.broken_symmetries(model, *passed.values())
    except ValueError as error:
        raised = str(error)[:80]
    shown = sorted(map(str, returned)) if isinstance(returned, set | frozenset) else None
    return {
        "raised": raised,
        "returned": repr(returned)[:60] if shown is None else shown,
        "is_set": shown is not None,
        "arguments": [n for n in given if not is_same(given[n], passed[n].detach())],
        "model": changes(before, state_of(model)),
        "in_training": model.calls.in_training[:1],
        "recorded": model.calls.recorded,
    }


def motions_of(calls: Sequence[NDArray[Any]], given: Mapping[str, Tensor]) -> dict[str, int]:
    """How many different rotations, reflections, shifts and orders a network has seen.

    Told from where its largest graph went. Nothing if a call had more nodes or fewer.
    """
    start, batch = given["positions"].numpy(), given["batch"].numpy()
    if any(call.shape != start.shape for call in calls):
        return {}
    ours = batch == np.bincount(batch).argmax()
    before = start[ours] - start[ours].mean(axis=0)
    seen: dict[str, set[bytes]] = {name: set() for name in NAMES}
    rows = sorted(start.tolist())
    for call in calls:
        if sorted(call.tolist()) == rows:
            if not np.array_equal(call, start):
                seen["permutation"].add(call.tobytes())
            continue
        shift = call[ours].mean(axis=0) - start[ours].mean(axis=0)
        matrix = np.linalg.lstsq(before, call[ours] - call[ours].mean(axis=0))[0]
        if np.abs(matrix - np.eye(3)).max() < 1e-3:
            seen["translation"].add((shift.round(1) + 0.0).tobytes())
        else:
            kind = "rotation" if np.linalg.det(matrix) > 0 else "reflection"
            seen[kind].add((matrix.round(3) + 0.0).tobytes())
    return {name: len(motions) for name, motions in seen.items()}


SWITCHES: dict[str, Callable[[], object]] = {
    "CUDA's matmul precision": lambda: torch.backends.cuda.matmul.fp32_precision,
    "TF32 in cuDNN": lambda: torch.backends.cudnn.allow_tf32,
    "autocast on the CPU": lambda: torch.is_autocast_enabled("cpu"),
    "the number of threads": torch.get_num_threads,
}


def switches() -> dict[str, str]:
    """Settings of torch that a test of precision is tempted to change."""
    found = {}
    for name, read in SWITCHES.items():
        try:
            found[name] = str(read())
        except RuntimeError as error:  # torch refuses if two ways of setting are mixed
            found[name] = str(error)
    return found


def run(name: str, job: Job, context: RankContext, learner: SimpleNamespace) -> Any:
    """Every network of the job, tested; up to the first that not all ranks finish."""
    context.init_group()
    models = [with_gradients(network(case)) for case in job.cases]
    given, facts = tensors_of(job.batches[context.rank]), []
    torch.backends.cuda.matmul.allow_tf32 = True  # as somebody has switched it on
    before = switches()
    with global_changes() as changed:
        for number, model in enumerate(models):
            facts.append(tested(model, given, learner))
            # In step: a rank that is ahead would pair its next collective with a peer's last.
            if not all_arrive(context, f"{name}-{number}", PATIENCE_S):
                break
    changed += [switch for switch, value in switches().items() if value != before[switch]]
    motions = motions_of(models[0].calls.positions, given)
    return {"facts": facts, "changed": changed, "motions": motions}
