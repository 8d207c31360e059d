"""Protein sequences as a masked language model trains on them: tokens, masks, rows.

The question it answers: "what does a model see of a sequence in this epoch, and what does it
have to predict, on whichever rank it lands?"

    L  residues of a sequence    B  rows    T  tokens in a row
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

# %% active="py"
from trainer_core.bio.batches import TensorBatch
from trainer_core.bio.bins import plan_batches, plan_packing
from trainer_core.bio.config import RowLayout
from trainer_core.bio.size_classes import short_digest
from trainer_core.data import SampleKey
from trainer_core.order import hash_words
from trainer_core.settings import UserError

# %%
# The 33 tokens of ESM-1b and ESM-2, in their order, so that ids mean the same there and here.
ESM_RESIDUES = "LAGVSERTIDPKQNFYMHWCXBUZO"
ESM_TOKENS = ("<cls>", "<pad>", "<eos>", "<unk>", *ESM_RESIDUES, ".", "-", "<null_1>", "<mask>")
CLS_TOKEN, PAD_TOKEN, EOS_TOKEN, MASK_TOKEN = (
    ESM_TOKENS.index(name) for name in ("<cls>", "<pad>", "<eos>", "<mask>")
)
FIRST_RESIDUE = ESM_TOKENS.index("L")
# X, B, U, Z, O follow the 20 standard ones: unknown, ambiguous, or rare.
NUM_STANDARD = ESM_RESIDUES.index("X")

# Part of the fingerprint. A change that masks other residues gets a new one.
MASKS_VERSION = "masks-1"

NO_TARGET = -100  # what cross_entropy leaves out

# By code point: a residue's id, or 0.
_ID_OF = np.zeros(256, dtype=np.uint8)
_ID_OF[[ord(letter) for letter in ESM_RESIDUES]] = FIRST_RESIDUE + np.arange(len(ESM_RESIDUES))


def encode_protein(sequence: str, record: str) -> NDArray[np.uint8]:
    """Residues as token ids, (L,), without <cls> and <eos>.

    Args:
        record: what a message calls the sequence: "uniref.fasta, record 17 (P69905)".

    Raises:
        UserError: if the sequence is empty, or has a letter that is no residue.
    """
    points = np.frombuffer(sequence.encode("utf-32-le", "surrogatepass"), dtype="<u4")
    ids: NDArray[np.uint8] = _ID_OF[np.minimum(points, 255)]
    if not len(ids):
        raise UserError(
            f"{record}: no residues. There is nothing to predict in it, so it has no loss. "
            "Drop the record."
        )
    if not ids.all():
        at = int((ids == 0).argmax())
        raise UserError(
            f"{record}, position {at + 1}: {sequence[at]!r} is not a residue. Residues are "
            f"{ESM_RESIDUES}, in upper case; the model has no token for anything else. Remove "
            "gaps and stops, write X for an unknown residue, or drop the record."
        )
    return ids


def decode_protein(ids: Sequence[int] | NDArray[Any] | Tensor) -> str:
    """The text of token ids, special tokens included: "<cls>MVLS<mask>AD<eos>"."""
    return "".join(ESM_TOKENS[int(token)] for token in ids)


# %%
class EncodedProteins:
    """Sequences as one array of a byte per residue, which loader workers share by fork.

    Args:
        names: one per sequence, for messages.

    Raises:
        UserError: if a sequence can't be encoded.
    """

    def __init__(self, names: Sequence[str], sequences: Sequence[str]) -> None:
        pairs = enumerate(zip(names, sequences, strict=True), start=1)
        parts = [encode_protein(text, f"record {row} ({name})") for row, (name, text) in pairs]
        self.residues = np.concatenate([np.empty(0, np.uint8), *parts])
        self.lengths = np.array([len(part) for part in parts], dtype=np.int64)
        self.ends = np.cumsum(self.lengths)

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, item: int) -> NDArray[np.uint8]:
        """The residues of one sequence; a view."""
        end = self.ends[item]
        return self.residues[end - self.lengths[item] : end]


# %%
def num_masked(num_residues: Any) -> Any:
    """How many of L residues are masked: 15 %, at least one; a number, or an array of them.

    In integers, halves up. Drawn per residue instead, as BERT does it, the number would be
    known only after the draw, and ranks would need a collective to learn the step's total.
    """
    return np.maximum(1, (15 * num_residues + 50) // 100)


class MaskedSequence(NamedTuple):
    """What a model sees of one visit to a sequence, and what it has to predict; each (T,)."""

    tokens: NDArray[np.int64]
    targets: NDArray[np.int64]  # NO_TARGET where nothing is asked


def mask_residues(
    residues: NDArray[np.uint8], *, seed: int, epoch: int, item: int, crop: int | None = None
) -> MaskedSequence:
    """<cls>, residues, <eos>, with 15 % of the residues to predict, as in BERT and ESM.

    Of those, 80 % are hidden behind <mask>, 10 % replaced by one of the 20 standard residues,
    and 10 % left as they are: the model can't tell which of the residues it sees are true.

    A function of (seed, epoch, item): the same on any rank, in any worker, after any resume.

    Args:
        crop: keep at most so many neighboring residues, at a place drawn for this visit. <cls>
            and <eos> then stay only where the sequence really begins or ends, as in ESM-2.
    """
    rng = np.random.default_rng(hash_words("masked residues", seed, epoch, item, count=4))
    window = len(residues) if crop is None else min(crop, len(residues))
    start = int(rng.integers(len(residues) - window + 1))
    true = residues[start : start + window].astype(np.int64)
    hidden = rng.choice(window, size=int(num_masked(window)), replace=False, shuffle=False)
    seen, targets = true.copy(), np.full(window, NO_TARGET)
    targets[hidden] = true[hidden]
    kind = rng.random(len(hidden))
    seen[hidden[kind < 0.8]] = MASK_TOKEN
    swapped = hidden[kind >= 0.9]
    seen[swapped] = FIRST_RESIDUE + rng.integers(NUM_STANDARD, size=len(swapped))
    before = [CLS_TOKEN] if start == 0 else []
    after = [EOS_TOKEN] if start + window == len(residues) else []
    return MaskedSequence(
        np.concatenate([before, seen, after]).astype(np.int64),
        np.pad(targets, (len(before), len(after)), constant_values=NO_TARGET),
    )


# %%
@dataclass(frozen=True, slots=True)
class ProteinBatch(TensorBatch):
    """Rows of one sequence and padding, or of several sequences; each tensor is (B, T) int64.

    Without sequences, it is its own placeholder: its loss is an exact zero, and its backward
    pass joins the gradient sync like any other.
    """

    num_sequences: int
    tokens: Tensor
    targets: Tensor  # NO_TARGET where nothing is asked
    segments: Tensor  # 1, 2, ... for a row's sequences; 0 is padding
    positions: Tensor  # from 0 in each segment

    def __len__(self) -> int:
        """How many sequences there are; rows may hold several."""
        return self.num_sequences

    def placeholder(self) -> ProteinBatch:
        """A row of <cls> and <eos> without targets."""
        return collate_rows([]).to(self.tokens.device)


def collate_rows(
    rows: Sequence[Sequence[MaskedSequence]], width: int | None = None
) -> ProteinBatch:
    """Rows of whole sequences as one batch, padded to ``width``, or to the longest row."""
    num_sequences = sum(map(len, rows))
    if not num_sequences:
        ends = np.array([CLS_TOKEN, EOS_TOKEN])
        rows = [[MaskedSequence(ends, np.full(2, NO_TARGET))]]
    used = [sum(len(sequence.tokens) for sequence in row) for row in rows]
    shape = len(rows), max(width or 0, *used)
    tokens, targets = np.full(shape, PAD_TOKEN), np.full(shape, NO_TARGET)
    segments, positions = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    for at, row in enumerate(rows):
        start = 0
        for segment, sequence in enumerate(row, start=1):
            own = at, slice(start, start := start + len(sequence.tokens))
            tokens[own] = sequence.tokens
            targets[own] = sequence.targets
            segments[own] = segment
            positions[own] = np.arange(len(sequence.tokens))
    tensors = map(torch.from_numpy, (tokens, targets, segments, positions))
    return ProteinBatch(num_sequences, *tensors)


def segment_mask(segments: Tensor) -> Tensor:
    """Block-diagonal attention: who may attend to whom, (B, 1, T, T) bool.

    Padding attends to padding. A row of the mask without any True would be a softmax over
    nothing, which is NaN, and NaN times zero is NaN in the gradient.
    """
    return (segments[:, None, :, None] == segments[:, None, None, :]).detach()


# %%
class MaskedProteins:
    """Bins of sequences as the trainer's samples, masked anew in each epoch.

    Args:
        budget: tokens in a bin: with padding if ``padded``, and the row's length if ``packed``.
        seed: the run's; it decides which sequences meet, and what is masked.
        crop: train at most so many residues of a sequence, others in each epoch. A sequence
            longer than the budget is refused otherwise.

    Raises:
        UserError: if a sequence doesn't fit in the budget.
    """

    num_classes = len(ESM_TOKENS)

    def __init__(
        self,
        proteins: EncodedProteins,
        budget: int,
        *,
        seed: int,
        layout: RowLayout = "padded",
        crop: int | None = None,
    ) -> None:
        if crop is not None and crop < 1:
            raise UserError(
                f"crop={crop}: a sequence would have no residue left to predict. Set it to at "
                "least 1, or to None for whole sequences."
            )
        self.proteins, self.seed, self.layout, self.crop = proteins, seed, layout, crop
        self.width = budget if layout == "packed" else None
        # With <cls> and <eos>: at most so many tokens, whatever the crop cuts away.
        lengths = np.minimum(proteins.lengths, crop or proteins.lengths.max(initial=0)) + 2
        plan = plan_packing if layout == "packed" else plan_batches
        self.plan = plan(lengths, budget)
        # Per bin, and the same in every epoch: it depends on the lengths only.
        self.loss_terms = self.plan.per_bin(num_masked(self.plan.sizes[:, 0] - 2))
        content = hashlib.sha256(proteins.residues.tobytes()).hexdigest()
        self.fingerprint = short_digest(MASKS_VERSION, content, self.plan.digest, crop)

    def __len__(self) -> int:
        """How many bins there are: the trainer's samples."""
        return len(self.plan)

    def num_terms(self, bins: ArrayLike) -> int:
        """Masked residues in these bins, such as a step's, in any epoch; no collective."""
        return int(self.loss_terms[np.asarray(bins, dtype=np.int64)].sum())

    def batch(self, keys: Sequence[SampleKey]) -> ProteinBatch:
        """The sequences in the bins of ``keys``; a padded bin has a row for each sequence."""
        rows: list[list[MaskedSequence]] = []
        for epoch, bin_id in keys:
            items = self.plan.items(bin_id, seed=self.seed, epoch=epoch).tolist()
            visits = [self._visit(epoch, item) for item in items]
            rows += [visits] if self.layout == "packed" else [[visit] for visit in visits]
        return collate_rows(rows, self.width if rows else None)

    def _visit(self, epoch: int, item: int) -> MaskedSequence:
        residues = self.proteins[item]
        return mask_residues(residues, seed=self.seed, epoch=epoch, item=item, crop=self.crop)
