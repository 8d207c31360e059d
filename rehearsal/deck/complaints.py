"""What is wrong with a deck file, in the words of somebody who writes one.

pydantic finds it. Its own messages speak of inputs, tuples and patterns, not of cards.
"""

from __future__ import annotations

import difflib
import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

SHOWN = 3  # complaints; a file with more of them has one cause
LISTS = {"card": "[[card]]", "point": "[[card.point]]"}  # how TOML spells them
ID_RULE = "lowercase letters, digits and underscores, beginning with a letter"


def complaints(
    error: ValidationError, found: Mapping[str, Any], parts: Mapping[str, type[BaseModel]]
) -> str:
    """What is wrong and what to do, in one line: each with its card, by id or number.

    Args:
        found: the file's content.
        parts: what "file", "card" and "point" consist of.
    """
    errors = error.errors()
    misspelled = {
        (*one["loc"][:-1], _nearest(str(one["loc"][-1]), _fields(one, parts)))
        for one in errors
        if one["type"] == "extra_forbidden"
    }
    said = [
        f"{_where(one['loc'], found)}{_what(one, parts)}"
        for one in errors
        if not any(_is_inside(other, one) for other in errors)  # then that one says it
        and not (one["type"] == "missing" and one["loc"] in misspelled)
    ]
    more = f" And {len(said) - SHOWN} more like this." if len(said) > SHOWN else ""
    return " ".join(" ".join(said[:SHOWN]).split()) + more


def _is_inside(inner: ErrorDetails, outer: ErrorDetails) -> bool:
    is_deeper = len(inner["loc"]) > len(outer["loc"])
    return is_deeper and inner["loc"][: len(outer["loc"])] == outer["loc"]


def _where(loc: Sequence[int | str], found: Any) -> str:
    """The card and the point that a complaint is about: ``card 'a', point 'b': ``."""
    names, at = list[str](), found
    for kind, number in _parts_of(loc):
        listed = at.get(kind) if isinstance(at, dict) else None
        at = listed[number] if isinstance(listed, list) else None
        name = at.get("id") if isinstance(at, dict) else None
        names.append(f"{kind} {name!r}" if name else f"{kind} number {number + 1}")
    return f"{', '.join(names)}: " if names else ""


def _parts_of(loc: Sequence[int | str]) -> Iterator[tuple[str, int]]:
    for kind, number in itertools.pairwise(loc):
        if kind in LISTS and isinstance(number, int):
            yield str(kind), number


def _whole(one: ErrorDetails) -> str:
    """What the field belongs to."""
    return next((kind for kind, _ in reversed([*_parts_of(one["loc"])])), "file")


def _fields(one: ErrorDetails, parts: Mapping[str, type[BaseModel]]) -> list[str]:
    """The fields that it may have."""
    fields = parts[_whole(one)].model_fields.items()
    return [field.alias or name for name, field in fields]


def _nearest(field: str, known: Sequence[str]) -> str:
    return next(iter(difflib.get_close_matches(field, known, n=1)), "")


def _what(one: ErrorDetails, parts: Mapping[str, type[BaseModel]]) -> str:
    """The field, the rule and what to do."""
    whole, known = _whole(one), _fields(one, parts)
    names = [step for step in one["loc"] if isinstance(step, str)]
    field = names[-1] if names else ""
    kind, value = one["type"], one["input"]
    limits = one.get("ctx", {})
    if kind == "missing":
        return f"{field} is missing. Every {whole} needs one: add {_written(field)}."
    if kind == "extra_forbidden":
        near = _nearest(field, known)
        meant = f"Did you mean {near}?" if near else f"It has {', '.join(known)}."
        return f"a {whole} has no field {field}. {meant} Rename or delete it."
    if kind == "literal_error":
        return f"{field} is {_shown(value)}. It must be {limits['expected']}: choose one."
    if kind == "string_pattern_mismatch":
        fixed = re.sub(r"\W+", "_", str(value).lower()).strip("_")
        return f"{field} is {_shown(value)}. It must be {ID_RULE}: for example {fixed!r}."
    if kind == "string_too_short":
        return f"{field} is empty. It must have a text: write {_written(field)}."
    if kind == "too_short":
        least = limits["min_length"]
        has = f"it has {len(value)} {field}" if value else f"{field} is empty"
        return f"{has}. A {whole} needs at least {least}: add {_written(field)}."
    if kind == "value_error":
        return f"{field}: {limits['error']}."
    # What is left is a wrong type; TOML's types are few.
    wants = "a table" if field in LISTS and isinstance(one["loc"][-1], int) else _type(kind)
    return f"{field or 'it'} is {_shown(value)}. It must be {wants}: write {_written(field)}."


def _type(kind: str) -> str:
    return "text in quotes" if kind == "string_type" else "a list in brackets"


def _written(field: str) -> str:
    """A field as it is written in the file."""
    if field in LISTS:
        return LISTS[field]
    examples = {
        "level": '"senior" or "staff"',
        "shown_in": '["notebooks/handbook/13_checkpointing.ipynb"]',
        "says": '[["save", "optimizer"]]',
        "denies": '[["weights", "enough"]]',
    }
    return f"{field} = {examples.get(field, chr(34) + '...' + chr(34))}"


def _shown(value: Any) -> str:
    """A value as TOML has it, shortened."""
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= 40 else f"{text[:37]}..."
