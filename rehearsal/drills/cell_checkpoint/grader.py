"""Publishing with a kill at each file operation; damaged copies; restoring; saving."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from rehearsal.grading.drill import Scenario
from rehearsal.engine.reports import RankReport
from rehearsal.kit.judge.findings import only_first, some
from rehearsal.kit.judge.weights import largest_difference
from rehearsal.kit.observe.anti_cheat import close_the_answer
from rehearsal.kit.observe.samples import OddNet, weights_of
from rehearsal.kit.observe.waiting import all_arrive
from .kills import die_at_each_file_operation
from rehearsal.engine.rank import RankContext
from rehearsal.grading.verdict import Finding, counted, named_ranks

CODES = {
    "not-published": "after publish there is no intact checkpoint of that name",
    "written-in-place": "files are written under the published name",
    "renamed-before-fsync": "the rename can reach the disk before the contents do",
    "folder-not-synced": "a folder's list of names is not on disk when publish returns",
    "wrote-into-existing": "publish writes into, replaces or accepts a folder that exists",
    "torn-by-kill": "a kill leaves half of a checkpoint under a published name",
    "lost-by-kill": "a kill during publish loses an older checkpoint",
    "not-the-newest": "does not return the numerically newest intact checkpoint",
    "took-damaged": "returns a damaged checkpoint",
    "no-fallback": "a damaged checkpoint stops the restart although an older one is intact",
    "damage-not-reported": "skips a damaged checkpoint silently",
    "started-over": "does not raise although every checkpoint is damaged",
    "changed-files": "choosing a checkpoint changes files",
    "state-left-out": "something a resume needs is missing from the state",
    "not-restored": "a part does not continue from its saved state",
    "old-hyperparameters": "the saved hyperparameters replace the configured ones",
    "runs-code": "reading a checkpoint runs code that is in it",
    "wrong-writer": "a rank other than rank 0 writes, or rank 0 does not write exactly once",
    "random-states": "the random states are not those of every rank, in rank order",
    "raised-alone": "a save that fails does not raise on every rank",
}
ANSWERS = [
    "build_checkpoint",
    "save_checkpoint",
    "latest_checkpoint_path",
    "restore_if_present",
]
OLD, NEW = 99_999_999, 100_000_000  # the alphabetically last name is not the latest step


def close_answers(context: RankContext) -> None:
    """The answers in trainer_core can't be called from here on."""
    close_the_answer(context, "trainer_core.checkpoint", ANSWERS)
    close_the_answer(context, "trainer_core.checkpoint_format", ["publish"])


def no_sync(_: object) -> None:
    """Stands in for os.fsync: a kill loses nothing from the page cache."""


def outcome(act: Callable[[], Any]) -> dict[str, Any]:
    """What a call returned, or which exception it raised."""
    try:
        return {"value": act()}
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        return {"raised": text if len(text) <= 200 else f"{text[:200]}..."}


def temporary_of(checkpoints: Path, step: int) -> Path:
    """A folder of files to publish."""
    import torch

    folder = checkpoints / f"tmp-{step}"
    folder.mkdir(parents=True)
    torch.save({"step": step, "values": torch.arange(50.0)}, folder / "state.pt")
    for rank in range(2):
        torch.save({"torch": torch.full((3,), rank)}, folder / f"rng-rank-{rank}.pt")
    return folder


def published(learner: SimpleNamespace, checkpoints: Path, step: int) -> Path:
    """The learner's checkpoint of a step."""
    target = checkpoints / f"step-{step:08d}"
    learner.publish(temporary_of(checkpoints, step), target, {"step": step})
    return target


def choice(learner: SimpleNamespace, checkpoints: Path) -> dict[str, Any]:
    """What latest_checkpoint_path returns, as plain data."""
    result = outcome(lambda: learner.latest_checkpoint_path(checkpoints))
    if "raised" in result:
        return result
    try:
        folder, manifest, damaged = result["value"]
        names = [path.name for path in damaged]
        return {"value": [folder and Path(folder).name, manifest.get("step"), names]}
    except Exception:  # the learner's call has returned; what it returned can't be read
        wanted = "(folder or None, manifest, {folder: reason})"
        return {"malformed": f"{repr(result['value'])[:200]}, not {wanted}"}


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


