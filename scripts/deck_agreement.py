"""How often the deck's matcher agrees with labels written by hand, and how long it takes.

    python scripts/deck_agreement.py              the answers that it was never tuned on
    python scripts/deck_agreement.py --set tuning    those that it was
    python scripts/deck_agreement.py --set held_out_biotech    as the first, of the newer cards
    python scripts/deck_agreement.py --set fresh_biotech    more of these
    python scripts/deck_agreement.py --write      the first, into docs/deck.md

Prints a table by topic.
"""

from __future__ import annotations

import argparse
import re
import statistics
import time
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rehearsal.deck.cards import CARDS, Card, Point, read_deck
from rehearsal.deck.judge import judge
from rehearsal.session.history import Found

ROOT = Path(__file__).resolve().parents[1]
ANSWERS, PAGE = ROOT / "tests/answers", ROOT / "docs/deck.md"
TABLE = re.compile(r"^\| topic \|.*\n(\|.*\n)+", re.MULTILINE)  # in the page
HEAD = ("topic", "points", "agree", "falsely covered", "covered, found", "negated, found")


def labeled(which: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each answer of a set, a folder of tests/answers, with its topic."""
    for path in sorted((ANSWERS / which).glob("*.toml")):
        for answer in tomllib.loads(path.read_text("utf-8"))["answer"]:
            yield path.stem, answer


def label(answer: Mapping[str, Any], point: Point) -> Found:
    """What a person says that the answer says about a point."""
    if point.id in answer["covered"]:
        return "covered"
    return "contradicted" if point.id in answer["contradicted"] else "missed"


def counted(card: Card, answer: Mapping[str, Any]) -> Counter[str]:
    """How the matcher and the label compare on each point of a card."""
    count: Counter[str] = Counter()
    coverage = judge(card, answer["text"])
    for point in card.points:
        wanted = label(answer, point)
        names: tuple[Found, ...] = ("covered", "missed", "contradicted")
        found = next(name for name in names if point.id in getattr(coverage, name))
        count["points"] += 1
        count["agree"] += found == wanted
        count["covered"] += wanted == "covered"
        count["covered, found"] += found == wanted == "covered"
        count["falsely covered"] += found == "covered" != wanted
        if answer["kind"] == "negated" and wanted == "contradicted":
            count["negated"] += 1
            count["negated, found"] += found == "contradicted"
    return count


def agreement(which: str) -> dict[str, Counter[str]]:
    """The counts of a set, by topic."""
    cards = {card.id: card for card in read_deck([CARDS])}
    found: dict[str, Counter[str]] = {}
    for topic, answer in labeled(which):
        found.setdefault(topic, Counter()).update(counted(cards[answer["card"]], answer))
    return found


def row(name: str, count: Counter[str]) -> str:
    """One line of the table."""
    elsewhere = count["points"] - count["covered"]
    cells = [
        name,
        str(count["points"]),
        f"{count['agree'] / count['points']:.1%}",
        f"{count['falsely covered'] / max(1, elsewhere):.1%}",
        f"{count['covered, found']} of {count['covered']}",
        f"{count['negated, found']} of {count['negated']}",
    ]
    return "| " + " | ".join(cells) + " |"


def milliseconds(which: str) -> list[float]:
    """How long each answer of a set takes to judge, the first time that its card is judged."""
    cards = {card.id: card for card in read_deck([CARDS])}
    found = []
    for _, answer in labeled(which):
        began = time.perf_counter()
        judge(cards[answer["card"]], answer["text"])
        found.append(1000 * (time.perf_counter() - began))
    return found


def table(which: str) -> str:
    """The table of a set, a row for each topic and one for all."""
    rows = ["| " + " | ".join(HEAD) + " |", "|---|---|---|---|---|---|"]
    counts = agreement(which)
    rows += [row(topic, count) for topic, count in counts.items()]
    rows.append(row("all", sum(counts.values(), Counter())))
    return "\n".join(rows) + "\n"


def main() -> None:
    """Print the table, or write it into the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--set",
        choices=["held_out", "held_out_biotech", "fresh_biotech", "tuning"],
        default="held_out",
    )
    parser.add_argument("--write", action="store_true", help="into docs/deck.md")
    options = parser.parse_args()
    if options.write:
        found = table("held_out")
        PAGE.write_text(TABLE.sub(lambda _: found, PAGE.read_text("utf-8")), "utf-8")
        print(f"Wrote the table in {PAGE}.")
        return
    spent = sorted(milliseconds(options.set))
    print(table(options.set))
    print(f"an answer takes {statistics.median(spent):.1f} ms, at most {spent[-1]:.0f} ms")


if __name__ == "__main__":
    main()
