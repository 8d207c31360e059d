"""A plan, and what it is based on, in words: as Markdown for a notebook, as text elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import date, timedelta

from rehearsal.plan.lines import Line, counted, line_of, typed
from rehearsal.plan.record import Record
from rehearsal.plan.strengths import Strength
from rehearsal.plan.work import Plan, TooMuch, Work

Link = Callable[[str], str | None]  # the address of a notebook, if it can be opened
KINDS = ("page", "drill", "cards")
NOTHING_DUE = "Nothing is due for review today."


def day_words(day: date) -> str:
    """A day as a person says it: Fri, Dec 4."""
    return f"{day:%a, %b} {day.day}"


def head_of(work: Work, plan: Plan) -> list[str]:
    """Which day it is, how long until the interview, and what is due."""
    day = f"{day_words(work.today)}."
    if work.days_left is not None and work.interview is not None:
        on = work.interview.isoformat()
        days = work.days_left
        near = {0: "Your interview is today", 1: f"Your interview is tomorrow, {on}"}
        day += f" {near.get(days, f'{days} days until your interview on {on}')}."
    elif work.interview is not None:
        day += f" Your interview was on {work.interview.isoformat()}. For the next one: "
        day += f"{set_date(work.today)}."
    else:
        day += f" No interview date yet: {set_date(work.today)} sets it."
    spent = f", {work.spent:.0f} of them done" if work.spent >= 1 else ""
    day += f" {work.minutes} minutes a day{spent}."
    due = [counted(plan.due_cards, "card")] if plan.due_cards else []
    due += [counted(plan.due_drills, "drill")] if plan.due_drills else []
    return [day, f"Due for review: {' and '.join(due)}." if due else NOTHING_DUE]


def set_date(today: date) -> str:
    """How to set the interview's date, with a date two weeks away as an example."""
    example = (today + timedelta(days=14)).isoformat()
    return typed(f'today(date="{example}")', f"today --date {example}")


def foot_of(work: Work, plan: Plan) -> list[str]:
    """What the items come to, what waits for another day, and what won't fit at all."""
    if not plan.items:
        done = f"You've practiced {work.spent:.0f} minutes today. " if work.spent >= 1 else ""
        if work.days_left == 0:
            return [f"{done}Nothing more today. Stop here, and good luck."]
        return [f"{done}Nothing more fits into today's {work.minutes}. The rest waits."]
    lines = [f"In total {counted(plan.minutes, 'minute')}."]
    if plan.minutes > work.minutes:
        lines[0] += f" That's more than {work.minutes}, but it comes first and can't be split."
    listed = [item for item in plan.items if item.is_due]
    cards = plan.due_cards - sum(item.cards for item in listed)
    drills = plan.due_drills - sum(item.kind == "drill" for item in listed)
    waiting = [counted(cards, "card")] if cards > 0 else []
    waiting += [counted(drills, "drill")] if drills > 0 else []
    if waiting:
        lines[0] += f" Due, but for another day: {' and '.join(waiting)}."
    if plan.too_much:
        lines.append(too_much_words(plan.too_much))
    return lines


def too_much_words(much: TooMuch) -> str:
    """What won't fit before the interview, and what would make it fit."""
    need, room = hours(much.need_minutes), hours(much.room_minutes)
    names = {kind: [s.name for s in much.steps if s.kind == kind] for kind in KINDS}
    numbers = [name[:2] for name in sorted(names["page"]) if not name.startswith("01")]
    left = [f"chapter{'s' * (len(numbers) > 1)} {', '.join(numbers)}"] if numbers else []
    left += [name for name in sorted(names["page"]) if name.startswith("01")]
    left += [counted(len(names["drill"]), "drill")] if names["drill"] else []
    left += [f"cards on {counted(len(names['cards']), 'topic')}"] if names["cards"] else []
    more = ""
    if much.minutes_a_day:
        number = much.minutes_a_day
        more = f" All of it would take about {number} minutes a day"
        more += f": {typed(f'today(minutes={number})', f'today --minutes {number}')}."
    return (
        f"Not everything fits before the interview: what's new takes about {need}, and there's "
        f"room for about {room}. What matters most comes first. Left out: {', '.join(left)}."
        f"{more}"
    )


def hours(minutes: int) -> str:
    """Minutes, or hours if there are many."""
    return counted(minutes, "minute") if minutes < 90 else f"{minutes / 60:.0f} hours"


def as_markdown(work: Work, plan: Plan, record: Record, link: Link) -> str:
    """The plan, with links to notebooks."""
    day, due = head_of(work, plan)
    rows = ["| what | why today | minutes | do |", "|---|---|---|---|"]
    for item in plan.items:
        line = line_of(item, record)
        address = link(line.notebook) if line.notebook else None
        what = f"[{line.what}]({address})" if address else line.what
        do = f"`{line.do}`" if line.do else "read and run it"
        do += f", then `{line.after}`" if line.after else ""
        rows.append(f"| {what} | {line.why} | {line.minutes} | {do} |")
    table = ["\n".join(rows)] if plan.items else []
    return "\n\n".join([f"**{day}**", due, *table, *foot_of(work, plan)])


def as_text(work: Work, plan: Plan, record: Record, link: Link) -> str:
    """The plan, with what to type under each line."""
    lines = [line_of(item, record) for item in plan.items]
    width = max((len(line.what) for line in lines), default=0)
    rows = [f"{'min':>4}  {'what':<{width}}  why today"] if lines else []
    for line in lines:
        rows.append(f"{line.minutes:>4}  {line.what:<{width}}  {line.why}")
        rows += [f"{'':6}{text}" for text in ways_of(line, link)]
    gap = [""] if lines else []
    return "\n".join([*head_of(work, plan), "", *rows, *gap, *foot_of(work, plan)])


def ways_of(line: Line, link: Link) -> list[str]:
    """How to begin it, and what to type afterward."""
    address = link(line.notebook) if line.notebook else None
    begin = line.do or (f"open {address}" if address else f"open notebooks/{line.notebook}")
    return [f"{begin}   then: {line.after}" if line.after else begin]


def strengths_text(strengths: Iterable[Strength]) -> str:
    """A line for each row of the rubric: weakest first, those without evidence last."""
    rows = [("rubric row", "mark", "evidence")]
    ordered = sorted(strengths, key=lambda each: (each.mark is None, each.mark or 0.0))
    for each in ordered:
        mark = "-" if each.mark is None else f"{each.mark:.1f}"
        rows.append((each.row.name, mark, each.evidence))
    width = max(len(row[0]) for row in rows)
    lines = [f"{name:<{width}}  {mark:>4}  {evidence}" for name, mark, evidence in rows]
    return "\n".join([*lines, "A mark is 1 (no) to 4 (strong yes)."])


def alternative_text(strengths: Sequence[Strength], passed: int, known: int) -> str:
    """What the picture shows, for somebody who can't see it."""
    marks = [each for each in strengths if each.mark is not None]
    text = (
        f"Progress by day: {counted(passed, 'drill')} passed, {counted(known, 'card')} known."
    )
    if not marks:
        return f"{text} No row of the rubric has evidence yet."
    by_mark = sorted(marks, key=lambda each: each.mark or 0.0)
    weak, strong = by_mark[0], by_mark[-1]
    return (
        f"{text} Weakest row: {weak.row.name}, {weak.mark:.1f} of 4. Strongest: "
        f"{strong.row.name}, {strong.mark:.1f}. The table has all rows."
    )
