"""What an interview is marked on: the rubric of chapter 10, and where to practice each row."""

from __future__ import annotations

from typing import NamedTuple

MARKS = {1: "no", 2: "not yet", 3: "yes", 4: "strong yes"}


class Practice(NamedTuple):
    """Where to practice a row."""

    drills: tuple[str, ...]
    topics: tuple[str, ...]  # of the deck
    chapters: tuple[str, ...]  # below notebooks/handbook


class RubricRow(NamedTuple):
    """One row.

    Args:
        id: as a scorecard names it.
        earns: what earns it, in a sentence to the candidate.
        when: at which point of an interview.
        weight: how much it counts in the total. Nobody is hired for talking about a trainer
            that doesn't work.
    """

    id: str
    name: str
    earns: str
    when: str
    practice: Practice
    weight: int = 1


RUBRIC = (
    RubricRow(
        "understands",
        "understands the problem",
        "You ask what changes the design, and say what must hold before you type.",
        "minutes 0 to 8",
        Practice(("production_lift",), ("interview", "architecture"), ("10_interview_map",)),
    ),
    RubricRow(
        "commits",
        "commits under uncertainty",
        "You state an assumption, and what changes if it's wrong.",
        "minutes 5 to 10",
        Practice(("production_lift",), ("numbers", "interview"), ("10_interview_map",)),
    ),
    RubricRow(
        "builds",
        "builds a correct core",
        "What you typed runs, on two ranks, and resumes after a kill.",
        "by minute 35",
        Practice(
            ("happy_path", "lift_to_ddp", "resume_after_failure", "live_trainer"),
            ("trainer_code", "data"),
            ("12_data_correctness", "13_checkpointing"),
        ),
        weight=3,
    ),
    RubricRow(
        "tradeoffs",
        "names the tradeoff",
        "Each choice comes with what it costs to run, and the number that would change it.",
        "while typing",
        Practice((), ("parallelism", "checkpoints"), ("17_parallelism", "15_numbers")),
    ),
    RubricRow(
        "failures",
        "ties failure to their own design",
        "You say which line of yours loses what when a rank dies there.",
        "while typing",
        Practice(
            ("resume_after_failure", "nothing_to_resume_from"),
            ("recovery", "checkpoints"),
            ("13_checkpointing", "18_hardware_and_failures"),
        ),
    ),
    RubricRow(
        "debugs",
        "debugs from evidence",
        "You look first, and then name the cause, the evidence and a first move.",
        "when something breaks",
        Practice(
            ("debug_a_transformer", "instrument_performance"),
            ("performance", "observability"),
            ("14_performance", "16_observability"),
        ),
    ),
    RubricRow(
        "risks",
        "raises the risk first",
        "You name the hole in your code before they find it.",
        "after it runs",
        Practice((), ("staff", "recovery"), ("22_hard_questions", "18_hardware_and_failures")),
    ),
    RubricRow(
        "costs",
        "counts the cost for others",
        "You count on-call load, GPU hours, other teams, the migration.",
        "in the pushback",
        Practice(("production_lift",), ("staff", "production"), ("21_production_lift",)),
    ),
    RubricRow(
        "communicates",
        "communicates",
        "They can predict your next line; you check in at every boundary.",
        "all the time",
        Practice(("live_trainer",), ("interview", "deep_dive"), ("10_interview_map",)),
    ),
)
ROWS = {row.id: row for row in RUBRIC}
