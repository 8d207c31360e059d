"""Checkpoints that differ from what was saved: each is detected, or the difference is harmless.

A run is killed with three checkpoints on disk. Each try damages a copy of its folder and
starts it again. There are three right answers: set the checkpoint aside and take the one before
(``falls back``), refuse on every rank without changing a byte of the folder (``is refused``),
or resume, because nothing is wrong (``resumes``).

What cannot be detected is content that was changed together with its hashes. The manifest
guards against accidents, not against somebody who writes a new manifest. Even such a checkpoint
cannot run code, and if another program wrote it, the trainer refuses it.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import product
from pathlib import Path
from random import Random
from typing import Any, Literal, NamedTuple

import torch

from rehearsal.engine.programs import Prepare
from rehearsal.engine.reports import RankReport
from rehearsal.evidence.run_records import read_jsonl
from rehearsal.faults.breaks import kill
from rehearsal.faults.jobs import Hang, problem_of, start, user_errors
from rehearsal.faults.matrix import (
    HARDENED,
    Bench,
    Trainer,
    Try,
    first_new_step_at,
    same_weights,
    snapshot,
)
from rehearsal.faults.permissions import DENIED, why_modes_mean_nothing, with_mode
from trainer_core.checkpoint_format import describe, manifest_sha256, published_steps

# Steps 2, 3 and 4 are saved; the run is killed after step 5.
EVERY: dict[str, Any] = {"checkpoint_every_steps": 2}
KEEP_LAST = 9
STEPS = [2, 3, 4]
FILES = ["manifest.json", "state.pt", "rng-rank-0.pt", "rng-rank-1.pt"]
Answer = Literal["falls back", "is refused", "resumes"]
Damage = Callable[[Path, Random], None]  # given the checkpoints


class Corruption(NamedTuple):
    """One kind of damage and what the next start must answer."""

    fault: str
    what: str
    damage: Damage
    answer: Answer = "falls back"
    bad_steps: tuple[int, ...] = (4,)  # which checkpoints it damages
    world_size: int = 1
    denied: tuple[str, int] | None = None  # a path, and its mode during the start
    keep_last: int = KEEP_LAST


def folder_of(checkpoints: Path, step: int = 4) -> Path:
    """A published checkpoint, or where the trainer would publish it."""
    some = next(iter(published_steps(checkpoints).values()))
    return checkpoints / f"step-{step:0{len(some.name) - 5}d}"


# ---------------------------------------------------------------- damage to a file


def flip_a_bit(path: Path, rng: Random) -> None:
    """Flip one bit, as a bad disk, cable or memory does."""
    content = bytearray(path.read_bytes())
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)


def truncate(path: Path, rng: Random) -> None:
    """Cut the end off."""
    os.truncate(path, rng.randrange(1, path.stat().st_size))


def empty(path: Path, rng: Random) -> None:
    """Leave an empty file, as power loss does without fsync."""
    os.truncate(path, 0)


def lose(path: Path, rng: Random) -> None:
    """Delete it."""
    path.unlink()


def blank_a_block(path: Path, rng: Random) -> None:
    """Zero up to 512 bytes: a block that was never written back."""
    content = bytearray(path.read_bytes())
    at = rng.randrange(len(content))
    for place in range(at, min(at + 512, len(content))):
        content[place] = 0
    # Zeros in place of zeros would not be damage.
    content[at] = 0 if path.read_bytes()[at] else 1
    path.write_bytes(content)


def append(path: Path, rng: Random) -> None:
    """Append bytes that do not belong there."""
    with path.open("ab") as file:
        file.write(rng.randbytes(rng.randrange(1, 100)))


def swap_with_older(path: Path, rng: Random) -> None:
    """Replace the file with another step's."""
    shutil.copy(folder_of(path.parents[1], rng.choice(STEPS[:-1])) / path.name, path)


def make_a_folder(path: Path, rng: Random) -> None:
    """Replace the file with a folder."""
    path.unlink()
    path.mkdir()


def link_to_nothing(path: Path, rng: Random) -> None:
    """Replace the file with a link to nothing."""
    path.unlink()
    path.symlink_to("/nonexistent/file")


def link_to_other_content(path: Path, rng: Random) -> None:
    """Replace the file with a link to other content of the same size."""
    other = path.parents[2] / "elsewhere"
    other.write_bytes(rng.randbytes(path.stat().st_size))
    path.unlink()
    path.symlink_to(other)