def contents(folder: Path) -> list[list[str]]:
    """Names and bytes of everything in a folder."""
    paths = sorted(folder.rglob("*"))
    return [[str(p), p.read_bytes().hex() if p.is_file() else ""] for p in paths]


# ---------------------------------------------------------------- publishing


def publish_body(context: RankContext, learner: SimpleNamespace) -> Any:
    """Publish; then onto existing names; then in processes that die on the way."""
    close_answers(context)
    checkpoints = context.folder / "checkpoints"
    temporary = temporary_of(checkpoints, 5)
    target = checkpoints / "step-00000005"
    context.record("begins")
    learner.publish(temporary, target, {"step": 5})
    context.record("ends")
    os.fsync = no_sync  # type: ignore[assignment]
    answer: dict[str, Any] = {"first": choice(learner, checkpoints), "taken": []}
    answer["exists"] = target.exists()
    if not answer["exists"]:
        return answer
    empty = checkpoints / "step-00000006"
    empty.mkdir()
    for taken in (target, empty):
        before = contents(taken)
        source = temporary_of(checkpoints, 60 + len(answer["taken"]))
        result = outcome(lambda s=source, t=taken: learner.publish(s, t, {"step": 6}))  # type: ignore[misc]
        answer["taken"].append([taken.name, result, contents(taken) == before])
    shutil.rmtree(checkpoints / "step-00000006")

    pattern = context.folder / "crash"
    shutil.copytree(target, pattern / target.name)
    temporary_of(pattern, 7)

    def prepare(number: int) -> Path:
        return shutil.copytree(pattern, context.folder / f"crash-{number}")

    def act(folder: Path) -> None:
        learner.publish(folder / "tmp-7", folder / "step-00000007", {"step": 7})

    answer["crashes"] = []
    for folder, where in die_at_each_file_operation(prepare, act):
        is_there = (folder / "step-00000007").exists()
        answer["crashes"].append([where, is_there, choice(learner, folder)])
    return answer


def publish_judge(
    reports: Sequence[RankReport], earlier: Mapping[str, Sequence[RankReport]]
) -> Iterator[Finding]:
    """The order on disk, existing names, kills."""
    if not reports[0].has_answer:
        return
    answer, events = reports[0].answer, list(reports[0].events)
    kinds = [event["kind"] for event in events]
    events = events[kinds.index("begins") : kinds.index("ends")]
    files = [event for event in events if event["kind"] == "file"]
    name = "checkpoints/step-00000005"
    inside = [e for e in files if e["path"].startswith(name) and e["op"] in ("open", "mkdir")]
    if inside:
        yield Finding(
            "written-in-place",
            f"publish called {inside[0]['op']} on {inside[0]['path']}",
            "a published name appears complete, by one rename",
            "at which names you write to before the checkpoint is complete",
        )
        return
    if not answer["exists"]:
        yield Finding(
            "not-published",
            f"publish returned, but there is no {name}",
            "once publish has returned, the checkpoint is there",
            "at what happens to the temporary folder",
        )
        return
    if answer["first"].get("value", [None])[0] != "step-00000005":
        looks = "at what you write to the manifest, and at what verifies it"
        if "raised" in answer["first"]:
            looks = f"at the line that raises, {looks}"
        if "malformed" in answer["first"]:
            looks = "at what latest_checkpoint_path returns"
        elif "value" in answer["first"] and not answer["first"]["value"][2]:
            looks = "at which names latest_checkpoint_path accepts, and at what it returns"
        yield Finding(
            "not-published",
            "publish returned, but latest_checkpoint_path did not return step-00000005: it "
            f"{said(answer['first'])}",
            "latest_checkpoint_path finds what was just published, and it verifies",
            looks,
        )
        return
    at = next((i for i, e in enumerate(files) if e["op"] == "rename" and e["to"] == name), None)
    before = {e["path"] for e in files[:at] if e["op"] == "fsync"}
    renames = {e["to"]: e["path"] for e in files[:at] if e["op"] == "rename"}
    wanted = ["state.pt", "rng-rank-0.pt", "rng-rank-1.pt", "manifest.json"]
    source = files[at]["path"] if at is not None else "checkpoints/tmp-5"
    paths = {file: f"{source}/{file}" for file in wanted}
    late = [f for f, p in paths.items() if p not in before and renames.get(p) not in before]
    if late:
        moment = "the rename" if at is not None else "it returned"
        yield Finding(
            "renamed-before-fsync",
            f"publish did not fsync {some(late)} in {source} before {moment}",
            "a power loss may keep the rename and lose what was written before it",
            "at what is on disk, not just written, when the name appears",
        )
    after = {e["path"] for e in files[at:] if e["op"] == "fsync"} if at is not None else set()
    folders = [source] if source not in before else []
    folders += ["checkpoints"] if "checkpoints" not in after else []
    if folders:
        when = "before" if folders[0] != "checkpoints" else "after"
        seen = (
            "" if at is not None else " (no rename to checkpoints/step-00000005 was recorded)"
        )
        yield Finding(
            "folder-not-synced",
            f"publish did not fsync the folder {folders[0]} {when} the rename{seen}",
            "a folder's list of names reaches the disk only when the folder is fsynced",
            "at the folders whose list of names has changed",
        )
    # The wrong exception alone is the smaller mistake, so it comes last.
    for taken, result, is_same in sorted(
        answer["taken"], key=lambda one: "raised" in one[1] and one[2]
    ):
        raised = result.get("raised", "")
        if not raised.startswith("FileExistsError") or not is_same:
            what = "an empty folder" if taken.endswith("6") else "an intact checkpoint"
            look = "at what you do if the target exists, and at what a rename would do to it"
            if raised and is_same:
                look = "at which exception the caller can expect"
            yield Finding(
                "wrote-into-existing",
                f"{taken} existed, as {what}. publish "
                f"{f'raised {raised}' if raised else 'did not raise'}, and the folder "
                f"{'is unchanged' if is_same else 'has changed'}",
                "publish raises FileExistsError if its target exists, even empty, and leaves "
                "it unchanged",
                look,
            )
    yield from crash_findings(answer["crashes"])


