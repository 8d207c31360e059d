"""Fit the deck's matcher to the labeled answers, and write rehearsal/deck/matcher.toml.

    python scripts/fit_matcher.py            fit and write
    python scripts/fit_matcher.py --check    how well it does on answers to cards left out

The claims in rehearsal/cards were widened until they fit the answers in tests/answers/tuning,
so on those they look better than they are. Hence an answer only counts with the claims of a
commit that did not have it yet; the script reads those from git. The held-out answers aren't
read.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import subprocess
import tarfile
import tempfile
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from sklearn.linear_model import LogisticRegression

from rehearsal.deck.cards import CARDS, Card, read_deck
from rehearsal.deck.evidence import evidence
from rehearsal.deck.judge import read
from rehearsal.deck.passages import stems_of
from rehearsal.deck.weights import ALWAYS, MATCHER
from rehearsal.session.history import Found
from scripts.deck_agreement import ANSWERS, label

ROOT = Path(__file__).resolve().parents[1]
# Commits whose claims were written before the answers that they don't have yet, and what such
# an answer counts: the more, the more the claims are like today's.
COMMITS = {"8562621": 0.75, "8b4017d": 0.75, "5406aff": 2.0}
STRENGTH = 0.1  # of the fit; less keeps the weights smaller
CAUTION = 0.5  # taken from "covered": praise for what wasn't said is the worst error
FOLDS = 6
LABELS: Sequence[Found] = ("missed", "covered", "contradicted")


class Example(NamedTuple):
    """One point of one answer."""

    card: str
    kind: str
    numbers: Mapping[str, float]
    label: Found
    counts: float


def answers_in(folder: Path) -> list[dict[str, Any]]:
    """The labeled answers of all topics."""
    files = sorted(folder.glob("*.toml"))
    return [one for path in files for one in tomllib.loads(path.read_text("utf-8"))["answer"]]


def examples() -> Iterator[Example]:
    """Every answer with all claims that were written before it, and the strong answers."""
    answers = answers_in(ANSWERS / "tuning")
    for commit, counts in COMMITS.items():
        with tempfile.TemporaryDirectory() as folder:
            unpack(commit, Path(folder))
            deck = {card.id: card for card in read_deck([Path(folder, "rehearsal/cards")])}
            known = {one["text"] for one in answers_in(Path(folder, "tests/answers/tuning"))}
        for answer in answers:
            if answer["text"] not in known:
                yield from points_of(deck[answer["card"]], answer, counts)
    for card in read_deck([CARDS]):
        covered = [point.id for point in card.points]
        strong = {"text": card.strong, "kind": "strong", "covered": covered, "contradicted": []}
        yield from points_of(card, strong, STRONG_COUNTS)


STRONG_COUNTS = 0.2


def unpack(commit: str, folder: Path) -> None:
    """Put a commit's cards and labeled answers into a folder."""
    paths = ["rehearsal/cards", "tests/answers/tuning"]
    packed = subprocess.run(
        ["git", "archive", commit, *paths], cwd=ROOT, check=True, capture_output=True
    ).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as files:
        files.extractall(folder, filter="data")


def points_of(card: Card, answer: Mapping[str, Any], counts: float) -> Iterator[Example]:
    """The points of one answer."""
    found = evidence(card, read(card, answer["text"]))
    for point, each in zip(card.points, found, strict=True):
        if each.is_negated:
            continue  # contradicted, whatever the numbers
        yield Example(card.id, answer["kind"], each.numbers, label(answer, point), counts)


class Fitted(NamedTuple):
    """What each number counts for each label, and what counts in any case."""

    names: Sequence[str]
    weights: np.ndarray  # (labels, names); those of "missed" are 0
    always: np.ndarray  # (labels,)

    def decide(self, given: Sequence[Example]) -> np.ndarray:
        """The label of each, by its number."""
        sums = matrix(given, self.names) @ self.weights.T + self.always
        return np.asarray(sums.argmax(axis=1))


def matrix(given: Sequence[Example], names: Sequence[str]) -> np.ndarray:
    """The numbers of each example in a row."""
    return np.array([[float(one.numbers[name]) for name in names] for one in given])


def fit(given: Sequence[Example]) -> Fitted:
    """A logistic regression, as weights for the numbers as they are."""
    names = list(given[0].numbers)
    numbers = matrix(given, names)
    mean, spread = numbers.mean(axis=0), numbers.std(axis=0) + 1e-9
    model = LogisticRegression(C=STRENGTH, max_iter=1000, tol=1e-6)
    labels = [LABELS.index(one.label) for one in given]
    model.fit((numbers - mean) / spread, labels, [one.counts for one in given])
    weights = model.coef_ / spread
    always = model.intercept_ - weights @ mean
    always[LABELS.index("covered")] -= CAUTION
    return Fitted(names, weights - weights[0], always - always[0])


def rarities() -> dict[str, float]:
    """How rare each stem is on the cards: 0 if each card has it, 1 if only one has."""
    cards, count = read_deck([CARDS]), Counter[str]()
    for card in cards:
        texts = [card.question, card.weak, card.why_weak, card.strong, card.follow_up]
        texts += [point.text for point in card.points]
        count.update({stem for text in texts for stem in stems_of(text)})
    most = len(cards) + 1
    return {
        stem: round(math.log(most / (n + 1)) / math.log(most / 2), 2)
        for stem, n in sorted(count.items())
    }


def write(tables: Mapping[str, Mapping[str, float]]) -> None:
    """Write the matcher's file."""
    lines = ["# Written by scripts/fit_matcher.py; rehearsal/deck/weights.py says what it is."]
    for name, table in tables.items():
        lines += ["", f"[{name}]"]
        lines += [f"{json.dumps(k, ensure_ascii=False)} = {v}" for k, v in table.items()]
    MATCHER.write_text("\n".join(lines) + "\n", "utf-8")


def check(given: Sequence[Example]) -> None:
    """Print how well a fit does on the answers to cards that it wasn't given."""
    cards = sorted({one.card for one in given})
    right, false, elsewhere, negated, found = (Counter[float]() for _ in range(5))
    total = Counter[float]()
    for fold in range(FOLDS):
        left_out = {*cards[fold::FOLDS]}
        fitted = fit([one for one in given if one.card not in left_out])
        judged = [one for one in given if one.card in left_out and one.kind != "strong"]
        for one, number in zip(judged, fitted.decide(judged), strict=True):
            now = LABELS[number]
            total[one.counts] += 1
            right[one.counts] += now == one.label
            elsewhere[one.counts] += one.label != "covered"
            false[one.counts] += now == "covered" != one.label
            if one.kind == "negated" and one.label == "contradicted":
                negated[one.counts] += 1
                found[one.counts] += now == one.label
    for counts, of in total.items():
        print(
            f"{of} points that count {counts}: agree {right[counts] / of:.1%}, falsely covered "
            f"{false[counts] / elsewhere[counts]:.1%}, negated {found[counts]} of "
            f"{negated[counts]}"
        )


def main() -> None:
    """Fit, and write or print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="leave cards out and print")
    given = list(examples())
    if parser.parse_args().check:
        check(given)
        return
    fitted = fit(given)
    tables = {"rare": rarities()}
    for n, name in enumerate(LABELS[1:], 1):
        values = [fitted.always[n], *fitted.weights[n]]
        tables[name] = {
            key: round(float(value), 3)
            for key, value in zip([ALWAYS, *fitted.names], values, strict=True)
        }
    write({"covered": tables["covered"], "contradicted": tables["contradicted"], **tables})


if __name__ == "__main__":
    main()
