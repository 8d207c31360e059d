"""The end of an interview: what is kept of its marks."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from rehearsal.interviews.scorecard import Scorecard


def kept_of(card: Scorecard, header: Mapping[str, Any]) -> dict[str, Any]:
    """What scorecard.json says.

    Args:
        header: what interview.json says.
    """
    return {
        "name": card.name,
        "ended": time.time(),
        "minutes": header["minutes"],
        "spent_minutes": round(card.minutes, 2),
        "seed": header["seed"],
        "mode": header["mode"],
        "percent": card.percent,
        "rows": [
            {
                "row": mark.row,
                "mark": mark.mark,
                "evidence": [one._asdict() for one in mark.evidence],
            }
            for mark in card.rows
        ],
        "weakest": list(card.weakest),
        "next": [dict(item) for item in card.next],
    }
