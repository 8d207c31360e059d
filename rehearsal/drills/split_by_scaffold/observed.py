"""One job in a rank: every call's result, as plain data."""

from __future__ import annotations

import copy
import math
import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from rehearsal.engine.rank import RankContext
from rehearsal.kit.observe.random_state import global_changes
from rehearsal.kit.observe.waiting import all_arrive

from .plan import Job

NAMES = ("parts", "labels", "conflicts", "scaler")


def problem_of(returned: Any) -> str:
    """What is wrong with the form of a result; "" if nothing is."""
    if not isinstance(returned, dict) or {*returned} != {*NAMES}:
        return f"returned {repr(returned)[:60]}"
    parts, labels, conflicts, scaler = (returned[name] for name in NAMES)
    for name, found, allowed in (
        ("parts", parts, ("train", "test")),
        ("labels", labels, (0, 1, None)),
    ):
        if not isinstance(found, dict):
            return f"returned {repr(found)[:60]} as {name}"
        for molecule, value in found.items():
            if not isinstance(molecule, str):
                return f"returned {name} whose keys are not texts: {repr(molecule)[:60]}"
            if isinstance(value, torch.Tensor) or value not in allowed:
                return f"returned {repr(value)[:60]} in {name}, for {molecule}"
    are_texts = isinstance(conflicts, list) and all(isinstance(one, str) for one in conflicts)
    if not are_texts or conflicts != sorted({*conflicts}):
        return f"returned {repr(conflicts)[:60]} as conflicts: no sorted list of molecules"
    is_pair = isinstance(scaler, tuple | list) and len(scaler) == 2
    if not is_pair or not all(isinstance(x, float) and math.isfinite(x) for x in scaler):
        return f"returned {repr(scaler)[:60]} as scaler"
    return ""


def plain(returned: Any) -> dict[str, Any]:
    """What a call returned, or what is wrong with its form."""
    if problem := problem_of(returned):
        return {"problem": problem}
    return {"problem": "", **returned}


def run(job: Job, context: RankContext, learner: SimpleNamespace) -> Any:
    """Call ``split_rows`` on this rank's rows of each call."""
    context.init_group()
    for seed in (random.seed, np.random.seed, torch.default_generator.manual_seed):
        seed(job.seed + 17 * context.rank)
    results = []
    for call in job.calls:
        rows = [dict(row) for row in call.shards[context.rank]]
        passed = copy.deepcopy(rows)
        with global_changes() as moved:
            result = plain(learner.split_rows(passed, call.test_fraction))
        results.append({**result, "moved": moved, "is_changed": passed != rows})
    # Who is done early stays: an exit could fail the collective in which its peers still are.
    all_arrive(context, f"ended-{context.world_size}", 3.0)
    return results
