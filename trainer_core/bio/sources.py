"""Which task ``--data`` names."""

from __future__ import annotations

# %% active="py"
from trainer_core.bio.config import BioConfig
from trainer_core.bio.tasks import Task
from trainer_core.settings import UserError


# %%
def build_task(cfg: BioConfig) -> Task:
    """The task that the configuration names; only its own packages are imported.

    Raises:
        UserError: if its file or a package is missing, or a row is damaged.
    """
    if cfg.data_kind == "molecules":
        from trainer_core.bio.molecule_task import MoleculeTask

        return MoleculeTask.from_config(cfg)
    raise UserError(f"data={cfg.data}: a stub; this kind of data has no task yet. Choose toy.")
