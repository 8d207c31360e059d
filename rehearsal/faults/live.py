"""The fault matrix of live.py: everything it promises, tested as the other groups test theirs.

Its ranks are killed at each system call of a save, at random under torchrun, and in chains of
world sizes; its checkpoints are damaged. What it leaves to the hardened trainer is not tried: a
full disk, file modes, hangs, changed settings, and ranks that outlive a killed torchrun.
"""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from torch.distributed import TCPStore

from rehearsal.engine.reports import RankReport
from rehearsal.evidence.run_records import live_starts
from rehearsal.faults import corruption, kills, points
from rehearsal.faults.chains import chain
from rehearsal.faults.corruption import Corruption
from rehearsal.faults.jobs import SIX_STEPS_LIVE, arguments, script_of, small_live
from rehearsal.faults.matrix import Bench, Trainer, Try, leave, same_weights
from rehearsal.faults.points import Plan
from trainer_core.checkpoint_format import DamagedCheckpoint, describe


def verify(folder: Path) -> None:
    """Raise DamagedCheckpoint unless a checkpoint is what its manifest says.

    It goes by the format and not by live.py's code, which is what is being judged.
    """
    try:
        manifest = json.loads((folder / "manifest.json").read_text())
        is_intact = manifest["sha256"] == describe(folder / "state.pt")["sha256"]
    except (OSError, ValueError, KeyError) as error:
        raise DamagedCheckpoint(f"{folder}: {error}") from error
    if not is_intact or manifest["step"] != int(folder.name.removeprefix("step-")):
        raise DamagedCheckpoint(f"{folder}: not what its manifest says")


LIVE = Trainer(small_live, SIX_STEPS_LIVE, verify)


# ---------------------------------------------------------------- a kill at each point

ALONE, TOGETHER = "live: kill in a save, 1 rank", "live: kill in a save, 2 ranks"
PLANS = [
    Plan(ALONE, 1, {}, has_evidence=True, trainer=LIVE),
    # Rank 0 saves the last checkpoint while the others exit.
    Plan(TOGETHER, 2, {"checkpoint_every_steps": 3}, trainer=LIVE, ends_together=False),
]


def kill_at_each_point(bench: Bench) -> Iterator[Try]:
    """The group: before and after each system call of a run with three saves, and with two."""
    return points.kill_at_each_point(bench, PLANS)


# ---------------------------------------------------------------- corruption


def wrong_answer(corrupt: Corruption, run_dir: Path, reports: list[RankReport]) -> str:
    """What the start should have done about damage and did not; "" if it was right."""
    starts = sorted((start["attempt"], start["step"]) for start in live_starts(run_dir))
    restored = starts[-1][1]
    good = max(step for step in corruption.STEPS if step not in corrupt.bad_steps)
    # A manifest can be damaged where it doesn't matter; its checkpoint is then still good.
    allowed = [*corrupt.bad_steps, good] if "manifest.json" in corrupt.what else [good]
    if restored not in allowed:
        return f"restored step {restored}; it should restore {allowed}"
    for step in (step for step in corrupt.bad_steps if step > restored):
        if not re.search(rf"step-0*{step} is damaged", reports[0].output):
            return f"step {step} was skipped silently"
    return ""


def damages(rng: random.Random, quick: bool) -> Iterator[Corruption]:
    """Each kind of damage to each file, more than one bad checkpoint, leftovers."""
    pairs = list(product(corruption.FILE_DAMAGE, ("manifest.json", "state.pt")))
    pairs = rng.sample(pairs, 4) if quick else pairs
    for number, ((harm, fault, times), name) in enumerate(pairs):
        for again in range(1 if quick or times == 1 else 4):
            damage = partial(corruption.damage_file, harm, name, 4)
            what = f"{harm.__name__} {again} of {name}"
            world_size = 1 + (number + again) % 2
            yield Corruption(f"live: {fault}", what, damage, world_size=world_size)
    for number in range(1 if quick else 6):
        size = 1 + number % 2
        bad = partial(corruption.several_bad, (3, 4))
        what = f"{number}: manifest.json or state.pt"  # which one is drawn later
        yield Corruption("live: the newest two bad", what, bad, "falls back", (4, 3), size)
        every = every_state_bad
        yield Corruption("live: all bad", f"{number}", every, "is refused", (), size)
    if not quick:
        leftovers = "live: leftovers and other names"
        names = (corruption.leave_a_save, corruption.leave_other_names)
        for leave_it in names:
            yield Corruption(leftovers, leave_it.__name__, leave_it, "resumes", ())
        for publish in (corruption.publish_a_file, corruption.publish_nothing):
            yield Corruption(leftovers, publish.__name__, publish, bad_steps=(5,))
        linked = "live: a link out of the folder"
        for move in (corruption.move_and_link, corruption.link_a_file):
            yield Corruption(linked, move.__name__, move, "resumes", ())


