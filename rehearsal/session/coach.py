"""What a person calls in a notebook cell: start, check, hint, solution, status, debrief.

Each shows its answer, drawn in a notebook and as text elsewhere; the command line calls the
same functions.
"""

from __future__ import annotations

import dataclasses
import difflib
import time
from collections.abc import Mapping, Sequence

from rehearsal.grading.check import grade, grade_source, warm_up
from rehearsal.grading.drill import Drill, drill_ids, load
from rehearsal.grading.verdict import Verdict
from rehearsal.session import debrief as debriefing
from rehearsal.session.brief import brief_of
from rehearsal.session.cells import broken_cell, learners_namespace, texts_of, with_cell_numbers
from rehearsal.session.clock import pace
from rehearsal.session.display import has_front_end, show, show_markdown, show_verdict
from rehearsal.session.history import Entry, Round
from rehearsal.session.progress import progress
from rehearsal.session.schedule import standings
from rehearsal.session.status import status_of
from rehearsal.session.terminal import is_command
from rehearsal.session.widgets import TickingClock

_clock: TickingClock | None = None  # one at a time: a person does one drill at a time


class CheckInterrupted(KeyboardInterrupt):
    """A check was interrupted. Still a KeyboardInterrupt: no later cell runs."""

    def __str__(self) -> str:
        return (
            f"{self.args[0]}: the check was interrupted. Its ranks were stopped, and it "
            "doesn't count as an attempt."
        )

    def _render_traceback_(self) -> list[str]:
        return [str(self)]  # what IPython shows: a traceback into the engine helps nobody


def _drills() -> list[Drill]:
    return [load(drill_id) for drill_id in drill_ids()]


def _round(drill: str) -> Round | None:
    """The newest round of a drill."""
    return next(reversed(progress().rounds(drill)), None)


def brief(drill: str) -> None:
    """Show the task without starting the clock.

    Raises:
        UnknownDrill: if there is no such drill; the message offers the nearest id. All
            functions here that take a drill do this.
    """
    show_markdown(brief_of(load(drill)))


def start(drill: str) -> None:
    """Show the task and start the clock."""
    global _clock
    the_drill = load(drill)
    progress().add(the_drill.id, "start")
    if _clock is not None:
        _clock.stop()
    brief(drill)
    _clock = TickingClock(the_drill)
    _clock.show()
    if not is_command():
        warm_up()  # while the person reads


def check(drill: str, namespace: Mapping[str, object] | None = None) -> Verdict:
    """Run what you typed on real ranks, show the verdict and return it.

    Args:
        namespace: your names; by default those of the notebook, or of the calling module.
    """
    the_drill = load(drill)
    names = learners_namespace() if namespace is None else namespace
    if broken := broken_cell(the_drill, names):
        again = f'fix the cell, run it, then check("{the_drill.id}")'
        nothing = Verdict(
            drill=the_drill.id, status="not_attempted", findings=[broken], after=again
        )
        return _settle(the_drill, "", nothing)
    text = texts_of(the_drill, names)
    try:
        verdict = grade(drill, names, echo=_echo)
    except KeyboardInterrupt:
        raise CheckInterrupted(the_drill.id) from None
    shown = dataclasses.replace(verdict, detail=with_cell_numbers(verdict.detail))
    return _settle(the_drill, text, shown)


def check_text(drill: str, text: str, file: str) -> Verdict:
    """The same for the text of a file. Only the ranks execute it."""
    return _settle(load(drill), text, grade_source(drill, text, file=file, echo=_echo))


def _echo(line: str) -> None:
    print(line, flush=True)


def _settle(drill: Drill, text: str, verdict: Verdict) -> Verdict:
    """Store the attempt and show the verdict; stop the clock after a pass."""
    if verdict.status != "not_attempted":
        progress().add_attempt(verdict, text)
    show_verdict(verdict)
    one = _round(drill.id)
    if verdict.status == "passed":
        if _clock is not None and _clock.drill.id == drill.id:
            _clock.stop()
        show(f'then  narration("{drill.id}"), solution("{drill.id}"), status()')
    if one is not None and one.is_timed and verdict.status != "not_attempted":
        show(f"time  {pace(one.until - one.began, drill.minutes)}")
    return verdict


def hint(drill: str) -> None:
    """Show the next of three hints in this round: a question, a pointer, the idea."""
    the_drill, one = load(drill), _round(drill)
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
    """Show a correct solution: after a pass, or before it if you give up.

    Args:
        give_up: show it without a pass. The drill is due again tomorrow.
    """
    the_drill = load(drill)
    has_passed = any(one.passed for one in progress().rounds(drill))
    if not (has_passed or give_up):
        show(
            f'You haven\'t passed {drill} yet. For the next hint: hint("{drill}"). To give up '
            f'and see the solution: solution("{drill}", give_up=True). The drill will then be '
            "due for review tomorrow."
        )
        return
    progress().add(the_drill.id, "solution", "earned" if has_passed else "gave_up")
    text = the_drill.solution
    show_markdown(f"```python\n{text}\n```", text=text, is_code=True)


def narration(drill: str) -> None:
    """Show what to say while you type: a weak and a strong version, and the follow-up."""
    card = load(drill).narration
    parts = {
        "Say": card.say,
        "Weak": card.weak,
        "Strong": card.strong,
        "They ask next": card.follow_up,
    }
    show_markdown("\n\n".join(f"**{name}.** {text}" for name, text in parts.items()))


def diff(drill: str) -> None:
    """Show what changed between your last two attempts."""
    load(drill)
    attempts = [entry for entry in progress().entries(drill) if entry.kind == "attempt"]
    if len(attempts) < 2:
        count = "no attempts" if not attempts else "one attempt"
        show(f"{drill} has {count} so far; a diff needs two.")
        return
    old, new = attempts[-2:]
    lines = difflib.unified_diff(
        old.text.splitlines(), new.text.splitlines(), _name(old), _name(new), lineterm=""
    )
    text = "\n".join(lines) or "The last two attempts are identical."
    show_markdown(f"```diff\n{text}\n```", text=text, is_code=True)


def _name(attempt: Entry) -> str:
    when = time.strftime("%d %b %H:%M:%S", time.localtime(attempt.at))
    return f"{attempt.status} at {when}"


def status() -> None:
    """Show which drills have passed, which are due, and what to do next."""
    show_markdown(status_of(standings(_drills(), progress().rounds()), time.time()))


def debrief(drill: str | None = None) -> None:
    """Show your time against the budget, and what went wrong.

    Args:
        drill: all timed rounds of this one; by default the last timed run, over all drills.
    """
    if drill is None:
        known = {each.id: each for each in _drills()}
        rows = debriefing.rows_of_run(progress().rounds(), known)
    else:
        rows = debriefing.rows_of_drill(progress().rounds(drill), load(drill))
    if not rows:
        begun = [one for one in progress().rounds(drill) if one.is_timed]
        if begun:
            name = begun[-1].drill
            show(f'Nothing to debrief yet: {name} has no graded attempt. Run check("{name}").')
            return
        name = drill or _drills()[0].id
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
