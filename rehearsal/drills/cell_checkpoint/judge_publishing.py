"""Was a checkpoint published as the brief says, and what would a kill or a power loss leave?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rehearsal.engine.reports import RankReport
from rehearsal.grading.verdict import Finding
from rehearsal.kit.judge.findings import some
from .codes import TABLE, said
from .plan import Plan
from .plan import NEW, OLD


def publish_judge(
    plan: Plan, reports: Sequence[RankReport], earlier: Mapping[str, Sequence[RankReport]]
) -> Iterator[Finding]:
    """The order on disk, kills, existing names."""
    if not reports[0].has_answer:
        return
    answer = reports[0].answer
    for name, result in ((OLD, answer["older"]), (NEW, answer.get("first"))):
        if result is None or answer.get("in place"):
            break
        yield from found_again(name, result, answer["exists"])
    if answer["in place"]:
        what = answer["in place"].removeprefix("before ")
        yield TABLE(
            "written-in-place",
            f"{NEW} was not published by one rename of a complete folder: {what}",
        )
    if answer["changed"]:
        yield TABLE("not-published", f"publish changed {some(answer['changed'])} on the way")
    if answer["late"]:
        yield TABLE(
            "renamed-before-fsync",
            f"when the name {NEW} appeared, {some(answer['late'])} had not been fsynced with "
            "its final content",
        )
    if not answer["folder"] or not answer["parent"]:
        which = f"{answer['source']}, with all its names, before the rename"
        if answer["folder"]:
            which = "checkpoints after the rename"
        yield TABLE("folder-not-synced", f"publish did not fsync the folder {which}")
    if answer["older changed"]:
        yield TABLE("lost-by-kill", f"publishing {NEW} changed or removed {OLD}")
    # The wrong exception alone is the smaller mistake, so it comes last.
    for taken, result, is_same_as_before in sorted(
        answer["taken"], key=lambda one: "raised" in one[1] and one[2]
    ):
        raised = result.get("raised", "")
        if not raised.startswith("FileExistsError") or not is_same_as_before:
            what = "an empty folder" if taken.endswith("6") else "an intact checkpoint"
            look = "at which exception the caller can expect"
            yield TABLE(
                "wrote-into-existing",
                f"{taken} existed, as {what}. publish "
                f"{f'raised {raised}' if raised else 'did not raise'}, and the folder "
                f"{'is unchanged' if is_same_as_before else 'has changed'}",
                look if raised and is_same_as_before else "",
            )
    yield from kill_findings(answer["kills"])


def found_again(name: str, result: Mapping[str, Any], exists: bool) -> Iterator[Finding]:
    """Whether latest_checkpoint_path returns what was just published."""
    if not exists:
        yield TABLE("not-published", f"publish returned, but there is no {name}")
    elif result.get("value", [None])[0] != name:
        look = ""
        if "raised" in result:
            look = "at the line that raises, at what you write to the manifest, and at what "
            look += "verifies it"
        if "malformed" in result:
            look = "at what latest_checkpoint_path returns"
        elif "value" in result and not result["value"][2]:
            look = "at which names latest_checkpoint_path accepts, and at what it returns"
        yield TABLE(
            "not-published",
            f"publish returned, but latest_checkpoint_path did not return {name}: it "
            f"{said(result)}",
            look,
        )
    elif result["lost"]:
        yield TABLE(
            "not-published",
            f"the manifest of {name} does not have what publish got as {some(result['lost'])}",
            "at what publish does with the facts, and at which manifest is returned",
        )


def kill_findings(kills: Sequence[Any]) -> Iterator[Finding]:
    """What each kill left behind."""
    for where, is_there, chosen in kills:
        taken, _, damaged = chosen.get("value", [None, None, []])
        if is_there and (taken != NEW or damaged):
            yield TABLE(
                "torn-by-kill",
                f"killed {where}: {NEW} exists, but latest_checkpoint_path {said(chosen)}",
            )
            return
        if not is_there and (taken != OLD or "after its last" in where):
            yield TABLE(
                "lost-by-kill",
                f"killed {where}: {OLD} was intact before; latest_checkpoint_path "
                f"{said(chosen)}",
            )
            return
