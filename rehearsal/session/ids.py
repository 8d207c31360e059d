"""A drill by its id, or by any prefix that only one id has."""

from __future__ import annotations

from rehearsal.grading.drill import Drill, UnknownDrill, drill_ids, load


def drill_named(text: str) -> Drill:
    """The drill with this id, former id, or prefix of an id.

    Raises:
        UnknownDrill: if there is none, naming the nearest; if there are several, naming all.
    """
    try:
        return load(text)
    except UnknownDrill:
        found = [drill_id for drill_id in drill_ids() if text and drill_id.startswith(text)]
        if not found:
            raise
    if len(found) > 1:
        raise UnknownDrill(
            f"{len(found)} ids begin with {text!r}: {', '.join(found)}. Type more of the one "
            "you mean."
        )
    return load(found[0])
