"""A drill by its id, or by as much of the beginning as only one id has."""

from __future__ import annotations

from rehearsal.grading.drill import Drill, UnknownDrill, drill_ids, load


def drill_named(text: str) -> Drill:
    """The drill with this id, former id, or beginning of an id.

    Raises:
        UnknownDrill: if there is none, with the nearest; if several, with all of them.
    """
    try:
        return load(text)
    except UnknownDrill:
        found = [drill_id for drill_id in drill_ids() if text and drill_id.startswith(text)]
        if not found:
            raise
    if len(found) > 1:
        raise UnknownDrill(
            f"{text!r} is the beginning of {len(found)} ids: {', '.join(found)}. Type as much "
            "as only one of them has."
        )
    return load(found[0])
