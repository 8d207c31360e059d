"""What the commands ``interview`` and ``interviews`` take; command.py does what they say.

Apart, because every command of the program builds these, and few need an interview.
"""

from __future__ import annotations

import argparse
from pathlib import Path


def add_interview(command: argparse.ArgumentParser) -> None:
    """What ``interview`` takes."""
    command.add_argument("--minutes", type=float, default=45, help="15 or more; default: 45")
    command.add_argument(
        "--seed", type=int, help="draws the prompt, the questions, the incident"
    )
    command.add_argument("--mode", choices=["real", "study"], default="real")
    command.add_argument("--setting", choices=["general", "biotech"], help="default: general")
    command.add_argument("--file", type=Path, help="hand this file in each time you save it")


def add_interviews(command: argparse.ArgumentParser) -> None:
    """What ``interviews`` takes."""
    what = command.add_subparsers(dest="what", metavar="WHAT")
    text = "show the scorecard of one"
    showing = what.add_parser("show", help=text, description=f"{text.capitalize()}.")
    showing.add_argument(
        "name", help="as the list has it; any prefix that only one has will do"
    )
    text = "play one again, as it was recorded"
    playing = what.add_parser("replay", help=text, description=f"{text.capitalize()}.")
    playing.add_argument("name", nargs="?", help="default: your newest")
    playing.add_argument("--speed", type=float, help="60 plays a minute a second")
    text = "compare the marks of two or more"
    comparing = what.add_parser("compare", help=text, description=f"{text.capitalize()}.")
    comparing.add_argument("name", nargs="*", help="default: your newest two")


def add_interviewer(command: argparse.ArgumentParser) -> None:
    """What ``interviewer`` takes."""
    command.add_argument(
        "name",
        nargs="?",
        default="middling",
        help="weak, middling, strong, or one of yours; default: middling",
    )
