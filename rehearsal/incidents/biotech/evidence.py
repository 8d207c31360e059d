"""Every figure that an alarm or a claim of the biotech track needs.

A job's own figures are compared with what the lab knows, with its own parts, and with a batch
that was measured later. Nothing here uses the code that the job ran.

    n  molecules that were prepared    t  assays
"""

from __future__ import annotations

import json
from functools import cached_property
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rehearsal.evidence.run_records import rank_files, read_jsonl
from rehearsal.incidents.biotech.batch_evidence import BatchEvidence
from rehearsal.incidents.biotech.library import Truth, truth_of
from rehearsal.incidents.biotech.in_rank import DATA
from rehearsal.incidents.biotech.after_training import SCORES
from rehearsal.incidents.biotech.world import data_of
from rehearsal.incidents.job_records import Record

Floats = NDArray[np.floating[Any]]
TRAIN, VALIDATION = 0, 1


def auroc(labels: Floats, scores: Floats) -> float:
    """The chance that an active scores above an inactive; NaN without one of them."""
    active, inactive = scores[labels == 1], scores[labels == 0]
    if not (active.size and inactive.size):
        return float("nan")
    above = active[:, None] - inactive[None, :]
    return float((above > 0).mean() + (above == 0).mean() / 2)


def mean_of(values: list[float]) -> float:
    """The mean of those that are numbers; NaN of none."""
    known = [value for value in values if value == value]
    return fmean(known) if known else float("nan")