FILE_DAMAGE = [
    (flip_a_bit, "a flipped bit", 50),  # tries with each file in a full run
    (truncate, "a truncated file", 12),
    (blank_a_block, "a zeroed block", 12),
    (append, "a file with trailing bytes", 6),
    (swap_with_older, "a file from another step", 4),
    (empty, "an empty file", 1),
    (lose, "a missing file", 1),
    (make_a_folder, "a folder in place of a file", 1),
    (link_to_nothing, "a link out of the folder", 1),
    (link_to_other_content, "a link out of the folder", 1),
]


def damage_file(harm: Damage, name: str, step: int, checkpoints: Path, rng: Random) -> None:
    """Damage one file of one checkpoint."""
    harm(folder_of(checkpoints, step) / name, rng)


def files_damaged(rng: Random, quick: bool) -> Iterator[Corruption]:
    """Each kind of damage to each file of the newest checkpoint."""
    pairs = list(product(FILE_DAMAGE, FILES))
    for (harm, fault, times), name in rng.sample(pairs, 12) if quick else pairs:
        world_size = 2 if name == "rng-rank-1.pt" else 1
        # Two ranks take twice as long.
        for number in range(1 if quick else max(1, times // world_size**2)):
            what = f"{harm.__name__} {number} of {name}"
            damage = partial(damage_file, harm, name, 4)
            yield Corruption(fault, what, damage, world_size=world_size)


# ---------------------------------------------------------------- manifests that lie


def rewrite(checkpoints: Path, change: Callable[[dict[str, Any]], Any], seals: bool) -> None:
    """Change the newest manifest; with ``seals``, recompute its hash of itself."""
    path = folder_of(checkpoints) / "manifest.json"
    manifest = json.loads(path.read_text())
    changed = change(manifest)
    manifest = manifest if changed is None else changed
    if seals:
        manifest["sha256"] = manifest_sha256(manifest)
    path.write_text(json.dumps(manifest, indent=1))


def lie(change: Callable[[dict[str, Any]], Any], seals: bool) -> Damage:
    """``rewrite`` in the form of a ``Damage``."""
    return lambda checkpoints, rng: rewrite(checkpoints, change, seals)


def put(*keys: str, value: Any) -> Callable[[dict[str, Any]], None]:
    """A change that sets one entry, however deep."""

    def change(manifest: dict[str, Any]) -> None:
        place = manifest
        for key in keys[:-1]:
            place = place[key]
        place[keys[-1]] = value

    return change


def drop(*keys: str) -> Callable[[dict[str, Any]], None]:
    """A change that removes one entry."""

    def change(manifest: dict[str, Any]) -> None:
        place = manifest
        for key in keys[:-1]:
            place = place[key]
        del place[keys[-1]]

    return change


def write_manifest(text: str, checkpoints: Path, rng: Random) -> None:
    """Replace the newest manifest with ``text``."""
    (folder_of(checkpoints) / "manifest.json").write_text(text, "latin-1")


OTHER_TYPES: list[Any] = [None, True, 7, -1.5, "x", [], ["a"], {}, {"a": 1}]


def manifests_that_lie(rng: Random, quick: bool) -> Iterator[Corruption]:
    """Lies that the manifest's own hash exposes, lies that only content exposes, bad types."""
    zeros = "0" * 64
    lies: list[tuple[str, Callable[[dict[str, Any]], Any]]] = [
        ("a wrong hash of state.pt", put("files", "state.pt", "sha256", value=zeros)),
        ("a wrong size of state.pt", put("files", "state.pt", "size", value=1)),
        ("a file that is not there", put("files", "more.pt", value={"size": 0, "sha256": ""})),
        (
            "a hash in capitals",
            lambda m: put(
                "files", "state.pt", "sha256", value=m["files"]["state.pt"]["sha256"].upper()
            )(m),
        ),
        ("a wrong step", put("step", value=3)),
        ("no state.pt among its files", drop("files", "state.pt")),
        ("no files at all", put("files", value={})),
    ]
    for what, change in lies:
        if not quick:
            yield Corruption("a manifest that lies", what, lie(change, seals=False))
        yield Corruption("a manifest that lies, sealed", what, lie(change, seals=True))
    others: list[tuple[str, Any]] = [("loss", 1), ("step", 99), ("run_id", "x"), ("epoch", -1)]
    for name, value in [] if quick else others:
        what = f"{name} is {value}"
        yield Corruption("a manifest that lies", what, lie(put(name, value=value), False))
    other_seed = lie(put("identity", "seed", value=99), seals=True)
    yield Corruption(
        "a manifest that lies, sealed", "a different seed", other_seed, "is refused", ()
    )
    yield Corruption(
        "a manifest that lies, sealed",
        "a newer format",
        lie(put("format", value=2), True),
        "is refused",
        (),
    )
    places = [("format",), ("files",), ("files", "state.pt"), ("sha256",), ("step",)]
    types = [(place, value) for place in places for value in OTHER_TYPES]
    for place, value in rng.sample(types, 5) if quick else types:
        is_newer = place == ("format",) and value == 7
        yield Corruption(
            "a manifest with wrong types",
            f"{'/'.join(place)} is {value!r}",
            lie(put(*place, value=value), seals=False),
            *(("is refused", ()) if is_newer else ()),
        )
    texts = ["", "{", "null", "[]", "7", '"x"', "\x00\xff", "[" * 100_000, '{"format": 1}']
    for text in texts[:2] if quick else texts:
        damage = partial(write_manifest, text)
        yield Corruption("a manifest with wrong types", f"the text {text[:9]!r}", damage)


# ---------------------------------------------------------------- folders and leftovers


def several_bad(steps: tuple[int, ...], checkpoints: Path, rng: Random) -> None:
    """Damage a file of each of these checkpoints."""
    for step in steps:
        harm = rng.choice([flip_a_bit, truncate, empty, lose])
        harm(folder_of(checkpoints, step) / rng.choice(["manifest.json", "state.pt"]), rng)


def leave_a_save(checkpoints: Path, rng: Random) -> None:
    """What a kill leaves of a save, and more than a save would write."""
    folder = checkpoints / f"tmp-{rng.randbytes(16).hex()}"
    shutil.copytree(folder_of(checkpoints), folder)
    (folder / "manifest.json").write_text("{")
    (folder / "deeper").mkdir()
    (folder / "deeper" / "file").touch()


def leave_a_deletion(checkpoints: Path, rng: Random) -> None:
    """What a kill leaves of a retention pass."""
    folder = checkpoints / "old-step-00000001-01234567"
    folder.mkdir()
    (folder / "state.pt").write_bytes(b"half")


def leave_other_names(checkpoints: Path, rng: Random) -> None:
    """Files and folders that people put there."""
    (checkpoints / "step-best").mkdir()
    (checkpoints / "step-00000009.bak").touch()
    (checkpoints / "notes.txt").write_text("keep Tuesday's run\n")


def publish_a_file(checkpoints: Path, rng: Random) -> None:
    """A file under a checkpoint's name."""
    folder_of(checkpoints, 5).write_text("not a folder")


def publish_nothing(checkpoints: Path, rng: Random) -> None:
    """An empty folder under a checkpoint's name."""
    folder_of(checkpoints, 5).mkdir()


def rename_to_newer(checkpoints: Path, rng: Random) -> None:
    """An intact checkpoint of step 3 under the name of step 5."""
    shutil.copytree(folder_of(checkpoints, 3), folder_of(checkpoints, 5))


def move_and_link(checkpoints: Path, rng: Random) -> None:
    """Each checkpoint is a link to another disk."""
    for step in STEPS:
        elsewhere = checkpoints.parent / f"elsewhere-{step}"
        shutil.move(folder_of(checkpoints, step), elsewhere)
        folder_of(checkpoints, step).symlink_to(elsewhere)


def link_a_file(checkpoints: Path, rng: Random) -> None:
    """state.pt is a link to another disk, with the content that was saved."""
    elsewhere, path = checkpoints.parent / "elsewhere", folder_of(checkpoints) / "state.pt"
    shutil.move(path, elsewhere)
    path.symlink_to(elsewhere)


def folders_damaged(rng: Random, quick: bool) -> Iterator[Corruption]:
    """More than one bad checkpoint, leftovers, links, other names."""
    for number in range(2 if quick else 10):
        world_size = 1 + number % 2
        bad = partial(several_bad, (3, 4))
        yield Corruption(
            "the newest two bad", f"{number}", bad, bad_steps=(4, 3), world_size=world_size
        )
        bad = partial(several_bad, (2, 3, 4))
        yield Corruption("all bad", f"{number}", bad, "is refused", (), world_size)
    leftovers = "leftovers and other names"
    yield Corruption(leftovers, "an unfinished save", leave_a_save, "resumes", ())
    yield Corruption(leftovers, "an unfinished deletion", leave_a_deletion, "resumes", ())
    yield Corruption(leftovers, "people's own files", leave_other_names, "resumes", ())
    yield Corruption(leftovers, "a file named step-00000005", publish_a_file, bad_steps=(5,))
    yield Corruption(leftovers, "an empty step-00000005", publish_nothing, bad_steps=(5,))
    yield Corruption(leftovers, "step 3 named step-00000005", rename_to_newer, bad_steps=(5,))
    linked = "a link out of the folder"
    yield Corruption(linked, "each folder is a link", move_and_link, "resumes", ())
    yield Corruption(
        linked, "each folder is a link, then deleted", move_and_link, "resumes", (), keep_last=1
    )
    yield Corruption(linked, "state.pt is a link", link_a_file, "resumes", ())
    newest = "checkpoints/step-00000004"
    names = ["checkpoints", newest, *(f"{newest}/{n}" for n in FILES[:3]), "config.json"]
    for number, name in enumerate(names[:2] if quick else [*names, "logs/rank-0.jsonl"]):
        yield Corruption(
            "no permission to read",
            name,
            lambda *_: None,
            "is refused",
            (),
            world_size=1 + number % 2,
            denied=(name, 0),
        )
    yield Corruption(
        "no permission to read",
        "the names in checkpoints",
        lambda *_: None,
        "is refused",
        (),
        denied=("checkpoints", 0o300),
    )


# ---------------------------------------------------------------- foreign content


class RunsCode:
    """Pickles as a call that creates a folder."""

    def __init__(self, proof: Path) -> None:
        self.proof = proof

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.proof),)


