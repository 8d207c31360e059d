"""What a launcher must tell a rank, checked before the rank waits for any peer.

Supports cell 4 (distributed).
"""

from __future__ import annotations

from collections.abc import Mapping

# %% active="py"
from trainer_core.settings import UserError


# %%
def refuse_broken_environment(env: Mapping[str, str]) -> None:
    """Raise UserError if the launcher's variables don't describe one rank of a job.

    Without a launcher, none of them is set, and this process is the whole job.
    """
    remedy = "Start ranks with torchrun, which sets them all, or unset them to train alone."
    for name in ("WORLD_SIZE", "RANK", "LOCAL_WORLD_SIZE", "LOCAL_RANK", "MASTER_PORT"):
        if name in env and not (env[name].isdecimal() and len(env[name]) < 10):
            raise UserError(
                f"the environment says {name}={env[name]:.40}: it must be a whole number, or "
                f"this process can't know which rank it is. {remedy}"
            )
    world_size, rank = int(env.get("WORLD_SIZE", 1)), int(env.get("RANK", 0))
    local_rank = int(env.get("LOCAL_RANK", 0))
    # Not every launcher sets LOCAL_WORLD_SIZE.
    ranks_here = int(env.get("LOCAL_WORLD_SIZE", local_rank + 1))
    if rank >= world_size or local_rank >= ranks_here:
        raise UserError(
            f"the environment says RANK={rank} of WORLD_SIZE={world_size}, LOCAL_RANK="
            f"{local_rank} of LOCAL_WORLD_SIZE={ranks_here}: ranks count from 0, so each must "
            f"be below its size, or the job would wait for ranks that don't exist. {remedy}"
        )
    if world_size > 1:
        for name in ("RANK", "MASTER_ADDR", "MASTER_PORT"):
            if not env.get(name):
                raise UserError(
                    f"the environment sets WORLD_SIZE={world_size}, but not {name}, so the "
                    f"ranks can't find each other. {remedy}"
                )
