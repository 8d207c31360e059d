"""What an interview looks like in a notebook: its clock, its words, its scorecard, as HTML.

Whatever somebody typed, and whatever a card says, is escaped. The colors are the notebook's
own, or readable on light and dark.
"""

from __future__ import annotations

import contextlib
import html
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from rehearsal.deck.places import address_from
from rehearsal.grading.drill import UnknownDrill, load
from rehearsal.interviews.boxes import boxes
from rehearsal.interviews.rubric import MARKS, ROWS
from rehearsal.interviews.scorecard import Mark, Scorecard
from rehearsal.interviews.session import Interview
from rehearsal.interviews.spoken import Entry
from rehearsal.session.clock import minutes_of
from rehearsal.session.next_step import link_to

BLUE, ORANGE, GRAY = "#0072b2", "#b34700", "128,128,128"
DECK = "notebooks/03_deck.ipynb"
CHAPTER = re.compile(r"notebooks/handbook/(\w+)\.ipynb")


def clock_html(interview: Interview, state: str) -> str:
    """The time left, the box, what it's for, and the plan.

    Args:
        state: running, paused, ending or over.
    """
    minute, box = interview.minute, interview.box
    left = minutes_of(60 * max(0.0, interview.minutes - minute))
    said = "" if state == "running" else f", {state}"
    now = f"{left} left of {minutes_of(60 * interview.minutes)}{said}"
    until = minutes_of(60 * (interview.minutes - box.ends))
    purpose = f"<b>{html.escape(box.name)}</b>, until {until} is left: "
    purpose += html.escape(box.purpose)
    plan = "".join(
        _segment(each.name, each.ends - each.begins, minute - each.begins, each == box)
        for each in boxes(interview.minutes)
    )
    return (
        f'<div role="timer"><b class="rehearsal-now" data-state="{state}" '
        'style="font-size:1.5em;font-variant-numeric:tabular-nums">'
        f'{now}</b><div style="display:flex;gap:3px;margin:.4em 0">{plan}</div>'
        f"{'' if state == 'over' else purpose}</div>"
    )


def _segment(name: str, length: float, spent: float, is_now: bool) -> str:
    done = 100 * min(1.0, max(0.0, spent / length))
    bar = f"linear-gradient(90deg,{BLUE} {done:.0f}%,rgba({GRAY},.3) {done:.0f}%)"
    weight = "bold" if is_now else "normal"
    return (
        f'<div style="flex:{length:.2f} 1 0;min-width:0" title="{html.escape(name)}">'
        f'<div style="height:.5em;background:{bar}"></div>'
        f'<div style="font-size:.8em;font-weight:{weight};overflow:hidden;white-space:nowrap;'
        f'text-overflow:ellipsis">{html.escape(name)}</div></div>'
    )


def spoken_html(entries: Sequence[Entry]) -> str:
    """What was said, the newest at the bottom, where it begins."""
    last = max((n for n, each in enumerate(entries) if each.who == "interviewer"), default=-1)
    said = "".join(_entry(each, number == last) for number, each in enumerate(entries))
    return (
        '<div role="log" tabindex="0" aria-label="What was said" style="display:flex;'
        "flex-direction:column-reverse;max-height:24em;overflow:auto;padding:.3em .8em;"
        "box-sizing:border-box;"
        f'border:1px solid rgba({GRAY},.6)"><div>{said}</div></div>'
    )


def _entry(entry: Entry, is_last: bool) -> str:
    stamp = f'<span style="opacity:.75">{minutes_of(60 * entry.minute)}</span>'
    text = html.escape(entry.text)
    if entry.who == "note":
        style = "margin:.4em 0;font-size:.9em;line-height:1.4"
        return f'<div style="{style}">{stamp} <i>{text}</i></div>'
    who = "Interviewer" if entry.who == "interviewer" else "You"
    color = ORANGE if entry.who == "interviewer" else BLUE
    wraps = "pre;overflow-x:auto;font-family:monospace" if entry.is_table else "pre-wrap"
    mark = ' class="rehearsal-last"' if is_last else ""
    return (
        f'<div style="margin:.6em 0;padding-left:.7em;border-left:4px solid {color}">'
        f'{stamp} <b>{who}</b><div{mark} style="line-height:1.4;white-space:{wraps}">{text}'
        "</div></div>"
    )


