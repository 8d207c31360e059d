"""What is due on a day: cards, drills, an incident, a mock interview."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import date, timedelta
from math import ceil

from rehearsal.plan.work import Day, Item, Work, days_ago

INTERVIEW_MINUTES, INCIDENT_MINUTES = 55, 35  # with the reading of what came out
READING_MINUTES = 10  # of what came out
INTERVIEW_DAYS, INCIDENT_DAYS = 4, 2  # from one to the next, with days of 90 minutes
USUAL_MINUTES = 90
BASELINE_DAYS = 2  # from the first day of practice to the first mock interview
NEAR_DAYS = 7  # an interview so near wants its baseline on the first day
SHORT_MINUTES = 20  # of a drill in the last days


def due_queue(work: Work) -> list[Item]:
    """What is due, oldest first."""
    found: list[tuple[date, Item]] = []
    cards = [card.due for card in work.cards if card.due and card.due <= work.today]
    if cards:
        why = f"due {since_when(min(cards), work.today)}"
        block = cards_item(work, "", len(cards), why)
        found.append((min(cards), block._replace(is_due=True)))
    for drill in work.drills:
        if drill.due is None or drill.due > work.today:
            continue
        if not work.is_final or drill.minutes <= SHORT_MINUTES:
            why = f"due {since_when(drill.due, work.today)}"
            minutes = ceil(drill.minutes)
            found.append((drill.due, Item("drill", drill.id, why, minutes, is_due=True)))
    found += [] if work.is_final else due_events(work)
    return [item for _, item in sorted(found, key=lambda pair: pair[0])]


def since_when(day: date, today: date) -> str:
    """Since when something is due, in a few words."""
    return "today" if day >= today else f"since {day:%b} {day.day}"


def due_events(work: Work) -> Iterator[tuple[date, Item]]:
    """The incident and the mock interview that are due, with the day since when."""
    first = work.first_day or work.today
    if work.last_incident is None:
        since, why = first + timedelta(days=1), "your first: on call is a round of its own"
    else:
        since = work.last_incident + timedelta(days=rhythm(work, INCIDENT_DAYS))
        why = f"the last one was {days_ago(work.last_incident, work.today)}"
    if since <= work.today:
        yield since, Item("incident", "", why, INCIDENT_MINUTES)
    if work.begun is not None:
        since, minutes = work.begun.on, ceil(work.begun.minutes_left) + READING_MINUTES
        why = f"you began it {days_ago(since, work.today)}"
        yield since, Item("interview", "", why, minutes)
        return
    if work.last_interview is None:
        ends = work.interview if work.days_left is not None else None
        near = ends is not None and (ends - first).days <= NEAR_DAYS
        since = first + timedelta(days=0 if near else BASELINE_DAYS)
        why = "a baseline: it shows which rows to work on"
    else:
        since = work.last_interview + timedelta(days=rhythm(work, INTERVIEW_DAYS))
        why = f"the last one was {days_ago(work.last_interview, work.today)}"
    if since <= work.today:
        yield since, Item("interview", "", why, INTERVIEW_MINUTES)


def rhythm(work: Work, days: int) -> int:
    """Days from one event to the next: more, if the days are so short that these fill them."""
    return days * max(1, round(USUAL_MINUTES / work.minutes))


def cards_item(work: Work, topic: str, cards: int, why: str) -> Item:
    """A block of cards, with its minutes at this person's pace."""
    return Item("cards", topic, why, ceil(cards * work.card_minutes), cards)


def cut(work: Work, item: Item, minutes: float) -> Item | None:
    """A block of cards, cut to the minutes; anything else as it is, if it fits them."""
    if item.minutes <= minutes:
        return item
    count = int(minutes / work.card_minutes) if item.kind == "cards" else 0
    while count and ceil(count * work.card_minutes) > minutes:
        count -= 1
    if count < 1:
        return None
    return item._replace(cards=count, minutes=ceil(count * work.card_minutes))


def add_reviews(work: Work, day: Day, due: Iterable[Item], most: float) -> None:
    """Add cards and drills, oldest first, until they take ``most`` minutes of the day.

    Cards get more than half of it only if drills leave it free: a pile of cards must not keep
    every drill waiting.
    """
    reviews = [item for item in due if item.is_due]
    keys = {item.key for item in reviews}
    for share in (0.5, 1.0):
        for item in reviews:
            held = day.items.pop(item.key, None)  # a smaller block of cards, perhaps
            taken = sum(one.minutes for key, one in day.items.items() if key in keys)
            room = min(most - taken, day.left, share * most if item.kind == "cards" else most)
            day.add(cut(work, item, max(room, held.minutes if held else 0)))
