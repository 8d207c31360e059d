"""Record the interviews that come with the suite: rehearsal/interviews/transcripts.

    python scripts/record_interviews.py                 records all three
    python scripts/record_interviews.py weak --draft    shows what would be recorded

What a candidate says and types is in scripts/candidates/NAME.txt. Each entry begins with when:

    @ 3:20                              at this minute
    @ 0:40 after question torn_newest_file      so long after that line of the interviewer
    @ 0:40 after evidence #2            after the second such line
    @ 9:30 types                        code; anything else is said

The interview is a real one on a simulated clock: the interviewer asks what follows from what
was built and said, and the graders run the code. So when the interviewer's questions change,
entries may no longer fit. The recorder stops at those, and names lines that nobody answers.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rehearsal.interviews.recorded import SHIPPED, TRANSCRIPTS, read
from rehearsal.interviews.replay import head_of, lines_of
from rehearsal.interviews.session import Interview
from rehearsal.interviews.store import Event, Store
from rehearsal.interviews.transcript import moments_of, stamp_of

CANDIDATES = Path(__file__).with_name("candidates")
BEGAN = 1_767_261_600.0  # 2026-01-01 10:00 UTC, for all: a recording has no date of its own
TICK_S = 5.0
HEAD = re.compile(r"(\d+) minutes, seed (\d+)")
ENTRY = re.compile(r"@ (\d+):(\d\d)(?: after ([a-z_ ]+?)(?: #(\d+))?)?( types)?")
EXPECTS_NO_ANSWER = ("prompt", "reply", "incident over", "end")


class Unfit(ValueError):
    """A candidate's text doesn't fit what the interviewer asks."""


class Entry(NamedTuple):
    """Something that a candidate says or types.

    Args:
        after: the key of the interviewer's line that it follows, and the how manieth of them;
            None for a time of its own.
    """

    seconds: float
    after: tuple[str, int] | None
    is_code: bool
    text: str


class Script(NamedTuple):
    """A candidate's whole text."""

    minutes: int
    seed: int
    entries: tuple[Entry, ...]


def script_in(path: Path) -> Script:
    """A candidate's text.

    Raises:
        Unfit: if it can't be read as one.
    """
    head, *blocks = re.split(r"^(?=@ )", path.read_text("utf-8"), flags=re.MULTILINE)
    found = HEAD.search(head)
    if found is None:
        raise Unfit(f"{path}: the first line must be such as: 45 minutes, seed 9")
    return Script(int(found[1]), int(found[2]), tuple(_entry(path, each) for each in blocks))


def _entry(path: Path, block: str) -> Entry:
    head, _, text = block.partition("\n")
    found = ENTRY.fullmatch(head.strip())
    if found is None or not text.strip():
        raise Unfit(f"{path}: {head!r} is no time with something said or typed below it.")
    is_code = found[5] is not None
    said = "\n\n".join(" ".join(part.split()) for part in text.strip().split("\n\n"))
    seconds = 60 * int(found[1]) + int(found[2])
    after = (found[3], int(found[4] or 1)) if found[3] else None
    return Entry(seconds, after, is_code, text.strip("\n") + "\n" if is_code else said)


def key_of(line: Event) -> str:
    """How an entry names a line: its kind, and the card or rule behind it."""
    return f"{line['kind']} {line.get('card') or line.get('rule') or ''}".strip()


class Player:
    """Says and types a candidate's entries when they are due."""

    def __init__(self, script: Script) -> None:
        self.due = [(each.seconds, each) for each in script.entries if not each.after]
        self.waiting = [each for each in script.entries if each.after]
        self.heard = dict[str, int]()  # lines so far, by key
        self.unanswered = list[str]()

    def hears(self, line: Event) -> None:
        """Put on the clock what follows a line."""
        key = key_of(line)
        self.heard[key] = self.heard.get(key, 0) + 1
        after = (key, self.heard[key])
        following = [each for each in self.waiting if each.after == after]
        self.waiting = [each for each in self.waiting if each.after != after]
        self.due += [(line["at"] + each.seconds, each) for each in following]
        if not following and line["kind"] not in EXPECTS_NO_ANSWER:
            said = line["text"].splitlines()[0]
            self.unanswered.append(f"{stamp_of(line['at'])} [{key}] {said}")

    def act(self, session: Interview, now: float) -> None:
        """Say and type what is due."""
        for at, entry in sorted(self.due, key=lambda each: each[0]):
            if at <= now and not session.is_over:
                self.due.remove((at, entry))
                (session.type if entry.is_code else session.say)(entry.text)


def hold(script: Script, folder: Path) -> Player:
    """Hold the interview in a folder.

    Raises:
        Unfit: if entries are left over.
    """
    now, store, player = [0.0], Store(folder), Player(script)
    store.create(minutes=script.minutes, seed=script.seed, mode="real", began=BEGAN)
    store.take()
    session = Interview(store, lambda: now[0], is_simulated=True)
    while not session.is_over:
        while session.next() is not None and not session.is_over:
            player.hears(session.events[-1])
        player.act(session, now[0])
        now[0] += TICK_S
    left = [
        f"after {key} #{n}" for key, n in (each.after or ("", 0) for each in player.waiting)
    ]
    left += [f"at {stamp_of(at)}" for at, _ in player.due]
    if left:
        raise Unfit(f"{folder.name}: entries that never came to pass: {', '.join(left)}")
    return player


def keep(source: Path, target: Path) -> None:
    """Copy a session without its job, its lock, and what is different in each recording: when
    and where it was made."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    shutil.copy(source / "interview.json", target)
    shutil.copytree(source / "typed", target / "typed")
    events = [_timeless(event) for event in Store(source).events()]
    lines = "".join(json.dumps(event) + "\n" for event in events)
    lines = lines.replace(f"{source}/incident/runs/0/", "")
    (target / "events.jsonl").write_text(lines, "utf-8")
    card = json.loads((source / "scorecard.json").read_text("utf-8"))
    minutes = json.loads((source / "interview.json").read_text("utf-8"))["minutes"]
    card["ended"] = BEGAN + 60 * minutes
    (target / "scorecard.json").write_text(json.dumps(card, indent=1), "utf-8")


def _timeless(event: dict[str, Any]) -> dict[str, Any]:
    return {**event, "seconds": 0.0} if event["did"] == "checked" else event


def shown(folder: Path) -> Iterator[str]:
    """A recorded session as text, with its marks."""
    session = read(Store(folder))
    yield head_of(session)
    for moment in moments_of(session.events, session.cells, session.minutes):
        yield from lines_of(moment, "candidate")
    yield f"\n{session.scorecard()}"


def main(arguments: Sequence[str]) -> int:
    """Record; 2 if a candidate's text doesn't fit."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("name", nargs="*", choices=[*SHIPPED, []], help="default: all")
    parser.add_argument("--draft", action="store_true", help="show it, and keep nothing")
    options = parser.parse_args(arguments)
    for name in options.name or SHIPPED:
        with tempfile.TemporaryDirectory(prefix="record-") as temporary:
            folder = Path(temporary) / name
            try:
                player = hold(script_in(CANDIDATES / f"{name}.txt"), folder)
            except Unfit as error:
                if options.draft:
                    print("\n".join(shown(folder)))
                print(f"record_interviews: {error}", file=sys.stderr)
                return 2
            if options.draft:
                print("\n".join(shown(folder)))
            else:
                keep(folder, TRANSCRIPTS / name)
            card = read(Store(folder)).scorecard()
            print(f"{name}: {card.percent} of 100, {card.marks}")
            print("".join(f"  unanswered {line}\n" for line in player.unanswered), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
