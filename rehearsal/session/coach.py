"""What a person calls in a notebook cell: start, check, hint, solution, status, debrief.

Each shows its answer, as rich output where a notebook listens and as text elsewhere; the
command line calls the same functions. The history is kept in ``progress.py``.
"""

from __future__ import annotations

import difflib
import time
from collections.abc import Callable, Mapping

from rehearsal.session import pacing
from rehearsal.grading.drill import Drill, drill_ids, load
from rehearsal.session.frontend import (
    Clock,
    has_front_end,
    is_command,
    learners_namespace,
    minutes_of,
    pace,
    show,
    show_verdict,
    texts_of,
)
from rehearsal.grading.check import grade, grade_source, warm_up
from rehearsal.session.progress import Entry, Round, progress
from rehearsal.session.schedule import Standing, next_of, standings
from rehearsal.grading.verdict import Verdict

_clock: Clock | None = None  # one at a time: a person does one drill at a time


def _drills() -> list[Drill]:
    return [load(drill_id) for drill_id in drill_ids()]


def _round(drill: str) -> Round | None:
    """The newest sitting with a drill."""
    return next(reversed(progress().rounds(drill)), None)


def brief_of(drill: Drill) -> str:
    """Title, minutes, brief and needed names, as Markdown."""
    needs = [f"{name}{signature}" for name, signature in drill.needs.items()]
    return (
        f"### {drill.title}\n\n{drill.minutes:g} minutes.\n\n{drill.brief}\n\n"
        + "The check calls:\n\n```python\n"
        + "\n".join(needs)
        + f'\n```\n\nThen: `check("{drill.id}")`. When stuck: `hint("{drill.id}")`.'
    )


def brief(drill: str) -> None:
    """Show what is asked, without starting the clock.

    Raises:
        UnknownDrill: with the nearest id; so do all functions here that take a drill.
    """
    text = brief_of(load(drill))
    plain = text.removeprefix("### ").replace("```python\n", "").replace("```\n\n", "\n")
    show(plain, markdown=text)


def start(drill: str) -> None:
    """Show the brief and start the clock."""
    global _clock
    the_drill = load(drill)
    progress().add(the_drill.id, "start")
    if _clock is not None:
        _clock.stop()
    brief(drill)
    _clock = Clock(the_drill)
    _clock.show()
    if not is_command():
        warm_up()  # while the brief is read


def check(drill: str, namespace: Mapping[str, object] | None = None) -> Verdict:
    """Run what was typed on real ranks, show the verdict and return it.

    Args:
        namespace: the learner's names; None for those of the notebook, or of the caller.
    """
    the_drill = load(drill)
    names = learners_namespace() if namespace is None else namespace
    text = texts_of(the_drill, names)
    return _settle(the_drill, text, grade(drill, names, echo=_echo))


def check_text(drill: str, text: str, file: str) -> Verdict:
    """The same for a file's text, which is executed in the ranks only."""
    return _settle(load(drill), text, grade_source(drill, text, file=file, echo=_echo))


def _echo(line: str) -> None:
    print(line, flush=True)


def _settle(drill: Drill, text: str, verdict: Verdict) -> Verdict:
    """Keep the attempt, show the verdict, stop the clock after a pass."""
    if verdict.status != "not_attempted":
        progress().add_attempt(verdict, text)
    show_verdict(verdict)
    one = _round(drill.id)
    if verdict.status == "passed":
        if _clock is not None and _clock.drill.id == drill.id:
            _clock.stop()
        show(f'then  narration("{drill.id}"), solution("{drill.id}"), status()')
    if one is not None and one.is_timed and verdict.status != "not_attempted":
        show(f"clock {pace(one.until - one.began, drill.minutes)}")
    return verdict


def hint(drill: str) -> None:
    """Show the next hint of this sitting: a question, a pointer, the idea."""
    the_drill, one = load(drill), _round(drill)
    opened = len(one.of("hint")) if one else 0
    number, count = min(opened + 1, len(the_drill.hints)), len(the_drill.hints)
    if opened < count:
        progress().add(the_drill.id, "hint", str(number))
    text = the_drill.hints[number - 1]
    after = (
        ""
        if number < count
        else f'That was the last; solution("{the_drill.id}", give_up=True).'
    )
    show(
        f"hint {number} of {count}   {text}\n{after}".rstrip(),
        markdown=f"**Hint {number} of {count}.** {text} {after}",
    )


