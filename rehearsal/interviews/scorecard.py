"""The marks of an interview, 1 to 4 in each row of the rubric, each with its evidence.

A mark follows from what was counted: points of cards covered or contradicted, stages of the
trainer that passed, rows of the incident, minutes of silence. No mark without evidence, and
nothing is judged twice: the graders judge code, the deck's matcher judges words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from rehearsal.deck.cards import card_named
from rehearsal.grading.verdict import counted
from rehearsal.interviews.advice import advice
from rehearsal.interviews.boxes import boxes
from rehearsal.interviews.interviewer import CLOSING
from rehearsal.interviews.rubric import MARKS, ROWS, RUBRIC
from rehearsal.interviews.state import Asked, State, judged

OPENING = "opening_minute"
STAGES = 12  # of the live trainer, reached in an hour
WORTH = {  # another drill's pass, in stages of the live trainer
    "happy_path": 3,
    "lift_to_ddp": 3,
    "resume_after_failure": 4,
    "instrument_performance": 2,
}
LONGEST_SILENCE = 6.0  # minutes
MOST_UNASKED = 4  # that are shown


class Evidence(NamedTuple):
    """One thing that a mark rests on."""

    minute: float
    what: str
    helps: bool


class Mark(NamedTuple):
    """A row's mark, and what it rests on."""

    row: str
    mark: int
    evidence: tuple[Evidence, ...]

    def __str__(self) -> str:
        head = f"{ROWS[self.row].name:<34} {self.mark}  {MARKS[self.mark]}"
        lines = [
            f"    {'+' if e.helps else '-'} {e.minute:4.0f} min  {e.what}"
            for e in self.evidence
        ]
        return "\n".join([head, *lines])


class Scorecard(NamedTuple):
    """All rows, the three weakest, and what to do next."""

    name: str
    rows: tuple[Mark, ...]
    weakest: tuple[str, ...]
    next: tuple[Mapping[str, str], ...]
    minutes: float  # how long it took
    hints: int

    @property
    def marks(self) -> dict[str, int]:
        """Row id to mark."""
        return {row.row: row.mark for row in self.rows}

    @property
    def percent(self) -> int:
        """0 if every mark is 1, 100 if every one is 4."""
        return percent_of(self.marks)

    def __str__(self) -> str:
        length = counted(round(self.minutes), "minute")
        head = f"Interview {self.name}, {length}: {self.percent} of 100."
        if self.hints:
            head += f" Study mode, {counted(self.hints, 'hint')}."
        lines = [head, "", *map(str, self.rows), "", "Weakest:"]
        lines += [f"  {ROWS[row].name}. {ROWS[row].earns}" for row in self.weakest]
        lines += ["", "Next:", *(f"  {item['do']}: {item['why']}" for item in self.next)]
        return "\n".join(lines)


def percent_of(marks: Mapping[str, int]) -> int:
    """Marks as a percentage, with the rubric's weights."""
    most = sum(3 * row.weight for row in RUBRIC)
    return round(
        100 * sum(ROWS[name].weight * (mark - 1) for name, mark in marks.items()) / most
    )


def scorecard_of(name: str, state: State, minutes: float) -> Scorecard:
    """The scorecard of an interview.

    Args:
        minutes: how long it was meant to be.
    """
    judges: dict[str, Callable[[], Mark]] = {
        "understands": lambda: understands(state, minutes),
        "builds": lambda: builds(state, minutes),
        "debugs": lambda: debugs(state, state.incident_rows),
        "communicates": lambda: communicates(state, minutes),
    }
    rows = tuple(
        judges[row.id]() if row.id in judges else answers_row(row.id, state) for row in RUBRIC
    )
    order = sorted(rows, key=lambda mark: (mark.mark, -ROWS[mark.row].weight))
    weakest = tuple(mark.row for mark in order[:3])
    length = state.ended if state.ended is not None else minutes
    return Scorecard(name, rows, weakest, advice(state, weakest), length, state.hints)


def marked(score: float) -> int:
    """A mark from a score: 3 is all there is to get by answering when asked."""
    return 4 if score >= 2.4 else 3 if score >= 1.4 else 2 if score >= 0.6 else 1


