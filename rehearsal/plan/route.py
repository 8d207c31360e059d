"""The way through new material: what to read, which drill and which cards follow.

The order is that of chapter 10's route: the map, the trainer, foundations, reliability and
performance, the trainer typed live, hard questions. The cards of a topic come after the chapter
that answers them. When time is short, the essential steps come first.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from rehearsal.engine.plain_message import PlainMessage

Kind = Literal["page", "drill", "cards"]


class UnknownPage(PlainMessage, ValueError):
    """No page, or more than one, has the name that was typed."""


class Page(NamedTuple):
    """A notebook to read and run."""

    title: str
    minutes: int  # as the chapter itself says; a test compares them
    notebook: str  # its path under notebooks/


class Step(NamedTuple):
    """One thing that is new until it has been read, passed, or answered."""

    kind: Kind
    name: str  # of the page, the drill, or the topic of the cards
    is_essential: bool = False


def _chapter(name: str, title: str, minutes: int) -> tuple[str, Page]:
    return name, Page(f"{title} (chapter {name[:2]})", minutes, f"handbook/{name}.ipynb")


LAST_HOUR = "23_last_hour"
PAGES: dict[str, Page] = dict(
    [
        ("01_live", Page("The live trainer: run it, say its lines", 35, "01_live.ipynb")),
        ("01_walkthrough", Page("The hardened trainer", 60, "01_walkthrough.ipynb")),
        _chapter("10_interview_map", "The interview map", 25),
        _chapter("11_system_model", "The system model", 25),
        _chapter("12_data_correctness", "Data correctness", 20),
        _chapter("13_checkpointing", "Checkpointing and recovery", 25),
        _chapter("14_performance", "Performance", 25),
        _chapter("15_numbers", "Numbers", 25),
        _chapter("16_observability", "Observability", 22),
        _chapter("17_parallelism", "Parallelism", 25),
        _chapter("18_hardware_and_failures", "Hardware and failures", 22),
        _chapter("19_configuration", "Configuration and evaluation", 20),
        _chapter("20_data_at_scale", "Data at scale", 23),
        _chapter("21_production_lift", "The production lift", 22),
        _chapter("22_hard_questions", "Hard questions", 35),
        _chapter(LAST_HOUR, "The last hour", 30),
        # Biotech
        _chapter("30_molecular_data", "Molecular data", 25),
        _chapter("31_sequences_and_structures", "Sequences and structures", 25),
        _chapter("32_billion_molecules", "A billion molecules", 25),
        _chapter("34_biotech_hard_questions", "Biotech hard questions", 25),
    ]
)
# Essential: what the map says for two days, its drills, and its cards.
ROUTE: Sequence[Step] = (
    Step("page", "10_interview_map", is_essential=True),
    Step("cards", "interview", is_essential=True),
    Step("page", "01_live", is_essential=True),
    Step("drill", "production_lift"),
    Step("drill", "happy_path", is_essential=True),
    Step("cards", "trainer_code", is_essential=True),
    Step("page", "11_system_model"),
    Step("cards", "architecture"),
    Step("drill", "lift_to_ddp", is_essential=True),
    Step("page", "12_data_correctness", is_essential=True),
    Step("cards", "data", is_essential=True),
    Step("drill", "lift_to_distributed"),
    Step("page", "15_numbers", is_essential=True),
    Step("cards", "numbers"),
    Step("page", "17_parallelism", is_essential=True),
    Step("cards", "parallelism"),
    Step("page", "13_checkpointing", is_essential=True),
    Step("drill", "resume_after_failure", is_essential=True),
    Step("cards", "checkpoints", is_essential=True),
    Step("cards", "recovery", is_essential=True),
    Step("page", "14_performance", is_essential=True),
    Step("drill", "instrument_performance"),
    Step("cards", "performance"),
    Step("page", "16_observability"),
    Step("cards", "observability"),
    Step("page", "18_hardware_and_failures"),
    Step("cards", "hardware"),
    Step("drill", "live_trainer", is_essential=True),
    Step("page", "22_hard_questions", is_essential=True),
    Step("cards", "staff"),
    Step("cards", "deep_dive"),
    Step("page", "19_configuration"),
    Step("cards", "evaluation"),
    Step("page", "20_data_at_scale"),
    Step("cards", "data_at_scale"),
    Step("page", "21_production_lift"),
    Step("cards", "production"),
    Step("cards", "post_training"),
    Step("drill", "debug_a_transformer"),
    Step("page", "01_walkthrough"),
    # The biotech track: only some interviews ask about it.
    Step("page", "30_molecular_data"),
    Step("cards", "molecules"),
    Step("page", "31_sequences_and_structures"),
    Step("cards", "sequences"),
    Step("cards", "structures"),
    Step("page", "32_billion_molecules"),
    Step("cards", "billion_molecules"),
    Step("cards", "wet_lab"),
    Step("page", "34_biotech_hard_questions"),
)


def route_of(drills: Iterable[str], topics: Iterable[str]) -> list[Step]:
    """The whole route: after its own steps, every other drill and topic, yours included.

    Args:
        drills: all ids, in their order.
        topics: all topics of the deck.
    """
    drills, topics = list(drills), list(topics)
    there = {("drill", name) for name in drills} | {("cards", name) for name in topics}
    there |= {("page", name) for name in PAGES}
    steps = [step for step in ROUTE if step[:2] in there]
    on_it = {step[:2] for step in steps}
    steps += [Step("cards", name) for name in topics if ("cards", name) not in on_it]
    return steps + [Step("drill", name) for name in drills if ("drill", name) not in on_it]


def page_named(text: str) -> str:
    """The page with this name, or with any beginning that only one page has.

    Raises:
        UnknownPage: if there is none, naming the nearest; if there are several, naming all.
    """
    text = str(text)
    found = [name for name in PAGES if name == text] or [
        name for name in PAGES if text and name.startswith(text)
    ]
    if len(found) == 1:
        return found[0]
    if found:
        raise UnknownPage(
            f"{len(found)} pages begin with {text!r}: {', '.join(found)}. Type more of the one "
            "you mean."
        )
    words = {name.partition("_")[2]: name for name in PAGES} | {name: name for name in PAGES}
    near = difflib.get_close_matches(text, words, n=1, cutoff=0.4)
    hint = f"The nearest is {words[near[0]]!r}. " if near else ""
    raise UnknownPage(f"{text!r}: no such page. {hint}There are: {', '.join(PAGES)}.")