def solution(drill: str, *, give_up: bool = False) -> None:
    """Show one correct text: after a pass, or when asked to before it.

    Args:
        give_up: open it without a pass. The drill is due again tomorrow.
    """
    the_drill = load(drill)
    has_passed = any(one.passed for one in progress().rounds(drill))
    if not (has_passed or give_up):
        show(
            f'{drill} has not passed yet. hint("{drill}") shows the next hint; '
            f'solution("{drill}", give_up=True) opens the solution, and the drill is due again.'
        )
        return
    progress().add(the_drill.id, "solution", "earned" if has_passed else "gave_up")
    show(the_drill.solution, markdown=f"```python\n{the_drill.solution}\n```", is_code=True)


def narration(drill: str) -> None:
    """Show what to say while typing, the weak and the strong version, the follow-up."""
    card = load(drill).narration
    parts = {
        "Say": card.say,
        "Weak": card.weak,
        "Strong": card.strong,
        "They ask next": card.follow_up,
    }
    plain = [f"{name}: {text}" for name, text in parts.items()]
    markdown = [f"**{name}.** {text}" for name, text in parts.items()]
    show("\n".join(plain), markdown="\n\n".join(markdown))


def diff(drill: str) -> None:
    """Show what changed between the last two attempts."""
    load(drill)
    attempts = [entry for entry in progress().entries(drill) if entry.kind == "attempt"]
    if len(attempts) < 2:
        show(f"{drill} has {len(attempts)} attempt(s); a diff needs two.")
        return
    old, new = attempts[-2:]
    lines = difflib.unified_diff(
        old.text.splitlines(), new.text.splitlines(), _name(old), _name(new), lineterm=""
    )
    text = "\n".join(lines) or "The last two attempts are the same text."
    show(text, markdown=f"```diff\n{text}\n```", is_code=True)


def _name(attempt: Entry) -> str:
    when = time.strftime("%d %b %H:%M:%S", time.localtime(attempt.at))
    return f"{attempt.status} at {when}"


def status() -> None:
    """Show what has passed, what is due, and what to do next."""
    now, all_of_them = time.time(), standings(_drills(), progress().rounds())
    rows = [_status_row(standing, now) for standing in all_of_them]
    head = ("drill", "minutes", "attempts", "best", "standing")
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    plain = [
        "   ".join(word.ljust(width) for word, width in zip(row, widths, strict=True))
        for row in [head, *rows]
    ]
    table = [head, ("---",) * len(head), *rows]
    markdown = ["| " + " | ".join(row) + " |" for row in table]
    passed = sum(standing.is_passed for standing in all_of_them)
    after = next_of(all_of_them, now)
    last = f"{passed} of {len(rows)} passed. " + (
        f'Next: start("{after.drill.id}")' if after else "Nothing is due today."
    )
    show(
        "\n".join(line.rstrip() for line in [*plain, last]),
        markdown="\n".join(markdown) + f"\n\n{last}",
    )


def _status_row(standing: Standing, now: float) -> tuple[str, ...]:
    attempts = sum(len(one.of("attempt")) for one in standing.rounds)
    best = minutes_of(standing.best_s) if standing.best_s is not None else ""
    words = standing.words(now)
    words = f"passed, {words}" if standing.is_passed else words
    return standing.drill.id, f"{standing.drill.minutes:g}", str(attempts or ""), best, words


def debrief(drill: str | None = None) -> None:
    """Show pace against the budget, and findings: of the last timed run, or of one drill."""
    if drill is None:
        known = {each.id: each for each in _drills()}
        rows = pacing.rows_of_run(progress().rounds(), known)
    else:
        rows = pacing.rows_of_drill(progress().rounds(drill), load(drill))
    if not rows:
        name = drill or _drills()[0].id
        show(f'Nothing to debrief: start("{name}"), then check("{name}").')
        return
    show(pacing.as_text(rows))
    _show_picture(lambda: pacing.picture(rows))


def _show_picture(draw: Callable[[], object]) -> None:
    """Draw it where it can be seen; the text has said the same."""
    if has_front_end():
        try:
            from IPython.display import display

            display(draw())
        except ImportError as error:
            show(f"No picture: {error}.")
