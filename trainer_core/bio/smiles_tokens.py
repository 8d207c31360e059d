"""SMILES as tokens: a regular expression, a vocabulary, and files of uint16 ids.

Part of the biotech track. Joining the tokens of a SMILES gives it back, character for
character; what the expression can't cover is refused instead of dropped.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

# %% active="py"
from trainer_core.settings import UserError

# %%
SMILES_TOKEN = re.compile(
    r"""\[[^\[\]\s]+\]      # a bracket atom is one token: [nH], [C@@H], [13C], [NH3+]
      | Br | Cl             # before B and C, or bromine would be boron and an "r"
      | [BCNOPSFI]          # the organic subset
      | [bcnops]            # and its aromatic atoms
      | %\d\d | %\(\d+\)    # ring closures from 10
      | \d                  # ring closures 0 to 9
      | [-=\#$:/\\~]        # bonds
      | [().*]              # branches, the dot between fragments, any atom
    """,
    re.VERBOSE,
)
SPECIAL_TOKENS = ("<pad>", "<bos>", "<eos>", "<unk>", "<mask>")
PAD_ID, BOS_ID, EOS_ID, UNKNOWN_ID, MASK_ID = range(len(SPECIAL_TOKENS))
TokenIds = NDArray[np.uint16]


def split_smiles(text: str) -> list[str]:
    """The tokens of a SMILES.

    Raises:
        UserError: if a character belongs to no token.
    """
    tokens = SMILES_TOKEN.findall(text)
    if "".join(tokens) == text:
        return tokens
    # Walk to the first place where no token begins.
    place = 0
    while match := SMILES_TOKEN.match(text, place):
        place = match.end()
    raise UserError(
        f"{text!r}: {text[place]!r} at character {place + 1} begins no SMILES token. Dropping "
        "it would change the molecule. Write canonical SMILES, as molecules.py does."
    )


class SmilesVocabulary:
    """Tokens and their ids: the special ones, then every token seen, most common first.

    Args:
        tokens: without the special ones.

    Raises:
        UserError: if uint16 can't number them.
    """

    def __init__(self, tokens: Sequence[str]) -> None:
        self.tokens = (*SPECIAL_TOKENS, *tokens)
        if len(self.tokens) > 65536 or len(set(self.tokens)) < len(self.tokens):
            raise UserError(
                f"{len(tokens)} tokens: ids are uint16, and every token needs one of its own. "
                "Use at most 65531 different tokens."
            )
        self.ids = {token: place for place, token in enumerate(self.tokens)}

    @classmethod
    def from_smiles(cls, smiles: Iterable[str]) -> SmilesVocabulary:
        """The vocabulary of a corpus; it doesn't depend on the corpus's order."""
        counts: Counter[str] = Counter()
        for text in smiles:
            counts.update(split_smiles(text))
        return cls(sorted(counts, key=lambda token: (-counts[token], token)))

    def __len__(self) -> int:
        return len(self.tokens)

    def encode(self, text: str, *, allow_unknown: bool = False) -> TokenIds:
        """Ids between <bos> and <eos>; uint16 on disk, cast to int64 for an embedding.

        Raises:
            UserError: if a token isn't in the vocabulary, unless ``allow_unknown``.
        """
        tokens = split_smiles(text)
        ids = [self.ids.get(token, UNKNOWN_ID) for token in tokens]
        if UNKNOWN_ID in ids and not allow_unknown:
            raise UserError(
                f"{text!r}: no id for {tokens[ids.index(UNKNOWN_ID)]!r}. The vocabulary is "
                "from other molecules. Build it from this corpus too, or pass "
                "allow_unknown=True."
            )
        return np.array([BOS_ID, *ids, EOS_ID], dtype=np.uint16)

    def decode(self, ids: Iterable[int]) -> str:
        """The SMILES of some ids; special ones other than <unk> and <mask> leave no trace."""
        silent = (PAD_ID, BOS_ID, EOS_ID)
        return "".join(self.tokens[i] for i in map(int, ids) if i not in silent)


# %%
class TokenizedSmiles(NamedTuple):
    """A corpus on disk: all ids in one file, and where each molecule begins."""

    ids: TokenIds  # (tokens,) mapped read-only
    starts: NDArray[np.int64]  # (n + 1,)

    def __len__(self) -> int:
        return len(self.starts) - 1

    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each molecule, (n,): what bins are packed by."""
        return np.diff(self.starts)

    def molecule(self, index: int) -> NDArray[np.int64]:
        """One molecule's ids, as the int64 that an embedding looks up."""
        return self.ids[self.starts[index] : self.starts[index + 1]].astype(np.int64)


def write_smiles_tokens(
    smiles: Iterable[str], vocabulary: SmilesVocabulary, folder: Path
) -> TokenizedSmiles:
    """Tokenize a corpus into ``folder``: ids.bin, starts.npy and vocabulary.txt.

    Raises:
        UserError: naming the row, if it can't be tokenized; if ``folder`` exists.
    """
    if folder.exists():
        raise UserError(
            f"{folder} exists, and a run may be reading it. Tokens are never written over. "
            "Choose another folder, or delete this one first."
        )
    # Renamed when complete: an interrupted run leaves nothing that looks finished.
    partial = folder.with_name(folder.name + ".partial")
    partial.mkdir(parents=True, exist_ok=True)
    starts = [0]
    with (partial / "ids.bin").open("wb") as file:
        for row, text in enumerate(smiles, start=1):
            try:
                ids = vocabulary.encode(text)
            except UserError as error:
                raise UserError(f"row {row}: {error}") from None
            file.write(ids.astype("<u2").tobytes())
            starts.append(starts[-1] + len(ids))
    (partial / "vocabulary.txt").write_text("".join(f"{t}\n" for t in vocabulary.tokens))
    np.save(partial / "starts.npy", np.array(starts, dtype=np.int64))
    partial.rename(folder)
    return open_smiles_tokens(folder)


def open_smiles_tokens(folder: Path) -> TokenizedSmiles:
    """The corpus that ``write_smiles_tokens`` wrote.

    Raises:
        UserError: if it isn't complete.
    """
    path = folder / "starts.npy"
    starts = np.load(path) if path.exists() else np.zeros(0, np.int64)
    size = (folder / "ids.bin").stat().st_size if path.exists() else 0
    if not len(starts) or size != 2 * starts[-1]:
        raise UserError(
            f"{folder}: ids.bin has {size} bytes and starts.npy {len(starts)} entries, which "
            "don't belong together. Tokenize the corpus again."
        )
    ids = np.memmap(folder / "ids.bin", dtype="<u2", mode="r") if size else np.zeros(0, "<u2")
    return TokenizedSmiles(ids, starts)
