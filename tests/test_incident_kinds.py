"""The kinds of incident are what they claim: a sample of ``incidents prove``."""

from __future__ import annotations

from pathlib import Path

import pytest

from rehearsal.incidents.draw import draw
from rehearsal.incidents.job import run_job
from rehearsal.incidents.judge import judge_plan
from rehearsal.incidents.evidence import Evidence
from rehearsal.incidents.typed_source import with_sources
from rehearsal.incidents.deployed import module_text
from rehearsal.incidents.proof import prove_one

# One of each layer, and the case without a fault; CI has minutes, not hours. None whose fault
# is a matter of time, since the ranks share two cores with other tests. The seed is one that
# the full proof doesn't cover.
SAMPLE = (
    "full_disk",
    "duplicate_shards",
    "corrupted_gradient",
    "no_fault",
    "mean_of_means",
    "memory_leak+skewed_clock",
)


@pytest.mark.ranks
@pytest.mark.parametrize("kind", SAMPLE)
def test_a_kind_holds_on_a_new_seed(kind: str, tmp_path: Path) -> None:
    """The fault shows as claimed, the reference fix removes it, the wrong ones don't."""
    proof = prove_one(kind, 1000, tmp_path)
    assert proof.problems == []


@pytest.mark.ranks
def test_code_can_be_fixed_by_hand(tmp_path: Path) -> None:
    """A rollback is one way; who finds the line may correct it."""
    drawn = draw(2, "duplicate_shards")
    run_job(drawn.faulty, tmp_path / "faulty")
    before = Evidence(tmp_path / "faulty", drawn.faulty)
    text = module_text(drawn.faulty, "data.py")
    right = text.replace("[:: self.world_size]", "[self.rank :: self.world_size]")
    wrong = text.replace("[:: self.world_size]", "[1 :: self.world_size]")
    for source, works in ((right, True), (wrong, False)):
        plan = with_sources(drawn.faulty, {"data.py": source})
        verdict = judge_plan(drawn, before, plan, tmp_path / str(works))
        assert verdict.is_fixed is works, verdict.text


@pytest.mark.ranks
def test_code_that_crashes_is_not_a_fix(tmp_path: Path) -> None:
    """Whatever is typed runs in the ranks only, and ends as a failed attempt."""
    drawn = draw(2, "duplicate_shards")
    run_job(drawn.faulty, tmp_path / "faulty")
    before = Evidence(tmp_path / "faulty", drawn.faulty)
    plan = with_sources(drawn.faulty, {"data.py": "import os\nos._exit(3)\n"})
    verdict = judge_plan(drawn, before, plan, tmp_path / "after")
    assert not verdict
    assert "Not fixed" in verdict.text
