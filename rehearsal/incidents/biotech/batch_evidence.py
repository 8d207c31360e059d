"""Figures about what batches held, whose labels they were, and whether a symmetry survived."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from statistics import median
from typing import NamedTuple

from rehearsal.evidence.run_records import rank_files, read_jsonl
from rehearsal.incidents.biotech.batches import BATCHES
from rehearsal.incidents.biotech.library import plates_of
from rehearsal.incidents.biotech.symmetry_check import SYMMETRY
from rehearsal.incidents.evidence import Evidence
from rehearsal.incidents.job_records import Record

FEWEST_LABELS = 30  # of a plate, for a share of actives that means something
LEARNING = 0.25  # of the steps: until then the model expects too much of everybody


class Plate(NamedTuple):
    """What was measured on a plate, and what the model made of it while it trained."""

    labels: int
    actives: float  # share of the labels
    expected: float  # mean probability, before each step's update
    loss: float  # per label, nats

    @property
    def gap(self) -> float:
        """How far the model's expectation is from what was read."""
        return abs(self.actives - self.expected)


class BatchEvidence(Evidence):
    """A job's batches, and what they add up to."""

    @cached_property
    def batches(self) -> list[Record]:
        """A record per forward pass, by attempt, step and rank."""
        found = [r for path in rank_files(self.run_dir, BATCHES) for r in read_jsonl(path)]
        return sorted(found, key=lambda r: (r["attempt"], r["step"], r["rank"]))

    # ------------------------------------------------------------ tokens

    @cached_property
    def tokens_at(self) -> dict[tuple[int, int], list[int]]:
        """Tokens of each rank, by attempt and step; steps in which every rank has some."""
        found: dict[tuple[int, int], dict[int, int]] = {}
        for record in self.batches:
            if "tokens" in record:
                of = found.setdefault((record["attempt"], record["step"]), {})
                of[record["rank"]] = of.get(record["rank"], 0) + record["tokens"]
        return {
            at: [*of.values()] for at, of in found.items() if len(of) == self.plan.world_size
        }

    def idle_share(self) -> float:
        """The share of their time that ranks wait for the one with the most tokens."""
        most = sum(max(of) for of in self.tokens_at.values())
        total = sum(map(sum, self.tokens_at.values()))
        return 1 - total / (most * self.plan.world_size) if most else 0.0

    def token_skew(self) -> float:
        """The most tokens of a rank in a step over the fewest; the median over steps."""
        ratios = [max(of) / min(of) for of in self.tokens_at.values()]
        return median(ratios) if ratios else 1.0

    def least_often_busiest(self) -> float:
        """In what share of the steps a rank has the most tokens; of the rank with the least."""
        busiest = [of.index(max(of)) for of in self.tokens_at.values()]
        shares = [busiest.count(rank) / len(busiest) for rank in self.ranks if busiest]
        return min(shares, default=0.0)

    # ------------------------------------------------------------ memory

    @cached_property
    def fatal_batches(self) -> list[Record]:
        """The last batch of each rank that was killed with SIGKILL."""
        killed = [
            (attempt["attempt"], rank["rank"])
            for attempt in self.attempts
            for rank in attempt["ranks"]
            if rank["exitcode"] == -9
        ]
        last = {(r["attempt"], r["rank"]): r for r in self.batches}
        return [last[who] for who in killed if who in last]

    def fatal_length(self) -> float:
        """The longest protein of the batches at which ranks died, over a usual batch's."""
        usual = [r["longest"] for r in self.batches if "longest" in r]
        fatal = [r["longest"] for r in self.fatal_batches if "longest" in r]
        return min(fatal) / median(usual) if fatal else 0.0

    # ------------------------------------------------------------ plates

    @cached_property
    def plates(self) -> Mapping[int, Plate]:
        """Each plate, over the steps in which the model had learned something."""
        records = [r for r in self.batches if "expected" in r]
        last = max((r["step"] for r in records), default=0)
        molecules, plates = self.trained_molecules(), plates_of(self.plan)
        sums: dict[int, list[float]] = {}
        for record in records:
            if record["step"] > LEARNING * last:
                columns = (record[n] for n in ("labels", "actives", "expected", "losses"))
                for sample, *values in zip(record["samples"], *columns, strict=True):
                    plate = int(plates[molecules[sample]])
                    of = sums.setdefault(plate, [0.0] * 4)
                    of[:] = [total + value for total, value in zip(of, values, strict=True)]
        return {
            plate: Plate(round(of[0]), *(total / of[0] for total in of[1:]))
            for plate, of in sorted(sums.items())
            if of[0]
        }

    def trained_molecules(self) -> list[int]:
        """Which of the lab's molecules each sample of the training part is."""
        raise NotImplementedError

    def miscalibration(self) -> float:
        """How far a plate's share of actives is from what the model expects there, at most."""
        gaps = [p.gap for p in self.plates.values() if p.labels >= FEWEST_LABELS]
        return max(gaps, default=0.0)

    def loudest_plate(self) -> float:
        """The largest loss per label of a plate over the median plate's."""
        losses = [p.loss for p in self.plates.values() if p.labels >= FEWEST_LABELS]
        return max(losses) / median(losses) if losses else 1.0

    # ------------------------------------------------------------ symmetry

    @cached_property
    def symmetry(self) -> Record | None:
        """The last check of the trained network; None if there was none."""
        found = [r for path in rank_files(self.run_dir, SYMMETRY) for r in read_jsonl(path)]
        return found[-1] if found else None

    def turning_error(self) -> float:
        """How far a rotation or reflection changes the network's vectors, relative to them."""
        if self.symmetry is None:
            return 0.0
        errors = self.symmetry["vectors"]
        return float(max(errors["rotation"], errors["reflection"]))

    def moving_error(self) -> float:
        """The same for shifting all atoms and for renumbering them."""
        if self.symmetry is None:
            return 0.0
        errors = self.symmetry["vectors"]
        return float(max(errors["translation"], errors["permutation"]))
