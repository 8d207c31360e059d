"""The incident of an interview: a real job of the incident room, handled by talking.

"Show me the phases."                                   the interviewer shows them
"It's the loader: the phases say so. I'd add workers."  the diagnosis
"""

from __future__ import annotations

import random
import re
import threading
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from rehearsal.incidents.case import Incident
from rehearsal.incidents.opening import incident_in
from rehearsal.incidents.store import BadCase
from rehearsal.incidents.tracks import TRACKS, TrackName
from rehearsal.interviews.heard import cause_in, sources_in
from rehearsal.interviews.interviewer import Line

# What breaks, by what was built: the facts of rehearsal/interviews/built.py.
BY_FACT = {
    "built:checkpoint": (
        "torn_newest_checkpoint",
        "checkpoint_every_20_minutes",
        "full_disk",
        "rare_checkpoints",
        "learning_rate_jump",
        "skipped_samples_after_resume",
    ),
    "built:sampler": ("duplicate_shards", "wrong_epoch_seed"),
    "built:metrics": ("slow_rank", "slow_network"),
    "built:ddp": ("stuck_host", "replicas_not_synced"),
}
OTHERWISE = ("loader_starved", "slow_rank", "slow_network", "stuck_host")
MOST_LOOKS, MOST_LINES = 3, 64  # at once; of each
FIRST = 10  # lines of one with more than that; the rest are its last
RANK = re.compile(r"(?i)\brank\s*#?(\d+)\b")
# "The phases, and the logs of rank 1" are two requests; "logs and phases of rank 1" is one.
NEXT_REQUEST = re.compile(r"(?i)[.,;?!]+(?=\s|$)|\b(?:and|then)\s+(?=the|a|an|show|all)\b")
MODULE = re.compile(r"\b(?:bio/)?\w+\.py\b")
REQUEST = re.compile(
    r"(?i)\?|\b(show (me|us)|(let me|can i|could i|may i|want to|like to) (see|look|check)|"
    r"look at|look into|give me|pull up|open the|start with|i'd check|let's (see|check))\b"
)


class OnCall:
    """The incident, from its job in the background to its score.

    Args:
        folder: where the case is kept.
        track: the job is one of the toy data, or one of molecules, proteins or graphs.
        waits: run the job when it is asked for, for a program that drives the clock.
    """

    def __init__(
        self, folder: Path, seed: int, *, track: TrackName = "general", waits: bool
    ) -> None:
        self._folder, self._seed, self._track, self._waits = folder, seed, track, waits
        self.case: Incident | None = None
        self.problem = ""
        self._thread: threading.Thread | None = None
        if (folder / "case.json").exists():
            self._open(None)

    def prepare(self, facts: frozenset[str]) -> None:
        """Start the job, unless it was started."""
        if self.case is None and self._thread is None and not self.problem:
            kind = kind_for(facts, self._seed, self._track)
            self._thread = threading.Thread(target=self._open, args=(kind,), daemon=True)
            self._thread.start()
            if self._waits:
                self._thread.join()

    def _open(self, kind: str | None) -> None:
        try:
            self.case = incident_in(self._folder, self._seed, kind, self._track)
        except (BadCase, OSError) as error:  # the interview continues without it
            self.problem = str(error)

    def fill(self, line: Line, said: Sequence[str]) -> Line | None:
        """The text of an alert, or of what was asked for; None while the job runs."""
        if self.problem:
            return Line("We'll skip the incident today: its job didn't run.", "incident over")
        if self.case is None:
            return None
        if line.kind == "alert":
            sources = ", ".join(self.case.sources)
            return Line(
                f"Leave your code for a moment: you're on call for somebody else's run, and "
                f"this comes in. {self.case.alert} Ask for what you want to see ({sources}). "
                "Then name the cause, your evidence and your first move.",
                "alert",
            )
        return self._heard(self.case, " ".join(said))

    def _heard(self, case: Incident, text: str) -> Line:
        sources = [name for name in sources_in(text) if name in case.sources]
        wants = REQUEST.search(text) is not None
        cause = cause_in(text, case.choices)
        if wants and sources:
            shown = [self._shown(case, name, text) for name in sources[:MOST_LOOKS]]
            return Line("\n\n".join(shown), "evidence", {"sources": sources[:MOST_LOOKS]})
        if cause is not None and not wants:
            case.diagnose(cause, because=sources, first_move=text)
            move = f"Noted: {cause.replace('_', ' ')}. Back to your trainer."
            return Line(move, "incident over", {"cause": cause})
        if cause is not None:
            text = "Are you asking me, or telling me? Ask for evidence, or name the cause."
            return Line(text, "evidence", {"sources": []})
        names = ", ".join(case.sources)
        return Line(f"I can show you: {names}. Or name the cause.", "evidence", {"sources": []})

    def _shown(self, case: Incident, source: str, text: str) -> str:
        scope: dict[str, Any] = {}
        if source == "code":
            if (module := module_in(text, case.modules)) is None:
                return f"Which module? There are {', '.join(case.modules)}."
            scope["module"] = module
        rank = rank_for(source, text, case.sources)
        if rank is not None and "rank" in case.scopes_of(source):
            scope["rank"] = rank
        try:
            found = case.look(source, **scope).text
        except BadCase as error:  # there is no such rank
            return f"{source}:\n{error}"
        # A session gets exported and passed on, without the paths of this machine.
        shown = found.replace(str(self._folder), "RUN")
        of = f" of rank {rank}" if "rank" in scope else ""
        # A fault may be in any line of the code.
        return f"{source}{of}:\n{shown if source == 'code' else excerpt(shown)}"

    @property
    def is_diagnosed(self) -> bool:
        """Whether a cause was named."""
        done = self.case.history if self.case is not None else []
        return any(event["did"] == "diagnose" for event in done)

    def score(self) -> Mapping[str, Any] | None:
        """Each row of the incident's score: its grade, 0 to 2, and why. None without one."""
        if self.case is None:
            return None
        return {row.name: (row.grade, row.why) for row in self.case.score.rows}