def _point(card_id: str, point_id: str) -> str:
    card = card_named(card_id)
    return next(point.text for point in card.points if point.id == point_id)


def answers_row(row: str, state: State) -> Mark:
    """A row that is marked by answers, and by what was said before anyone asked."""
    evidence = list[Evidence]()
    shares, wrong = list[float](), 0
    for asked in (each for each in state.asked if each.row == row):
        if not asked.answers:
            text = f'no answer to "{asked.text or asked.card.question}"'
            evidence.append(Evidence(asked.minute, text, False))
        for point_id, (what, words, minute) in asked.points.items():
            point = _point(asked.card.id, point_id)
            if what == "covered":
                evidence.append(Evidence(minute, f'{point} ("{words}")', True))
            elif what == "contradicted":
                wrong += 1
                evidence.append(Evidence(minute, f'against: {point} ("{words}")', False))
            elif asked.answers:
                evidence.append(Evidence(minute, f"not said: {point}", False))
        evidence += second_opinions(asked)
        shares.append(asked.share)
    first = list(volunteered(row, state))
    evidence += first[:MOST_UNASKED]
    if not evidence:
        evidence.append(Evidence(state.ended or 0.0, "nothing was said about it", False))
    score = 3 * sum(shares) / len(shares) if shares else 0.0
    score += 0.4 * min(2, len(first)) - 0.75 * wrong
    return Mark(row, marked(score), _in_order(evidence))


def second_opinions(asked: Asked) -> Iterator[Evidence]:
    """Where a language model disagrees with the matcher. Shown, and not counted."""
    for point_id, (what, _, minute) in asked.points.items():
        other = asked.opinion.get(point_id, what)
        if other != what:
            text = f"second opinion of a language model, not counted: {other}: "
            helps = other == "covered"
            yield Evidence(minute, f"{text}{_point(asked.card.id, point_id)}", helps)


def volunteered(row: str, state: State) -> Iterator[Evidence]:
    """What was said before anyone asked about the row, in sentences that announce it."""
    asked = min([each.minute for each in state.asked if each.row == row], default=float("inf"))
    for minute, heard in state.says:
        if heard.what == row and minute < asked:
            yield Evidence(minute, f'unasked ("{heard.words}")', True)


def _minute_of(words: str, state: State) -> float:
    """When words were said; the beginning if they are from several places."""
    for said in state.said:
        if words and " ".join(words.split()) in " ".join(said.text.split()):
            return said.minute
    return state.said[0].minute if state.said else 0.0


def understands(state: State, minutes: float) -> Mark:
    """Questions that change the design, and an opening that says what has to hold."""
    until = min([boxes(minutes)[1].ends + 1, *(each.minute for each in state.asked)])
    evidence = [
        Evidence(minute, f"asked about {topic}", True) for topic, minute in state.topics.items()
    ]
    asked = sum(minute <= until for minute in state.topics.values())
    said, wrong = 0, 0
    opening = card_named(OPENING)
    text = state.words_before(until)
    coverage = judged(opening, text)
    for point_id in (*coverage.covered, *coverage.contradicted):
        helps, words = point_id in coverage.covered, coverage.because.get(point_id, "")
        said, wrong = said + helps, wrong + (not helps)
        what = f'{"" if helps else "against: "}{_point(OPENING, point_id)} ("{words}")'
        evidence.append(Evidence(_minute_of(words, state), what, helps))
    if not asked:
        what = "no question about the situation in the first minutes"
        evidence.append(Evidence(min(until, state.ended or until), what, False))
    if not said:
        what = "what has to hold wasn't said before the code"
        evidence.append(Evidence(min(until, state.ended or until), what, False))
    score = 0.4 * min(asked, 4) + 0.4 * min(said, 5) - 0.75 * wrong
    mark = marked(score)
    return Mark("understands", mark if asked and said else min(mark, 2), _in_order(evidence))


