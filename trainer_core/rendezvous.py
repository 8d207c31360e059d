"""Where the ranks of one attempt meet, kept apart from the ranks of earlier attempts.

Supports cell 4 (distributed).
"""

from __future__ import annotations

import os
import time
import uuid
from datetime import timedelta

from torch.distributed import PrefixStore, Store, TCPStore

# %% active="py"
from trainer_core.launcher_environment import refuse_broken_environment

# %%
# kStoreDumpKey in torch's ProcessGroupNCCL.hpp
DUMP_REQUEST = "exception_dump"


# %%
def attempt_store(rank: int, world_size: int, timeout: timedelta) -> Store:
    """A view of the job's key-value store that no earlier attempt has written to.

    torchrun's agent keeps one store across all restarts. A restarted rank would find a dead
    peer's address in it and wait forever. TORCHELASTIC_RESTART_COUNT can't tell attempts apart:
    a membership change restarts the ranks without counting. So rank 0 draws a number that the
    store never handed out before, and each peer asks for it under a name it has just made up.
    No old key can pass for an answer.

    One old key does reach past any prefix: a rank whose collective failed under NCCL asks all
    ranks for their flight recorders, in the store itself. Ranks of the next attempt would take
    that for a failure of their own, and hang when they exit.

    Collective: every rank of the job.

    Raises:
        UserError: if the launcher's variables are wrong or incomplete.
        TimeoutError: on rank 0, naming the ranks that did not join. Other ranks get the store's
            own error.
    """
    refuse_broken_environment(os.environ)
    is_host = rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    store = TCPStore(*address, is_master=is_host, timeout=timeout, wait_for_workers=False)
    store.delete_key(DUMP_REQUEST)  # before this rank has a process group that looks for it
    if rank > 0:
        name = uuid.uuid4().hex
        store.set(f"hello/{rank}", name)
        attempt = int(store.get(f"number for {name}"))  # waits until rank 0 has answered
        store.set(f"joined/{attempt}/{rank}", "")
        return PrefixStore(f"attempt {attempt}", store)

    attempt = store.add("attempts", 1)
    missing = list(range(1, world_size))
    deadline = time.monotonic() + timeout.total_seconds()
    while missing := [p for p in missing if not store.check([f"joined/{attempt}/{p}"])]:
        for peer in missing:
            # The hello may be from a dead rank; answering it does no harm.
            if store.check([f"hello/{peer}"]):
                store.set(f"number for {store.get(f'hello/{peer}').decode()}", str(attempt))
        if time.monotonic() > deadline:
            raise TimeoutError(
                f"[rank 0/{world_size}] ranks {missing} did not join within "
                f"{timeout.total_seconds():.0f} s. Check their logs, or raise --dist-timeout-s."
            )
        time.sleep(0.002)
    return PrefixStore(f"attempt {attempt}", store)
