"""The coach at a terminal, for people who prefer an editor: python -m rehearsal --help."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rehearsal import drills, forget, incident_kinds
from rehearsal.deck import ask as deck
from rehearsal.deck.anki import CannotExport
from rehearsal.deck.cards import BadDeck, UnknownCard
from rehearsal.engine.server import CannotStartRanks
from rehearsal.grading import drills_page, mutation_record, mutation_score, new_drill, selftest
from rehearsal.grading.check import BadSeed
from rehearsal.grading.drill import UnknownDrill
from rehearsal.incidents.store import BadCase
from rehearsal.incidents.tracks import TrackName
from rehearsal.interviews import arguments as interviews
from rehearsal.interviews.store import BadInterview
from rehearsal.plan.route import UnknownPage
from rehearsal.plan.today import today
from rehearsal.plan.wishes import BadPlan
from rehearsal.session import coach, daemon_client
from rehearsal.session.ids import drill_named
from rehearsal.session.prints import MOST, SHOWN
from rehearsal.session.progress import progress
from rehearsal.session.schedule import standings
from rehearsal.session.status import list_of
from rehearsal.session.terminal import FILE, program, spelled, spelled_for_a_shell
from rehearsal.session.watch import saves_of

OF_A_DRILL = {
    "brief": (coach.brief, "show the task"),
    "start": (coach.start, "show the task and start the clock"),
    "hint": (coach.hint, "show the next of three hints"),
    "narration": (coach.narration, "show what to say while you type"),
}
PLAIN = {
    "status": (coach.status, "show what has passed, what is due for review, what to do next"),
    "debrief": (coach.debrief, "show your time against the budget, and what went wrong"),
    "forget": (forget, "delete your history"),
}


class Unreadable(Exception):
    """A file or folder is missing or cannot be read; the user can fix that."""


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(
        prog=program(),
        description="Rehearse in an editor: list, start DRILL, blank DRILL > attempt.py, edit "
        "the file, check DRILL attempt.py. Any prefix that only one drill has will do.",
        epilog="Exit codes: 0 passed or done; 1 not passed; 2 usage or input error, or the "
        "output can't be written; 130 interrupted; 141 the reader of the output has closed it.",
    )
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def add(name: str, text: str) -> argparse.ArgumentParser:
        # The description repeats the text in the command's own --help.
        return commands.add_parser(name, help=text, description=f"{text.capitalize()}.")

    add("list", "list all drills, with your progress")
    checking = add("check", "run a file on real ranks and judge it")
    checking.add_argument("drill")
    checking.add_argument("file", type=Path)
    checking.add_argument("--watch", action="store_true", help="again each time you save it")
    checking.add_argument(
        "--seed", type=int, help="repeat the check whose verdict shows this seed"
    )
    checking.add_argument(
        "--prints",
        action="store_true",
        help=f"show what your code prints, {MOST}, not just the first {SHOWN}",
    )
    checking.add_argument(
        "--no-server",
        action="store_true",
        help="use no background process, and leave nothing behind; REHEARSAL_NO_SERVER=1 does "
        "the same",
    )
    for name, (_, text) in OF_A_DRILL.items():
        add(name, text).add_argument("drill")
    add("blank", "print the starter code").add_argument("drill")
    comparing = add("diff", "show what changed between your last two attempts")
    comparing.add_argument("drill")
    comparing.add_argument(
        "against",
        nargs="?",
        choices=["previous", "solution"],
        default="previous",
        help="solution: compare your newest pass with the solution",
    )
    opening = add("solution", "show a correct solution, once you have passed")
    opening.add_argument("drill")
    opening.add_argument("--give-up", action="store_true", help="show it without a pass")
    for name, (_, text) in PLAIN.items():
        add(name, text)
    planning = add("today", "plan today from what is due and the days until the interview")
    planning.add_argument(
        "--date", help="the interview's, such as 2026-12-04; none if there is none"
    )
    planning.add_argument("--minutes", type=int, help="how many a day has")
    planning.add_argument(
        "--read", metavar="PAGE", help="a chapter that you've read, such as 12"
    )
    planning.add_argument("--unread", metavar="PAGE", help="one that you marked by mistake")
    asking = add("ask", "ask a card of the deck: the one that is due, or this one")
    asking.add_argument("card", nargs="?")
    asking.add_argument("--topic", help="only the cards of this topic")
    judging = add("judge", "say which points of a card a typed answer covers")
    judging.add_argument("card")
    judging.add_argument("file", type=Path)
    judging.add_argument("--json", action="store_true", help="for a program")
    listing = add("cards", "list the deck's topics; with one, its cards")
    listing.add_argument("topic", nargs="?")
    exporting = add("anki", "write the deck for Anki")
    exporting.add_argument("file", type=Path, help="such as deck.apkg")
    exporting.add_argument("--topic", help="only the cards of this topic")
    testing = add("selftest", "test the graders on known right and wrong answers")
    testing.add_argument("drill", nargs="*", help="default: all drills")
    breaking = add("mutants", "test the graders on mechanical edits of correct answers")
    mutation_score.add_arguments(breaking)
    opening = add("incident", "be on call: a real job with something wrong, or nothing")
    opening.add_argument("seed", type=int)
    opening.add_argument(
        "--tier", choices=["guided", "choice", "realistic"], default="realistic"
    )
    opening.add_argument("--track", choices=["general", "biotech"], default="general")
    opening.add_argument("--restart", action="store_true", help="start the case over")
    rehearsing = add(
        "incidents", "list the causes, or prove them: the fault shows, the fix works"
    )
    rehearsing.add_argument("what", choices=["list", "prove"])
    rehearsing.add_argument("kind", nargs="*", help="default: all kinds")
    rehearsing.add_argument("--seeds", type=int, default=20, help="how many, from 0")
    rehearsing.add_argument("--track", choices=["general", "biotech"], default="general")
    interviews.add_interview(add("interview", "hold a mock interview against a clock"))
    interviews.add_interviews(
        add("interviews", "list, show, replay or compare your interviews")
    )
    interviews.add_interviewer(
        add("interviewer", "mark a recorded interview, and compare with the evidence")
    )
    add("docs", "write docs/drills.md")
    creating = add("new", "create the folder of a new drill that already works")
    creating.add_argument("drill", help="its id, such as shard_the_sampler")
    return top


def show_list() -> None:
    """One line per drill, with its state and your best time."""
    for line in list_of(standings(drills(), progress().rounds()), time.time()):
        print(line)


def check(options: argparse.Namespace) -> int:
    """Judge a file, once or at each save; returns 0 if it passed.

    Raises:
        UnknownDrill, BadSeed, CannotStartRanks: as ``coach.check_text``.
        Unreadable: if it is not a text file.
        CheckInterrupted: after Ctrl-C, unless nothing ran.
    """
    drill = drill_named(options.drill)  # report an unknown drill before a missing file
    wants_server = daemon_client.is_wanted() and not options.no_server
    judge = daemon_client.grade_source if wants_server else None

    def check_once() -> int:
        text, name = text_in(options.file, drill.id), str(options.file)
        verdict = coach.check_text(
            drill.id, text, name, seed=options.seed, prints=options.prints, grade=judge
        )
        return 0 if verdict.status == "passed" else 1

    if not options.watch:
        return check_once()
    text_in(options.file, drill.id)  # report a missing file instead of waiting for it
    code = 1
    try:
        for _ in saves_of(options.file):
            try:
                code = check_once()
            except Unreadable as error:
                print(f"rehearsal: {error}", file=sys.stderr)
            watching = f"Watching {options.file}: save it to check it again, Ctrl-C to stop."
            print(watching, flush=True)
    except coach.CheckInterrupted:
        raise
    except KeyboardInterrupt:
        print()
    return code


def text_in(file: Path, drill_id: str) -> str:
    """The text of a file. Raises Unreadable if it is not a text file."""
    try:
        return file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Unreadable(
            f"{file} cannot be read ({error}). A check needs a file of Python source. To start "
            f"one: {program()} blank {drill_id} > {FILE}"
        ) from None


def answer_in(file: Path) -> str:
    """The text of a file with an answer. Raises Unreadable if it is not a text file."""
    try:
        return file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Unreadable(
            f"{file} cannot be read ({error}). An answer is a text file in UTF-8."
        ) from None


def run_selftest(names: Sequence[str]) -> int:
    """Judge all texts of the named drills, or of all drills; print each wrong judgment.

    Returns:
        The exit code: 0 if every judgment was right.
    """
    bad = 0
    for drill in [drill_named(name) for name in names] or drills():
        rows = list(selftest.run(drill))
        wrong = [row for row in rows if not row.ok]
        bad += len(wrong)
        seconds = sorted(row.verdict.seconds for row in rows if row.kind == "solution")
        score = f"{len(rows) - len(wrong)} of {len(rows)} judgments correct"
        print(f"{drill.id}: {score}; a solution takes {seconds[len(seconds) // 2]:.2f} s")
        for row in wrong:
            print(f"  {row.kind} {row.name}: expected {row.expected}, got {row.got}")
            print("    " + str(row.verdict).replace("\n", "\n    "))
    return 1 if bad else 0


def run_incidents(what: str, names: Sequence[str], seeds: int, track: TrackName) -> int:
    """List the kinds of incident of a track, or prove some; the exit code.

    Raises:
        BadCase: if there is no such kind, or a package is missing.
    """
    from rehearsal.incidents import prove, tracks

    if what == "list":
        print("\n".join(incident_kinds(track=track)))
        return 0
    known = tracks.TRACKS[track].names
    if unknown := [name for name in names if name not in known]:
        raise BadCase(
            f"{unknown[0]!r} is not a kind of incident. There are: {', '.join(known)}."
        )
    chosen = list(names) or known
    if missing := next(filter(None, map(tracks.TRACKS[track].missing, chosen)), ""):
        raise BadCase(missing)
    return 0 if prove.prove(chosen, range(seeds), print, track) else 1


def show_new(folder: Path) -> None:
    """What to do with a new drill."""
    where = folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder
    print(f"Wrote {where}: {', '.join(sorted(path.name for path in folder.iterdir()))}.")
    print(f"It works already: {program()} selftest {folder.name}")
    print("Now make it yours. docs/extending.md says what each file is for.")


def run(options: argparse.Namespace) -> int:
    """Run one command; returns the exit code.

    Raises:
        UnknownDrill, UnknownCard, UnknownPage, BadDeck, BadPlan, BadSeed, CannotStartRanks,
        Unreadable, BadName, BadSurvivors, CannotScore, CannotExport, BadInterview: for a
            mistake the user can fix.
        CheckInterrupted: after Ctrl-C in a check, unless nothing ran.
    """
    if options.command == "check":
        return check(options)
    if options.command == "selftest":
        return run_selftest(options.drill)
    if options.command == "mutants":
        return mutation_score.main([drill_named(n) for n in options.drill] or drills(), options)
    if options.command == "incident":
        from rehearsal.incidents import terminal  # imports numpy

        terminal.play(options.seed, options.tier, track=options.track, restart=options.restart)
        return 0
    if options.command == "incidents":
        return run_incidents(options.what, options.kind, options.seeds, options.track)
    if options.command in ("interview", "interviews", "interviewer"):
        from rehearsal.interviews import command  # imports numpy

        command.run(options)
        return 0
    if options.command == "docs":
        if not drills_page.PATH.parent.is_dir():
            raise Unreadable(
                f"{drills_page.PATH.parent} does not exist, so there is no page to write. Run "
                "this in a clone of the project, installed with make setup."
            )
        return 0 if drills_page.write(drills(), print, jobs=2) else 1
    if options.command == "new":
        show_new(new_drill.create(options.drill))
    elif options.command in OF_A_DRILL:
        OF_A_DRILL[options.command][0](options.drill)
        if options.command == "start" and daemon_client.is_wanted():
            daemon_client.warm_up()  # while the person reads
    elif options.command in PLAIN:
        PLAIN[options.command][0]()
    elif options.command == "today":
        today(
            date=options.date, minutes=options.minutes, read=options.read, unread=options.unread
        )
    elif options.command == "ask":
        deck.ask(options.card, topic=options.topic)
    elif options.command == "judge":
        deck.judge_file(options.card, answer_in(options.file), as_json=options.json)
    elif options.command == "cards":
        deck.topics(options.topic)
    elif options.command == "anki":
        deck.export_to_anki(options.file, topic=options.topic)
    elif options.command == "blank":
        print(drill_named(options.drill).blank, end="")
    elif options.command == "diff":
        coach.diff(options.drill, options.against)
    elif options.command == "solution":
        coach.solution(options.drill, give_up=options.give_up)
    else:
        show_list()
    return 0


def why_stdout_fails() -> OSError | None:
    """The error that a line to stdout fails with, from then on discarded; None if it works."""
    try:
        print(flush=True)
    except OSError as error:
        # Otherwise Python would fail on what is still buffered, at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return error
    return None


def main(arguments: Sequence[str]) -> int:
    """Run the command line; returns the exit code. A mistake you can fix is a message and 2."""
    try:
        try:
            return run_or_explain(arguments)
        finally:
            print(end="", flush=True)  # unlike sys.stdout.flush(), fine if stdout is closed
    except OSError:
        reason = why_stdout_fails()
        if reason is None:  # it came from something else
            raise
        if isinstance(reason, BrokenPipeError):  # `list | head` has read enough
            return 141
        print(
            f"rehearsal: stdout can't be written ({reason}), so some of the output is lost. "
            "Free some space or send it elsewhere, then run the command again.",
            file=sys.stderr,
        )
        return 2


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line. For ``incidents``, options may also come before the kinds."""
    options, rest = parser().parse_known_args(arguments)
    if options.command == "incidents" and not any(word.startswith("-") for word in rest):
        options.kind += rest
        return options
    return parser().parse_args(arguments)


def run_or_explain(arguments: Sequence[str]) -> int:
    """Run the command line; a mistake you can fix is a message. Returns the exit code."""
    try:
        options = parse(arguments)
        with spelled_for_a_shell(str(getattr(options, "file", None) or FILE)):
            return run(options)
    except (
        UnknownDrill,
        UnknownCard,
        UnknownPage,
        BadDeck,
        BadPlan,
        BadSeed,
        CannotStartRanks,
        Unreadable,
        CannotExport,
        new_drill.BadName,
        mutation_record.BadSurvivors,
        mutation_score.CannotScore,
        BadCase,
        BadInterview,
    ) as error:
        # What the library says about calls and commands, as it is typed in this folder.
        with spelled_for_a_shell():
            said = spelled(str(error))
        text = said if program() in said else said.replace("python -m rehearsal", program())
        print(f"rehearsal: {text}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as error:
        print(f"rehearsal: {str(error) or 'interrupted'}", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
