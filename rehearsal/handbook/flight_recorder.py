"""Torch's flight recorder: read it in a rank, and have torch's analyzer compare the ranks."""

from __future__ import annotations

import base64
import gc
import io
import logging
import pickle
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def dump_recorder() -> str:
    """In a rank: everything in its flight recorder, as text that JSON can hold.

    With gloo, torch's dump doesn't say which ranks belong to a group, so that is added here:
    all ranks, for every group. NCCL's dump says so itself.
    """
    import torch
    import torch.distributed as dist

    read = getattr(torch._C._distributed_c10d, "_dump_fr_trace")  # noqa: B009 - not in its stubs
    dump = pickle.loads(read(True, True, False))
    ranks = str(list(range(dist.get_world_size())))
    groups = {entry["process_group"] for entry in dump["entries"]}
    dump["pg_config"] = {
        name: {"name": name, "desc": text, "ranks": ranks} for name, text in groups
    }
    for entry in dump["entries"]:  # without the frames of whoever called the rank's function
        own = [at for at, frame in enumerate(entry["frames"]) if is_ours(frame["filename"])]
        frames = entry["frames"][: own[0]] if own else entry["frames"]
        entry["frames"] = [{**f, "filename": Path(f["filename"]).name} for f in frames]
    return base64.b64encode(pickle.dumps(dump)).decode()


def torch_headers() -> str:
    """The text of the installed torch's own headers for process groups; its wheels bring them.

    They name the environment variables and defaults of NCCL, also where torch lacks NCCL.
    """
    import torch

    folder = Path(torch.__file__).parent / "include/torch/csrc/distributed/c10d"
    return "".join(path.read_text("utf-8") for path in sorted(folder.glob("*.hpp")))


def is_ours(filename: str) -> bool:
    """Whether a frame is of the code that starts ranks."""
    return filename.endswith("rehearsal/handbook/on_ranks.py")


def read_dump(dump: str) -> dict[str, Any]:
    """What ``dump_recorder`` returned, as torch's dictionary."""
    content: dict[str, Any] = pickle.loads(base64.b64decode(dump))
    return content


def analyze(dumps: Sequence[str]) -> str:
    """What ``torchfrtrace FOLDER`` says about the ranks' dumps; torch ships it.

    It doesn't exist in every torch, and torch 2.11's refuses gloo's records. Then the answer
    says so.
    """
    try:
        from torch.distributed.flight_recorder.fr_trace import main
    except ImportError:
        return "This torch has no torch.distributed.flight_recorder; a newer one does."
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    logger = logging.getLogger("Flight Recorder")
    with tempfile.TemporaryDirectory(prefix="handbook-") as folder:
        for rank, dump in enumerate(dumps):
            (Path(folder) / f"trace_{rank}").write_bytes(base64.b64decode(dump))
        others, logger.handlers = logger.handlers, [handler]
        try:
            main([folder])
        except AssertionError as error:
            if "gloo" not in str(error):
                raise
            return "This torch's analyzer reads only NCCL's records; a newer one reads gloo's."
        finally:
            logger.handlers = others
            gc.enable()  # the analyzer turns it off, for a process of its own
    return out.getvalue()
