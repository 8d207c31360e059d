"""The mutants of the trainer are whole; whether tests notice them, scripts/mutate.py says."""

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


def test_there_are_as_many_as_the_figures_say() -> None:
    """The page is written by a run of an hour; it must not tell of another list."""
    table = (ROOT / "docs" / "mutants.md").read_text()
    listed = [line.split(" | ")[0].removeprefix("| ") for line in table.splitlines()[8:]]
    assert listed == list(MUTANTS)
    argued = [name for name in MUTANTS if MUTANTS[name].argued]
    assert f"**{len(MUTANTS) - len(argued)} of {len(MUTANTS)} killed.**" in table
    assert len(MUTANTS) >= 40


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_a_program_with_one_edit(name: str) -> None:
    """An edit that no longer fits, or a text that does not compile, would prove nothing."""
    mutant = MUTANTS[name]
    compile(mutant.edited(ROOT), mutant.file, "exec")
    assert all((ROOT / test).is_file() for test in mutant.tests)


def test_a_survivor_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An edit that changes nothing is noticed by no test, and that is a failure."""
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
    assert "harmful: killed tests/test_config.py::TestGlobalBatch::" in out
    assert "**1 of 2 killed.**" in table.read_text()


def test_a_name_that_is_none_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """A typing error must not look like a run without survivors."""
    with pytest.raises(SystemExit):
        main(["--only", "no_such_mutant"])
    assert "no mutant no_such_mutant" in capsys.readouterr().err
