"""The codes of cell_metrics' findings: what each means, its rule, where to look."""

from __future__ import annotations

from rehearsal.grading.verdict import FindingTable

FOUND = FindingTable(
    {
        "swallowed": (
            "a phase swallows or replaces an exception raised in its block",
            "measuring doesn't change what is measured",
            "at what happens at the end of the block",
        ),
        "phase-time": (
            "a phase's time is not the time spent in its blocks",
            "a phase gets the wall-clock time of all its blocks in that step, even of those "
            "that raise",
            "at where a block starts and ends, at which clock you read, and at how its time "
            "gets to the step",
        ),
        "time-lost": (
            "the phases of a step do not add up to its wall time",
            "the phases add up to the step, and no time is lost between two steps",
            "at time that no phase claims, and at when a step begins",
        ),
        "steps-read": (
            "read does not yield each closed step once, in order, with all phases",
            "read yields each closed step once, with all phases",
            "at what end_step keeps, and at what read removes",
        ),
        "percentile": (
            "a p50, p95 or max is not the one by nearest rank",
            "a summary has p50, p95 and max for each of PHASES; without steps, it is empty",
            "at what summarize_timers returns",
        ),
        "changes-its-input": (
            "summarize_timers changes the steps it is given",
            "a summary only reads",
            "at what you sort",
        ),
        "not-json": (
            "a strict JSON parser rejects a line",
            "every line is strict JSON, or a reader of the log stops there",
            "at what emit writes",
        ),
        "event-incomplete": (
            "a field of an event is missing or has the wrong value",
            "an event has its time, name, common fields, step, epoch and given fields",
            "at what you put into the record",
        ),
        "sink-left-out": (
            "not every sink gets every event exactly once",
            "every sink gets every event once",
            "at the loop over the sinks",
        ),
        "lost-lines": (
            "events logged before a kill are not in the file",
            "an event is one line, which the operating system has when emit returns, so a kill "
            "can't lose it",
            "at who still holds the bytes when emit returns",
        ),
        "corrupted-line": (
            "a truncated line corrupts the first event after a restart",
            "a kill may truncate the last line; the next event is on a line of its own",
            "at how you open a file that ends with a complete line, and one that doesn't",
        ),
        "overwritten": (
            "a new start overwrites earlier lines",
            "a log only grows",
            "at how you open the file",
        ),
    }
)
CODES = FOUND.codes
