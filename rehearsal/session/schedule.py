"""Which drill or card is due for review, and what to do next: a pure function of the history.

A round that ended with a pass, or by giving up, counts as one review in spaced repetition,
graded by how much help and time it took. FSRS turns the grades into intervals: two days after
an ordinary pass, eleven after the next, and never more than thirty, because interviews are
weeks away, not years.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta

from rehearsal.grading.drill import Drill
from rehearsal.session.history import Grade, Round

MAX_INTERVAL_DAYS = 30


def grade_of(one: Round, minutes: float) -> Grade | None:
    """How well a round went; None if it has not ended.

    again   the solution was opened before a pass
    hard    passed over budget, or with all three hints
    easy    passed in time, at the first attempt, without a hint
    good    any other pass
    """
    if one.gave_up:
        return "again"
    if one.passed is None:
        return None
    late = one.is_timed and one.until - one.began > 60 * minutes
    if late or len(one.of("hint")) >= 3:
        return "hard"
    at_once = one.of("attempt")[0] is one.passed and not one.of("hint")
    return "easy" if at_once and one.is_timed else "good"


def due_at(rounds: Iterable[Round], minutes: float) -> float | None:
    """When a drill with these rounds is due, in unix seconds; None before one has ended."""
    grades = [(one.until, grade_of(one, minutes)) for one in rounds]
    return due_after([(at, grade) for at, grade in grades if grade is not None])


def due_after(reviews: Iterable[tuple[float, Grade]]) -> float | None:
    """When something with these reviews is due, in unix seconds; None before the first."""
    return next(reversed(dues_after(reviews)), None)


def dues_after(reviews: Iterable[tuple[float, Grade]]) -> list[float]:
    """When something is due after each of its reviews, in unix seconds.

    Args:
        reviews: when each was, in unix seconds and in this order, and how well it went.
    """
    from fsrs import Card, Rating, Scheduler

    # No learning steps: they are minutes long, made for flash cards. No fuzz: the same history
    # must give the same date each time.
    scheduler = Scheduler(
        learning_steps=(),
        relearning_steps=(),
        maximum_interval=MAX_INTERVAL_DAYS,
        enable_fuzzing=False,
    )
    ratings = {
        "again": Rating.Again,
        "hard": Rating.Hard,
        "good": Rating.Good,
        "easy": Rating.Easy,
    }
    card, dues = Card(card_id=0), list[float]()
    for at, grade in reviews:
        card, _ = scheduler.review_card(card, ratings[grade], datetime.fromtimestamp(at, UTC))
        dues.append(card.due.timestamp())
    return dues


def day_of(at: float) -> date:
    """The local day of a moment in unix seconds."""
    return datetime.fromtimestamp(at).date()


def end_of_day(now: float) -> float:
    """The next midnight here, in unix seconds: what is due before it is due today.

    An interval is whole days, so without this a card answered at nine in the evening could not
    be asked the next morning.
    """
    return datetime.combine(day_of(now) + timedelta(days=1), time.min).timestamp()


def words_until(due: float, now: float) -> str:
    """A due date in a few words. Both are unix seconds."""
    if due <= now:
        return "due now"
    days = -(-round(due - now) // 86400)  # whole seconds: a date is rounded to microseconds
    return f"due in {days} day{'s' if days > 1 else ''}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Standing:
    """One drill, and how a person is doing at it."""

    drill: Drill
    rounds: Sequence[Round]
    due: float | None  # unix seconds; None before a round has ended

    @property
    def is_passed(self) -> bool:
        """Whether it has ever been passed."""
        return any(one.passed for one in self.rounds)

    @property
    def best_s(self) -> float | None:
        """The fastest timed pass."""
        timed = [one.until - one.began for one in self.rounds if one.passed and one.is_timed]
        return min(timed, default=None)

    def words(self, now: float) -> str:
        """Its status in a few words."""
        if self.due is not None:
            return words_until(self.due, now)
        return "started" if self.rounds else "new"


def standings(drills: Iterable[Drill], rounds: Iterable[Round]) -> list[Standing]:
    """One for each drill, in the given order."""
    by_drill: dict[str, list[Round]] = {}
    for one in rounds:
        by_drill.setdefault(one.drill, []).append(one)
    return [
        Standing(
            drill=drill,
            rounds=by_drill.get(drill.id, []),
            due=due_at(by_drill.get(drill.id, []), drill.minutes),
        )
        for drill in drills
    ]


def next_of(standings: Sequence[Standing], now: float) -> Standing | None:
    """What to do next: the most overdue drill, else one already started, else a new one.

    None if nothing is due and none is new or unfinished.
    """
    due = [s for s in standings if s.due is not None and s.due <= now]
    started = [s for s in standings if s.due is None and s.rounds]
    new = [s for s in standings if not s.rounds]
    oldest = sorted(due, key=lambda standing: standing.due or 0.0)
    newest_started = sorted(started, key=lambda standing: -standing.rounds[-1].began)
    return next(iter([*oldest, *newest_started, *new]), None)
