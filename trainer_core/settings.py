"""How one setting is declared, checked and spelled on the command line.

Leaned on by cell 1 (config).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

# %%
SECONDS = {"low": 1.0, "high": 1e6, "only": "launched"}  # of the timeouts between ranks
TYPES = {"int": (int,), "float": (int, float), "bool": (bool,), "str": (str,), "Path": (Path,)}


class UserError(ValueError):
    """Something the user can mend: launch.py prints it without a traceback and exits with 2."""


def flag_name(field_name: str) -> str:
    """The command line's spelling of a field: dashes for underscores."""
    return "--" + field_name.replace("_", "-")


def setting(kind: str, default: object, help: str, **rules: Any) -> Any:
    """A field of TrainConfig.

    Args:
        kind: ``identity``: a resume that changes it is refused. ``training``: a change takes
            effect and is reported. ``batch_cut``: how the global batch is cut. ``operation``:
            leaves the training as it is.
        rules: ``low`` and ``high``, both inclusive, or ``choices``; ``only``: the kind of data
            that reads it; ``unpinned``, if a pinned global batch leaves it unread;
            ``launched``, if a single process does.
    """
    return field(default=default, metadata={"kind": kind, "help": help, **rules})


def check_setting(name: str, value: Any, annotation: str, rules: Mapping[str, Any]) -> None:
    """Raise UserError if ``value`` is not of the annotated type or breaks the field's rules."""
    kind, _, optional = annotation.partition(" | ")
    if value is None and optional:
        return
    low, high = rules.get("low", -float("inf")), rules.get("high", 1e300)
    choices = rules.get("choices", (value,))
    # bool is a subclass of int, but True is no number of steps.
    if not isinstance(value, TYPES[kind]) or (isinstance(value, bool) and kind != "bool"):
        rule = f"of type {kind}"
    elif value not in choices:
        rule = f"one of {', '.join(choices)}"
    # Written so that NaN, which compares false with everything, is refused as well.
    elif kind in ("int", "float") and not low <= value <= high:
        rule = f"at least {low} and " + (f"at most {high}" if "high" in rules else "finite")
    else:
        return
    raise UserError(
        f"{flag_name(name)} {value!r}: must be {rule} ({rules['help']}). "
        f"Set {flag_name(name)} to a value that is {rule}."
    )
