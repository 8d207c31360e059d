"""What can stay an interface in an interview, with stand-ins that run on one machine.

The question it answers: "what would you not build here, and where would it plug in?"

    Bootstrap      which rank this process is         stand-in: a list of hosts
    ObjectStore    where checkpoints outlive a node   stand-in: a folder
    Scheduler      what restarts the job              stand-in: this process

The fourth one, a vendor's metrics, is ``metrics.Sink``.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple, Protocol


# %%
class World(NamedTuple):
    """A process's place in the job, in torchrun's terms."""

    rank: int
    local_rank: int
    world_size: int
    local_world_size: int
    host: str  # where rank 0 listens; equal on all ranks
    port: int

    def environment(self) -> dict[str, str]:
        """The variables that ``maybe_init_dist`` reads, whatever started the process."""
        return {
            "RANK": str(self.rank),
            "LOCAL_RANK": str(self.local_rank),
            "WORLD_SIZE": str(self.world_size),
            "LOCAL_WORLD_SIZE": str(self.local_world_size),
            "MASTER_ADDR": self.host,
            "MASTER_PORT": str(self.port),
        }


class Bootstrap(Protocol):
    """What started this process: torchrun, a cluster's launcher, MPI."""

    def world(self) -> World:
        """This process's place. No two processes have the same rank."""


@dataclass(frozen=True, slots=True)
class HostListBootstrap:
    """Number the ranks along a list of hosts; all hosts have the same list."""

    hosts: Sequence[str]
    ranks_per_host: int
    host_index: int
    local_rank: int
    port: int = 29500

    def world(self) -> World:
        """This process's place: the first host's ranks come first."""
        rank = self.host_index * self.ranks_per_host + self.local_rank
        world_size = len(self.hosts) * self.ranks_per_host
        return World(
            rank=rank,
            local_rank=self.local_rank,
            world_size=world_size,
            local_world_size=self.ranks_per_host,
            host=self.hosts[0],
            port=self.port,
        )


# %%
class ObjectStore(Protocol):
    """Objects are written atomically and never change. There are no folders and no rename."""

    def put_if_absent(self, key: str, content: bytes) -> bool:
        """Store the object unless the key is taken; returns whether it was stored."""

    def get(self, key: str) -> bytes:
        """The object's content."""

    def keys(self, prefix: str) -> list[str]:
        """All keys that start with ``prefix``, sorted."""


@dataclass(frozen=True, slots=True)
class FolderStore:
    """An object store in a folder of this machine."""

    UNFINISHED: ClassVar[str] = ".tmp-"  # being written, or left behind by a kill
    root: Path

    def put_if_absent(self, key: str, content: bytes) -> bool:
        """Store the object unless the key is taken; returns whether it was stored."""
        path = self.root / key
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self.root / f"{self.UNFINISHED}{uuid.uuid4().hex}"
        temporary.write_bytes(content)
        try:
            os.link(temporary, path)  # atomic, and fails if the name exists
        except FileExistsError:
            return False
        finally:
            temporary.unlink()
        return True

    def get(self, key: str) -> bytes:
        """The object's content."""
        return (self.root / key).read_bytes()

    def keys(self, prefix: str) -> list[str]:
        """All keys that start with ``prefix``, sorted."""
        files = (path for path in self.root.rglob("*") if path.is_file())
        keys = (path.relative_to(self.root).as_posix() for path in files)
        complete = (key for key in keys if not key.startswith(self.UNFINISHED))
        return sorted(key for key in complete if key.startswith(prefix))


def upload_checkpoint(store: ObjectStore, folder: Path) -> bool:
    """Publish a checkpoint without a rename: the pointer to it is the last object written.

    Each upload has its own name, so leftovers of a killed one are never mixed in.

    Returns:
        Whether this upload was published; False if another one came first.
    """
    upload = f"uploads/{folder.name}-{uuid.uuid4().hex[:8]}"
    for path in sorted(folder.iterdir()):
        store.put_if_absent(f"{upload}/{path.name}", path.read_bytes())
    return store.put_if_absent(f"published/{folder.name}", upload.encode())


def download_newest(store: ObjectStore, checkpoints: Path) -> Path | None:
    """Copy the newest published checkpoint into a folder; None if there is none.

    The caller verifies it, like any checkpoint.
    """
    pointers = store.keys("published/step-")
    if not pointers:
        return None
    newest = max(pointers, key=lambda key: int(key.rpartition("-")[2]))
    folder = checkpoints / newest.removeprefix("published/")
    temporary = checkpoints / f"tmp-{uuid.uuid4().hex}"  # removed by the next start
    temporary.mkdir(parents=True)
    for key in store.keys(store.get(newest).decode() + "/"):
        (temporary / key.rpartition("/")[2]).write_bytes(store.get(key))
    return temporary.rename(folder)


# %%
class Scheduler(Protocol):
    """What owns the machines: it starts a job, and restarts it when asked."""

    def submit(self, job: Callable[[], int]) -> str:
        """Start a job, which returns an exit code; returns its id."""

    def requeue(self, job_id: str) -> None:
        """Start the same job again."""

    def exit_code(self, job_id: str) -> int | None:
        """The exit code of the job's latest start; None while it runs."""


class LocalScheduler:
    """Runs each job to completion in this process when it is submitted."""

    def __init__(self) -> None:
        self.jobs: dict[str, Callable[[], int]] = {}
        self.exit_codes: dict[str, int] = {}

    def submit(self, job: Callable[[], int]) -> str:
        """Run the job; returns its id."""
        job_id = f"job-{len(self.jobs)}"
        self.jobs[job_id] = job
        self.requeue(job_id)
        return job_id

    def requeue(self, job_id: str) -> None:
        """Run the same job again."""
        self.exit_codes[job_id] = self.jobs[job_id]()

    def exit_code(self, job_id: str) -> int | None:
        """The exit code of the job's latest run."""
        return self.exit_codes[job_id]


def restart_while_useful(scheduler: Scheduler, job_id: str, max_restarts: int) -> int:
    """Restart a failed job up to ``max_restarts`` times; returns how often it was restarted.

    Exit code 2 means that a person has to fix something: a restart would only fail again.
    """
    restarts = 0
    while scheduler.exit_code(job_id) not in (0, 2, None) and restarts < max_restarts:
        scheduler.requeue(job_id)
        restarts += 1
    return restarts
