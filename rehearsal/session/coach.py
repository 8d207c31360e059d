"""What a person calls in a notebook cell: start, check, hint, solution, status, debrief.

Each shows its answer, drawn in a notebook and as text elsewhere; the command line calls the
same functions.
"""

from __future__ import annotations

import dataclasses
import difflib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from rehearsal.engine.plain_message import PlainMessage
from rehearsal.grading.check import grade, grade_source, warm_up
from rehearsal.grading.drill import Drill, drill_ids, load
from rehearsal.grading.verdict import Verdict, listed
from rehearsal.session import debrief as debriefing
from rehearsal.session.brief import brief_of
from rehearsal.session.cells import (
    as_it_stands,
    learners_namespace,
    texts_of,
    with_cell_numbers,
)
from rehearsal.session.clock import pace
from rehearsal.session.display import has_front_end, shell, show, show_markdown, show_verdict
from rehearsal.session.executions import notebooks_folder
from rehearsal.session.history import Entry, Round
from rehearsal.session.ids import drill_named
from rehearsal.session.next_step import drill_after, link_to, with_next_step
from rehearsal.session.prints import Prints
from rehearsal.session.progress import progress
from rehearsal.session.schedule import standings
from rehearsal.session.status import status_of
from rehearsal.session.terminal import is_command
from rehearsal.session.widgets import TickingClock, stopping

_clock: TickingClock | None = None  # one at a time: a person does one drill at a time


class CheckInterrupted(PlainMessage, KeyboardInterrupt):
    """A check was interrupted. Still a KeyboardInterrupt: no later cell runs."""

    def __str__(self) -> str:
        return (
            f"{self.args[0]}: the check was interrupted. Its ranks were stopped, and it "
            "doesn't count as an attempt."
        )


def _drills() -> list[Drill]:
    return [load(drill_id) for drill_id in drill_ids()]


def _round(drill: str) -> Round | None:
    """The newest round of a drill."""
    return next(reversed(progress().rounds(drill)), None)


def brief(drill: str) -> None:
    """Show the task without starting the clock.

    Raises:
        UnknownDrill: if there is no such drill, naming the nearest id; if several ids begin
            with it, naming all of them. All functions here that take a drill do this.
    """
    show_markdown(brief_of(drill_named(drill)))


def start(drill: str) -> None:
    """Show the task and start the clock."""
    global _clock
    the_drill = drill_named(drill)
    progress().add(the_drill.id, "start")
    if _clock is not None:
        _clock.stop()
    brief(the_drill.id)
    _clock = TickingClock(the_drill)
    _clock.show()
    if not is_command():
        warm_up()  # while the person reads


def check(
    drill: str,
    namespace: Mapping[str, object] | None = None,
    *,
    seed: int | None = None,
    prints: bool = False,
) -> Verdict:
    """Run what you typed on real ranks, show the verdict and return it.

    Args:
        drill: its id, or any prefix that only one drill has.
        namespace: your names; by default those of the notebook, or of the calling module.
        seed: what the scenarios draw their numbers from. To repeat a check, pass the seed that
            its verdict shows; by default, each check draws a new one.
        prints: fold nothing of what your code prints; by default, lines beyond ten are folded.
            A rank that prints without end is cut off in any case.

    Raises:
        BadSeed: if the seed is not a whole number, 0 or more.
        CannotStartRanks: if the server that forks the ranks cannot be started.
        CheckInterrupted: after Ctrl-C, or the notebook's stop button.
    """
    the_drill = drill_named(drill)
    names = learners_namespace() if namespace is None else namespace
    stands = as_it_stands(the_drill, names)
    if stands.finding:
        again = f'fix cell [{stands.number}], run it, then check("{the_drill.id}")'
        nothing = Verdict(
            drill=the_drill.id, status="not_attempted", findings=[stands.finding], after=again
        )
        return _settle(the_drill, "", nothing)
    text, printed = texts_of(the_drill, names), Prints()
    try:
        verdict = grade(the_drill.id, names, echo=printed.add, seed=seed)
    except KeyboardInterrupt:
        printed.show(None)
        raise CheckInterrupted(the_drill.id) from None
    missing = [name for name in the_drill.needs if name not in names]
    if verdict.status == "not_attempted" and not verdict.stages and missing and shell():
        above = f"run the cell above that defines {listed(missing)}"
        verdict = dataclasses.replace(verdict, after=f'{above}, then check("{the_drill.id}")')
    shown = dataclasses.replace(
        verdict, detail=with_cell_numbers(verdict.detail), cells=stands.cells
    )
    settled = _settle(the_drill, text, shown)
    printed.show(settled, shows_all=prints)
    return settled


