"""A mock interview at a terminal: lines that you type are said, and / begins a command.

    $ python -m rehearsal interview --minutes 45 --file attempt.py
    44:58 clarify> How many GPUs do we have, and does the model fit on one?
    ...

The interviewer speaks while you're silent, so nothing here waits for a line alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from rehearsal.incidents import terminal as incidents
from rehearsal.incidents.store import BadCase
from rehearsal.interviews.files import File, text_of
from rehearsal.interviews.session import Interview
from rehearsal.interviews.spoken import entries
from rehearsal.interviews.stdin import Lines
from rehearsal.interviews.store import BadInterview
from rehearsal.interviews.terminal_text import as_commands, in_lines, named, spelled
from rehearsal.session.clock import minutes_of
from rehearsal.session.terminal import program

TURN_S = 0.5  # how long a turn waits for a line
COMPOSING_S = 60.0  # for how long the interviewer lets somebody finish a thought
KEEP_TITLE, TITLE_BACK = "\x1b[22;0t", "\x1b[23;0t"  # of the terminal's window
HELP = """\
What you type is said, once you press Enter on an empty line. Lines with a slash are commands:

/type FILE                      hand in a file, as a cell of your notebook
/paste                          hand in lines, until one with only a dot
/incident look SOURCE NAME=VALUE
                                look closer, once you're on call: look phases rank=1
/names                          the names that the graders call, with their arguments
/status                         the clock, the plan, and what you have typed
/hint                           in study mode: what's missing
/pause, /resume                 stop the clock, and let it run again
/end                            end it now; whatever you've typed by now counts
/export FILE                    at the end: the scorecard as one HTML page
/help                           this list

