"""The networks that a check has tested, put together from their parts."""

from __future__ import annotations

from collections.abc import Callable

from . import breaks, hidden_breaks
from .equivariant import Network
from .plan import Case

PARTS: dict[str, type[Network]] = {
    name: value
    for name, value in {**vars(breaks), **vars(hidden_breaks)}.items()
    if isinstance(value, type) and issubclass(value, Network)
}


def parts_of(case: Case) -> list[type[Network]]:
    """The classes that a case puts together."""
    return [PARTS[name] for name in case.parts] or [Network]


def network(case: Case) -> Network:
    """The network of a case, in training mode, with weights from the case's seed."""
    parts = parts_of(case)
    both: Callable[[Case], Network] = type("Both", tuple(parts), {})
    return both(case) if parts[1:] else parts[0](case)


def broken_by(case: Case) -> frozenset[str]:
    """The names of the symmetries that a case's network breaks."""
    return frozenset().union(*(part.breaks for part in parts_of(case)))


def described(case: Case) -> str:
    """What a case's network does: "clips coordinates, and adds a bias"."""
    words = ", and ".join(part.words for part in parts_of(case))
    if case.units != (1.0, 1.0):
        words += f" (scalars of about {case.units[0]:.0e}, vectors of {case.units[1]:.0e})"
    return words


def is_zero_somewhere(case: Case) -> bool:
    """Whether a case's scalars or vectors are all 0 on some rank."""
    return bool({"ZeroVectors", "ZeroScalars", "RareVectorsOnly"} & {*case.parts})