def reseal(checkpoints: Path) -> None:
    """Make the newest manifest vouch for the files as they are now."""
    folder = folder_of(checkpoints)

    def change(manifest: dict[str, Any]) -> None:
        manifest["files"] = {name: describe(folder / name) for name in manifest["files"]}

    rewrite(checkpoints, change, seals=True)


def write_code(name: str, as_zip: bool, checkpoints: Path, rng: Random) -> None:
    """Replace a file with a pickle that runs code when it is read the usual way."""
    path, evil = folder_of(checkpoints) / name, RunsCode(checkpoints.parent / "was-run")
    if as_zip:
        torch.save({"model": evil}, path)
    else:
        path.write_bytes(pickle.dumps(evil))
    reseal(checkpoints)


def write_other(content: Any, name: str, checkpoints: Path, rng: Random) -> None:
    """Replace a file with what another program might have written."""
    path = folder_of(checkpoints) / name
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        torch.save(content, path)
    reseal(checkpoints)


def drop_a_record(checkpoints: Path, rng: Random) -> None:
    """Rename one of the records in state.pt."""
    path = folder_of(checkpoints) / "state.pt"
    path.write_bytes(path.read_bytes().replace(b"/data/0", b"/data/x"))
    reseal(checkpoints)


def foreign_content(rng: Random, quick: bool) -> Iterator[Corruption]:
    """Wrong content with matching hashes, which no accident leaves: refused, and never run."""
    fault = "a pickle that would run code"
    for name, as_zip in product(("state.pt", "rng-rank-0.pt"), (True, False)):
        what = f"{name}, {'as torch saves' if as_zip else 'a bare pickle'}"
        damage = partial(write_code, name, as_zip)
        yield Corruption(fault, what, damage, "is refused", (), 2 if as_zip else 1)
    fault = "another program's file, sealed"
    others: list[tuple[str, Any]] = [
        ("an empty file", b""),
        ("noise", b"\x80\x02noise"),
        ("a tensor", torch.zeros(2)),
        ("None", None),
        ("an empty dict", {}),
        (
            "a model with other shapes",
            {
                "model": {"0.weight": torch.zeros(1)},
                "optimizer": {"state": {}},
                "scaler": None,
                "sampler": {},
                "step": 4,
                "epoch": 0,
                "losses": [],
                "learning_rate": 0.1,
            },
        ),
        ("models as numbers", {"model": 1, "optimizer": 2, "scaler": 3, "sampler": 4}),
    ]
    for what, content in others[:2] if quick else others:
        for name in ("state.pt", "rng-rank-0.pt"):
            damage = partial(write_other, content, name)
            yield Corruption(fault, f"{what} as {name}", damage, "is refused", ())
    yield Corruption(fault, "state.pt lacks a record", drop_a_record, "is refused", ())