Ctrl-C pauses. Ctrl-D leaves, and the interview waits for you. If the interviewer interrupts
you in the middle of a line, Ctrl-R shows the line again."""


class Room:
    """One sitting of an interview: from its beginning, or where it was left, to its end.

    Args:
        file: typed by itself, each time it's saved.
        lines: what is typed at the prompt.
        say: prints.
        is_terminal: whether a person sits there, who gets a prompt.
    """

    def __init__(
        self,
        interview: Interview,
        lines: Lines,
        *,
        file: File | None = None,
        say: Callable[[str], None] = print,
        is_terminal: bool = False,
    ) -> None:
        self.interview, self._lines, self._say = interview, lines, say
        self._is_terminal = is_terminal
        self._shown = len(interview.events)
        self._pending: list[str] = []  # said once there is an empty line
        self._pasted: list[str] | None = None
        self._last_line_at = 0.0
        self._has_prompt = False
        self._titled = ""
        self._file = file
        interview.tell = lambda text: self._print(spelled(text))

    def hold(self) -> None:
        """Hold it until it's over and the input has ended, or until somebody leaves."""
        while True:
            was_paused = self.interview.is_paused
            try:
                if not self._turn():
                    break
            except KeyboardInterrupt:
                if was_paused or self.interview.is_over:
                    break
                if not self.interview.is_paused:  # else it was being graded, and has said so
                    self._pause_and_say()
        self._leave()

    def _turn(self) -> bool:
        """Listen once; False at the end of the input."""
        self._listen()
        self._title()
        self._prompt()
        line = self._lines.next(TURN_S)
        if line is None:
            return not self._lines.is_at_end
        self._has_prompt = False
        self._last_line_at = time.monotonic()
        try:
            self._heard(line)
        except (BadInterview, BadCase, incidents.BadCommand) as error:
            self._print(spelled(str(error)))
        return True

    # ------------------------------------------------------------ the other side

    def _listen(self) -> None:
        """Hand in the file if it was saved; then whatever the interviewer says now."""
        interview = self.interview
        if interview.is_over or interview.is_paused:
            return self._show_new()
        is_time = interview.minute >= interview.minutes
        self._take_the_file(at_once=is_time)
        if is_time:
            self._say_pending()
        if is_time or not self._is_composing():
            while interview.next() is not None:
                self._show_new()
        self._show_new()
        return None

    def _take_the_file(self, *, at_once: bool) -> None:
        if self._file is None:
            return
        try:
            text = self._file.saved(at_once=at_once)
            if text is not None:
                self.interview.type(text, cell=self._file.name)
        except BadInterview as error:
            self._print(spelled(str(error)))

    def _is_composing(self) -> bool:
        """Whether somebody is in the middle of a thought, and isn't to be interrupted."""
        began = self._pending or self._pasted is not None
        return bool(began) and time.monotonic() - self._last_line_at < COMPOSING_S

    def _show_new(self) -> None:
        events = self.interview.events
        new, self._shown = events[self._shown :], len(events)
        for entry in entries(new, self.interview.cells, self.interview.mode):
            if entry.who != "you":
                self._print(in_lines(entry))
        if any(event["did"] == "end" for event in new):
            self._print(f"\n{as_commands(str(self.interview.scorecard()))}\n")
            self._print("/export FILE writes it as one page. Ctrl-D leaves.")

    # ------------------------------------------------------------ this side

    def _heard(self, line: str) -> None:
        """A line that somebody typed."""
        if self._pasted is not None:
            if line.strip() != ".":
                self._pasted.append(line)
                return
            text, self._pasted = "\n".join(self._pasted), None
            self.interview.type(text)
        elif line.startswith("/"):
            if not self.interview.is_paused:
                self._say_pending()
            self._obey(line)
        elif line.strip():
            self._pending.append(line)
        else:
            self._say_pending()

    def _say_pending(self) -> None:
        if not self._pending:
            return
        if self.interview.is_paused and not self.interview.is_over:
            raise BadInterview("Paused, so nobody has heard that yet. /resume says it.")
        text, self._pending = "\n".join(self._pending), []
        self.interview.say(text)

    def _resume(self) -> None:
        self.interview.resume()
        self._say_pending()

    def _obey(self, line: str) -> None:
        word, _, rest = line.strip().partition(" ")
        rest = rest.strip()
        interview = self.interview
        commands: dict[str, Callable[[], object]] = {
            "/type": lambda: interview.type(text_of(rest), cell=Path(rest).name),
            "/paste": self._paste,
            "/incident": lambda: self._print(self._incident(rest)),
            "/names": lambda: self._print(named(interview)),
            "/status": lambda: self._print(self._status()),
            "/hint": lambda: self._print(interview.hint()),
            "/pause": self._pause_and_say,
            "/resume": self._resume,
            "/end": interview.end,
            "/export": lambda: self._print(f"Wrote {self._export(rest)}."),
            "/help": lambda: self._print(HELP),
        }
        if word not in commands:
            raise BadInterview(f"{word} is not a command. /help lists the commands.")
        commands[word]()

    def _paste(self) -> None:
        self._pasted = []
        if self._is_terminal:
            self._print("Paste your code, and then a line with only a dot.")

    def _pause_and_say(self) -> None:
        self.interview.pause()
        self._show_new()
        self._print(
            f"The clock stands at {self._clock()}. /resume lets it run again, /end ends the "
            "interview. Ctrl-C or Ctrl-D leaves; it waits for you."
        )

    def _incident(self, rest: str) -> str:
        if self.interview.incident is None:
            raise BadInterview("Nothing has broken yet: you aren't on call.")
        words = rest.split()
        if words[:1] not in (["look"], ["sources"]):
            raise BadInterview(
                "/incident look SOURCE shows more of a source, such as /incident look phases "
                "rank=1; /incident sources lists them. Name the cause in words: say it."
            )
        return incidents.obey(self.interview.incident, words, [])

    def _export(self, rest: str) -> Path:
        if not rest:
            raise BadInterview("/export needs the name of a file, such as interview.html.")
        return self.interview.export(Path(rest).expanduser())

    # ------------------------------------------------------------ what is printed

    def _clock(self) -> str:
        return minutes_of(60 * max(0.0, self.interview.minutes - self.interview.minute))

    def _status(self) -> str:
        interview = self.interview
        if interview.is_over:
            return as_commands(str(interview.scorecard()))
        state = "paused, " if interview.is_paused else ""
        box = interview.box
        seen = entries(interview.events, interview.cells, interview.mode)
        notes = [entry.text for entry in seen if entry.who == "note"][-3:]
        return "\n".join(
            [
                f"{interview.name}: {state}{self._clock()} of {interview.minutes:g}:00 left.",
                f"{box.name}, until {minutes_of(60 * (interview.minutes - box.ends))} is left: "
                f"{box.purpose}",
                *notes,
            ]
        )

    def _prompt(self) -> None:
        if not self._is_terminal or self._has_prompt:
            return
        if self._pasted is not None or self._pending:
            prompt = "... "
        elif self.interview.is_over:
            prompt = "over> "
        else:
            box = "paused" if self.interview.is_paused else self.interview.box.name
            prompt = f"{self._clock()} {box}> "
        print(prompt, end="", flush=True)
        self._has_prompt = True

    def _print(self, text: str) -> None:
        if self._has_prompt:
            print()  # below what somebody is typing
            self._has_prompt = False
        self._say(text)

    def _leave(self) -> None:
        interview = self.interview
        if self._is_terminal:
            print(TITLE_BACK, end="", flush=True)
        if interview.is_over:
            return
        if not interview.is_paused:
            self._say_pending()
            self._listen()
        interview.close()
        self._print(
            f"\nThe interview {interview.name} waits at minute {interview.minute:.0f} of "
            f"{interview.minutes:g}. To continue it: {program()} interview --seed "
            f"{interview.seed}"
        )

    def _title(self) -> None:
        """The clock, ticking, in the window's title, where it isn't in anybody's way."""
        clock = "over" if self.interview.is_over else self._clock()
        if self._is_terminal and clock != self._titled:
            keep = "" if self._titled else KEEP_TITLE
            title = f"\x1b]0;{clock} {self.interview.box.name}\x07"
            print(keep + title, end="", flush=True)
            self._titled = clock
