"""What can be looked at, and what it costs in minutes."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from rehearsal.incidents import dashboards, records
from rehearsal.incidents.deployed import module_names
from rehearsal.incidents.evidence import Evidence
from rehearsal.incidents.view import BadLook, Shown, View

Sources = Mapping[str, tuple[int, Callable[..., Shown]]]
SOURCES: dict[str, tuple[int, Callable[..., Shown]]] = {
    "loss": (1, dashboards.loss),
    "throughput": (1, dashboards.throughput),
    "phases": (3, dashboards.phases),
    "checkpoint_age": (1, dashboards.checkpoint_age),
    "heartbeats": (1, dashboards.heartbeats),
    "restarts": (1, dashboards.restarts),
    "host_memory": (2, dashboards.host_memory),
    "fingerprints": (4, dashboards.fingerprints),
    "logs": (4, records.logs),
    "trace": (6, records.trace),
    "run_folder": (3, records.run_folder),
    "ledger": (6, records.ledger),
    "data": (5, records.data),
    "audit": (5, records.audit),
    "settings": (1, records.settings),
    "code": (8, records.code),
    "deploys": (2, records.deploys),
}  # fmt: skip


def scope_of(source: str, sources: Sources = SOURCES) -> list[str]:
    """The names by which a look at a source can be narrowed."""
    return list(inspect.signature(sources[source][1]).parameters)[1:]


def check_look(
    source: str, scope: Mapping[str, Any], sources: Sources, modules: list[str]
) -> None:
    """Raise BadLook for an unknown source or scope."""
    if source not in sources:
        near = difflib.get_close_matches(str(source), sources, n=1)
        hint = f"Did you mean {near[0]}? " if near else ""
        raise BadLook(
            f"{source!r} is not a source, and the clock hasn't moved. {hint}"
            f"The sources: {', '.join(sources)}."
        )
    known = scope_of(source, sources)
    for name in scope:
        if name not in known:
            can = f"It takes {', '.join(known)}" if known else "It has no narrower scope"
            raise BadLook(f"{source} can't be narrowed by {name!r}. {can}.")
    needed = [
        name
        for name, p in inspect.signature(sources[source][1]).parameters.items()
        if p.default is p.empty and name != "evidence"
    ]
    for name in needed:
        if name not in scope:
            more = f" The modules: {', '.join(modules)}." if name == "module" else ""
            raise BadLook(f'{source} needs {name}: look("{source}", {name}=...).{more}')


def look_at(
    evidence: Evidence,
    source: str,
    scope: Mapping[str, Any],
    sources: Sources = SOURCES,
    modules: Callable[[], list[str]] = module_names,
) -> View:
    """One look. Raises BadLook."""
    check_look(source, scope, sources, modules())
    minutes, show = sources[source]
    shown = show(evidence, **scope)
    return View(source, dict(scope), minutes, *shown)