def builds(state: State, minutes: float) -> Mark:
    """What the graders say about the last text that they judged."""
    verdicts = [one for one in state.checked if one["status"] != "not checked"]
    if not verdicts:
        what = "nothing was typed" if not state.typed_at else "nothing typed could be judged"
        return Mark("builds", 1, (Evidence(state.ended or minutes, what, False),))
    evidence = list[Evidence]()
    seen = set[str]()
    for verdict in verdicts:
        new = [stage for stage in verdict["stages"] if stage not in seen]
        seen |= set(new)
        if new:
            text = f"{verdict['drill']}: {', '.join(new)} pass"
            evidence.append(Evidence(verdict["at"] / 60, text, True))
    last = verdicts[-1]
    for _, found, rule, _ in last["findings"] if last["status"] != "not_attempted" else ():
        evidence.append(Evidence(last["at"] / 60, f"{found}. Rule: {rule}", False))
    passed = len(last["stages"])
    if last["drill"] in WORTH:
        passed = WORTH[last["drill"]] if last["status"] == "passed" else 0
        if passed:
            evidence.append(Evidence(last["at"] / 60, f"{last['drill']} passes", True))
    if state.problem:
        what = f"the last cell doesn't parse: {state.problem}"
        evidence.append(Evidence(state.typed_at[-1], what, False))
    expected = STAGES * min(1.0, minutes / 60)
    score = 3 * min(1.0, passed / expected)
    if last["status"] in ("wrong", "crashed", "hung"):
        score -= 0.75
    if not evidence:
        evidence.append(Evidence(last["at"] / 60, "no stage of the trainer passes yet", False))
    return Mark("builds", marked(score), _in_order(evidence))


def debugs(state: State, incident: Mapping[str, Any] | None) -> Mark:
    """The incident's rows that need no rerun: the misleading symptom, the cause, the chain."""
    if incident is None or state.incident_at is None:
        what = "the interview ended before anything broke"
        return Mark("debugs", 1, (Evidence(state.ended or 0.0, what, False),))
    rows = {name: row for name, row in incident.items() if name != "fixed the right layer"}
    evidence = [
        Evidence(state.incident_at, f"{name}: {why}", grade == 2)
        for name, (grade, why) in rows.items()
    ]
    score = 3 * sum(grade for grade, _ in rows.values()) / (2 * len(rows))
    has_evidence = rows["told the whole chain"][0] > 0
    return Mark(
        "debugs", marked(score if has_evidence else min(score, 1.0)), _in_order(evidence)
    )


def communicates(state: State, minutes: float) -> Mark:
    """Silences, check-ins, and whether questions got an answer."""
    ended = state.ended if state.ended is not None else minutes
    heard = [said.minute for said in state.said]
    evidence = list[Evidence]()
    edges = [0.0, *heard, ended]
    silences = [(later - earlier, earlier) for earlier, later in pairwise(edges)]
    longest, since = max(silences)
    talks = longest <= LONGEST_SILENCE
    evidence.append(
        Evidence(since, f"longest silence: {counted(round(longest), 'minute')}", talks)
    )
    quiet = sum(length for length, _ in silences if length > LONGEST_SILENCE) / max(ended, 1e-9)
    check_ins = [(m, h) for m, h in state.says if h.what in ("checks_in", "restates")]
    for minute, said in check_ins[:4]:
        evidence.append(Evidence(minute, f'says where this goes ("{said.words}")', True))
    answered = sum(bool(each.answers) for each in state.asked)
    if state.asked:
        text = f"{answered} of {len(state.asked)} questions got an answer"
        evidence.append(Evidence(ended, text, answered == len(state.asked)))
    closing = next((each for each in state.asked if each.card.id == CLOSING), None)
    points = [what for each in state.asked for what, *_ in each.points.values()]
    score = 1.2 * (1 - quiet) + 0.2 * min(len(check_ins), 4)
    score += 0.5 * (answered / len(state.asked) if state.asked else 0)
    score += 0.5 * (closing.share if closing else 0)
    mark = marked(score if heard else 0.0)
    if points.count("contradicted") > points.count("covered"):
        mark = min(mark, 2)
        evidence.append(Evidence(ended, "more points were contradicted than covered", False))
    return Mark("communicates", mark, _in_order(evidence))


def _in_order(evidence: Sequence[Evidence]) -> tuple[Evidence, ...]:
    return tuple(sorted(evidence, key=lambda one: one.minute))
