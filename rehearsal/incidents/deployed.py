"""Which text of the trainer a plan deploys: the shipped modules, edits, and what was typed."""

from __future__ import annotations

from pathlib import Path

from rehearsal.incidents.world import Plan, Version

SHIPPED = Path(__file__).resolve().parents[2] / "trainer_core"


def live_versions(plan: Plan) -> list[Version]:
    """The deployments up to the live one; a rollback leaves out the later ones."""
    ids = [version.id for version in plan.versions]
    return list(plan.versions[: ids.index(plan.settings["code_version"]) + 1])


def changed_modules(plan: Plan) -> dict[str, str]:
    """The text of each module that differs from the shipped one.

    Raises:
        AssertionError: if an edit's text isn't in the module exactly once.
    """
    texts: dict[str, str] = {}
    for version in live_versions(plan):
        for edit in version.edits:
            text = texts.get(edit.module) or (SHIPPED / edit.module).read_text("utf-8")
            assert text.count(edit.old) == 1, f"{edit.module}: {edit.old!r}"
            texts[edit.module] = text.replace(edit.old, edit.new)
    return texts | plan.sources


def module_names() -> list[str]:
    """The modules that can be read and replaced; live.py is not part of this job."""
    return sorted(path.name for path in SHIPPED.glob("*.py") if path.stem not in ("live",))


def module_text(plan: Plan, module: str) -> str:
    """A module as it is deployed."""
    return changed_modules(plan).get(module) or (SHIPPED / module).read_text("utf-8")


def deploy(plan: Plan, folder: Path) -> Path | None:
    """Write the deployed package below ``folder``; None if it is exactly the shipped one.

    Returns:
        What goes in front of sys.path.
    """
    changed = changed_modules(plan)
    if not changed:
        return None
    package = folder / "trainer_core"
    package.mkdir(parents=True, exist_ok=True)
    for name in module_names():
        text = changed.get(name) or (SHIPPED / name).read_text("utf-8")
        (package / name).write_text(text, "utf-8")
    return folder