# ---------------------------------------------------------------- the judgment


def answer_of(run_dir: Path) -> tuple[list[str], str]:
    """What the last attempt reported: the folders it rejected, and the one it restored."""
    events = list(read_jsonl(run_dir / "logs" / "rank-0.jsonl"))
    last = max(int(event["attempt"]) for event in events)
    own = [event for event in events if event["attempt"] == last]
    rejected = [e["folder"] for e in own if e["event"] == "checkpoint_rejected" and e["reason"]]
    restored = [e["folder"] for e in own if e["event"] == "checkpoint_restored"]
    return rejected, restored[0] if restored else "nothing"


def wrong_answer(corruption: Corruption, run_dir: Path, reports: list[RankReport]) -> str:
    """What the start should have done and did not; "" if it was right."""
    bad = [f"step-{step:08d}" for step in corruption.bad_steps]
    good = max(f"step-{step:08d}" for step in STEPS if step not in corruption.bad_steps)
    rejected, restored = answer_of(run_dir)
    if rejected != bad or restored != good:
        return (
            f"restored {restored} and rejected {', '.join(rejected) or 'none'}; "
            f"it should restore {good} and reject {', '.join(bad) or 'none'}"
        )
    checkpoints = run_dir / "checkpoints"
    gone = [name for name in bad if not list(checkpoints.glob(f"rejected-{name}-*"))]
    return f"{gone[0]} was rejected but not kept" if gone else ""


