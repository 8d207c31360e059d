"""What one check of the cell draws: steps, files, damages, settings, and what fails."""

from __future__ import annotations

import random
from typing import Any, NamedTuple

OLD, NEW = "step-00000005", "step-00000007"  # published before, and watched


class Damage(NamedTuple):
    """What happens to a published checkpoint."""

    what: str  # in words
    kind: str  # a key of choosing.DAMAGES
    file: str = ""
    at: float = 0.0  # where in the file, as a share of its length
    was: float = 0.0  # what an edit of the manifest raises by one; 0 for the step


class Plan(NamedTuple):
    """One check's numbers."""

    rng_files: int  # in a checkpoint that is published
    sizes: list[int]  # numbers in state.pt and in each of the rng files
    steps: list[int]  # of published checkpoints, the oldest first; by name, the first is newest
    facts: dict[str, Any]  # further facts of a manifest
    damages: list[Damage]
    step: int  # of what is saved and restored
    epoch: int
    losses: list[float]
    saved: dict[str, Any]  # hyperparameters of the run that was saved
    configured: dict[str, Any]  # and of the one that resumes
    moments_after: int  # optimizer steps before the save
    scales: list[int]  # of a scaler: saved, and new
    world_size: int
    late_rank: int
    failure: str  # the exception that writer.save raises
    seed: int

    def facts_of(self, step: int) -> dict[str, Any]:
        """What ``publish`` gets for a step."""
        return {"step": step, **self.facts}


def plan_of(seed: int) -> Plan:
    """Steps are such that the name of an older one comes later in the alphabet."""
    draw = random.Random(seed)
    files = draw.randint(2, 4)
    world_size = draw.choice((2, 2, 3))
    edge = 10**8
    rates = draw.sample((0.5, 0.1, 0.03, 0.02, 0.004), 2)
    decays = draw.sample((0.4, 0.3, 0.1, 0.05), 2)
    betas = draw.sample((0.5, 0.6, 0.8, 0.9), 2)
    settings = [
        {"lr": rate, "weight_decay": decay, "betas": [beta, 0.99], "eps": eps}
        for rate, decay, beta, eps in zip(rates, decays, betas, (1e-8, 1e-7), strict=True)
    ]
    for one, maximize in zip(settings, draw.sample((False, True), 2), strict=True):
        one["maximize"] = maximize
    facts = {"epoch": draw.randrange(1, 9), "time": draw.randrange(1, 10**6) / 8}
    return Plan(
        rng_files=files,
        sizes=draw.sample(range(20, 400), files + 1),
        steps=[edge - draw.randrange(20, 90), edge - draw.randrange(1, 20), edge]
        if draw.random() < 0.5
        else [edge - draw.randrange(1, 90), edge + draw.randrange(9), edge + 10],
        facts=facts,
        damages=drawn_damages(draw, files, facts["time"]),
        step=draw.choice((9, 10, 12, 99, 100)),
        epoch=draw.randrange(1, 9),
        losses=[draw.randrange(1, 64) / 8 for _ in range(draw.randint(1, 4))],
        saved=settings[0],
        configured=settings[1],
        moments_after=draw.randint(2, 5),
        scales=draw.sample(range(2, 90), 2),
        world_size=world_size,
        late_rank=draw.randrange(world_size),
        failure=draw.choice(("OSError", "RuntimeError", "ValueError", "KeyError", "DiskGone")),
        seed=draw.randrange(1000),
    )


def drawn_damages(draw: random.Random, rng_files: int, time: float) -> list[Damage]:
    """Of each kind one, at a drawn place of a drawn file."""
    rng = [f"rng-rank-{rank}.pt" for rank in draw.sample(range(rng_files), 2)]
    files = ["state.pt", *rng]
    at = draw.randrange(1, 99) / 100
    flipped, cut, grown, missing = (draw.choice(files) for _ in range(4))
    share = draw.choice((0.0, 0.5, 0.99))
    return [
        Damage(f"one bit of {flipped} flipped", "flip", flipped, at),
        Damage("one bit of state.pt flipped", "flip", "state.pt", draw.randrange(1, 99) / 100),
        Damage(f"{cut} cut to {share:.0%} of its bytes", "cut", cut, share),
        Damage(f"one more byte in {grown}", "grow", grown),
        Damage(f"no {missing}", "remove", missing),
        Damage(f"{rng[0]} and {rng[1]} exchanged", "swap", ",".join(rng)),
        Damage("no manifest.json", "remove", "manifest.json"),
        Damage("an empty manifest.json", "cut", "manifest.json", 0.0),
        Damage("manifest.json without its last byte", "cut", "manifest.json", 1.0),
        Damage("a different time in manifest.json", "edit", "manifest.json", was=time),
        Damage("a different step in manifest.json", "edit", "manifest.json"),
    ]
