"""Chapter 23: the sheet's numbers are what its cell computes, and it fits on a sheet."""

from __future__ import annotations

import math
import re

import pytest
from handbook_chapters import Chapter, run_chapter, sections_of

from rehearsal.handbook import numbers


@pytest.fixture(scope="module")
def ran() -> Chapter:
    return run_chapter("23_last_hour")


class TestTheSheet:
    def test_its_arithmetic_is_that_of_the_chapter_on_numbers(self, ran: Chapter) -> None:
        """Two chapters that disagree on a number leave you without one."""
        assert ran.train_flops == numbers.train_flops(ran.parameters, ran.tokens)
        assert ran.bytes_per_parameter == 16
        assert "Adam in mixed precision: 16 bytes" in sections_of("23_last_hour")["The sheet"]

    def test_the_interval_between_saves_is_youngs(self, ran: Chapter) -> None:
        """sqrt(2 x save time x MTBF), as the sheet says."""
        interval_s = math.sqrt(2 * ran.save_s * ran.job_mtbf_s)
        assert ran.save_every_min == pytest.approx(interval_s / 60)

    def test_it_has_few_enough_words_for_one_sheet(self) -> None:
        """The book's test prints it; this one says early that a line too many was added."""
        assert len(sections_of("23_last_hour")["The sheet"].split()) < 750

    def test_each_official_page_has_one_thing_to_take(self) -> None:
        sections = sections_of("23_last_hour")
        table = sections["The official pages, and the one thing to take from each"]
        row = r"^\| \[(.+?)\]\((https://pytorch\.org/.+?)\) \| (.+?) \|$"
        rows = re.findall(row, table, re.MULTILINE)
        assert len(rows) >= 7
        assert all(len(take.split()) <= 22 for _, _, take in rows)
