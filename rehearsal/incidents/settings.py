"""What the person on call may change, and what each setting means.

Two kinds: settings of the trainer, checked by its own config, and operations, checked here.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from rehearsal.incidents.world import Layer, Plan
from trainer_core.config import TrainConfig
from trainer_core.settings import UserError


class BadFix(ValueError):
    """A setting, a value or a module that can't be applied; nothing ran."""


TRAINER = {
    "num_workers": "loader processes per rank; 0 loads in the training process",
    "checkpoint_every_steps": "steps between two saves",
    "async_checkpoint": "write checkpoints in the background",
    "keep_last": "checkpoints to keep",
    "learning_rate": "peak learning rate",
    "warmup_steps": "steps of linear warmup",
    "max_grad_norm": "clip gradients to this norm, or None",
    "pinned_global_batch_size": "samples per step at any number of hosts, or None",
    "micro_batch_size": "samples per forward pass and rank",
    "on_nonfinite": "if a loss or gradient isn't finite: stop or skip",
    "hang_timeout_s": "seconds without a step before the watchdog ends the job",
}
OPERATIONS = {
    "hosts": "the host of each rank, in rank order",
    "storage_tier": "where checkpoints are written",
    "network": "the fabric that carries the gradients",
    "retry_backoff_s": "seconds before a refused write is tried again",
    "code_version": "the deployment that runs",
    "restored_samples": "ids of samples to restore from yesterday's snapshot of the data",
}
LAYER_OF: dict[str, Layer] = {
    "hosts": "world",
    "storage_tier": "world",
    "network": "world",
    "restored_samples": "world",
    "code_version": "code",
}


class Rules(NamedTuple):
    """Which settings there are on a track, what they mean, and what checks them."""

    trainer: Mapping[str, str]
    operations: Mapping[str, str]
    layers: Mapping[str, Layer]  # of those that aren't settings of the trainer
    config: Callable[..., TrainConfig]


GENERAL = Rules(TRAINER, OPERATIONS, LAYER_OF, TrainConfig)


def layer_of(name: str, rules: Rules = GENERAL) -> Layer:
    """In which layer a change of this setting acts."""
    return rules.layers.get(name, "settings")


def choices_of(plan: Plan, name: str) -> list[str]:
    """What an operation may be set to; empty if it isn't one of a list."""
    found: dict[str, list[str]] = {
        "hosts": list(plan.world.hosts),
        "storage_tier": list(plan.world.tiers),
        "network": list(plan.world.networks),
        "code_version": [version.id for version in plan.versions],
        "delivery": list(getattr(plan.world, "deliveries", ())),  # of the biotech track
        "excluded_plates": [str(n) for n in getattr(plan.world, "plates", ())],
    }
    return found.get(name, [])


def apply(plan: Plan, changes: Mapping[str, Any], rules: Rules = GENERAL) -> Plan:
    """The plan with these settings.

    Raises:
        BadFix: if one is unknown, has the wrong type, or isn't possible here.
    """
    if not isinstance(changes, Mapping):
        raise BadFix(
            f"settings={changes!r}: must be names with their values, so nothing ran. Write for "
            'example settings={"num_workers": 2}.'
        )
    for name, value in changes.items():
        if name not in plan.settings:
            near = difflib.get_close_matches(str(name), plan.settings, n=1)
            hint = f"Did you mean {near[0]}? " if near else ""
            raise BadFix(
                f"{name!r} is not a setting that can be changed here, so nothing ran. {hint}"
                f"There are: {', '.join(plan.settings)}."
            )
        if name in rules.operations:
            check_operation(plan, name, value)
    changed = plan.with_settings(**changes)
    trainer = {name: value for name, value in changed.settings.items() if name in rules.trainer}
    try:
        rules.config(**{**plan.fixed, **trainer})
    except UserError as error:
        text = str(error).replace("Nothing has started.", "Nothing ran.")
        raise BadFix(text.replace(" and start again", "")) from None
    return changed


def check_operation(plan: Plan, name: str, value: Any) -> None:
    """Raise BadFix if an operation can't be set to this value."""
    choices = choices_of(plan, name)
    shown = ", ".join(choices)
    if name == "hosts":
        names = value if isinstance(value, list | tuple) else None
        if names is None or not names or not all(isinstance(n, str) for n in names):
            raise BadFix(
                f"hosts={value!r}: must be a list of host names, one per rank. Nothing ran. "
                f"In the inventory: {shown}."
            )
        unknown = [n for n in names if n not in choices]
        if unknown or len(set(names)) < len(names):
            wrong = f"{unknown[0]!r} isn't in the inventory" if unknown else "a host is twice"
            raise BadFix(f"hosts={list(names)!r}: {wrong}. Nothing ran. There are: {shown}.")
        if len(names) > 3:
            raise BadFix(f"hosts: {len(names)} of them, but the quota is 3. Nothing ran.")
    elif name == "retry_backoff_s":
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not (is_number and 0 <= value <= 10):
            raise BadFix(f"retry_backoff_s={value!r}: must be 0 to 10 seconds. Nothing ran.")
    elif name == "restored_samples":
        is_list = isinstance(value, list | tuple) and all(type(n) is int for n in value)
        if not is_list:
            raise BadFix(
                f"restored_samples={value!r}: must be a list of sample ids. Nothing ran. "
                "The ledger shows ids."
            )
    elif name == "excluded_plates":
        is_list = isinstance(value, list | tuple) and all(type(n) is int for n in value)
        if not is_list or [n for n in value if str(n) not in choices]:
            raise BadFix(
                f"excluded_plates={value!r}: must be a list of plate numbers, from "
                f"{choices[0]} to {choices[-1]}. Nothing ran."
            )
    elif value not in choices:
        raise BadFix(f"{name}={value!r}: must be one of {shown}. Nothing ran.")


def meaning(plan: Plan, name: str, rules: Rules = GENERAL) -> str:
    """What a setting means, and what it can be set to."""
    choices = ", ".join(choices_of(plan, name))
    text = rules.trainer.get(name) or rules.operations[name]
    return f"{text} ({choices})" if choices else text


def table(plan: Plan, rules: Rules = GENERAL) -> str:
    """The settings, their values and what they mean."""
    width = max(map(len, plan.settings))
    return "\n".join(
        f"{name:<{width}}  {value!s:<24}  {meaning(plan, name, rules)}"
        for name, value in plan.settings.items()
    )


class Settings(dict[str, str]):
    """The settings that can be changed, with what each one means; a look shows the values."""

    def __init__(self, plan: Plan, rules: Rules = GENERAL) -> None:
        super().__init__({name: meaning(plan, name, rules) for name in plan.settings})

    def __repr__(self) -> str:
        width = max(map(len, self))
        return "\n".join(f"{name:<{width}}  {text}" for name, text in self.items())

    __str__ = __repr__