def check_text(
    drill: str,
    text: str,
    file: str,
    *,
    seed: int | None = None,
    prints: bool = False,
    grade: Callable[..., Verdict] | None = None,
) -> Verdict:
    """The same for the text of a file. Only the ranks execute it.

    Args:
        prints: fold nothing of what it prints, as in ``check``.
        grade: what judges it, with the arguments of ``grade_source``, which is the default.

    Raises:
        BadSeed: if the seed is not a whole number, 0 or more.
        CannotStartRanks: if the server that forks the ranks cannot be started.
        CheckInterrupted: after Ctrl-C.
    """
    the_drill, printed = drill_named(drill), Prints()
    judge = grade or grade_source
    try:
        verdict = judge(the_drill.id, text, file=file, echo=printed.add, seed=seed)
    except KeyboardInterrupt:
        printed.show(None)
        raise CheckInterrupted(the_drill.id) from None
    settled = _settle(the_drill, text, verdict)
    printed.show(settled, shows_all=prints)
    return settled


def _settle(drill: Drill, text: str, verdict: Verdict) -> Verdict:
    """Store the attempt and show the verdict; stop the clock after a pass."""
    if verdict.status != "not_attempted":
        progress().add_attempt(verdict, text)
    rounds = progress().rounds()
    after = drill_after(drill, _drills(), rounds)
    verdict = with_next_step(verdict, drill, after, rounds)
    if verdict.status == "passed" and after and has_front_end():
        verdict = dataclasses.replace(verdict, link=link_to(after, notebooks_folder()))
    one = _round(drill.id)
    if one is not None and one.is_timed and verdict.status != "not_attempted":
        spent = pace(one.until - one.began, drill.minutes)
        verdict = dataclasses.replace(verdict, pace=spent)
    show_verdict(verdict)
    if verdict.status == "passed":
        _stop_clock(drill, one)
    return verdict


def _stop_clock(drill: Drill, last: Round | None) -> None:
    """Stop this drill's clock, even one that a kernel before this one has shown."""
    if _clock is not None and _clock.drill.id == drill.id:
        _clock.stop()
    elif last is not None and last.is_timed and has_front_end():
        show("", {"text/html": stopping(drill.id)})


def hint(drill: str) -> None:
    """Show the next of three hints in this round: a question, a pointer, the idea."""
    the_drill = drill_named(drill)
    one = _round(the_drill.id)
    shown = len(one.of("hint")) if one else 0
    count = len(the_drill.hints)
    number = min(shown + 1, count)
    if shown < count:
        progress().add(the_drill.id, "hint", str(number))
    text = the_drill.hints[number - 1]
    paragraphs = [f"**Hint {number} of {count}.** {text}"]
    if number == count:
        call = f'solution("{the_drill.id}", give_up=True)'
        paragraphs.append(f"That was the last hint. To see the solution: {call}")
    show_markdown("\n\n".join(paragraphs))


def solution(drill: str, *, give_up: bool = False) -> None:
    """Show a correct solution: after a pass, or before one if you give up.

    Args:
        give_up: show it without a pass. The drill is due again tomorrow.
    """
    the_drill = drill_named(drill)
    has_passed = _has_passed(the_drill)
    if not (has_passed or give_up):
        _show_locked(the_drill, "The solution")
        return
    progress().add(the_drill.id, "solution", "earned" if has_passed else "gave_up")
    text = the_drill.solution
    show_markdown(f"```python\n{text.rstrip()}\n```", text=text, is_code=True)


def _has_passed(drill: Drill) -> bool:
    return any(one.passed for one in progress().rounds(drill.id))


def _show_locked(drill: Drill, what: str) -> None:
    name = drill.id
    show(
        f"You haven't passed {name} yet. {what} opens after a pass. For the next hint: "
        f'hint("{name}"). To give up and see the solution: solution("{name}", give_up=True). '
        "The drill will then be due for review tomorrow."
    )


