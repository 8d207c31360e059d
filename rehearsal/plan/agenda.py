"""What to do today: a pure function of what has been done, the date and the minutes.

The day is filled in this order; what doesn't fit is left for another day.

1. What has been due the longest: cards, a drill, an incident or a mock interview.
2. A mock interview or an incident, if one is due; one a day is enough.
3. Reviews, up to half of the day: drills, oldest first, and the cards in one block.
4. One thing for the weakest row of the rubric.
5. New material along the route.
6. More reviews, and then a short drill once more, if a row is weak.

The last two days before the interview have nothing new: the page for the last hour, reviews and
short drills. The day itself has that page alone.

Something longer than a whole day's minutes gets a day to itself, every other day at most. So
everything that is due comes up, and nothing blocks the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from math import ceil

from rehearsal.plan.due import INCIDENT_MINUTES, SHORT_MINUTES, add_reviews, cut, due_queue
from rehearsal.plan.new import (
    add_new,
    add_practice,
    minutes_of,
    ordered_steps,
    step_item,
    why_weak,
)
from rehearsal.plan.route import LAST_HOUR, PAGES, Step
from rehearsal.plan.work import FINAL_DAYS, Day, Item, Plan, Work, days_ago

REVIEW_SHARE = 0.5  # of a day, before anything else has had its turn
MOST_SHORT = 3  # drills once more, in the last days
REST_DAYS = 3  # before a drill is done once more


def plan_of(work: Work) -> Plan:
    """The plan for a day."""
    queue = due_queue(work)
    steps, too_much = ordered_steps(work)
    items = fill(work, queue, steps)
    if not (items or queue or work.spent or work.days_left == 0):
        items = one_useful_thing(work)
    cards = sum(item.cards for item in queue)
    drills = sum(item.kind == "drill" for item in queue)
    return Plan(sorted(items, key=place_of), cards, drills, too_much)


def place_of(item: Item) -> int:
    """Reviews come first, then what was added to the day in this order, then the long ones."""
    if item.is_due:
        return 0 if item.kind == "cards" else 1
    last = {"incident": 3, "interview": 4}
    return 5 if item.name == LAST_HOUR else last.get(item.kind, 2)


def fill(work: Work, queue: Sequence[Item], steps: Sequence[Step]) -> list[Item]:
    """Fill the day: see the top of this module."""
    if work.days_left == 0:
        return [] if work.read.get(LAST_HOUR) == work.today else [last_hour(work)]
    due = [item for item in queue if item.kind == "cards" or item.minutes <= work.minutes]
    alone = [] if work.spent else too_long(work, queue, due, steps)
    if work.is_long_day and alone:
        return alone
    day = Day(max(0.0, work.minutes - work.spent))
    if work.is_final and was_not_read_lately(work):
        day.add(last_hour(work))
    half = REVIEW_SHARE * work.minutes
    for first in due[:1]:
        day.add(cut(work, first, min(half / 2, day.left)) or cut(work, first, day.left))
    for kind in ("interview", "incident"):
        for item in due:
            if item.kind == kind and not day.has("interview", "incident"):
                day.add(item)
    add_reviews(work, day, due, half)
    if work.is_final and not work.is_beginner:
        add_once_more(work, day, MOST_SHORT)
    else:
        add_practice(work, day)
        add_new(work, day, steps)
    add_reviews(work, day, due, work.minutes)
    if day.items and work.weak:
        add_once_more(work, day, 1)
    return list(day.items.values()) or alone


def too_long(
    work: Work, queue: Sequence[Item], due: Sequence[Item], steps: Sequence[Step]
) -> list[Item]:
    """What comes first, due or new, if it is longer than a whole day and can't be cut."""
    if queue and queue[0] not in due:
        return [queue[0]]
    first = steps[0] if steps and not work.is_final else None
    if first and first.kind == "drill" and minutes_of(work, first) > work.minutes:
        return [step_item(work, first, "next on the route", 0)]
    return []


def was_not_read_lately(work: Work) -> bool:
    """Whether the page for the last hour wasn't read in the last days."""
    read = work.read.get(LAST_HOUR)
    return read is None or (work.today - read).days > FINAL_DAYS


def last_hour(work: Work) -> Item:
    """The page for the last hour."""
    days = work.days_left or 0
    words = {0: "the interview is today: one look, then stop", 1: "the interview is tomorrow"}
    why = words.get(days, f"the interview is in {days} days")
    return Item("page", LAST_HOUR, why, min(PAGES[LAST_HOUR].minutes, work.minutes))


def once_more(work: Work) -> list[Item]:
    """Passed drills to do once more: for the weak rows first, then the longest ago."""
    passed = [drill for drill in work.drills if drill.is_passed and drill.last]
    passed.sort(key=lambda drill: drill.last or date.min)
    found: dict[str, Item] = {}
    for row in work.weak:
        for drill in passed:
            if any(step[:2] == ("drill", drill.id) for step in row.steps):
                again = Item("drill", drill.id, why_weak(row), ceil(drill.minutes))
                found.setdefault(drill.id, again)
    for drill in passed:
        why = f"you did it {days_ago(drill.last or work.today, work.today)}: keep it warm"
        found.setdefault(drill.id, Item("drill", drill.id, why, ceil(drill.minutes)))
    rested = {d.id for d in passed if d.last and (work.today - d.last).days >= REST_DAYS}
    return [item for item in found.values() if item.name in rested]


def add_once_more(work: Work, day: Day, most: int) -> None:
    """Add short drills to do once more."""
    added = 0
    for item in once_more(work):
        if added < most and item.minutes <= SHORT_MINUTES:
            added += day.add(item)


def one_useful_thing(work: Work) -> list[Item]:
    """For a day on which nothing is due, weak or new."""
    if work.is_final:
        return [last_hour(work)]
    why = "nothing is due; a case is always new"
    return once_more(work)[:1] or [Item("incident", "", why, INCIDENT_MINUTES)]
