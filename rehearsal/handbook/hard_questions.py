"""The hard questions of chapters 22 and 34: drawn at random, and written as their markdown.

    python -m rehearsal.handbook.hard_questions notebooks/src/handbook/22_hard_questions.py

rewrites a chapter's question cells from the TOML file of its name, such as hard_questions.toml,
which is their source. What a topic's heading says, and the code between the topics, is the
chapter's own.
"""

from __future__ import annotations

import argparse
import random
import re
import textwrap
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from pathlib import Path

TRAINING = "hard_questions"  # the file of the questions on training, chapter 22's
BIOTECH = "biotech_questions"  # of those on biotech, chapter 34's
FILES = {"22_hard_questions": TRAINING, "34_biotech_hard_questions": BIOTECH}
WIDTH = 98  # of a line of prose in a notebook's source, after its "# "
CELL = "# %% [markdown]\n"
drawn: set[str] = set()  # ids, so that a question comes back only after all others


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """A question, what you'd say, what they say to that, and what you'd say then.

    As the value of a notebook's cell, it hides everything but the question until you ask.
    """

    id: str
    topic: str
    question: str
    answer: str
    pushback: str
    reply: str
    weak: str = ""  # what many would say instead; "" if the file has none
    wrong: str = ""  # what would prove the answer wrong, likewise
    covers: tuple[str, ...]  # entries of the handbook and of the project's checklist
    shown: tuple[str, ...]  # markdown: where a run shows what the answer states

    def __repr__(self) -> str:
        return f'{self.question}\nSay it aloud, then look: find("{self.id}").answer'

    def _repr_html_(self) -> str:
        parts = (
            ("A weak answer", self.weak),
            ("The answer", self.answer),
            ("The pushback", self.pushback),
            ("The reply", self.reply),
        )
        folded = "".join(
            f"<details><summary>{name}</summary><p>&ldquo;{escape(text)}&rdquo;</p></details>"
            for name, text in parts
            if text
        )
        if self.wrong:
            folded += (
                "<details><summary>What would prove it wrong</summary>"
                f"<p>{escape(self.wrong)}</p></details>"
            )
        return f"<p><b>{escape(self.question)}</b></p>{folded}"


@cache
def questions(file: str = TRAINING) -> tuple[Question, ...]:
    """All of a file, in the chapter's order."""
    found = []
    source = Path(__file__).with_name(f"{file}.toml")
    for entry in tomllib.loads(source.read_text("utf-8"))["question"]:
        for part in {"question", "weak", "answer", "pushback", "reply", "wrong"} & {*entry}:
            entry[part] = " ".join(entry[part].split())
        entry["covers"] = tuple(entry["covers"])
        entry["shown"] = tuple(map(as_link, entry["shown"]))
        found.append(Question(**entry))
    return tuple(found)


def as_link(text: str) -> str:
    """Markdown for "text -> notebook" or "text -> place"; without an arrow, the text itself."""
    words, arrow, target = text.partition(" -> ")
    if target.endswith(".ipynb"):
        return f"[{words}]({target})"
    return f"{words}, in {target}" if arrow else words


def topics(file: str = TRAINING) -> tuple[str, ...]:
    """In the chapter's order."""
    return tuple(dict.fromkeys(question.topic for question in questions(file)))


def find(name: str) -> Question:
    """The question with that id, of any file.

    Raises:
        ValueError: if there is none; the message has them all.
    """
    there = {question.id: question for file in FILES.values() for question in questions(file)}
    if name in there:
        return there[name]
    known = ", ".join(there)
    raise ValueError(f"There is no question {name!r}, so there's nothing to show. Use {known}.")


def draw(
    topic: str | None = None, *, seed: int | None = None, file: str = TRAINING
) -> Question:
    """A question at random, and none twice before all have come.

    Args:
        topic: only from this one.
        seed: the same seed draws the same question, whatever was drawn before.
        file: BIOTECH for the questions of the biotech track.

    Raises:
        ValueError: if there is no such topic.
    """
    if topic is not None and topic not in topics(file):
        raise ValueError(
            f"topic={topic!r}: no question has it, so there's nothing to draw. Use one of "
            f"{', '.join(topics(file))}."
        )
    deck = [question for question in questions(file) if topic in (None, question.topic)]
    if seed is not None:
        return random.Random(seed).choice(deck)
    left = [question for question in deck if question.id not in drawn]
    if not left:
        drawn.difference_update(question.id for question in deck)
        left = deck
    choice = random.choice(left)
    drawn.add(choice.id)
    return choice


def as_markdown(question: Question) -> str:
    """A question as the chapter shows it; the answer and the reply are folded."""

    def said(name: str, text: str) -> str:
        # A line that ends in a hyphen would be shown with a space behind it.
        lines = textwrap.wrap(f'"{text}"', WIDTH - 2, break_on_hyphens=False)
        quoted = "\n".join(f"> {line}" for line in lines)
        return f"<details><summary>{name}</summary>\n\n{quoted}\n\n</details>"

    parts = [
        f"### {question.question}",
        f'*Weak:* "{question.weak}"' if question.weak else "",
        said("The answer", question.answer),
        f'**"{question.pushback}"**',
        said("The reply", question.reply),
        f"*What would prove me wrong:* {question.wrong}" if question.wrong else "",
        f"*Shown in:* {'; '.join(question.shown)}.",
    ]
    return "\n\n".join(part for part in parts if part)


def as_cells(topic: str, file: str = TRAINING) -> str:
    """A topic's questions as cells of a notebook's source."""
    cells = []
    for question in questions(file):
        if question.topic == topic:
            lines = as_markdown(question).split("\n")
            cells.append(CELL + "".join(f"# {line}".rstrip() + "\n" for line in lines))
    return "\n".join(cells) + "\n"


def rewritten(text: str, file: str = TRAINING) -> str:
    """A notebook's source with the question cells made anew, after each topic's heading.

    Raises:
        ValueError: if a topic has no heading.
    """
    kept = [cell for cell in re.split(r"(?=^# %%)", text, flags=re.M) if "\n# ### " not in cell]
    for topic in topics(file):
        heading = f"\n# ## {topic.capitalize()}\n"
        places = [place for place, cell in enumerate(kept) if heading in cell]
        if len(places) != 1:
            raise ValueError(
                f"{len(places)} cells have the heading {heading.strip()!r}, and the questions "
                "come after it. Have exactly one."
            )
        kept.insert(places[0] + 1, as_cells(topic, file))
    return "".join(kept)


def main(argv: Sequence[str] | None = None) -> int:
    """Rewrite a source file in place; says whether it changed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("source", type=Path)
    path: Path = parser.parse_args(argv).source
    if path.stem not in FILES:
        parser.error(f"{path}: no chapter of questions. Use one of {', '.join(FILES)}.")
    before = path.read_text("utf-8")
    after = rewritten(before, FILES[path.stem])
    if after != before:
        path.write_text(after, "utf-8")
    print(f"{path.name}: {'rewritten' if after != before else 'nothing changed'}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
