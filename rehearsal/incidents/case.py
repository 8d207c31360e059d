"""An incident, from the alert to the debrief.

case = rehearsal.incident(7)
print(case.alert)
case.look("phases", rank=1)
case.diagnose("slow_rank", because=["phases", "heartbeats"], first_move="drain the host")
case.fix(settings={"hosts": [...]})
case.debrief()
"""

from __future__ import annotations

import difflib
import json
import random
from collections.abc import Mapping, Sequence
from functools import cached_property
from html import escape
from typing import Any, Literal

from rehearsal.incidents.debrief import Debrief, debrief_of
from rehearsal.incidents.draw import Drawn
from rehearsal.incidents.evidence import Evidence
from rehearsal.incidents.judge import Verdict
from rehearsal.incidents.kinds.kind import Kind, See
from rehearsal.incidents.score import FIX_MINUTES, Score, score_of, sources_named
from rehearsal.incidents.settings import BadFix, Settings, apply
from rehearsal.incidents.sources import look_at, scope_of
from rehearsal.incidents.store import BadCase, Event, Store
from rehearsal.incidents.tracks import track_of
from rehearsal.incidents.typed_source import modules_of, with_sources
from rehearsal.incidents.view import BadLook, Note, Outcome, View
from rehearsal.incidents.world import Plan

Tier = Literal["guided", "choice", "realistic"]
POSTMORTEM = ("impact", "cause", "detection", "fix", "prevention")


