"""The items of a plan as lines of a table: what, why, minutes, and how to begin."""

from __future__ import annotations

from typing import NamedTuple

from rehearsal.plan.record import Record
from rehearsal.plan.route import PAGES
from rehearsal.plan.work import Item
from rehearsal.session.addresses import notebook_of
from rehearsal.session.terminal import is_command, program

TIERS = ("guided", "choice")  # of the first incident and the second; later ones are realistic


class Line(NamedTuple):
    """An item of the plan."""

    what: str
    why: str
    minutes: int
    do: str = ""  # a call, or at a terminal a command; empty: open the notebook
    notebook: str = ""  # its path under notebooks/; empty if there is none
    after: str = ""  # the call or command for when it's done


def typed(call: str, command: str) -> str:
    """What to type here: a call, or at a terminal a command."""
    return f"{program()} {command}" if is_command() else call


def counted(number: int, noun: str) -> str:
    """1 card, 2 cards."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def line_of(item: Item, record: Record) -> Line:
    """An item, with what to type and which notebook to open."""
    if item.kind == "page":
        page = PAGES[item.name]
        return Line(page.title, item.why, item.minutes, "", page.notebook, mark(item.name))
    if item.kind == "drill":
        drill = next(one.drill for one in record.drills if one.drill.id == item.name)
        notebook = f"drills/{notebook_of(drill.id, drill.order)}"
        do = typed(f'start("{drill.id}")', f"start {drill.id}")
        return Line(drill.title, item.why, item.minutes, do, notebook)
    if item.kind == "cards" and item.name:
        what = f"{counted(item.cards, 'new card')}: {item.name}"
        do = typed(f'ask(topic="{item.name}")', f"ask --topic {item.name}")
        return Line(what, item.why, item.minutes, do, "03_deck.ipynb")
    if item.kind == "cards":
        what = f"{counted(item.cards, 'card')} to review"
        return Line(what, item.why, item.minutes, typed("ask()", "ask"), "03_deck.ipynb")
    if item.kind == "incident":
        return incident_line(item, record)
    return interview_line(item, record)


def interview_line(item: Item, record: Record) -> Line:
    """The mock interview that was begun, or else the next."""
    notebook = "05_interview.ipynb"
    if record.begun:
        seed, minutes = record.begun[0].seed, f"{record.begun[0].minutes:g}"
        do = typed(f"interview({minutes}, seed={seed})", f"interview --seed {seed}")
        return Line("finish the mock interview", item.why, item.minutes, do, notebook)
    seed = max((card.seed for card in record.interviews), default=-1) + 1
    do = typed(f"interview(seed={seed})", f"interview --seed {seed}")
    return Line("a mock interview", item.why, item.minutes, do, notebook)


def incident_line(item: Item, record: Record) -> Line:
    """The incident that was begun, or else the next; each of the first two is a bit harder."""
    notebook = "04_incidents.ipynb"
    begun = [case for case in record.cases if case.ended is None]
    if begun and begun[0].track != "general":
        seed, track = begun[0].seed, begun[0].track
        do = typed(f'incident({seed}, track="{track}")', f"incident {seed} --track {track}")
        return Line(
            f"finish {track} incident {seed}", "you began it", item.minutes, do, notebook
        )
    if begun:
        seed = begun[0].seed
        do = typed(f"incident({seed})", f"incident {seed}")
        return Line(f"finish incident {seed}", "you began it", item.minutes, do, notebook)
    own = (case.seed for case in record.cases if case.track == "general")
    seed = max(own, default=0) + 1
    played = len(record.ended_cases)
    if played < len(TIERS):
        tier = TIERS[played]
        do = typed(f'incident({seed}, tier="{tier}")', f"incident {seed} --tier {tier}")
    else:
        do = typed(f"incident({seed})", f"incident {seed}")
    return Line(f"incident {seed}", item.why, item.minutes, do, notebook)


def mark(page: str, word: str = "read") -> str:
    """How to mark a page as read, or as unread."""
    short = page if page.startswith("01") else page[:2]
    return typed(f'today({word}="{short}")', f"today --{word} {short}")