def crash_findings(crashes: Sequence[Any]) -> Iterator[Finding]:
    """What each kill left behind."""
    killed = crashes[:-1]  # the last one was not killed
    for number, (where, is_there, chosen) in enumerate(killed, start=1):
        place = f"killed before {where} (file operation {number} of {len(killed)}): "
        taken, _, damaged = chosen.get("value", [None, None, []])
        if is_there and (taken != "step-00000007" or damaged):
            yield Finding(
                "torn-by-kill",
                f"{place}step-00000007 exists, but latest_checkpoint_path {said(chosen)}",
                "a kill at any moment leaves a complete checkpoint or none",
                "at what exists under the final name before the last byte is written",
            )
            return
        if not is_there and taken != "step-00000005":
            yield Finding(
                "lost-by-kill",
                f"{place}step-00000005 was intact before; latest_checkpoint_path "
                f"{said(chosen)}",
                "until its successor is published, the older checkpoint is the one to trust",
                "at what you change besides the temporary folder",
            )
            return


# ---------------------------------------------------------------- choosing


def flip(path: Path) -> None:
    """Flip one bit in the middle."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


DAMAGES: dict[str, Callable[[Path], None]] = {
    "one bit of state.pt flipped": lambda f: flip(f / "state.pt"),
    "rng-rank-1.pt cut to 600 bytes": lambda f: os.truncate(f / "rng-rank-1.pt", 600),
    "no rng-rank-0.pt": lambda f: (f / "rng-rank-0.pt").unlink(),
    "no manifest.json": lambda f: (f / "manifest.json").unlink(),
    "an empty manifest.json": lambda f: os.truncate(f / "manifest.json", 0),
    "a different step in manifest.json": lambda f: edit(f / "manifest.json"),
}


def edit(path: Path) -> None:
    """Make the manifest say something else, well-formed."""
    path.write_text(path.read_text().replace(str(NEW), str(NEW + 1)))


def choose_body(context: RankContext, learner: SimpleNamespace) -> Any:
    """Choose among intact and damaged checkpoints."""
    close_answers(context)
    os.fsync = no_sync  # type: ignore[assignment]
    root = context.folder / "choose"
    whole = root / "whole"
    answer: dict[str, Any] = {"nothing": choice(learner, root / "not-there"), "damaged": []}
    for step in (NEW, OLD):
        published(learner, whole, step)
    for other in ("tmp-9", "rejected-step-200000000-0a1b", "old-step-300000000-0a1b"):
        (whole / other).mkdir()
    before = contents(whole)
    answer["whole"] = choice(learner, whole)
    for number, (what, damage) in enumerate(DAMAGES.items()):
        folder = shutil.copytree(whole, root / f"damaged-{number}")
        damage(folder / f"step-{NEW:08d}")
        answer["damaged"].append([what, choice(learner, folder)])
    all_bad = shutil.copytree(whole, root / "all-bad")
    for step in (NEW, OLD):
        flip(all_bad / f"step-{step:08d}" / "state.pt")
    bad = contents(all_bad)
    answer["all bad"] = choice(learner, all_bad)
    kept, now = before + bad, contents(whole) + contents(all_bad)
    changed = {tuple(file) for file in kept} ^ {tuple(file) for file in now}
    answer["changed"] = sorted({os.path.relpath(path, root) for path, _ in changed})
    return answer


def choose_judge(
    reports: Sequence[RankReport], earlier: Mapping[str, Sequence[RankReport]]
) -> Iterator[Finding]:
    """The newest intact one, and a reason for each that was skipped."""
    answer, newest, older = reports[0].answer, f"step-{NEW:08d}", f"step-{OLD:08d}"
    rule = "a restart takes the numerically newest intact checkpoint"
    if answer["nothing"] != {"value": [None, None, []]}:
        yield Finding(
            "not-the-newest",
            f"without any checkpoint, latest_checkpoint_path {said(answer['nothing'])}",
            "a first start finds nothing, and that is not an error",
            "at what happens if the folder is missing or empty",
        )
    got = answer["whole"].get("value", [None])
    look = "at how you compare two steps, and at which names count"
    if got[0] == newest and got[1] != NEW and not got[2]:
        rule = "the manifest returned is that of the checkpoint, with the facts of publish"
        look = "at which manifest you return, and at what publish does with the facts"
    if got != [newest, NEW, []]:
        yield Finding(
            "not-the-newest",
            f"of steps {OLD} and {NEW}, both intact, latest_checkpoint_path "
            f"{said(answer['whole'])}",
            rule,
            look,
        )
        return
    for what, result in answer["damaged"]:
        value = result.get("value", [None, None, []])
        if value[0] == newest:
            yield Finding(
                "took-damaged",
                f"{newest} had {what}, and latest_checkpoint_path returned it",
                rule,
                "at what you compare with what was written",
            )
        elif value[0] != older:
            yield Finding(
                "no-fallback",
                f"{newest} had {what}, and {older} is intact; latest_checkpoint_path "
                f"{said(result)}",
                rule,
                "at what you do once a checkpoint fails verification",
            )
        elif value[2] != [newest] or value[1] != OLD:
            yield Finding(
                "damage-not-reported",
                f"{newest} had {what}, and {older} was returned with the manifest of step "
                f"{value[1]}; reported as damaged: {some(value[2]) or 'nothing'}",
                "report what you skip, or nobody will check that disk",
                "at what you return besides the path",
            )
    if "raised" not in answer["all bad"]:
        yield Finding(
            "started-over",
            f"with both checkpoints damaged, latest_checkpoint_path {said(answer['all bad'])}",
            "if there are checkpoints and none is intact, a person decides, not the restart",
            "at what happens after the last candidate",
        )
    if answer["changed"]:
        yield Finding(
            "changed-files",
            f"latest_checkpoint_path changed {some(answer['changed'], 3)}",
            "choosing only reads, since every rank may do it",
            "at what you rename or delete",
        )


# ---------------------------------------------------------------- restoring


class FinishedSampler:
    """A sampler at the end of its plan: its length is 0."""

    def __init__(self, position: int) -> None:
        self.position = position

    def __len__(self) -> int:
        return 0

    def state_dict(self) -> dict[str, int]:
        """The position."""
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue there."""
        self.position = state["position"]


