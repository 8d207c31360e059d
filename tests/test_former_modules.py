"""Attempts that were typed into an earlier version's blank."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from rehearsal import grade_source
from rehearsal.grading import former_modules

ATTEMPTS = Path(__file__).parent / "former_attempts"


@pytest.mark.ranks
@pytest.mark.parametrize("path", sorted(ATTEMPTS.glob("*.py")), ids=lambda path: path.stem)
def test_an_attempt_of_an_earlier_version_still_passes(path: Path) -> None:
    """Somebody's work must not fail because we renamed a module."""
    verdict = grade_source(path.stem, path.read_text())
    assert verdict.status == "passed", str(verdict)


class TestNames:
    @pytest.mark.parametrize("former", former_modules.MOVED)
    def test_each_alias_leads_to_a_module_of_today(self, former: str) -> None:
        """An alias that leads nowhere fails where nobody tests: in the learner's import."""
        for module in former_modules.MOVED[former]:
            importlib.import_module(f"trainer_core.{module}")

    @pytest.mark.parametrize("name", former_modules.RENAMED)
    def test_a_renamed_name_is_found(self, name: str) -> None:
        """A name that was renamed twice loses its alias."""
        modules = [
            importlib.import_module(f"trainer_core.{module}")
            for moved in former_modules.MOVED.values()
            for module in moved
        ]
        assert any(hasattr(module, former_modules.RENAMED[name]) for module in modules)

    def test_an_unknown_name_says_where_the_module_went(self) -> None:
        """The message is all that a learner with an old blank has to go by."""
        module = former_modules.FormerModule("trainer_core.publish")
        with pytest.raises(AttributeError, match="checkpoint_format and checkpoint_writer"):
            _ = module.no_such_name