class Incident:
    """A case whose job has run. ``rehearsal.incident`` makes it."""

    def __init__(self, store: Store, drawn: Drawn, tier: Tier) -> None:
        self.seed, self.tier = store.seed, tier
        self._store, self._drawn = store, drawn
        self._track = track_of(drawn)

    # ------------------------------------------------------------ what is known at once

    @property
    def alert(self) -> str:
        """What the pager says: one sentence."""
        return self._drawn.alert(self._evidence)

    @property
    def sources(self) -> dict[str, int]:
        """What can be looked at, and how many minutes each look costs."""
        return {name: minutes for name, (minutes, _) in self._track.sources.items()}

    def scopes_of(self, source: str) -> list[str]:
        """The names by which a look at a source can be narrowed."""
        return scope_of(source, self._track.sources)

    @property
    def modules(self) -> list[str]:
        """The modules whose code can be looked at and replaced."""
        return self._track.module_names()

    @property
    def settings(self) -> Settings:
        """What can be changed, and what it means; ``look("settings")`` has the values."""
        return Settings(self._drawn.faulty, self._track.rules)

    @property
    def minutes(self) -> int:
        """The simulated clock."""
        return sum(event.get("minutes", 0) for event in self._store.events())

    @property
    def choices(self) -> list[str]:
        """In the tier "choice": four causes, one of them right. Otherwise all that exist."""
        kinds = self._track.deck.kinds
        if self.tier != "choice":
            return sorted(kinds)
        kind, false = self._drawn.kinds[0], self._drawn.distractor
        rng = random.Random(f"choices {self.seed}")
        near = [name for name in (*kind.like[:2], *false.suggests[:1]) if name != kind.id]
        rest = [name for name in sorted(kinds) if name != kind.id]
        rng.shuffle(rest)
        others = list(dict.fromkeys([*near, *rest]))[:3]
        return sorted([kind.id, *others])

    @property
    def question(self) -> str:
        """In the tier "guided": what to find out next."""
        see = self._next_see()
        if self.tier != "guided":
            return ""
        if see is not None:
            return see.asks
        if not [e for e in self._store.events() if e["did"] == "diagnose"]:
            return "What is the cause? Name it with diagnose(...), with your evidence."
        return "What is the smallest change that removes the cause? Apply it with fix(...)."

    # ------------------------------------------------------------ what can be done

    def look(self, source: str, *, run: int = 0, **scope: Any) -> View:
        """Look at one source; it costs minutes, each time.

        Args:
            run: 0 for the job that alerted, n for the rerun after the n-th fix.
            scope: narrows it: ``rank=1``, ``contains="save"``, ``module="train.py"``.

        Raises:
            BadCase: if there is no such source, scope or run; the clock hasn't moved.
        """
        evidence = self._evidence if run == 0 else self._evidence_of(run)
        try:
            view = look_at(
                evidence, source, scope, self._track.sources, self._track.module_names
            )
        except BadLook as error:
            raise BadCase(str(error)) from None
        answered = self._next_see() if self.tier == "guided" else None
        self._store.add("look", source=source, scope=dict(scope), run=run, minutes=view.minutes)
        if answered is not None and run == 0 and source in (answered.source, *answered.also):
            text = f"{view.text}\n\n{answered.shows}\n\nNext: {self.question}"
            view = View(view.source, view.scope, view.minutes, view.data, text, view.draw)
        return view

    def diagnose(self, cause: str, *, because: Sequence[str] = (), first_move: str = "") -> str:
        """Name the cause, the sources that show it, and what you'd do first.

        Args:
            because: names of sources that you have looked at: "phases", or "phases rank 1".

        Raises:
            BadCase: if there is no such cause or source; nothing was noted.
        """
        if cause not in self.choices:
            near = difflib.get_close_matches(str(cause), self.choices, n=1, cutoff=0.4)
            hint = f"Did you mean {near[0]}? " if near else ""
            raise BadCase(
                f"{cause!r} is not a cause that can be named here. {hint}"
                f"There are: {', '.join(self.choices)}."
            )
        because = [because] if isinstance(because, str) else list(map(str, because))
        named = sources_named(because)
        if unknown := sorted(named - set(self.sources)):
            raise BadCase(
                f"{unknown[0]!r} is not a source, so nothing was noted. Evidence is what you "
                f"looked at: {', '.join(self.sources)}."
            )
        self._store.add("diagnose", cause=cause, because=because, first_move=str(first_move))
        after = "debrief if you'd leave it alone" if cause == "no_fault" else "fix it"
        missing = [] if named else ["evidence"]
        missing += [] if str(first_move).strip() else ["a first move"]
        more = f" The score also asks for {' and '.join(missing)}: name the cause again with "
        more = f"{more}{'them' if len(missing) > 1 else 'it'}." if missing else ""
        return Note(f"Noted at minute {self.minutes}: {cause}.{more} Next, {after}.")

    def fix(
        self,
        *,
        settings: Mapping[str, Any] | None = None,
        source: str | Mapping[str, str] | None = None,
    ) -> Outcome:
        """Change settings or code and rerun the job: is the symptom gone, and no new one there?

        Args:
            source: a module's whole text; or {"train.py": text}, for one or more modules.

        Returns:
            True if it is; printed, what the rerun shows.

        Raises:
            BadCase: if a setting or module can't be changed like that; nothing ran.
            JobInterrupted: after Ctrl-C, or the notebook's stop button.
        """
        faulty = self._drawn.faulty
        try:
            plan = apply(faulty, settings or {}, self._track.rules)
            texts = modules_of(faulty, source, self._track.module_names())
        except BadFix as error:
            raise BadCase(str(error)) from None
        if texts:
            plan = with_sources(plan, texts)
        if plan == faulty:
            raise BadCase(
                "This changes nothing: it's what the job ran with. Nothing ran. To leave the "
                "job as it is, go on to the debrief."
            )
        return self._rerun(plan, sorted(texts))

    def debrief(self) -> Debrief:
        """The score, an expert's path and the whole story. What comes later doesn't count."""
        if not any(event["did"] == "debrief" for event in self._store.events()):
            self._store.add("debrief")
        return debrief_of(self._drawn, self.alert, self._store.events())

    def postmortem(self, **lines: str) -> str:
        """Keep a postmortem of five lines: impact, cause, detection, fix, prevention.

        Raises:
            BadCase: if a line is missing or unknown.
        """
        wrong = [name for name in lines if name not in POSTMORTEM]
        missing = [name for name in POSTMORTEM if not str(lines.get(name, "")).strip()]
        if wrong or missing:
            what = f"{wrong[0]} is not one of them" if wrong else f"{missing[0]} is missing"
            raise BadCase(f"A postmortem has five lines, {', '.join(POSTMORTEM)}: {what}.")
        self._store.add("postmortem", lines={name: str(lines[name]) for name in POSTMORTEM})
        return Note(f"Kept in {self._store.folder / 'events.jsonl'}.")

    @property
    def score(self) -> Score:
        """The four rows so far. The debrief shows them; looking at them here gives it away."""
        return score_of(self._drawn, self._store.events())

    @property
    def kind(self) -> Kind:
        """What the page is about. For a debrief, a proof, a scripted candidate."""
        return self._drawn.kinds[0]

    @property
    def history(self) -> list[Event]:
        """All that was done, in order."""
        return self._store.events()

    def __repr__(self) -> str:
        name = self._store.name.capitalize()
        lines = [f"{name}, tier {self.tier}, {self.minutes} minutes so far."]
        lines += ["", f"ALERT  {self.alert}", ""]
        if self.tier == "choice":
            lines.append(f"One of: {', '.join(self.choices)}")
        if self.tier == "guided":
            lines.append(f"To find out: {self.question}")
        prices = ", ".join(f"{name} {minutes}" for name, minutes in self.sources.items())
        lines.append(f"look(source) costs minutes: {prices}.")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        # Paragraphs, since a notebook breaks the lines of plain text within words.
        paragraphs = filter(None, repr(self).splitlines())
        return "".join(f"<p>{escape(text)}</p>" for text in paragraphs)

    # ------------------------------------------------------------ inside

    @cached_property
    def _evidence(self) -> Evidence:
        return self._track.evidence(self._store.runs / "0", self._drawn.faulty)

    def _evidence_of(self, run: Any) -> Evidence:
        fixes = [event for event in self._store.events() if event["did"] == "fix"]
        folder = self._store.runs / f"{run}"
        if type(run) is not int or not 0 < run <= len(fixes) or not folder.exists():
            raise BadCase(f"run={run!r}: there are {len(fixes)} rerun(s), numbered from 1.")
        newest = max(folder.iterdir(), key=lambda path: path.name)  # it may have run twice
        plan = self._drawn.faulty.with_settings(**fixes[run - 1]["settings"])
        sources = json.loads((newest / "plan.json").read_text("utf-8"))["sources"]
        return self._track.evidence(newest, with_sources(plan, sources))

    def _rerun(self, plan: Plan, modules: Sequence[str]) -> Outcome:
        """Run a changed job, and judge and keep what came out."""
        before = self._drawn.faulty.settings
        changed = {name: at for name, at in plan.settings.items() if before[name] != at}
        with self._store.alone():
            number = 1 + sum(event["did"] == "fix" for event in self._store.events())
            verdict = self._track.judge_plan(
                self._drawn, self._evidence, plan, self._store.runs / f"{number}"
            )
            self._store.add(
                "fix",
                settings=changed,
                modules=modules,
                is_fixed=verdict.is_fixed,
                text=verdict.text,
                minutes=FIX_MINUTES,
            )
        return Outcome(verdict.is_fixed, self._told(verdict, number))

    def _told(self, verdict: Verdict, number: int) -> str:
        """A verdict without the figures that would name the cause; the debrief has them."""
        after, paged = self._evidence_of(number), self._drawn.alarms[0]
        where = f"look(..., run={number}) shows the rerun."
        if verdict.is_fixed or not any(alarm.fires(after) for alarm in self._drawn.alarms):
            return f"{verdict.text} {where}"
        if paged.fires(after):
            return f"Not fixed: the same page went off again. {where}"
        second = self._drawn.kinds[1].alert(after)
        return (
            f"That page is quiet now. But a second one went off, and it was there before, too: "
            f"{second} Each fix starts from the job that paged you, so apply both changes "
            f"together. {where}"
        )

    def _next_see(self) -> See | None:
        """The first step of the expert's path that nobody has looked at."""
        looked = {e["source"] for e in self._store.events() if e["did"] == "look"}
        return next((s for s in self._drawn.path if not looked & {s.source, *s.also}), None)
