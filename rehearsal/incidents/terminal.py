"""An incident at a terminal: reads commands from stdin, prints plain text."""

from __future__ import annotations

import ast
import shlex
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from rehearsal.incidents.case import POSTMORTEM, Incident, Tier
from rehearsal.incidents.opening import incident
from rehearsal.incidents.store import BadCase
from rehearsal.incidents.tracks import TrackName

HELP = """\
look SOURCE [NAME=VALUE ...]               look phases rank=1; look logs contains=save
sources, settings, causes                  what can be looked at, changed, named; all free
diagnose CAUSE SOURCE,SOURCE "FIRST MOVE"  diagnose slow_rank phases,heartbeats "drain it"
fix NAME=VALUE ... | fix FILE.py           fix num_workers=2; fix hosts=gpu-01,gpu-04
debrief                                    the score and the whole story
postmortem                                 asks for five lines and keeps them
help, quit"""


class BadCommand(ValueError):
    """A command that can't be read."""


def play(
    seed: int,
    tier: Tier,
    *,
    track: TrackName = "general",
    restart: bool = False,
    lines: Iterable[str] | None = None,
    say: Callable[[str], None] = print,
) -> None:
    """Open the case and obey commands until ``quit`` or the end of the input.

    Raises:
        BadCase: if the case can't be opened.
    """
    case = incident(seed, tier=tier, track=track, restart=restart)
    say(f"{case!r}\n\n{HELP}")
    source = iter(prompted() if lines is None else lines)
    for line in source:
        try:
            words = shlex.split(line, comments=True)
            if words[:1] in (["quit"], ["exit"]):
                return
            if words:
                say(obey(case, words, source))
        except (BadCase, BadCommand) as error:
            say(str(error))
        except ValueError as error:  # a quote that isn't closed
            say(f"{error}. help lists the commands.")


def prompted() -> Iterable[str]:
    """Lines from stdin; a prompt if a person types them."""
    while True:
        if sys.stdin.isatty():
            print("incident> ", end="", flush=True)
        line = sys.stdin.readline()
        if not line:
            return
        yield line


def obey(case: Incident, words: list[str], more: Iterable[str]) -> str:
    """Do one command; what to print."""
    command, rest = words[0], words[1:]
    if command in ("look", "diagnose", "fix") and not rest:
        usage = next(line for line in HELP.splitlines() if line.startswith(command))
        raise BadCommand(f"{command} needs more: {usage}")
    if command == "look":
        scope = dict(map(assignment, rest[1:]))
        view = case.look(rest[0], **scope)
        return f"{view}\n[minute {case.minutes}]"
    if command == "diagnose":
        because = rest[1].split(",") if len(rest) > 1 else []
        return case.diagnose(rest[0], because=because, first_move=" ".join(rest[2:]))
    if command == "fix":
        return fix(case, rest)
    if command == "postmortem":
        return case.postmortem(**dict(zip(POSTMORTEM, asked(more), strict=False)))
    simple: dict[str, Callable[[], object]] = {
        "debrief": case.debrief,
        "settings": lambda: case.settings,
        "causes": lambda: "\n".join(case.choices),
        "sources": lambda: "\n".join(f"{n}  {m} min" for n, m in case.sources.items()),
        "help": lambda: HELP,
    }
    if command in simple:
        return str(simple[command]())
    raise BadCommand(f"{command!r} is not a command. help lists them.")


def asked(more: Iterable[str]) -> Iterable[str]:
    """Five lines, each asked for by its name."""
    lines = iter(more)
    for name in POSTMORTEM:
        print(f"{name}: ", end="", flush=True)
        yield next(lines, "").strip()


def fix(case: Incident, words: list[str]) -> str:
    """Apply settings and files."""
    settings, source = {}, {}
    for word in words:
        if "=" in word:
            name, value = assignment(word)
            settings[name] = value
            continue
        try:
            source[module_named(word, case.modules)] = Path(word).read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise BadCommand(f"{word} can't be read ({error}).") from None
    return str(case.fix(settings=settings, source=source or None).text)


def module_named(word: str, modules: Sequence[str]) -> str:
    """The module that a file replaces, by the end of its path: bio/launch.py or launch.py.

    What fits none keeps its name, and the case refuses it.
    """
    path = f"/{Path(word).as_posix()}"
    fitting = [name for name in modules if path.endswith(f"/{name}")]
    alone = [name for name in modules if Path(name).name == Path(word).name]
    found = fitting or (alone if len(alone) == 1 else [Path(word).name])
    return str(max(found, key=len))


def assignment(word: str) -> tuple[str, Any]:
    """NAME=VALUE; the value as Python reads it, or as it stands."""
    name, equals, text = word.partition("=")
    if not equals:
        raise BadCommand(f"{word!r}: write it as NAME=VALUE.")
    if name == "hosts":
        return name, text.strip("[]").replace("'", "").replace(" ", "").split(",")
    if name in ("storage_tier", "network", "code_version"):
        return name, text
    try:
        return name, ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return name, text
