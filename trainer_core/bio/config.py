"""The settings of a run on the biotech track: the trainer's own, and a few more.

bin  what the trainer orders and counts as one sample: a molecule or a cell, or a group of
     proteins or graphs packed up to the budget
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

# %% active="py"
from trainer_core.config import TrainConfig
from trainer_core.settings import UserError, check_setting, setting

OnBad = Literal["raise", "skip"]
RowLayout = Literal["padded", "packed"]
KINDS = ("molecules", "proteins", "graphs", "cells")


# %%
@dataclass(frozen=True, kw_only=True, slots=True)
class BioConfig(TrainConfig):
    """Every setting of a run on the track, checked on construction.

    Raises:
        UserError: if a value has the wrong type or is out of bounds, or if two values conflict.
    """

    data: str = setting(
        "identity",
        "toy",
        "toy | digits | tokens:PATH (a file of uint16); biotech: molecules | proteins | graphs "
        "| cells, each also with :PATH",
    )
    split: str = setting(
        "identity",
        "scaffold",
        "which molecules are trained on",
        choices=("random", "scaffold", "generic_scaffold", "cluster", "time"),
        only="molecules",
    )
    budget: int = setting(
        "identity", 1026, "tokens, or atoms, in one bin of proteins or graphs", low=1
    )
    crop: int | None = setting(
        "identity", None, "residues to train of a longer sequence", low=1, only="proteins"
    )
    layout: str = setting(
        "identity",
        "packed",
        "sequences of a bin: one after the other in a row, or a padded row for each",
        choices=("packed", "padded"),
        only="proteins",
    )
    balance: bool = setting(
        "training", False, "weigh a task's actives by inactives / actives", only="molecules"
    )
    checkpoint_activations: bool = setting(
        "operation", False, "compute activations again in backward", only="proteins"
    )
    label_column: str = setting(
        "identity", "energy", "the property of an SDF file to learn", only="graphs"
    )
    on_bad: str = setting(
        "identity", "raise", "what a damaged row leads to", choices=("raise", "skip")
    )

    def __post_init__(self) -> None:
        for spec in fields(self):
            check_setting(spec.name, getattr(self, spec.name), str(spec.type), spec.metadata)
        kind, separator, path = self.data.partition(":")
        if kind not in KINDS or bool(separator) != bool(path):
            raise UserError(
                f"data={self.data} is no dataset of the biotech track, so there is nothing to "
                f"train on. Choose {', '.join(KINDS)}, alone for the data that ships, or with "
                ":PATH for a file."
            )
        if self.input_noise:
            raise UserError(
                f"input_noise={self.input_noise}: a residue or an atom plus noise is something "
                "else. Leave input_noise at 0 on the biotech track."
            )
        if self.warmup_steps >= (self.decay_steps or float("inf")):
            raise UserError(
                f"warmup_steps={self.warmup_steps} uses up all of "
                f"decay_steps={self.decay_steps}, so no step is left to decay in. Lower the "
                "first or raise the second."
            )

    @property
    def bad_rows(self) -> OnBad:
        """``on_bad``, as the readers take it."""
        return "skip" if self.on_bad == "skip" else "raise"

    @property
    def row_layout(self) -> RowLayout:
        """``layout``, as the bins take it."""
        return "packed" if self.layout == "packed" else "padded"

    @property
    def data_path(self) -> str | None:
        """The file that ``--data`` names; None for the data that ships."""
        return self.data.partition(":")[2] or None
