"""What is new along the route, what of it won't fit, and what the weakest row needs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from math import ceil

from rehearsal.plan.due import (
    INCIDENT_DAYS,
    INCIDENT_MINUTES,
    INTERVIEW_DAYS,
    INTERVIEW_MINUTES,
    cards_item,
    cut,
    rhythm,
)
from rehearsal.plan.route import PAGES, Step
from rehearsal.plan.work import (
    FINAL_DAYS,
    LEAST_MINUTES,
    MOST_MINUTES,
    Day,
    WeakRow,
    Item,
    TooMuch,
    Work,
)

NEW_SHARE = 0.7  # of the days to come; reviews take the rest
USUAL_DAYS = 14  # without a date
LEAST_NEW_CARDS, CARDS_SHARE = 5, 1 / 3  # of a day: new cards, and their share of its minutes
LEAST_READING = 10  # minutes: less of a chapter isn't worth opening it


def is_open(work: Work, step: Step) -> bool:
    """Whether a step is still new: never read, never passed, with cards never answered."""
    if step.kind == "page":
        return step.name not in work.read
    if step.kind == "drill":
        return any(drill.id == step.name and not drill.is_passed for drill in work.drills)
    return new_cards(work, step.name) > 0


def new_cards(work: Work, topic: str) -> int:
    """How many cards of a topic were never answered."""
    return sum(card.topic == topic and card.due is None for card in work.cards)


def minutes_of(work: Work, step: Step) -> float:
    """How long all of a step takes."""
    if step.kind == "page":
        return PAGES[step.name].minutes
    if step.kind == "drill":
        return next(drill.minutes for drill in work.drills if drill.id == step.name)
    return new_cards(work, step.name) * work.card_minutes


def ordered_steps(work: Work) -> tuple[list[Step], TooMuch | None]:
    """What is new, in order, and what of it won't fit before the interview.

    If all fits, the order is the route's; if not, what is essential comes first.
    """
    steps = [step for step in work.route if is_open(work, step)]
    if not work.days_left:
        return steps, None
    need, room = sum(minutes_of(work, step) for step in steps), room_for_new(work)
    if need <= room:
        return steps, None
    steps.sort(key=lambda step: not step.is_essential)  # stable: else in the route's order
    left_out, taken = [], 0.0
    for step in steps:
        taken += minutes_of(work, step)
        if taken > room:
            left_out.append(step)
    longer = (replace(work, minutes=more) for more in range(LEAST_MINUTES, MOST_MINUTES + 1, 5))
    enough = next((each.minutes for each in longer if room_for_new(each) >= need), 0)
    return steps, TooMuch(ceil(need), int(room), left_out, enough)


def room_for_new(work: Work) -> float:
    """Minutes for new material until the interview: an estimate.

    70% of the days left without the last two, less the incidents and mock interviews in
    between; reviews take the rest.
    """
    days = (work.days_left or 0) - FINAL_DAYS
    if days <= 0:
        return 0.0
    events = ceil(days / rhythm(work, INTERVIEW_DAYS)) * INTERVIEW_MINUTES
    events += days // rhythm(work, INCIDENT_DAYS) * INCIDENT_MINUTES
    return max(0.0, NEW_SHARE * (days * work.minutes - work.spent) - events)


def cards_a_day(work: Work) -> int:
    """How many new cards a day has: so many that all are asked in time, within limits."""
    days = USUAL_DAYS if work.days_left is None else work.days_left - FINAL_DAYS
    new = sum(card.due is None for card in work.cards)
    most = int(work.minutes * CARDS_SHARE / work.card_minutes)
    return max(LEAST_NEW_CARDS, min(most, ceil(new / max(1, days))))


def step_item(work: Work, step: Step, why: str, most_cards: int) -> Item:
    """A step as an item, with ``most_cards`` of its cards."""
    if step.kind != "cards":
        return Item(step.kind, step.name, why, ceil(minutes_of(work, step)))
    return cards_item(work, step.name, min(new_cards(work, step.name), most_cards), why)


def fitted(work: Work, item: Item, minutes: float) -> Item | None:
    """As much of an item as fits: fewer cards, or part of a page that is longer than a day."""
    if item.kind != "page" or item.minutes <= work.minutes:
        return cut(work, item, minutes)
    if minutes < min(LEAST_READING, work.minutes / 2):
        return None
    why = f"{item.why}; it takes {item.minutes} minutes, so read it over several days"
    return item._replace(why=why, minutes=int(minutes))


def add_new(work: Work, day: Day, steps: Iterable[Step]) -> None:
    """Add new material in order, until a step doesn't fit."""
    most = cards_a_day(work)
    for step in steps:
        cards_left = most - sum(item.cards for item in day.items.values() if not item.is_due)
        item = step_item(work, step, "next on the route", cards_left)
        if item.key in day.items or (step.kind == "cards" and cards_left < 1):
            continue
        if step.kind == "drill" and item.minutes > work.minutes:
            continue  # it has a day to itself, see ``agenda.fill``
        if not day.add(fitted(work, item, day.left)):
            return


def add_practice(work: Work, day: Day) -> None:
    """Add one thing for the weakest row that has one that fits."""
    for item in practice(work):
        if day.add(fitted(work, item, day.left)):
            return


def practice(work: Work) -> Iterator[Item]:
    """What is new in the weak rows, weakest first."""
    for row in work.weak:
        for step in row.steps:
            if is_open(work, step):
                yield step_item(work, step, why_weak(row), cards_a_day(work))


def why_weak(row: WeakRow) -> str:
    """Why something of a weak row is in a plan."""
    return f"weak in the rubric, {row.mark:.1f} of 4: {row.name}"
