"""The first steps in 00_start_here: what the ranks did, and a verdict on the mean."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from rehearsal.grading.check import BadSeed
from rehearsal.session import primer

ROOT = Path(__file__).parents[1]
START = ROOT / "notebooks/00_start_here.ipynb"
QUARTERS = st.lists(
    st.integers(4, 99).map(lambda number: number / 4), min_size=3, max_size=3, unique=True
)


def sources(kind: str) -> list[str]:
    """The texts of the start notebook's cells of one kind."""
    cells = json.loads(START.read_text("utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == kind]


def add_up() -> Any:
    total = torch.tensor(dist.get_rank() + 1.0)
    dist.all_reduce(total)
    return total.item()


def only_rank_0_joins() -> Any:
    total = torch.tensor(1.0)
    if dist.get_rank() == 0:
        dist.all_reduce(total)
    return total.item()


def untyped(value: float) -> Any:
    raise NotImplementedError


def mean(value: float) -> Any:
    total = torch.tensor(value)
    dist.all_reduce(total)
    return total.item() / dist.get_world_size()


def half_of_the_sum(value: float) -> Any:
    total = torch.tensor(value)
    dist.all_reduce(total)
    return total.item() / 2


def only_on_rank_0(value: float) -> Any:
    total = torch.tensor(value)
    dist.reduce(total, 0)
    return total.item() / dist.get_world_size()


def one_rank_skips(value: float) -> Any:
    total = torch.tensor(value)
    if dist.get_rank() < 2:
        dist.all_reduce(total)
    return total.item() / dist.get_world_size()


def its_own(value: float) -> Any:
    return value


@pytest.mark.ranks
class TestOnRealRanks:
    def test_every_rank_gets_the_sum(self, capsys: pytest.CaptureFixture[str]) -> None:
        """The first output a newcomer sees."""
        primer.show_ranks(add_up)
        assert capsys.readouterr().out == "rank 0 of 2 returned 3.0\nrank 1 of 2 returned 3.0\n"

    def test_a_hang_is_shown_with_the_line(self, capsys: pytest.CaptureFixture[str]) -> None:
        """If rank 1 ended, gloo would report its closed connection: no hang to be seen."""
        primer.show_ranks(only_rank_0_joins, deadline_s=1.5)
        zero, one = capsys.readouterr().out.splitlines()
        line = only_rank_0_joins.__code__.co_firstlineno + 3
        waits = f"rank 0 of 2 was still waiting after 1.5 s, at line {line} in "
        assert zero == waits + "only_rank_0_joins"
        assert one == "rank 1 of 2 returned 1.0"

    @pytest.mark.parametrize(
        ("function", "status", "code"),
        [
            (untyped, "not_attempted", "not-attempted"),
            (half_of_the_sum, "wrong", "not-the-mean"),
            (only_on_rank_0, "wrong", "not-the-mean"),
            (its_own, "wrong", "not-the-mean"),
            (one_rank_skips, "crashed", "peer-returned"),
        ],
    )
    def test_what_is_not_the_mean_does_not_pass(
        self, function: Any, status: str, code: str
    ) -> None:
        """The first verdict must be a true one."""
        verdict = primer.check_mean(function)
        assert (verdict.status, [f.code for f in verdict.findings]) == (status, [code])
        assert "then run this one again" in verdict.after

    @pytest.mark.parametrize("seed", range(3))
    def test_the_mean_passes(self, seed: int) -> None:
        """And leads to the plan."""
        verdict = primer.check_mean(mean, seed=seed)
        assert (verdict.status, verdict.seed) == ("passed", seed)
        assert verdict.ending[-1] == ("next", "your plan, in the cells below")

    @pytest.mark.parametrize("seed", ["7", 7.0, -1])
    def test_a_seed_that_a_check_refuses_is_refused_here_too(self, seed: Any) -> None:
        """The first verdict must teach what holds for all of them."""
        with pytest.raises(BadSeed, match=f"seed={re.escape(repr(seed))}: a seed is a"):
            primer.check_mean(mean, seed=seed)

    def test_the_folded_solution_passes(self) -> None:
        """The first answer that this project shows must be right."""
        (folded,) = [text for text in sources("markdown") if "<details>" in text]
        (text,) = re.findall(r"```python\n(.*?)```", folded, re.DOTALL)
        names: dict[str, Any] = {"torch": torch, "dist": dist}
        exec(text, names)
        assert primer.check_mean(names["mean_over_ranks"]).status == "passed"


class TestTheMean:
    @given(values=QUARTERS)
    def test_the_mean_of_all_is_right(self, values: list[float]) -> None:
        """In float32, too."""
        answer = torch.tensor(values).sum().item() / 3
        assert primer.not_the_mean(values, [answer] * 3) == ""

    @given(values=QUARTERS, wrong=st.sampled_from([0, 1, 2]), by=st.floats(0.01, 50))
    def test_one_wrong_rank_is_found(self, values: list[float], wrong: int, by: float) -> None:
        """A check of rank 0 alone would pass a reduce."""
        answers = [sum(values) / 3] * 3
        answers[wrong] += by
        assert f"rank {wrong} returned {answers[wrong]}" in primer.not_the_mean(values, answers)

    @given(values=QUARTERS)
    def test_its_own_value_half_the_sum_and_nan_are_wrong(self, values: list[float]) -> None:
        """The values differ, so no rank is right by chance."""
        for answers in (
            values,
            [sum(values)] * 3,
            [sum(values) / 2] * 3,
            [float("nan")] * 3,
            [None] * 3,
        ):
            assert primer.not_the_mean(values, answers)


class TestTheStartNotebook:
    @pytest.mark.parametrize(
        "word", ["rank", "world size", "collective", "ledger", "goodput", "hang"]
    )
    def test_a_word_is_defined_where_it_first_appears(self, word: str) -> None:
        """Half of the readers have never started a second rank."""
        prose = " ".join(" ".join(sources("markdown")).split()).lower()
        first = re.search(rf"\b{word}s?\b", prose)
        assert first is not None
        assert prose[first.start() - 1] == "*", prose[first.start() - 40 : first.end() + 40]

    def test_the_steps_come_in_order(self) -> None:
        """The first verdict waits for nothing but the cells above it."""
        places = [
            next(place for place, text in enumerate(sources("code")) if call in text)
            for call in (
                *("multiprocessing", "show_ranks(add_up", "check_mean(mean", "status()"),
                "today()",
            )
        ]
        assert places == sorted(places)
        assert places[-1] == len(sources("code")) - 1
