"""The fault groups by name, in the order in which they run. A new group goes in here."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from rehearsal.faults import chains, corruption, kills, live, points, processes, storage, views
from rehearsal.faults.matrix import Bench, Group, Try


def on_linux(group: Group) -> Group:
    """The group, skipped on systems without the /proc in which it finds its processes."""

    def guarded(bench: Bench) -> Iterable[Try]:
        if sys.platform != "linux":
            reason = f"it reads /proc, which only Linux has; this is {sys.platform}"
            return [Try(group.__name__, "the whole group", skipped=reason)]
        return group(bench)

    return guarded


GROUPS: dict[str, Group] = {
    "points": points.kill_at_each_point,
    "corruption": corruption.corrupt,
    "storage": storage.fail_the_storage,
    "chains": on_linux(chains.chains),
    "kills": on_linux(kills.kills),
    "processes": on_linux(processes.processes),
    "views": on_linux(views.views),
    "live_points": live.kill_at_each_point,
    "live_corruption": live.corrupt,
    "live_chains": on_linux(live.chains),
    "live_kills": on_linux(live.kill_at_random),
    "live_ends": live.ends,
}