def every_state_bad(checkpoints: Path, rng: random.Random) -> None:
    """Damage the state of each checkpoint."""
    for step in corruption.STEPS:
        harm = rng.choice([corruption.flip_a_bit, corruption.truncate, corruption.lose])
        harm(corruption.folder_of(checkpoints, step) / "state.pt", rng)


def corrupt(bench: Bench) -> Iterator[Try]:
    """The group: every damage, each to a fresh copy of a run that was killed."""
    templates = {size: corruption.template_of(bench, size, LIVE) for size in (1, 2)}
    for damage in damages(bench.rng("live_corruption"), bench.quick):
        template = templates[damage.world_size]
        yield corruption.meets(bench, damage, template, LIVE, wrong_answer)


# ---------------------------------------------------------------- chains of world sizes


def draw_plan(rng: random.Random) -> dict[str, Any]:
    """Settings with a global batch that the world sizes do not divide."""
    batch = rng.randrange(7, 24)
    return {
        "dataset_size": batch * rng.randrange(14, 20) + rng.randrange(1, batch),
        "global_batch_size": batch,
        "micro_batch_size": rng.randrange(-(-batch // 6), -(-batch // 2) + 1),
        "max_epochs": rng.choice((1, 1, 2)),
        # Each rank draws its own dropout, so a different world size gives different weights.
        "dropout": 0.0,
        "checkpoint_every_steps": rng.randrange(2, 5),
    }


def chains(bench: Bench) -> Iterable[Try]:
    """The group: chains of three or four starts, all but the last killed."""
    rng = bench.rng("live_chains")
    plans = [draw_plan(rng) for _ in range(1 if bench.quick else 6)]
    for number in range(2 if bench.quick else 24):
        sizes = rng.sample((1, 2, 3, 4), 4) if number else [2, 3, 1, 4]
        plan, sizes = plans[number % len(plans)], sizes[: rng.choice((3, 4))]
        yield chain(bench, rng, plan, {}, sizes, LIVE, "live: chain of world sizes")


# ---------------------------------------------------------------- random kills

LONG: dict[str, Any] = {
    "dataset_size": 1603,  # 101 steps an epoch
    "max_epochs": 6,
    "global_batch_size": 16,
    "micro_batch_size": 4,
    "checkpoint_every_steps": 10,
}
VICTIMS = ("a rank", "a rank", "all ranks", "the machine")


def draw(rng: random.Random, number: int) -> list[tuple[str, str]]:
    """Moments and victims for one run, most of them while it trains."""
    moments = rng.choices(("while_training", "during_start_up"), (3, 1), k=number - 1)
    return [(moment, rng.choice(VICTIMS)) for moment in [*moments, "during_shutdown"]]


def kill_at_random(bench: Bench) -> Iterable[Try]:
    """The group: runs of 2 and 3 ranks under torchrun, restarted by it or from the shell."""
    rng, made = bench.rng("live_kills"), 0
    while made < (1 if bench.quick else 36):
        world_size = 2 if bench.quick else rng.choice((2, 3))
        tries = kills.killed_run(
            bench,
            rng,
            {**LONG, "max_epochs": 1 if bench.quick else 6},
            [("while_training", "a rank")] if bench.quick else draw(rng, 9),
            forks=True,
            trainer=LIVE,
            world_size=world_size,
        )
        made += len(tries)
        yield from (each._replace(fault=f"live: {each.fault}") for each in tries)


# ---------------------------------------------------------------- how it ends


def ends(bench: Bench) -> Iterator[Try]:
    """The group: short jobs in real interpreters, which can abort after their last line.

    The other groups fork their ranks, and a fork exits without tearing an interpreter down.
    """
    for number in range(1 if bench.quick else 20):
        folder = bench.folder("ends")
        cfg = small_live(folder / "run", **SIX_STEPS_LIVE)
        store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": f"{store.port}"}
        meeting |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "OMP_NUM_THREADS": "1"}
        command = [sys.executable, str(script_of(cfg)), *arguments(cfg)]
        codes = run_all(command, meeting, 2)
        reference = bench.reference(cfg, 2)
        yield leave(
            folder,
            bench.judge(
                "live: exit of an interpreter",
                f"launch {number}",
                folder / "run",
                equal=same_weights(folder / "run", reference),
                problem="" if codes == [0, 0] else f"the ranks exited with {codes}",
            ),
        )


def run_all(command: list[str], meeting: dict[str, str], world_size: int) -> list[int | None]:
    """Run a command on each rank; their exit codes, None for one that had to be killed."""
    size = {"WORLD_SIZE": f"{world_size}"}
    ranks = [
        subprocess.Popen(
            command,
            env={**os.environ, **meeting, **size, "RANK": f"{rank}", "LOCAL_RANK": f"{rank}"},
            stdout=subprocess.DEVNULL,
        )
        for rank in range(world_size)
    ]
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and any(rank.poll() is None for rank in ranks):
        time.sleep(0.05)
    codes = [rank.poll() for rank in ranks]
    for rank in ranks:
        rank.kill()
        rank.wait()
    return codes
