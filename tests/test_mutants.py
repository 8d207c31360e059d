"""The list of mutants is sound; scripts/mutate.py shows whether the tests notice them."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
mutate: dict[str, Any] = runpy.run_path(str(ROOT / "scripts" / "mutate.py"))
main: Callable[[list[str]], int] = mutate["main"]
MUTANTS = {mutant.name: mutant for mutant in mutate["read_mutants"](mutate["MUTANTS"])}


def test_the_page_lists_these_mutants() -> None:
    """Writing the page takes an hour; until then it must not describe a different list."""
    table = (ROOT / "docs" / "mutants.md").read_text()
    listed = [line.split(" | ")[0].removeprefix("| ") for line in table.splitlines()[8:]]
    assert listed == list(MUTANTS)
    # A mutant that may survive can still be killed: some of them race with the scheduler.
    survived = [row for row in table.splitlines()[8:] if "**survived**" in row]
    assert all(MUTANTS[row.split(" | ")[0].removeprefix("| ")].argued for row in survived)
    assert f"**{len(MUTANTS) - len(survived)} of {len(MUTANTS)} killed.**" in table
    assert len(MUTANTS) >= 40


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_a_program_with_one_edit(name: str) -> None:
    """An edit that no longer applies, or does not compile, would prove nothing."""
    mutant = MUTANTS[name]
    compile(mutant.edited(ROOT), mutant.file, "exec")
    assert all((ROOT / test.partition("::")[0]).is_file() for test in mutant.tests)


@pytest.mark.ranks
def test_a_survivor_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No test notices an edit that changes nothing, and that must count as a failure."""
    edits = {
        "harmless": "return self.pinned_global_batch_size or int(derived)",
        "harmful": "return derived",
    }
    lines = [
        f"[{name}]\nbreaks = 'G'\nfile = 'trainer_core/config.py'\n"
        f"find = 'return self.pinned_global_batch_size or derived'\nreplace = '{edit}'\n"
        "tests = ['tests/test_config.py']\n"
        for name, edit in edits.items()
    ]
    (tmp_path / "mutants.toml").write_text("\n".join(lines))
    table = tmp_path / "table.md"
    assert main(["--mutants", str(tmp_path / "mutants.toml"), "--write", str(table)]) == 1
    out = capsys.readouterr().out
    assert "harmless: SURVIVED" in out
    assert "harmful: killed by tests/test_config.py::TestGlobalBatch::" in out
    assert "**1 of 2 killed.**" in table.read_text()


def test_an_unknown_name_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """A typo must not look like a run without survivors."""
    with pytest.raises(SystemExit):
        main(["--only", "no_such_mutant"])
    assert "no mutant named no_such_mutant" in capsys.readouterr().err