class Scale(FinishedSampler):
    """A stand-in for a loss scaler."""


def parts_of(seed: int, lr: float, decay: float, position: int, scale: int | None) -> Any:
    """A run's parts; the optimizer's two groups have the configured lr and decay."""
    import torch

    model = OddNet(seed=seed)
    groups: list[Any] = [
        {"params": [p for p in model.parameters() if p.ndim > 1], "weight_decay": decay},
        {"params": [p for p in model.parameters() if p.ndim < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=lr, betas=(0.9 - decay, 0.99))
    scaler = Scale(scale) if scale is not None else None
    sampler = FinishedSampler(position)
    return {"model": model, "optimizer": optimizer, "scaler": scaler, "sampler": sampler}


def step_of(parts: Any) -> None:
    """One optimizer step on fixed samples."""
    import torch

    model, optimizer = parts["model"], parts["optimizer"]
    optimizer.zero_grad()
    model(torch.linspace(-1, 1, 15).view(3, 5)).pow(2).sum().backward()
    optimizer.step()


def restore_body(context: RankContext, learner: SimpleNamespace) -> Any:
    """Save one run's parts and restore them into another's."""
    import torch

    close_answers(context)
    folder, device = context.folder / "restore", torch.device("cpu")
    folder.mkdir()
    old = parts_of(1, lr=0.1, decay=0.3, position=12, scale=None)
    for _ in range(2):
        step_of(old)
    facts = {"step": 12, "epoch": 3, "losses": [0.5, 0.25]}
    state = learner.build_checkpoint(old, **facts)
    if not isinstance(state, Mapping):
        raise TypeError(f"build_checkpoint returned {str(state)[:80]}, not a dict")
    keys = {n: value if n in facts else isinstance(value, dict) for n, value in state.items()}
    torch.save(state, folder / "state.pt")
    new = parts_of(2, lr=0.02, decay=0.1, position=0, scale=7)  # autocast changed to fp16
    nothing = outcome(lambda: learner.restore_if_present(None, new, device) is None)
    loaded = step_in(outcome(lambda: learner.restore_if_present(folder, new, device)))
    names = ["lr", "weight_decay", "betas"]
    settings = [[g[n] for n in names] for g in new["optimizer"].param_groups]
    position, weights = new["sampler"].position, [weights_of(p["model"]) for p in (old, new)]
    twin = parts_of(1, lr=0.02, decay=0.1, position=0, scale=None)
    twin["model"].load_state_dict(old["model"].state_dict())
    twin["optimizer"].state = dict(
        zip(
            [p for g in twin["optimizer"].param_groups for p in g["params"]],
            [
                old["optimizer"].state.get(p, {})
                for g in old["optimizer"].param_groups
                for p in g["params"]
            ],
            strict=True,
        )
    )
    for parts in (new, twin):
        step_of(parts)
    next_weights = [weights_of(p["model"]) for p in (twin, new)]
    mark = folder / "code-has-run"
    torch.save({**state, "extra": Hostile(str(mark))}, folder / "state.pt")
    hostile = outcome(lambda: learner.restore_if_present(folder, new, device) is None)
    return {
        "keys": keys,
        "nothing": nothing,
        "loaded": loaded,
        "settings": settings,
        "position": position,
        "weights": weights,
        "next": next_weights,
        "hostile": hostile,
        "ran": mark.exists(),
        "scale": new["scaler"].position,
    }


def step_in(result: dict[str, Any]) -> dict[str, Any]:
    """The outcome of a restore, with the step of the state instead of the state."""
    state = result.get("value")
    if state is None:
        return result
    try:
        step = state["step"]
    except Exception:  # the learner's call has returned; what it returned has no step
        is_state = isinstance(state, dict) and state
        what = f"a dict with the keys {some(list(state))}" if is_state else repr(state)[:200]
        return {"malformed": what}
    return {"malformed": "a state of step None"} if step is None else {"value": step}


def restored(result: Mapping[str, Any]) -> str:
    """The outcome of a restore in words."""
    if result.get("value") is None:
        return "returned None" if "value" in result else said(result)
    return f"returned a state of step {result['value']}"


CONFIGURED: list[Any] = [[0.02, 0.1, [0.8, 0.99]], [0.02, 0.0, [0.8, 0.99]]]


def hyperparameters(groups: Sequence[Any]) -> str:
    """Rate, weight decay and betas of each group, in words."""
    texts = []
    rounded = json.loads(json.dumps(groups), parse_float=lambda text: f"{float(text):g}")
    for lr, decay, betas in rounded:
        texts.append(f"lr {lr}, weight decay {decay}, betas ({', '.join(map(str, betas))})")
    return " and ".join(texts)


class Hostile:
    """Makes a folder when something unpickles it carelessly."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (self.path,)


def restore_judge(
    reports: Sequence[RankReport], earlier: Mapping[str, Sequence[RankReport]]
) -> Iterator[Finding]:
    """All of the state, into the parts that exist, with the configured settings."""
    answer = reports[0].answer
    wanted: dict[str, Any] = {
        "model": True,
        "optimizer": True,
        "scaler": False,
        "sampler": True,
    }
    wanted |= {"step": 12, "epoch": 3, "losses": [0.5, 0.25]}
    differ = [n for n, value in wanted.items() if answer["keys"].get(n, "missing") != value]
    if differ:
        look = "at which parts and facts you save, and at what you save for one that is None"
        if differ == ["sampler"]:
            look = "at how you distinguish a part that is None from one that is falsy"
        yield Finding(
            "state-left-out",
            "the sampler was at the end of its plan, and the scaler was None. These are "
            f"missing or wrong in what build_checkpoint returned: {some(differ, 7)}",
            "a checkpoint contains the state of every part, not just the weights",
            look,
        )
    if answer["nothing"] != {"value": True}:
        yield Finding(
            "not-restored",
            f"without a folder, restore_if_present {said(answer['nothing'], is_none=True)}",
            "without a checkpoint there is nothing to restore, and that is not an error",
            "at what you do if the folder is None",
        )
        return
    if answer["loaded"] != {"value": 12}:
        has_raised = "raised" in answer["loaded"]
        rule = "a part may be new or gone; everything else is restored anyway"
        look = "at the line that raises: is a part or a state None there?"
        if answer["loaded"].get("raised", "").startswith(("NameError", "UnboundLocalError")):
            rule = "restore_if_present loads a state into the parts and returns it"
            look = "at where that variable gets its value"
        yield Finding(
            "not-restored",
            "from a checkpoint of step 12 without a scaler's state, into a run with a scaler, "
            f"restore_if_present {restored(answer['loaded'])}",
            rule if has_raised else "restore_if_present returns the state that it loaded",
            look if has_raised else "at what you return",
        )
        return
    difference, name = largest_difference(*answer["weights"])
    what = f"the weights, by {difference:.2g} in {name}" if difference else ""
    what = what or ("the sampler's position" if answer["position"] != 12 else "")
    if what:
        yield Finding(
            "not-restored",
            f"after the restore, this differs from what was saved: {what}",
            "a resume continues from the saved state",
            "at what you load into which part",
        )
    if answer["settings"] != CONFIGURED:
        yield Finding(
            "old-hyperparameters",
            f"the optimizer's two groups were configured with {hyperparameters(CONFIGURED)}; "
            f"after the restore they have {hyperparameters(answer['settings'])}",
            "the settings configured for this start take effect, not the saved ones",
            "at what an optimizer's state dict contains besides its moments",
        )
        return
    difference, name = largest_difference(*answer["next"])
    if not difference < 1e-6:
        yield Finding(
            "not-restored",
            f"one step after the restore, the weights differ by {difference:.2g} in {name} "
            "from those of a step with the saved moments and the configured settings",
            "a resume continues from the saved state, including the optimizer's",
            "at the optimizer's moments, and at which parameters they belong to",
        )
    if answer["ran"] or "raised" not in answer["hostile"]:
        yield Finding(
            "runs-code",
            "a state.pt contained a pickled call, and restore_if_present "
            f"{'ran it' if answer['ran'] else 'did not raise'}",
            "a checkpoint is data: reading it runs nothing",
            "at how you load the file",
        )


# ---------------------------------------------------------------- saving


def save_body(context: RankContext, learner: SimpleNamespace) -> Any:
    """Rank 1 is late for a save that works, then for one that fails."""
    import torch

    close_answers(context)
    context.init_group()
    torch.manual_seed(100 + context.rank)
    calls: list[Any] = []
    fails = False

    class Writer:
        def save(self, state: Any, rng_states: Any, manifest: Any) -> None:
            try:
                sums = [state["torch"].sum() for state in rng_states]
            except Exception:
                wanted = "not a list of what rng_state() returned on each rank"
                text = f"writer.save got rng_states={str(rng_states)[:80]}, {wanted}"
                raise TypeError(text) from None
            calls.append([sums, manifest])
            if fails:
                raise OSError(28, "No space left on device")

        def wait(self) -> None: ...

    time.sleep(0.03 * context.rank)
    mine = torch.get_rng_state().sum()
    learner.save_checkpoint(Writer(), {"step": 3}, {"step": 3})
    saved, calls, fails = calls, [], True
    result = outcome(lambda: learner.save_checkpoint(Writer(), {"step": 4}, {"step": 4}))
    context.record("failed")
    return {
        "mine": mine,
        "calls": saved,
        "fails": len(calls),
        "result": result,
        "waited": not all_arrive(context, "failed", 1.0),
    }


def save_judge(
    reports: Sequence[RankReport], earlier: Mapping[str, Sequence[RankReport]]
) -> Iterator[Finding]:
    """One writer, every rank's random state, one outcome."""
    answers = [report.answer for report in reports]
    if not all(report.has_answer for report in reports):
        alone = [report.rank for report in reports if report.of("failed")]
        if alone and len(alone) < len(reports):
            yield raised_alone(f"only {named_ranks(alone)} came out of save_checkpoint")
        return
    for rank, answer in enumerate(answers):
        twice = rank == 0 and max(len(answer["calls"]), answer["fails"]) > 1
        if len(answer["calls"]) != (rank == 0) or answer["fails"] > (rank == 0):
            yield Finding(
                "wrong-writer",
                f"rank {rank} of {len(answers)} called writer.save "
                f"{times(len(answer['calls']))} in a save that works, and "
                f"{times(answer['fails'])} in one that fails",
                "rank 0 writes for all ranks, once",
                "at how often rank 0 writes" if twice else "at which ranks write",
            )
            return
    # Having every rank's state proves that all have arrived: the save can't be too early.
    states, _ = answers[0]["calls"][0]
    if states != [answer["mine"] for answer in answers]:
        yield Finding(
            "random-states",
            f"writer.save got {counted(len(states), 'random state')} on rank 0, but the list "
            "isn't [rank 0's, rank 1's]",
            "each rank has its own random numbers, and a resume continues all of them",
            "at whose random state you pass to the writer",
        )
    texts = [answer["result"].get("raised", "") for answer in answers]
    bad = [r for r, t in enumerate(texts) if not t or "gloo" in t or "onnection" in t]
    late = [r for r, answer in enumerate(answers) if not answer["waited"]]
    if bad or len(late) < len(answers):
        ranks = named_ranks(bad or late or range(len(answers)))
        look = "at what you do with the exception" if 0 in bad else ""
        yield raised_alone(f"the failure was not raised on {ranks} within 1 s", look)


def times(count: int) -> str:
    """How often, in words."""
    return {1: "once", 2: "twice"}.get(count, f"{count} times")


def raised_alone(what: str, look: str = "") -> Finding:
    """About the save in which the writer raises."""
    return Finding(
        "raised-alone",
        f"in a second save, writer.save raises on rank 0 (disk full), and {what}",
        "if a save fails on one rank, every rank raises, or the others hang in the next "
        "collective",
        look or "at how the other ranks learn about the outcome of the save",
    )


SCENARIOS = [
    Scenario(
        name=name,
        body=body,
        judge=only_first(judge),
        world_size=world_size,
        deadline_s=6,
        judges_failures=name in ("publish", "save"),
    )
    for name, body, judge, world_size in (
        ("publish", publish_body, publish_judge, 1),
        ("choose", choose_body, choose_judge, 1),
        ("restore", restore_body, restore_judge, 1),
        ("save", save_body, save_judge, 2),
    )
]