def unreadable(
    bench: Bench, run_dir: Path, corruption: Corruption
) -> AbstractContextManager[Prepare | None]:
    """Deny what the corruption denies, while the context lasts."""
    if corruption.denied is None:
        return nullcontext()
    return with_mode(bench.root, run_dir, *corruption.denied)


WrongAnswer = Callable[[Corruption, Path, list[RankReport]], str]


def meets(
    bench: Bench,
    corruption: Corruption,
    template: Path,
    trainer: Trainer = HARDENED,
    wrong: WrongAnswer = wrong_answer,
) -> Try:
    """Damage a copy of the folder, start the run, and judge its answer and its end."""
    run_dir = template.with_name("run")
    shutil.copytree(template, run_dir)
    corruption.damage(run_dir / "checkpoints", bench.rng(f"{corruption[:2]}"))
    began = time.time()
    try:
        problem = answers(bench, corruption, template, trainer, wrong)
    except Hang as hang:
        problem = str(hang)
    first = first_new_step_at(run_dir, 1)
    straight = trainer.small(run_dir, **trainer.six_steps)
    reference = bench.reference(straight, corruption.world_size)
    result = bench.judge(
        corruption.fault,
        f"{corruption.what}, {corruption.world_size} rank(s)",
        run_dir,
        equal=same_weights(run_dir, reference),
        restart_s=first - began if first else None,
        problem=problem,
    )
    return bench.put_away(run_dir, result)


def settings_of(trainer: Trainer, keep_last: int = KEEP_LAST) -> dict[str, Any]:
    """The settings of the run that is damaged; live.py keeps every checkpoint."""
    keeps = {"keep_last": keep_last} if "keep_last" in trainer.six_steps else {}
    return {**trainer.six_steps, **EVERY, **keeps}


def answers(
    bench: Bench, corruption: Corruption, template: Path, trainer: Trainer, wrong: WrongAnswer
) -> str:
    """Start the damaged run, and if it is refused, once more with good copies; the problem."""
    problem, run_dir = "", template.with_name("run")
    cfg = trainer.small(run_dir, **settings_of(trainer, corruption.keep_last))
    if corruption.answer == "is refused":
        before = snapshot(run_dir)
        with unreadable(bench, run_dir, corruption) as prepare:
            refused = start(cfg, corruption.world_size, prepare)
        problem = user_errors(refused, says=DENIED if corruption.denied else "")
        if not problem and snapshot(run_dir) != before:
            problem = "the start was refused but changed the folder"
        # As the message asks: restore a good copy.
        shutil.rmtree(run_dir / "checkpoints")
        shutil.copytree(template / "checkpoints", run_dir / "checkpoints")
    reports = start(cfg, corruption.world_size)
    if corruption.answer != "is refused":
        problem = problem_of(reports) or wrong(corruption, run_dir, reports)
    if (run_dir / "was-run").exists():
        problem = "code from the checkpoint was run"
    return problem or problem_of(reports)


def template_of(bench: Bench, world_size: int, trainer: Trainer = HARDENED) -> Path:
    """The folder of a run that was killed after step 5."""
    template = bench.root / "corruption" / f"template-{world_size}"
    if template.exists():
        shutil.rmtree(template)  # the other trainer's
    start(trainer.small(template, **settings_of(trainer)), world_size, partial(kill, 0, 5))
    return template


def corrupt(bench: Bench) -> Iterator[Try]:
    """The group: every corruption, each on a fresh copy of a run that was killed."""
    templates = {world_size: template_of(bench, world_size) for world_size in (1, 2)}
    for group in (files_damaged, manifests_that_lie, folders_damaged, foreign_content):
        for corruption in group(bench.rng(group.__name__), bench.quick):
            if corruption.denied and (reason := why_modes_mean_nothing(bench.root)):
                yield Try(corruption.fault, corruption.what, skipped=reason)
            else:
                yield meets(bench, corruption, templates[corruption.world_size])
