"""A publication killed at each file operation, damaged copies, a restore, a save."""

from __future__ import annotations

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
from rehearsal.grading.verdict import Finding

CODES = {
    "not-published": "after publish there is no checkpoint of that name that holds",
    "written-in-place": "files are written under the published name",
    "renamed-before-fsync": "the rename can reach the disk before the contents",
    "folder-not-synced": "a folder's names are not on disk when publish returns",
    "wrote-into-existing": "a folder that exists is written into or replaced",
    "torn-by-kill": "a kill leaves half of a checkpoint under a published name",
    "lost-by-kill": "a kill during a publication costs an older checkpoint",
    "not-the-newest": "another than the numerically newest whole checkpoint is taken",
    "took-damaged": "a damaged checkpoint is taken",
    "no-fallback": "a damaged checkpoint stops the restart, though an older one is whole",
    "damage-not-told": "a damaged checkpoint is passed over without being named",
    "began-again": "no checkpoint is whole, and that is not an error",
    "changed-files": "choosing a checkpoint changes files",
    "state-left-out": "something that a resume needs is not in the state",
    "not-restored": "a part does not continue as it was saved",
    "old-hyperparameters": "the saved hyperparameters replace the configured ones",
    "runs-code": "reading a checkpoint runs code that is in it",
    "wrong-writer": "other ranks than rank 0 write, or not exactly once",
    "random-states": "the random states are not those of every rank, in rank order",
    "raised-alone": "a save that fails is not raised on every rank",
}
ANSWERS = [
    "build_checkpoint",
    "save_checkpoint",
    "latest_checkpoint_path",
    "restore_if_present",
]
OLD, NEW = 99_999_999, 100_000_000  # the larger name is not the larger step


def close_answers(context: RankContext) -> None:
    """Neither module of the package helps."""
    close_the_answer(context, "trainer_core.checkpoint", ANSWERS)
    close_the_answer(context, "trainer_core.checkpoint_format", ["publish"])


def no_sync(_: object) -> None:
    """What is on disk is judged once; a kill loses no page of the cache."""


def outcome(act: Callable[[], Any]) -> dict[str, Any]:
    """What a call returned, or which exception left it."""
    try:
        return {"value": act()}
    except Exception as error:
        return {"raised": f"{type(error).__name__}: {error}"[:200]}


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
    """What latest_checkpoint_path says, as plain data."""

    def ask() -> list[Any]:
        folder, manifest, damaged = learner.latest_checkpoint_path(checkpoints)
        return [folder and Path(folder).name, manifest.get("step"), [p.name for p in damaged]]

    return outcome(ask)


def contents(folder: Path) -> list[list[str]]:
    """Names and bytes below a folder."""
    paths = sorted(folder.rglob("*"))
    return [[str(p), p.read_bytes().hex() if p.is_file() else ""] for p in paths]


# ---------------------------------------------------------------- publishing


