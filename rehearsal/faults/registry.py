"""The groups of the matrix by name, in the order in which they run."""

from __future__ import annotations

from rehearsal.faults import corruption, points, storage
from rehearsal.faults.matrix import Group

GROUPS: dict[str, Group] = {
    "points": points.kill_at_each_point,
    "corruption": corruption.corrupt,
    "storage": storage.fail_the_storage,
}
