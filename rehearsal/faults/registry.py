"""The groups of the matrix by name, in the order in which they run."""

from __future__ import annotations

from rehearsal.faults import chains, corruption, kills, points, processes, storage, views
from rehearsal.faults.matrix import Group

GROUPS: dict[str, Group] = {
    "points": points.kill_at_each_point,
    "corruption": corruption.corrupt,
    "storage": storage.fail_the_storage,
    "chains": chains.chains,
    "kills": kills.kills,
    "processes": processes.processes,
    "views": views.views,
}
