"""The script that torchrun runs on each rank of a chapter's job: it calls one function.

torchrun --nproc-per-node 2 -m rehearsal.handbook.torchrun_rank FOLDER
"""

from __future__ import annotations

import ctypes
import json
import os
import pickle
import signal
import sys
import traceback
from pathlib import Path


def end_with_torchrun() -> None:
    """Have the operating system kill this rank when torchrun dies, as it dies with its node."""
    if sys.platform == "linux":
        torchrun, set_parent_death_signal = os.getppid(), 1  # PR_SET_PDEATHSIG
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)
        if os.getppid() != torchrun:  # it died before the call took effect
            os._exit(1)


def main(folder: Path) -> None:
    """Call the function in ``folder``, and write what it returns next to it.

    An exception ends the process at once, as in scripts/launch.py: a normal exit would wait for
    collectives of peers that may be dead. The code is 2 for a mistake that the user can fix.
    """
    from trainer_core.distributed import cleanup_dist
    from trainer_core.settings import UserError

    end_with_torchrun()
    rank = os.environ.get("RANK", "0")
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    try:
        function, arguments = pickle.loads((folder / "call.pkl").read_bytes())
        answer = json.dumps(function(*arguments))
    except Exception as error:
        (folder / f"error-{attempt}-{rank}").write_text(f"{type(error).__name__}: {error}")
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(2 if isinstance(error, UserError) else 1)
    path = folder / f"answer-{rank}.json"
    path.with_suffix(".tmp").write_text(answer)
    path.with_suffix(".tmp").rename(path)  # so that a kill leaves all of it or nothing
    # The function has returned, so its DDP wrapper can be collected. With gloo, one that
    # outlives its group may abort the process or hang (torch 2.13), as the walkthrough says.
    cleanup_dist()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
