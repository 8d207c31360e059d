"""How well was the case handled? Four rows, three grades each, from what was done.

ignored the misleading symptom    no diagnosis and no change chased it
found the root cause              the first diagnosis is right
fixed the right layer             the first change cures it, in the layer of the fault
told the whole chain              cause, mechanism and symptom, each with evidence looked at
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rehearsal.incidents.draw import Drawn
from rehearsal.incidents.kinds.kind import Kind
from rehearsal.incidents.settings import layer_of
from rehearsal.incidents.store import Event
from rehearsal.incidents.tracks import Track, track_of

GRADES = ("no", "partly", "yes")
FIX_MINUTES = 15
MOST_IRRELEVANT = 3


class Row(NamedTuple):
    """One row of the score."""

    name: str
    grade: int  # 0 no, 1 partly, 2 yes
    why: str
    minutes: int  # when it was decided, on the case's clock

    def __str__(self) -> str:
        return f"{GRADES[self.grade]:<7} {self.name}, minute {self.minutes}: {self.why}"


class Score(NamedTuple):
    """All rows."""

    rows: tuple[Row, ...]
    minutes: int
    expert_minutes: int

    @property
    def points(self) -> int:
        """0 to 8."""
        return sum(row.grade for row in self.rows)

    def lines(self) -> list[str]:
        """The points, then a line per row."""
        head = (
            f"{self.points} of 8 points in {self.minutes} minutes on the clock; an expert's "
            f"looks take {self.expert_minutes}."
        )
        return [head, *map(str, self.rows)]

    def __str__(self) -> str:
        return "\n".join(self.lines())


class Done(NamedTuple):
    """What was done before the debrief, with the minute at which each thing happened."""

    looks: list[tuple[int, Event]]
    diagnoses: list[tuple[int, Event]]
    fixes: list[tuple[int, Event]]
    minutes: int


def done_in(events: Sequence[Event]) -> Done:
    """Sort the events up to the first debrief."""
    minutes, found = 0, Done([], [], [], 0)
    for event in events:
        if event["did"] == "debrief":
            break
        minutes += event.get("minutes", 0)
        kinds = {"look": found.looks, "diagnose": found.diagnoses, "fix": found.fixes}
        if event["did"] in kinds:
            kinds[event["did"]].append((minutes, event))
    return found._replace(minutes=minutes)


def layers_of(fix: Event, track: Track) -> set[str]:
    """The layers in which a fix changed something."""
    layers: set[str] = {layer_of(name, track.rules) for name in fix["settings"]}
    return layers | ({"code"} if fix["modules"] else set())


def score_of(drawn: Drawn, events: Sequence[Event]) -> Score:
    """Judge what was done."""
    done = done_in(events)
    rows = (
        ignored_the_distractor(drawn, done),
        found_the_cause(drawn, done),
        fixed_the_layer(drawn, done),
        told_the_chain(drawn, done),
    )
    expert = sum(track_of(drawn).sources[see.source][0] for see in drawn.path)
    return Score(rows, done.minutes, expert)


def ignored_the_distractor(drawn: Drawn, done: Done) -> Row:
    """Whether a diagnosis or a change followed the misleading symptom."""
    name, false = "ignored the misleading symptom", drawn.distractor
    if not done.diagnoses:
        return Row(name, 0, "no cause was named, so nothing was ruled out", done.minutes)
    chased = [
        (minute, f"named {event['cause']}")
        for minute, event in done.diagnoses
        if event["cause"] in false.suggests and event["cause"] not in drawn.causes
    ]
    for minute, event in done.fixes:
        right = drawn.reference.settings  # of two faults, one may be left
        tempting = sorted(
            name
            for name, value in event["settings"].items()
            if name in false.tempts and right.get(name) != value
        )
        if tempting and not event["is_fixed"]:
            chased.append((minute, f"changed {', '.join(tempting)}"))
    minute, last = done.diagnoses[-1]
    if last["cause"] in false.suggests and last["cause"] not in drawn.causes:
        return Row(name, 0, f"the diagnosis follows it: {last['cause']}", minute)
    if chased:
        minute, what = chased[0]
        return Row(name, 1, f"{what}, then let it go", minute)
    return Row(name, 2, f"{false.id} was left alone", minute)


def found_the_cause(drawn: Drawn, done: Done) -> Row:
    """Whether each cause was named, and at which try."""
    name, due = "found the root cause", " and ".join(drawn.causes)
    named = list(dict.fromkeys(event["cause"] for _, event in done.diagnoses))
    if not named:
        return Row(name, 0, f"no cause was named; it was {due}", done.minutes)
    minute, last = done.diagnoses[-1][0], done.diagnoses[-1][1]["cause"]
    wrong = [cause for cause in named if cause not in drawn.causes]
    missing = [cause for cause in drawn.causes if cause not in named]
    if missing and len(missing) < len(drawn.causes):
        text = f"one of two: {missing[0]} wasn't named"
        return Row(name, 1 if not wrong else 0, text, minute)
    if missing:
        is_close = len(named) == 1 and any(last in kind.like for kind in drawn.kinds)
        how = "close" if is_close else "named"
        return Row(name, int(is_close), f"{how}: {last}, but it was {due}", minute)
    if last not in drawn.causes:
        return Row(name, 0, f"named {last} in the end, but it was {due}", minute)
    if len(wrong) > 1:
        return Row(name, 0, f"named {len(wrong)} other causes first", minute)
    if wrong:
        return Row(name, 1, f"named {due} at the second try", minute)
    return Row(name, 2, f"named {due} at once", minute)


def fixed_the_layer(drawn: Drawn, done: Done) -> Row:
    """Whether a change cured it, in which layer, and at which try."""
    name, right = "fixed the right layer", drawn.right_layers
    track = track_of(drawn)
    changes = [(m, e) for m, e in done.fixes if e["settings"] or e["modules"]]
    if not drawn.is_faulty:
        is_named = bool(done.diagnoses) and done.diagnoses[-1][1]["cause"] in drawn.causes
        if not changes:
            text = "changed nothing" if is_named else "changed nothing, without saying why"
            return Row(name, 2 if is_named else 0, text, done.minutes)
        text = f"{len(changes)} change(s) to a healthy job"
        return Row(name, 1 if is_named and len(changes) == 1 else 0, text, changes[-1][0])
    for number, (minute, event) in enumerate(changes, start=1):
        if not event["is_fixed"]:
            continue
        extra = layers_of(event, track) - right
        where = ", ".join(sorted(layers_of(event, track)))
        # With two faults, the first fix is what brings the second to light.
        if number <= len(drawn.kinds) and not extra:
            return Row(name, 2, f"change {number} cured it ({where})", minute)
        if number <= 3 and layers_of(event, track) & right:
            more = f", with changes elsewhere too ({where})" if extra else ""
            return Row(name, 1, f"change {number} cured it{more}", minute)
        if number == 1:
            text = f"a workaround in {where}; the fault is in {', '.join(sorted(right))}"
            return Row(name, 1, text, minute)
        return Row(name, 0, f"change {number} cured it, after guessing", minute)
    text = f"{len(changes)} change(s), none cured it" if changes else "nothing was changed"
    return Row(name, 0, text, done.minutes)


def told_the_chain(drawn: Drawn, done: Done) -> Row:
    """Whether each link of each chain has evidence that was looked at and named."""
    name, found = "told the whole chain", []
    if done.diagnoses and done.diagnoses[-1][1]["cause"] in drawn.causes:
        for kind in drawn.kinds:
            of = [told for told in done.diagnoses if told[1]["cause"] == kind.id]
            if of:
                found.append(chain_of(kind, done, *of[-1]))
    if not found:
        return Row(name, 0, "the chain begins at a cause that wasn't named last", done.minutes)
    grades = [grade for grade, _ in found]
    if len(found) < len(drawn.kinds):
        why = f"half of it: {found[0][1]}"
        return Row(name, min(1, *grades), why, done.diagnoses[-1][0])
    return Row(name, min(grades), "; ".join(why for _, why in found), done.diagnoses[-1][0])


def sources_named(because: Sequence[str]) -> set[str]:
    """The sources that a diagnosis names: the first word of each piece of evidence."""
    return {str(item).split()[0].strip(",:()") for item in because if str(item).split()}


def chain_of(kind: Kind, done: Done, minute: int, told: Event) -> tuple[int, str]:
    """The grade of one diagnosis, and why."""
    looked = {event["source"] for at, event in done.looks if at <= minute}
    named = sources_named(told["because"])
    cited = named & looked
    links = {
        link: any(cited & {see.source, *see.also} for see in kind.path if see.link == link)
        for link in ("symptom", "mechanism", "cause")
    }
    useful = {source for see in kind.path for source in (see.source, *see.also)}
    shotgun = len(cited - useful) > MOST_IRRELEVANT
    move = str(told["first_move"]).lower()
    has_move = any(word in move for word in kind.first_moves)
    missing = [f"no evidence for the {link}" for link, has in links.items() if not has]
    missing += ["named more than what bears on it"] if shotgun else []
    missing += [] if has_move else ["no first move that acts on the cause"]
    if named - looked:
        missing.append(f"named without looking: {', '.join(sorted(named - looked))}")
    if not missing:
        return 2, f"evidence for each link: {', '.join(sorted(cited))}"
    return (1 if sum(links.values()) >= 2 else 0), "; ".join(missing)
