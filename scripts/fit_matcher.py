"""Fit the deck's matcher to the labeled answers, and write rehearsal/deck/matcher.toml.

    python -m scripts.fit_matcher            fit and write
    python -m scripts.fit_matcher --check    how well it does on answers to cards left out

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
# an answer counts.
COMMITS = {"8562621": 1.0, "8b4017d": 1.0, "5406aff": 1.0}
TODAY = "today"  # the claims as they are, for answers that nobody fitted them to
# The share of each kind of answer, as the held-out answers were asked for. Those that were
# written to find gaps in the claims are more often wrong.
SHARES = {
    "right": 0.2,
    "paraphrased": 0.2,
    "terse": 0.12,
    "rambling": 0.1,
    "wrong": 0.13,
    "negated": 0.13,
    "off_topic": 0.05,
    "other_card": 0.07,
    "strong": 0.03,
}
EVERY = 3  # one of so many answers is also used where it doesn't belong
STRENGTH = 0.1  # of the fit; less keeps the weights smaller
# Taken from the sums, because praise for what wasn't said is the worst error, and because many
# of the negated answers deny a point in its own words, which right ones have as well.
CAUTION, DOUBT = 0.7, 0.5
FOLDS = 5
LABELS: Sequence[Found] = ("missed", "covered", "contradicted")


class Example(NamedTuple):
    """One point of one answer, judged with the claims of a commit."""

    card: str
    kind: str
    claims: str
    numbers: Mapping[str, float]
    label: Found


def answers_in(folder: Path) -> list[dict[str, Any]]:
    """The labeled answers of all topics."""
    files = sorted(folder.glob("*.toml"))
    return [one for path in files for one in tomllib.loads(path.read_text("utf-8"))["answer"]]


def examples() -> list[Example]:
    """Every answer with all claims that were written before it, and what belongs elsewhere."""
    answers = answers_in(ANSWERS / "tuning")
    found = [one for commit in COMMITS for one in before(commit, answers)]
    deck = {card.id: card for card in read_deck([CARDS])}
    nothing: Mapping[str, Any] = {"covered": [], "contradicted": []}
    for n, answer in enumerate(answers[::EVERY]):
        for kind, card in strangers(deck, answer["card"], n):
            found += points_of(card, {**answer, **nothing, "kind": kind}, TODAY)
    for card in deck.values():
        all_points = [point.id for point in card.points]
        strong = {**nothing, "text": card.strong, "kind": "strong", "covered": all_points}
        found += points_of(card, strong, TODAY)
    return found


def before(commit: str, answers: Sequence[Mapping[str, Any]]) -> Iterator[Example]:
    """The answers to a commit's cards that it didn't have yet; some after one to another."""
    with tempfile.TemporaryDirectory() as folder:
        unpack(commit, Path(folder))
        deck = {card.id: card for card in read_deck([Path(folder, "rehearsal/cards")])}
        known = {one["text"] for one in answers_in(Path(folder, "tests/answers/tuning"))}
    new = [one for one in answers if one["text"] not in known and one["card"] in deck]
    for n, answer in enumerate(new):
        yield from points_of(deck[answer["card"]], answer, commit)
        if n % EVERY == 0 and new[n - 1]["card"] != answer["card"]:
            text = f"{new[n - 1]['text']}. {answer['text']}"
            longer = {**answer, "kind": "rambling", "text": text}
            yield from points_of(deck[answer["card"]], longer, commit)


def strangers(deck: Mapping[str, Card], name: str, n: int) -> Iterator[tuple[str, Card]]:
    """Another card of the topic, and one of another topic."""
    topic = deck[name].topic
    same = [card for card in deck.values() if card.topic == topic and card.id != name]
    other = [card for card in deck.values() if card.topic != topic]
    yield "other_card", same[n % len(same)]
    yield "off_topic", other[n % len(other)]


def unpack(commit: str, folder: Path) -> None:
    """Put a commit's cards and labeled answers into a folder."""
    paths = ["rehearsal/cards", "tests/answers/tuning"]
    packed = subprocess.run(
        ["git", "archive", commit, *paths], cwd=ROOT, check=True, capture_output=True
    ).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as files:
        files.extractall(folder, filter="data")


def points_of(card: Card, answer: Mapping[str, Any], claims: str) -> Iterator[Example]:
    """The points of one answer."""
    found = evidence(card, read(card, answer["text"]))
    for point, each in zip(card.points, found, strict=True):
        if each.is_negated:
            continue  # contradicted, whatever the numbers
        yield Example(card.id, answer["kind"], claims, each.numbers, label(answer, point))


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


def counts(given: Sequence[Example]) -> np.ndarray:
    """What each example counts, so that each kind has its share."""
    each = np.array([COMMITS.get(one.claims, 1.0) for one in given])
    kinds = np.array([one.kind for one in given])
    for kind, share in SHARES.items():
        each[kinds == kind] *= share / max(1e-9, each[kinds == kind].sum())
    return each * len(given)


def fit(given: Sequence[Example]) -> Fitted:
    """A logistic regression, as weights for the numbers as they are."""
    names = list(given[0].numbers)
    numbers = matrix(given, names)
    mean, spread = numbers.mean(axis=0), numbers.std(axis=0) + 1e-9
    model = LogisticRegression(C=STRENGTH, max_iter=1000, tol=1e-6)
    labels = [LABELS.index(one.label) for one in given]
    model.fit((numbers - mean) / spread, labels, counts(given))
    weights = model.coef_ / spread
    always = model.intercept_ - weights @ mean
    always[LABELS.index("covered")] -= CAUTION
    always[LABELS.index("contradicted")] -= DOUBT
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
    fold_of = {card: n % FOLDS for n, card in enumerate(cards)}
    folds = np.array([fold_of[one.card] for one in given])
    decided = np.zeros(len(given), int)
    for fold in range(FOLDS):
        fitted = fit([one for one, at in zip(given, folds, strict=True) if at != fold])
        judged = [one for one, at in zip(given, folds, strict=True) if at == fold]
        decided[folds == fold] = fitted.decide(judged)
    for commit in COMMITS:
        which = [
            n
            for n, one in enumerate(given)
            if one.claims in (commit, TODAY) and one.kind != "strong"
        ]
        print(f"claims of {commit}: {measured([given[n] for n in which], decided[which])}")


def measured(given: Sequence[Example], decided: np.ndarray) -> str:
    """Agreement and errors, each kind of answer with its share."""
    of = counts(given)
    labels = np.array([LABELS.index(one.label) for one in given])
    is_covered, is_contradicted = labels == 1, labels == 2
    negated = is_contradicted & np.array([one.kind == "negated" for one in given])
    return (
        f"{len(given)} points, agree {of[decided == labels].sum() / of.sum():.1%}, falsely "
        f"covered {of[~is_covered & (decided == 1)].sum() / of[~is_covered].sum():.1%}, "
        f"negated {(negated & (decided == 2)).sum()} of {negated.sum()}"
    )


def main() -> None:
    """Fit, and write or print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="leave cards out and print")
    given = examples()
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
