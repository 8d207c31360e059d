"""Which two faults may meet in one case.

Their symptoms are separate, neither hides the other, and one fix doesn't undo the other. The
pager is about the first; the second is there to be found.
"""

from __future__ import annotations

PAIRS = (
    ("slow_rank", "duplicate_shards"),
    ("memory_leak", "skewed_clock"),
    ("slow_network", "wrong_epoch_seed"),
    ("checkpoint_every_20_minutes", "evaluation_changes_training"),
    ("mean_of_means", "retry_storm"),
    ("loader_starved", "replicas_not_synced"),
)
