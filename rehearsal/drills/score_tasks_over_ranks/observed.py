"""One job in a rank: every call's result, as plain data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch

from rehearsal.engine.rank import RankContext
from rehearsal.kit.observe.waiting import all_arrive

from .plan import TASKS, Call


def plain(returned: Any) -> dict[str, Any]:
    """What a call returned, or what is wrong with its form."""
    wanted = {"aurocs", "undefined", "median"}
    if not isinstance(returned, dict) or set(returned) != wanted:
        return {"problem": f"returned {repr(returned)[:60]}"}
    found, undefined, median = (returned[k] for k in ("aurocs", "undefined", "median"))
    if not isinstance(found, dict) or not all(
        type(task) is int and isinstance(value, float) for task, value in found.items()
    ):
        return {"problem": f"returned {repr(found)[:60]} as aurocs"}
    if not isinstance(undefined, list) or not all(type(task) is int for task in undefined):
        return {"problem": f"returned {repr(undefined)[:60]} as undefined"}
    if median is not None and not isinstance(median, float):
        return {"problem": f"returned {repr(median)[:60]} as the median"}
    return {"problem": "", "aurocs": [*found.items()], "undefined": undefined, "median": median}


def run(calls: Sequence[Call], context: RankContext, learner: SimpleNamespace) -> Any:
    """Call ``score_tasks`` on this rank's shard of each call."""
    context.init_group()
    results = []
    for call in calls:
        shard = call.shards[context.rank]
        ids = torch.tensor([sample for sample, _, _ in shard], dtype=torch.int64)
        scores = torch.tensor([row for _, row, _ in shard]).reshape(-1, TASKS)
        rows = [[math.nan if x is None else x for x in row] for _, _, row in shard]
        labels = torch.tensor(rows).reshape(-1, TASKS)
        results.append(plain(learner.score_tasks(ids, scores, labels)))
    # Who is done early stays: an exit could fail the collective in which its peers still are.
    all_arrive(context, f"ended-{context.world_size}", 3.0)
    return results
