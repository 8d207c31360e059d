"""Which task ``--data`` names."""

from __future__ import annotations

# %% active="py"
from trainer_core.bio.config import BioConfig
from trainer_core.bio.tasks import Task


# %%
def build_task(cfg: BioConfig) -> Task:
    """The task that the configuration names; only its own packages are imported.

    Raises:
        UserError: if its file or a package is missing, or a row is damaged.
    """
    if cfg.data_kind == "molecules":
        from trainer_core.bio.molecule_task import MoleculeTask

        return MoleculeTask.from_config(cfg)
    if cfg.data_kind == "proteins":
        from trainer_core.bio.protein_task import ProteinTask

        return ProteinTask.from_config(cfg)
    if cfg.data_kind == "graphs":
        from trainer_core.bio.graph_task import GraphTask

        return GraphTask.from_config(cfg)
    from trainer_core.bio.cell_task import CellTask

    return CellTask.from_config(cfg)