def counting_html() -> str:
    """Which cells count as typed, folded."""
    return (
        "<details><summary>Which cells count as typed</summary>"
        '<ul style="margin:.2em 0;line-height:1.5">'
        "<li>A cell that you run counts if it defines a function or a class. Imports and "
        "other names count once one of these uses them. What only runs your code, or calls the "
        "coach, doesn&rsquo;t.</li>"
        "<li>Edited and run again, a cell replaces what it was. If it defines nothing anymore, "
        "what it was is taken back.</li>"
        "<li>To keep a cell out, begin it with <code># scratch</code>. To hand one in all the "
        "same, pass its text to the interview: <code>.type(In[9])</code>.</li></ul></details>"
    )


def noted_html(text: str) -> str:
    """A line about the newest cell; nothing if there is none."""
    return f'<div style="line-height:1.4"><i>{html.escape(text)}</i></div>' if text else ""


def names_html(names: Mapping[str, str]) -> str:
    """The names that the graders call, folded."""
    rows = "".join(
        f"<li><code>{html.escape(name)}{html.escape(takes)}</code></li>"
        for name, takes in names.items()
    )
    return (
        "<details><summary>The names that the graders call</summary>They call these, as far as "
        f'you define them:<ul style="margin:.2em 0;line-height:1.5">{rows}</ul></details>'
    )


def html_of(card: Scorecard, folder: Path) -> str:
    """A scorecard.

    Args:
        folder: the notebook's, which the links are relative to.
    """
    hints = f", with {card.hints} hint{'s' * (card.hints != 1)}" if card.hints else ""
    rows = "".join(_row(row, row.row in card.weakest) for row in card.rows)
    weakest = "".join(
        f"<li><b>{html.escape(ROWS[row].name)}</b>. {html.escape(ROWS[row].earns)}</li>"
        for row in card.weakest
    )
    following = "".join(
        f"<li>{html.escape(item['why'])}: {_linked(item['do'], folder)}</li>"
        for item in card.next
    )
    return (
        f'<div style="max-width:60em"><h3>{card.percent} of 100</h3>'
        f"<p>Interview {html.escape(card.name)}, {card.minutes:.0f} min{hints}. Open a row for "
        f"its evidence.</p>{rows}<h4>The three weakest</h4><ol>{weakest}</ol>"
        f"<h4>Next</h4><ul>{following}</ul></div>"
    )


def _row(mark: Mark, is_open: bool) -> str:
    color = BLUE if mark.mark >= 3 else ORANGE
    evidence = "".join(
        f'<li style="margin:.15em 0">{"+" if each.helps else "&minus;"} '
        f'<span style="opacity:.75">{each.minute:.0f} min</span> {html.escape(each.what)}</li>'
        for each in mark.evidence
    )
    return (
        f'<details{" open" * is_open} style="margin:.3em 0"><summary><b style="display:'
        f'inline-block;width:7.5em;background:{color};color:#fff;padding:.1em .5em">'
        f"{mark.mark} {MARKS[mark.mark]}</b>&ensp;{html.escape(ROWS[mark.row].name)}</summary>"
        f'<ul style="list-style:none;margin:.2em 0 .6em">{evidence}</ul></details>'
    )


def _linked(do: str, folder: Path) -> str:
    """What to do next, and the notebook in which it's done."""
    call = f"<code>{html.escape(do)}</code>"
    if chapter := CHAPTER.fullmatch(do):
        return _link(chapter[1], address_from(folder, do))
    if do.startswith("ask("):
        return f"{call} in {_link('03_deck', address_from(folder, DECK))}"
    if drill := re.fullmatch(r'start\("(\w+)"\)', do):
        with contextlib.suppress(UnknownDrill):  # of another version
            found = link_to(load(drill[1]), folder)
            return f"{call} in {_link('its notebook', found and found[1])}"
    return call


def _link(text: str, address: str | None) -> str:
    return f'<a href="{html.escape(address)}">{text}</a>' if address else text