def publish_body(context: RankContext, learner: SimpleNamespace) -> Any:
    """Publish; onto names that are taken; and in processes that die on the way."""
    close_answers(context)
    checkpoints = context.folder / "publish"
    temporary = temporary_of(checkpoints, 5)
    target = checkpoints / "step-00000005"
    context.record("begins")
    learner.publish(temporary, target, {"step": 5})
    context.record("ends")
    os.fsync = no_sync  # type: ignore[assignment]
    answer: dict[str, Any] = {"first": choice(learner, checkpoints), "taken": []}
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
    """Order on disk, names that are taken, kills."""
    if not reports[0].has_answer:
        return
    answer, events = reports[0].answer, list(reports[0].events)
    kinds = [event["kind"] for event in events]
    events = events[kinds.index("begins") : kinds.index("ends")]
    files = [event for event in events if event["kind"] == "file"]
    name = "publish/step-00000005"
    inside = [e for e in files if e["path"].startswith(name) and e["op"] in ("open", "mkdir")]
    if inside:
        yield Finding(
            "written-in-place",
            f"{inside[0]['op']} of {inside[0]['path']}",
            "a published name comes into being whole, by one rename",
            "at which names are written before the checkpoint is complete",
        )
        return
    if answer["first"].get("value", [None])[0] != "step-00000005":
        yield Finding(
            "not-published",
            f"publish returned, the newest checkpoint is {answer['first']}",
            "what was published holds when it is read back",
            "at the manifest, and at what reads it",
        )
        return
    at = next((i for i, e in enumerate(files) if e["op"] == "rename" and e["to"] == name), None)
    before = {e["path"] for e in files[:at] if e["op"] == "fsync"}
    renames = {e["to"]: e["path"] for e in files[:at] if e["op"] == "rename"}
    wanted = ["state.pt", "rng-rank-0.pt", "rng-rank-1.pt", "manifest.json"]
    paths = {file: f"publish/tmp-5/{file}" for file in wanted}
    late = [f for f, p in paths.items() if p not in before and renames.get(p) not in before]
    if late:
        yield Finding(
            "renamed-before-fsync",
            f"no fsync of {some(late)} before the rename",
            "a power loss may keep the rename and lose what was written before it",
            "at what is on disk, and not only written, when the name appears",
        )
    after = {e["path"] for e in files[at:] if e["op"] == "fsync"} if at is not None else set()
    folders = ["publish/tmp-5"] if "publish/tmp-5" not in before else []
    folders += ["publish"] if "publish" not in after else []
    if folders:
        when = "before" if folders[0] != "publish" else "after"
        yield Finding(
            "folder-not-synced",
            f"no fsync of the folder {folders[0]} {when} the rename",
            "names lie in folders, and a folder reaches the disk by an fsync of its own",
            "at the folders whose list of names has changed",
        )
    for taken, result, is_same in answer["taken"]:
        if "raised" not in result or not is_same:
            what = "an empty folder" if taken.endswith("6") else "a whole checkpoint"
            yield Finding(
                "wrote-into-existing",
                f"{taken} existed, {what}: publish "
                f"{'raised' if 'raised' in result else 'raised nothing'}, the folder "
                f"{'is as it was' if is_same else 'has changed'}",
                "a checkpoint is never written into a folder that exists",
                "at what a rename does with the target that it finds",
            )
    yield from crash_findings(answer["crashes"])


def crash_findings(crashes: Sequence[Any]) -> Iterator[Finding]:
    """What each kill has left."""
    killed = crashes[:-1]  # the last one lived
    for number, (where, is_there, chosen) in enumerate(killed, start=1):
        place = f"killed before {where} (change {number} of {len(killed)}): "
        taken, _, damaged = chosen.get("value", [None, None, []])
        if is_there and (taken != "step-00000007" or damaged):
            yield Finding(
                "torn-by-kill",
                f"{place}step-00000007 is there and does not hold; the restart gets {chosen}",
                "a kill at any moment leaves a whole checkpoint or none",
                "at what stands under the final name before the last byte is written",
            )
            return
        if not is_there and taken != "step-00000005":
            yield Finding(
                "lost-by-kill",
                f"{place}step-00000005 was whole; the restart gets {chosen}",
                "until the successor is published, the older checkpoint is the truth",
                "at what is touched besides the temporary folder",
            )
            return


# ---------------------------------------------------------------- choosing


