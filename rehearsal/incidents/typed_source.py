"""Modules that a person on call replaces by hand: checked, and put into the plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from rehearsal.incidents.deployed import module_names, module_text
from rehearsal.incidents.settings import BadFix
from rehearsal.incidents.world import Plan


def modules_of(
    plan: Plan, source: str | Mapping[str, str] | None, names: Sequence[str] | None = None
) -> dict[str, str]:
    """The modules that a fix replaces. Raises BadFix if one isn't there or doesn't compile.

    Args:
        names: of the modules that there are; those of the general track if None.
    """
    if source is None:
        return {}
    names = module_names() if names is None else names
    texts = (
        {module_like(plan, source, names): source} if isinstance(source, str) else dict(source)
    )
    for name, text in texts.items():
        if name not in names:
            raise BadFix(
                f"source: {name!r} is not a module of the trainer, so nothing ran. There are: "
                f"{', '.join(names)}."
            )
        if isinstance(text, str) and not text.strip():
            raise BadFix(f"source: {name} would be empty, so nothing ran. Pass its whole text.")
        try:
            compile(text, name, "exec")
        except (SyntaxError, ValueError, TypeError) as error:
            raise BadFix(f"source: {name} doesn't compile ({error}), so nothing ran.") from None
    return {name: text for name, text in texts.items() if text != module_text(plan, name)}


def module_like(plan: Plan, source: str, names: Sequence[str]) -> str:
    """The module whose text shares most lines with ``source``. Raises BadFix."""
    lines = set(source.splitlines())
    shared = {name: len(lines & set(module_text(plan, name).splitlines())) for name in names}
    best = max(shared, key=lambda name: shared[name])
    if shared[best] < 10:
        raise BadFix(
            "source: this is not the text of a module, so nothing ran. Pass a module's whole "
            'text, as look("code", module="train.py").data gives it, or {"train.py": text}.'
        )
    return best


def with_sources(plan: Plan, texts: Mapping[str, str]) -> Plan:
    """The plan with modules replaced."""
    return replace(plan, sources=dict(texts))