def narration(drill: str) -> None:
    """Show what to say while you type: a weak and a strong version, and the follow-up.

    In a drill that starts from a broken program, it names the bugs, so it opens after a pass.
    So do the answers to what a brief asks you to explain.
    """
    the_drill = drill_named(drill)
    if the_drill.is_broken and not _has_passed(the_drill):
        noun = "bug" if the_drill.kind == "bug" else "bugs"
        _show_locked(the_drill, f"What to say names the {noun}, so it")
        return
    card = the_drill.narration
    parts = {
        "Say": card.say,
        "Weak": card.weak,
        "Strong": card.strong,
        "They ask next": card.follow_up,
    }
    paragraphs = [f"**{name}.** {text}" for name, text in parts.items()]
    if the_drill.explanations and not _has_passed(the_drill):
        paragraphs.append("What the brief asks you to explain is answered here after a pass.")
    elif the_drill.explanations:
        for asks, weak, strong in the_drill.explanations:
            paragraphs += [f"**{asks}**", f"Weak. {weak}", f"Strong. {strong}"]
    show_markdown("\n\n".join(paragraphs))


def diff(drill: str, against: Literal["previous", "solution"] = "previous") -> None:
    """Show what changed between your last two attempts, or how yours differs from the solution.

    Args:
        against: "solution" compares it with your newest pass; it opens after one, or once you
            have given up.
    """
    the_drill = drill_named(drill)
    entries = progress().entries(the_drill.id)
    attempts = [entry for entry in entries if entry.kind == "attempt"]
    if against == "solution":
        if not (_has_passed(the_drill) or any(entry.kind == "solution" for entry in entries)):
            _show_locked(the_drill, "The solution")
            return
        passed = [entry for entry in attempts if entry.status == "passed"]
        if not (passed or attempts):
            show(f"{the_drill.id} has no attempts so far, so there is nothing to compare.")
            return
        mine = (passed or attempts)[-1]
        _show_diff(mine.text, the_drill.solution, f"yours, {_name(mine)}", "the solution")
    elif against == "previous":
        if len(attempts) < 2:
            count = "no attempts" if not attempts else "one attempt"
            show(f"{the_drill.id} has {count} so far; a diff needs two.")
            return
        old, new = attempts[-2:]
        _show_diff(old.text, new.text, _name(old), _name(new))
    else:
        raise ValueError(
            f"against={against!r}: a diff is against your previous attempt or the solution. "
            f'Call diff("{the_drill.id}") or diff("{the_drill.id}", "solution").'
        )


def _show_diff(old: str, new: str, old_name: str, new_name: str) -> None:
    lines = difflib.unified_diff(
        old.splitlines(), new.splitlines(), old_name, new_name, lineterm=""
    )
    text = "\n".join(lines) or "The two texts are identical."
    show_markdown(f"```diff\n{text}\n```", text=text, is_code=True)


def _name(attempt: Entry) -> str:
    when = time.strftime("%d %b %H:%M:%S", time.localtime(attempt.at))
    return f"{attempt.status} at {when}"


def status() -> None:
    """Show all drills: title, minutes, which have passed, which are due, what to do next."""

    def link(drill: Drill) -> str:
        found = link_to(drill, notebooks_folder()) if has_front_end() else None
        return found[1] if found else ""

    show_markdown(status_of(standings(_drills(), progress().rounds()), time.time(), link))


def debrief(drill: str | None = None) -> None:
    """Show your time against the budget, and what went wrong.

    Args:
        drill: show all timed rounds of this one; by default, the last timed run of any drills.
    """
    the_drill = None if drill is None else drill_named(drill)
    if the_drill is None:
        known = {each.id: each for each in _drills()}
        rows = debriefing.rows_of_run(progress().rounds(), known)
    else:
        rows = debriefing.rows_of_drill(progress().rounds(the_drill.id), the_drill)
    if not rows:
        only = the_drill.id if the_drill else None
        begun = [one for one in progress().rounds(only) if one.is_timed]
        if begun:
            name = begun[-1].drill
            show(f'Nothing to debrief yet: {name} has no graded attempt. Run check("{name}").')
            return
        name = only or _drills()[0].id
        show(f'Nothing to debrief yet. Run start("{name}"), then check("{name}").')
        return
    show(debriefing.as_text(rows))
    _show_picture(rows)


def _show_picture(rows: Sequence[debriefing.Row]) -> None:
    """Draw it if something can show it. The text has said the same."""
    if has_front_end():
        try:
            from IPython.display import display

            from rehearsal.session.debrief_picture import picture

            display(picture(rows))
        except ImportError as error:
            show(f"No picture: {error}.")