def flip(path: Path) -> None:
    """One bit in the middle."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


DAMAGES: dict[str, Callable[[Path], None]] = {
    "one bit of state.pt flipped": lambda f: flip(f / "state.pt"),
    "rng-rank-1.pt cut in half": lambda f: os.truncate(f / "rng-rank-1.pt", 600),
    "rng-rank-0.pt missing": lambda f: (f / "rng-rank-0.pt").unlink(),
    "manifest.json missing": lambda f: (f / "manifest.json").unlink(),
    "manifest.json empty": lambda f: os.truncate(f / "manifest.json", 0),
    "another step in manifest.json": lambda f: edit(f / "manifest.json"),
}


def edit(path: Path) -> None:
    """A manifest that is well-formed and says something else."""
    path.write_text(path.read_text().replace(str(NEW), str(NEW + 1)))


def choose_body(context: RankContext, learner: SimpleNamespace) -> Any:
    """Choose among whole and damaged ones."""
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
    answer["changed"] = contents(whole) != before or contents(all_bad) != bad
    return answer


def choose_judge(
    reports: Sequence[RankReport], earlier: Mapping[str, Sequence[RankReport]]
) -> Iterator[Finding]:
    """Newest, whole, and every reason told."""
    answer, newest, older = reports[0].answer, f"step-{NEW:08d}", f"step-{OLD:08d}"
    rule = "the numerically newest checkpoint that holds is the truth"
    if answer["nothing"] != {"value": [None, None, []]}:
        yield Finding(
            "not-the-newest",
            f"without any checkpoint: {answer['nothing']}",
            "a first start finds nothing, and that is no error",
            "at the empty folder",
        )
    got = answer["whole"].get("value", [None])
    if got != [newest, NEW, []]:
        yield Finding(
            "not-the-newest",
            f"of steps {OLD} and {NEW}, both whole: {answer['whole']}",
            rule,
            "at how two steps are compared, and at which names count",
        )
        return
    for what, result in answer["damaged"]:
        value = result.get("value", [None, None, []])
        if value[0] == newest:
            yield Finding(
                "took-damaged",
                f"{what}, and it was taken",
                rule,
                "at what is compared with what was written",
            )
        elif value[0] != older:
            yield Finding(
                "no-fallback",
                f"{what}: got {result}; {older} is whole",
                rule,
                "at what is done with the reason",
            )
        elif value[2] != [newest] or value[1] != OLD:
            yield Finding(
                "damage-not-told",
                f"{what}: {older} was taken, with the manifest of step "
                f"{value[1]}; named as damaged: {value[2]}",
                "what is passed over is told, or nobody looks at that disk",
                "at what is returned beside the path",
            )
    if "raised" not in answer["all bad"]:
        yield Finding(
            "began-again",
            f"both checkpoints damaged: {answer['all bad']}",
            "if there are checkpoints and none is whole, a person decides, not the restart",
            "at the end of the list",
        )
    if answer["changed"]:
        yield Finding(
            "changed-files",
            "files differ after the choice",
            "choosing only reads: every rank may do it",
            "at what is renamed or deleted",
        )


# ---------------------------------------------------------------- restoring


class FinishedSampler:
    """At the end of its plan: its length is 0."""

    def __init__(self, position: int) -> None:
        self.position = position

    def __len__(self) -> int:
        return 0

    def state_dict(self) -> dict[str, int]:
        """The position."""
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on there."""
        self.position = state["position"]


class Scale(FinishedSampler):
    """A loss scaler, for all that matters here."""


def parts_of(seed: int, lr: float, decay: float, position: int, scale: int | None) -> Any:
    """A run's parts; the configured lr and decay are in the optimizer's two groups."""
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
    keys = {n: value if n in facts else isinstance(value, dict) for n, value in state.items()}
    torch.save(state, folder / "state.pt")
    new = parts_of(2, lr=0.02, decay=0.1, position=0, scale=7)  # fp16 is new
    nothing = outcome(lambda: learner.restore_if_present(None, new, device) is None)
    loaded = outcome(lambda: learner.restore_if_present(folder, new, device)["step"])
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


