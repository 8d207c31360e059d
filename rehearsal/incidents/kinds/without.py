"""Nothing is wrong: the pager went off over something harmless."""

from __future__ import annotations

from rehearsal.incidents.kinds.kind import Fix, Kind, See, before_live, spare_of

no_fault = Kind(
    id="no_fault",
    title="Nothing is wrong",
    layer="none",
    alarm="",
    alert=lambda e: "",  # the misleading symptom's own
    inject=lambda plan, rng: plan,
    claims=(),
    reference=lambda plan: Fix({}, "leave it alone, and fix the alert"),
    wrong=lambda plan: (
        Fix(spare_of(plan, 0), "replace a host to be safe"),
        Fix(before_live(plan), "roll back to be safe"),
    ),
    path=(
        See(
            "loss",
            "Is the training itself affected?",
            "The loss falls, and the rate follows its schedule, before and after the event.",
            "symptom",
            ("logs",),
        ),
        See(
            "phases",
            "Is a rank, a phase or a save slower than it should be?",
            "No: no rank and no phase stands out.",
            "mechanism",
            ("throughput", "trace", "restarts"),
        ),
        See(
            "audit",
            "Was every sample trained exactly once?",
            "Proved. What the pager saw happened once, was handled, and left nothing behind.",
            "cause",
            ("ledger",),
        ),
    ),
    chain=(
        "an alert that fires on single events",
        "something harmless happened once, and the job dealt with it",
        "the pager went off over a healthy job",
    ),
    prevention="Alert on rates and shares over a window, not on single events.",
    first_moves=("nothing", "leave", "alert", "watch", "no action", "alone"),
    like=(),
)

KINDS = (no_fault,)