class BioEvidence(BatchEvidence):
    """A biotech job's records, and what they add up to."""

    # ------------------------------------------------------------ what there is

    @property
    def data(self) -> str:
        """What the job trains on."""
        return data_of(self.plan)

    @cached_property
    def truth(self) -> Truth:
        """What the lab knows."""
        return truth_of(self.plan)

    @cached_property
    def evaluated(self) -> Record | None:
        """The job's own figures at the end of its training; None if it didn't get there."""
        found = self.events("evaluated", rank=0)
        return found[-1] if found else None

    @cached_property
    def scored(self) -> dict[int, Record]:
        """What each rank kept at the last evaluation; without those that died before it."""
        found = {}
        for path in rank_files(self.run_dir, SCORES):
            if lines := list(read_jsonl(path)):
                found[int(path.stem.removeprefix("rank-"))] = lines[-1]
        return found

    @cached_property
    def parts(self) -> NDArray[np.int8]:
        """0 train, 1 validation, 2 test, (n,); empty if nothing was prepared."""
        paths = sorted((self.folder / DATA / "prepared").glob("split-*.npy"))
        return np.load(paths[0]) if paths else np.zeros(0, np.int8)

    @cached_property
    def prepared_labels(self) -> Floats:
        """Labels of the prepared molecules, (n, t), NaN where one is missing."""
        path = self.folder / DATA / "prepared" / "labels.npy"
        return np.load(path) if path.exists() else np.zeros((0, 0), np.float32)

    @cached_property
    def molecule_of(self) -> NDArray[np.int64]:
        """Which of the lab's molecules each prepared one is, (n,)."""
        path = self.folder / DATA / "rows.npy"
        rows = np.load(path) if path.exists() else np.zeros(0, np.int64)
        return np.asarray(np.array(self.truth.rows, np.int64)[rows])

    def trained_molecules(self) -> list[int]:
        """Which of the lab's molecules each sample of the training part is."""
        found: list[int] = self.molecule_of[self.parts == TRAIN].tolist()
        return found

    @cached_property
    def leakage(self) -> Record | None:
        """The leakage report of the validation part."""
        path = self.folder / DATA / "leakage.json"
        found: Record | None = json.loads(path.read_text("utf-8")) if path.exists() else None
        return found

    @cached_property
    def bits(self) -> tuple[Floats, Floats]:
        """Fingerprints of the prepared molecules and of the fresh batch, (n, F) 0 or 1."""
        folder = self.folder / DATA
        paths = (folder / "prepared" / "fingerprints.npy", folder / "fresh.npy")
        if not all(path.exists() for path in paths):
            return np.zeros((0, 8)), np.zeros((0, 8))
        both = [np.unpackbits(np.load(path), axis=1).astype(np.float32) for path in paths]
        return both[0], both[1]

    # ------------------------------------------------------------ training

    def learned(self) -> float:
        """The last steps' loss over the first ones'; 0.0 if the job gave up before the end."""
        losses = self.losses()
        return fmean(losses[-8:]) / fmean(losses[:3]) if self.is_done() else 0.0

    # ------------------------------------------------------------ scores

    @cached_property
    def all_scores(self) -> tuple[NDArray[np.int64], Floats, Floats]:
        """Validation molecules that any rank scored, once each: ids, scores, own labels."""
        rows: dict[int, tuple[list[float], list[float]]] = {}
        for found in self.scored.values():
            if "samples" in found:
                both = zip(found["scores"], found["labels"], strict=True)
                rows |= dict(zip(found["samples"], both, strict=True))
        ids = np.array(sorted(rows), np.int64)
        scores = np.array([rows[i][0] for i in ids.tolist()], np.float32)
        return ids, scores, np.array([rows[i][1] for i in ids.tolist()], np.float32)

    @cached_property
    def fresh_scores(self) -> Floats:
        """Of the batch that was measured later, (m, t); empty if there are none."""
        found = self.scored.get(0, {}).get("fresh", []) if self.data == "molecules" else []
        return np.array(found, np.float32)

    def validation_aurocs(self) -> list[float]:
        """AUROC of each assay over all scores of the validation part, by the lab's labels."""
        ids, scores, _ = self.all_scores
        return self.aurocs_of(ids, scores)

    def held_out_aurocs(self) -> list[float]:
        """The same over both parts that weren't trained on: validation and test."""
        ids, scores, _ = self.all_scores
        test = self.scored.get(0, {}).get("test")
        if not len(ids) or test is None:
            return []
        both = np.concatenate([ids, np.array(test[0], np.int64)])
        return self.aurocs_of(both, np.concatenate([scores, np.array(test[1], np.float32)]))

    def aurocs_of(self, ids: NDArray[np.int64], scores: Floats) -> list[float]:
        """AUROC of each assay on some prepared molecules, by the lab's labels."""
        if not len(ids):
            return []
        known = self.truth.known[self.molecule_of[ids]]
        return [auroc(labels, column) for labels, column in zip(known.T, scores.T, strict=True)]

    def fresh_aurocs(self) -> list[float]:
        """AUROC of each assay on the fresh batch."""
        if not self.fresh_scores.size:
            return []
        pairs = zip(self.truth.fresh_labels.T, self.fresh_scores.T, strict=True)
        return [auroc(labels, column) for labels, column in pairs]

    def optimism(self) -> float:
        """How far the mean AUROC of what was held out is above that of the fresh batch."""
        gap = mean_of(self.held_out_aurocs()) - mean_of(self.fresh_aurocs())
        return gap if gap == gap else 0.0

    def underrated(self) -> float:
        """The fresh batch's share of actives over the mean probability that it gets."""
        if not self.fresh_scores.size:
            return 1.0
        return float(self.truth.fresh_labels.mean() / max(self.fresh_scores.mean(), 1e-6))

    def fresh_recall(self) -> float:
        """The share of the fresh batch's actives that get a probability of a half or more."""
        if not self.fresh_scores.size:
            return 0.0
        return float((self.fresh_scores[self.truth.fresh_labels == 1] >= 0.5).mean())

    def own_aurocs(self) -> list[float]:
        """The mean over the ranks of the AUROC that each finds on its own molecules."""
        found = []
        for place in range(len(self.truth.assays)):
            of_ranks = []
            for kept in self.scored.values():
                labels = np.array([row[place] for row in kept["labels"]], np.float32)
                scores = np.array([row[place] for row in kept["scores"]], np.float32)
                of_ranks.append(auroc(labels, scores))
            found.append(mean_of(of_ranks))
        return found

    def metric_mismatch(self) -> float:
        """How far a reported AUROC is from the one over all scores, at most, over the assays.

        By the labels that the job had, whatever the lab says.
        """
        _, scores, labels = self.all_scores
        if self.evaluated is None or not len(labels):
            return 0.0
        reported, apart = self.evaluated["tasks"], [0.0]
        for name, column, of in zip(self.truth.assays, scores.T, labels.T, strict=True):
            if name in reported:
                apart.append(abs(reported[name]["values"]["auroc"] - auroc(of, column)))
        return max(x for x in apart if x == x)

    # ------------------------------------------------------------ labels and parts

    def measured_labels(self) -> int:
        """Cells of the training part that the lab measured."""
        known = self.truth.known[self.molecule_of[self.parts == TRAIN]]
        return int((~np.isnan(known)).sum())

    def trained_labels(self) -> int:
        """Loss terms of an epoch: labels that the job trained on."""
        return sum(self.scored.get(0, {}).get("terms", []))

    def invented_labels(self) -> float:
        """Labels that the job trained on, over those that the lab measured."""
        return self.trained_labels() / max(self.measured_labels(), 1)

    def shared_scaffolds(self) -> float:
        """The share of validation molecules whose scaffold is in the training part, too."""
        if self.leakage is None:
            return 0.0
        return float(self.leakage["figures"]["scaffolds"]["fraction"])

    def nearest(self) -> tuple[Floats, Floats]:
        """Tanimoto similarity to the nearest training molecule: validation, fresh batch."""
        bits, fresh = self.bits
        train = bits[self.parts == TRAIN]
        if not len(train):
            return np.zeros(0), np.zeros(0)
        return nearest_in(train, bits[self.parts == VALIDATION]), nearest_in(train, fresh)

    def closeness(self) -> float:
        """How much nearer to the training part validation molecules are than fresh ones."""
        validation, fresh = self.nearest()
        if not (validation.size and fresh.size):
            return 0.0
        return float(np.median(validation) - np.median(fresh))

    # ------------------------------------------------------------ graphs

    @cached_property
    def energies(self) -> dict[str, Floats]:
        """Energies of the job's own parts: train, held back, all; empty before it evaluates."""
        found = self.scored.get(0, {})
        if "deviation" not in found:
            return {}
        train, mean, deviation = found["train"], found["mean"], found["deviation"]
        held_back = [label * deviation + mean for _, label in found["held_back"]]
        parts = {"train": train, "held back": held_back, "all": [*train, *held_back]}
        return {name: np.array(values) for name, values in parts.items()}

    def used_scale(self) -> float:
        """The deviation that the job scales energies by, over that of its training part."""
        if not self.energies:
            return 1.0
        return float(self.scored[0]["deviation"] / self.energies["train"].std())

    def fresh_error(self) -> float:
        """The fresh batch's mean error, in deviations of the training part; 0.0 without one."""
        found = self.scored.get(0, {}).get("fresh", [])
        if self.data != "graphs" or not found:
            return 0.0
        missed = fmean(abs(predicted - energy) for predicted, energy in found)
        return float(missed / self.energies["train"].std())

    def held_back_error(self) -> float:
        """The same of the part that was held back."""
        found = self.scored.get(0, {})
        if not found.get("held_back"):
            return 0.0
        missed = fmean(abs(predicted - label) for predicted, label in found["held_back"])
        return float(missed * found["deviation"] / self.energies["train"].std())

    def flattery(self) -> float:
        """The held-back error, in deviations of the training part, over the reported one."""
        if self.evaluated is None or not self.held_back_error():
            return 1.0
        return self.held_back_error() / max(float(self.evaluated["mean_absolute_error"]), 1e-9)


def nearest_in(train: Floats, asked: Floats) -> Floats:
    """The Tanimoto similarity of each asked fingerprint to its nearest one in train."""
    shared = asked @ train.T
    either = asked.sum(axis=1)[:, None] + train.sum(axis=1)[None, :] - shared
    return np.asarray((shared / np.maximum(either, 1)).max(axis=1))