class Hostile:
    """Makes a folder when it is unpickled without care."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (self.path,)


def restore_judge(
    reports: Sequence[RankReport], earlier: Mapping[str, Sequence[RankReport]]
) -> Iterator[Finding]:
    """All of the state, into the parts that are there, under today's settings."""
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
        yield Finding(
            "state-left-out",
            f"of a run at the end of its plan, the state has no right {some(differ)}",
            "weights alone are no checkpoint: every part has a state in it",
            "at how a part that is absent is told from one that is there",
        )
    if answer["nothing"] != {"value": True} or answer["loaded"] != {"value": 12}:
        yield Finding(
            "not-restored",
            f"without a checkpoint: {answer['nothing']}; with one that has no "
            f"scaler's state, into a run with a scaler: {answer['loaded']}",
            "a part may be new or gone; the rest is restored all the same",
            "at parts and states that are None",
        )
        return
    difference, name = largest_difference(*answer["weights"])
    what = f"the weights, by {difference:.2g} in {name}" if difference else ""
    what = what or ("the sampler's position" if answer["position"] != 12 else "")
    if what:
        yield Finding(
            "not-restored",
            f"differs from what was saved: {what}",
            "a resume goes on from the saved state",
            "at each part",
        )
    if answer["settings"] != [[0.02, 0.1, [0.8, 0.99]], [0.02, 0.0, [0.8, 0.99]]]:
        yield Finding(
            "old-hyperparameters",
            f"configured lr 0.02, decay 0.1 and 0, betas (0.8, 0.99); "
            f"after the restore the groups have {answer['settings']}",
            "what was configured for this start takes effect, not what was saved",
            "at what an optimizer's state dict holds besides its moments",
        )
        return
    difference, name = largest_difference(*answer["next"])
    if not difference < 1e-6:
        yield Finding(
            "not-restored",
            f"the next step ends {difference:.2g} away in {name}",
            "the next step is the one that the uninterrupted run would have taken",
            "at the optimizer's moments, and at which parameters they belong to",
        )
    if answer["ran"] or "raised" not in answer["hostile"]:
        yield Finding(
            "runs-code",
            "a state.pt with a call in it was read, and the call was made",
            "a checkpoint is data; reading it runs nothing",
            "at how the file is loaded",
        )


# ---------------------------------------------------------------- saving


def save_body(context: RankContext, learner: SimpleNamespace) -> Any:
    """Rank 1 comes late to a save that works, then to one that fails."""
    import torch

    close_answers(context)
    context.init_group()
    torch.manual_seed(100 + context.rank)
    calls: list[Any] = []
    fails = False

    class Writer:
        def save(self, state: Any, rng_states: Any, manifest: Any) -> None:
            calls.append([[s["torch"].sum() for s in rng_states], manifest])
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
    """One writer, every rank's streams, one outcome."""
    answers = [report.answer for report in reports]
    if not all(report.has_answer for report in reports):
        alone = [report.rank for report in reports if report.of("failed")]
        if alone and len(alone) < len(reports):
            yield raised_alone(f"only rank {some(alone)} came out of it")
        return
    for rank, answer in enumerate(answers):
        if len(answer["calls"]) != (rank == 0) or answer["fails"] > (rank == 0):
            yield Finding(
                "wrong-writer",
                f"rank {rank} of {len(answers)} called writer.save "
                f"{len(answer['calls'])} time(s) for one checkpoint",
                "rank 0 writes for all, once",
                "at who writes",
            )
            return
    # Whoever has the others' states has waited for them: a save cannot come too early.
    states, _ = answers[0]["calls"][0]
    if states != [answer["mine"] for answer in answers]:
        yield Finding(
            "random-states",
            f"rank 0 saved {len(states)} random state(s) for {len(answers)} "
            "ranks, not those of ranks 0, 1, ...",
            "each rank draws from a stream of its own, and a resume continues every one",
            "at whose state is handed to the writer",
        )
    texts = [answer["result"].get("raised", "") for answer in answers]
    bad = [r for r, t in enumerate(texts) if not t or "gloo" in t or "onnection" in t]
    if bad or any(answer["waited"] for answer in answers):
        yield raised_alone(f"rank {some(bad)} learnt nothing of it in 1 s")


def raised_alone(what: str) -> Finding:
    """The save has failed on rank 0."""
    return Finding(
        "raised-alone",
        f"the disk was full on rank 0: {what}",
        "what fails on one rank is raised on all, or the others wait in their next collective",
        "at what rank 0 tells the others about the save",
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
