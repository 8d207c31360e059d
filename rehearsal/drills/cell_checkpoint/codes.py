"""The findings on this cell: for each code its meaning, its rule, and where to look.

Also what latest_checkpoint_path did, in words.
"""

from collections.abc import Mapping
from typing import Any

from rehearsal.grading.verdict import FindingTable
from rehearsal.kit.judge.findings import some

NEWEST = "a restart takes the numerically newest intact checkpoint"
RESUMES = "a resume continues from the saved state"
TABLE = FindingTable(
    {
        "not-published": (
            "after publish there is no intact checkpoint of that name",
            "latest_checkpoint_path finds what was just published, with its facts, and it "
            "verifies",
            "at what you write to the manifest, and at what verifies it",
        ),
        "written-in-place": (
            "files are written under the published name",
            "a published name appears complete, by one rename",
            "at which names you write to before the checkpoint is complete",
        ),
        "renamed-before-fsync": (
            "the rename can reach the disk before the contents do",
            "a power loss may keep the rename and lose what was written before it",
            "at what is on disk, not just written, when the name appears",
        ),
        "folder-not-synced": (
            "a folder's list of names is not on disk when publish returns",
            "a folder's list of names reaches the disk only when the folder is fsynced",
            "at the folders whose list of names has changed",
        ),
        "wrote-into-existing": (
            "publish writes into, replaces or accepts a folder that exists",
            "publish raises FileExistsError if its target exists, even empty, and leaves it "
            "unchanged",
            "at what you do if the target exists, and at what a rename would do to it",
        ),
        "torn-by-kill": (
            "a kill leaves half of a checkpoint under a published name",
            "a kill at any moment leaves a complete checkpoint or none",
            "at what exists under the final name before the last byte is written",
        ),
        "lost-by-kill": (
            "a kill during publish loses an older checkpoint",
            "until its successor is published, the older checkpoint is the one to trust",
            "at what you change besides the temporary folder",
        ),
        "not-the-newest": (
            "does not return the numerically newest intact checkpoint",
            NEWEST,
            "at how you compare two steps, and at which names count",
        ),
        "took-damaged": (
            "returns a damaged checkpoint",
            NEWEST,
            "at what you compare with what was written",
        ),
        "no-fallback": (
            "a damaged checkpoint stops the restart although an older one is intact",
            NEWEST,
            "at what you do once a checkpoint fails verification",
        ),
        "damage-not-reported": (
            "skips a damaged checkpoint silently",
            "report what you skip, or nobody will check that disk",
            "at what you return besides the path",
        ),
        "started-over": (
            "does not raise although every checkpoint is damaged",
            "if there are checkpoints and none is intact, a person decides, not the restart",
            "at what happens after the last candidate",
        ),
        "newer-format": (
            "does not raise although a checkpoint has a newer format",
            "a newer format isn't damage: falling back would drop what newer code saved",
            "at which exceptions you take for damage, and at who compares the format",
        ),
        "changed-files": (
            "choosing a checkpoint changes files",
            "choosing only reads, since every rank may do it",
            "at what you rename or delete",
        ),
        "state-left-out": (
            "something a resume needs is missing from the state",
            "a checkpoint contains the state of every part, not just the weights",
            "at which parts and facts you save, and at what you save for one that is None",
        ),
        "not-restored": (
            "a part does not continue from its saved state",
            RESUMES,
            "at what you load into which part",
        ),
        "old-hyperparameters": (
            "the saved hyperparameters replace the configured ones",
            "the settings configured for this start take effect, not the saved ones",
            "at what an optimizer's state dict contains besides its moments",
        ),
        "runs-code": (
            "reading a checkpoint runs code that is in it",
            "a checkpoint is data: reading it runs nothing",
            "at how you load the file",
        ),
        "wrong-writer": (
            "a rank other than rank 0 writes, or rank 0 does not write exactly once",
            "rank 0 writes for all ranks, once",
            "at which ranks write, and how often",
        ),
        "wrong-content": (
            "writer.save does not get the state and the manifest of save_checkpoint",
            "the writer gets this call's state and manifest, unchanged",
            "at what you pass to writer.save",
        ),
        "random-states": (
            "the random states are not those of every rank, in rank order",
            "each rank has its own random numbers, and a resume continues all of them",
            "at whose random state you pass to the writer",
        ),
        "raised-alone": (
            "a save that fails does not raise on every rank",
            "if a save fails on one rank, every rank raises, or the others hang in the next "
            "collective",
            "at how the other ranks learn about the outcome of the save",
        ),
    }
)


def said(result: Mapping[str, Any], *, is_none: bool = False) -> str:
    """An outcome in words, for a sentence.

    Args:
        is_none: the value is whether the call returned None.
    """
    if "raised" in result:
        return f"raised {result['raised']}"
    if "malformed" in result:
        return f"returned {result['malformed']}"
    value = result["value"]
    if is_none:
        return "returned None" if value else "did not return None"
    if value == [None, None, []]:
        return "found no checkpoint"
    folder, step, damaged = value
    manifest = f" with the manifest of step {step}" if folder or step is not None else ""
    skipped = f" and skipped {some(damaged)}" if damaged else ""
    return f"returned {folder or 'no folder'}{manifest}{skipped}"