def rank_for(source: str, text: str, sources: Collection[str]) -> int | None:
    """The rank of which somebody wants to see one of the case's sources; None for all.

    Named apart from any source, as in "For rank 1, show me the logs", it's meant for all.
    """
    parts = NEXT_REQUEST.split(text)
    named = [{*sources_in(part)} & {*sources} for part in parts]
    own = [part for part, of in zip(parts, named, strict=True) if source in of]
    apart = [part for part, of in zip(parts, named, strict=True) if not of]
    for said in (own, apart):
        ranks = {int(number) for part in said for number in RANK.findall(part)}
        if ranks:
            return ranks.pop() if len(ranks) == 1 else None
    return None


def excerpt(text: str) -> str:
    """A text, without its middle if it's long.

    What is last matters most: in a log, what the run died of.
    """
    lines = text.splitlines()
    left_out = len(lines) - MOST_LINES
    if left_out <= 0:
        return text
    note = f"... {left_out} of {len(lines)} lines left out ..."
    return "\n".join([*lines[:FIRST], note, *lines[FIRST - MOST_LINES :]])


def module_in(text: str, names: Sequence[str]) -> str | None:
    """The module that somebody wants to see; that of bio/splits.py is also splits.py."""
    said = MODULE.search(text)
    found = [name for name in names if said and said[0] in (name, name.rpartition("/")[2])]
    # launch.py is the trainer's; the track's own is bio/launch.py.
    return min(found, key=len, default=None)


def kind_for(facts: frozenset[str], seed: int, track: TrackName = "general") -> str:
    """What breaks for a candidate who has built this.

    On the biotech track it's the data, the labels or the geometry, whatever was built.
    """
    if track != "general":
        kinds = TRACKS[track].deck.kinds.values()
        faults = [kind.id for kind in kinds if kind.layer != "none"]
        possible = [kind for kind in faults if not TRACKS[track].missing(kind)]
        return random.Random(f"on call {seed}").choice(sorted(possible))
    fitting = [kind for fact, kinds in BY_FACT.items() if fact in facts for kind in kinds]
    return random.Random(f"on call {seed}").choice(fitting or OTHERWISE)
