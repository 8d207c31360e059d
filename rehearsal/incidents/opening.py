"""Open a case: draw it, run its job, or continue where somebody left it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

from rehearsal.incidents.case import Incident, Tier
from rehearsal.incidents.draw import Drawn, draw
from rehearsal.incidents.store import START_OVER, BadCase, Store
from rehearsal.incidents.tracks import TRACKS, Track, TrackName, run_job, track_of


def incident(
    seed: int, *, tier: Tier = "realistic", track: TrackName = "general", restart: bool = False
) -> Incident:
    """Open the case of a seed: a real job with something wrong, or nothing.

    The job has run when this returns. A case that was begun continues, with its clock; with
    ``restart`` it begins again, and what you did before stays in your history.

    Args:
        tier: "guided" asks one question at a time, "choice" gives four causes to choose from,
            "realistic" gives nothing.
        track: "general", or "biotech": jobs on molecules, proteins and graphs.

    Raises:
        BadCase: if the seed, tier or track isn't possible, a package is missing, or the saved
            case can't be opened.
        JobInterrupted: after Ctrl-C, or the notebook's stop button.
    """
    if type(seed) is not int or seed < 0:
        raise BadCase(f"seed={seed!r}: must be a whole number, 0 or more.")
    if tier not in get_args(Tier):
        raise BadCase(f"tier={tier!r}: must be guided, choice or realistic.")
    deck = track_named(track).deck
    store = Store(seed, track=track)
    header = None if restart else store.header()
    if header is not None:
        case = reopened(store, header)
        print(
            f"Continuing {store.name} at minute {case.minutes} (tier {case.tier}). {START_OVER}"
        )
        return case
    drawn = draw(seed, deck=deck)
    if tier != "realistic":  # their questions and choices are about one fault
        drawn = draw(seed, drawn.kinds[0].id, deck)
    return begun(store, drawn, tier)


def incident_in(
    folder: Path, seed: int, kind: str | None = None, track: TrackName = "general"
) -> Incident:
    """A case in a folder of its own: the one that is there, or a new one of this kind.

    Raises:
        BadCase: if the one that is there can't be opened, if there is no such track, or if a
            package is missing that its jobs need.
    """
    store = Store(seed, folder, track)
    header = store.header()
    if header is not None:
        return reopened(store, header)
    return begun(store, draw(seed, kind, track_named(track).deck), "realistic")


def track_named(name: str) -> Track:
    """A track. Raises BadCase if there is none of that name."""
    if name not in list(TRACKS):  # which may be asked for anything
        raise BadCase(f"track={name!r}: must be {' or '.join(TRACKS)}.")
    return TRACKS[name]


def begun(store: Store, drawn: Drawn, tier: Tier) -> Incident:
    """A new case, once its job has run.

    Raises:
        BadCase: if a package is missing.
    """
    if missing := track_of(drawn).missing(drawn.id):
        raise BadCase(missing)
    with store.alone():
        store.set_aside()
        run_job(drawn, store.runs / "0")
        store.create(drawn.id, tier)
    return Incident(store, drawn, tier)


def reopened(store: Store, header: Mapping[str, Any]) -> Incident:
    """A case that was begun.

    Raises:
        BadCase: if this version of the package draws something else.
    """
    store.track = header.get("track", "general")
    seed, name, deck = store.seed, header["kind"], track_named(store.track).deck
    if not set(name.split("+")) <= set(deck.kinds):
        raise BadCase(
            f"{store.name.capitalize()} was begun with a kind that this version doesn't have "
            f"({name}), so it can't continue. {START_OVER}"
        )
    drawn, plan = draw(seed, name, deck), store.plan()
    if plan != drawn.faulty.as_json():
        why = "was begun with another version of the package, which ran another job"
        why = why if plan else f"has lost its run folder, {store.runs / '0'}"
        raise BadCase(f"{store.name.capitalize()} {why}, so it can't continue. {START_OVER}")
    return Incident(store, drawn, header["tier"])


def incident_kinds(*, track: TrackName = "general") -> list[str]:
    """The causes that may be named in an incident, "no_fault" included.

    Raises:
        BadCase: if there is no such track.
    """
    return sorted(track_named(track).deck.kinds)
