"""How a setting is declared, checked, and spelled on the command line.

Supports cell 1 (config).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

# %%
# Rules for timeouts between ranks, in seconds. Only ranks started by a launcher read them.
SECONDS = {"low": 1.0, "high": 1e6, "only": "launched"}
TYPES = {"int": (int,), "float": (int, float), "bool": (bool,), "str": (str,), "Path": (Path,)}


class UserError(ValueError):
    """A mistake the user can fix: launch.py prints it without a traceback and exits with 2.

    A message about a setting's value spells it as Python does, ``max_epochs=3``; launch.py
    prints that as a flag.
    """


def flag_name(field_name: str) -> str:
    """A field's spelling on the command line: dashes for underscores."""
    return "--" + field_name.replace("_", "-")


def with_flags(message: str, field_names: Iterable[str]) -> str:
    """The message for a command line: ``max_epochs=3`` becomes ``--max-epochs 3``.

    A name without a value is a setting only if it has an underscore: "data" is also a word. A
    part of a path is left alone.
    """
    for name in field_names:
        flag, setting_name = flag_name(name), rf"(?<![\w/.-]){name}"
        message = re.sub(rf"{setting_name}=True\b", flag, message)
        message = re.sub(rf"{setting_name}=", f"{flag} ", message)
        if "_" in name:
            message = re.sub(rf"{setting_name}\b(?!/)", flag, message)
    return message


def setting(kind: str, default: object, help: str, **rules: Any) -> Any:
    """A field of TrainConfig.

    Args:
        kind: ``identity``: changing it makes a resume fail. ``training``: a change takes effect
            and is reported. ``batch_cut``: how the global batch is split. ``operation``: it has
            no effect on what is trained.
        rules: ``low`` and ``high``, both inclusive, or ``choices``; and ``only``, if just some
            runs read it: one kind of data, ``unpinned`` (no pinned global batch), or
            ``launched`` (started by a launcher).
    """
    return field(default=default, metadata={"kind": kind, "help": help, **rules})


def check_setting(name: str, value: Any, annotation: str, rules: Mapping[str, Any]) -> None:
    """Raise UserError if ``value`` is not of the annotated type or breaks the field's rules."""
    kind, _, optional = annotation.partition(" | ")
    if value is None and optional:
        return
    low = rules.get("low", -float("inf"))
    high = rules.get("high", 1e300)
    choices = rules.get("choices", (value,))
    # bool is a subclass of int, but True is not a number of steps.
    if not isinstance(value, TYPES[kind]) or (isinstance(value, bool) and kind != "bool"):
        rule = f"of type {kind}"
    elif value not in choices:
        rule = f"one of {', '.join(choices)}"
    # Written so that NaN, which compares false with everything, is refused too.
    elif kind in ("int", "float") and not low <= value <= high:
        rule = f"at least {low}"
        if "high" in rules:
            rule += f" and at most {high}"
        elif kind == "float":
            rule += " and finite"
    else:
        return
    raise UserError(
        f"{name}={value!r}: must be {rule} ({rules['help']}). Nothing has started. Change "
        f"{name} and start again."
    )
