"""A checkpoint is complete or absent, and any damage by a kill or a disk is detected."""

from __future__ import annotations

import copy
import gc
import json
import os
import random
import resource
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from itertools import count
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from trainer_core import checkpoint_writer, launch, progress, resume_check, run_log
from trainer_core.checkpoint import (
    build_checkpoint,
    latest_checkpoint_path,
    restore_if_present,
    save_checkpoint,
)
from trainer_core.checkpoint_format import (
    DamagedCheckpoint,
    describe,
    manifest_sha256,
    publish,
    published_steps,
    retain,
    set_aside,
    verify,
)
from trainer_core.checkpoint_writer import CheckpointWriter
from trainer_core.config import TrainConfig
from trainer_core.data import (
    MicroBatch,
    ResumeAwareDistributedSampler,
    SampleKey,
    StepSchedule,
    TrainingView,
)
from trainer_core.resume_check import validate_resume
from trainer_core.json_lines import JsonlSink
from trainer_core.launch import run
from trainer_core.model import build_model, build_optimizer, build_scaler, weights_sha256
from trainer_core.rng import restore_rng, setup_seed
from trainer_core.run_folder import Start
from trainer_core.settings import UserError

CPU = torch.device("cpu")
TEN_STEPS = StepSchedule(100, 10, 2)
Parts = dict[str, Any]


def parts_of(*, trained: int = 0, **settings: Any) -> Parts:
    """What a checkpoint contains, after a few real optimizer steps."""
    cfg = TrainConfig(input_dim=3, hidden_dim=4, num_layers=1, **settings)
    torch.manual_seed(trained)
    model = build_model(cfg, 3, 2)
    optimizer = build_optimizer(cfg, model)
    sampler = ResumeAwareDistributedSampler(StepSchedule(100, 10, 2), cfg, rank=0, world_size=1)
    for _ in range(trained):
        optimizer.zero_grad()
        model(torch.randn(5, 3)).square().sum().backward()
        optimizer.step()
        sampler.commit()
    scaler = build_scaler(cfg, CPU)
    return {"model": model, "optimizer": optimizer, "scaler": scaler, "sampler": sampler}


def without_a_draw() -> dict[str, Any]:
    """A checkpoint whose making leaves the random streams as they were."""
    before = torch.get_rng_state()
    state = checkpoint_of(parts_of(trained=1))
    torch.set_rng_state(before)
    return state


def checkpoint_of(parts: Parts, **changes: Any) -> dict[str, Any]:
    position = parts["sampler"].position
    facts = {"step": position, "epoch": 0, "learning_rate": 1e-3, "losses": [2.0, 1.9, 1.8]}
    return build_checkpoint(parts, **(facts | changes))


def writer_of(folder: Path, *, keep_last: int = 9, is_async: bool = False) -> CheckpointWriter:
    return CheckpointWriter(folder, keep_last, is_async, lambda event, **facts: None)


def publish_step(checkpoints: Path, step: int) -> Path:
    """A published checkpoint of three small files."""
    temporary = checkpoints / "tmp-1"
    temporary.mkdir(parents=True)
    for name in ("state.pt", "rng-rank-0.pt", "rng-rank-1.pt"):
        (temporary / name).write_bytes(f"{name} of step {step}".encode())
    publish(temporary, checkpoints / f"step-{step:08d}", {"step": step})
    return checkpoints / f"step-{step:08d}"


def contents(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A real checkpoint of two ranks."""
    setup_seed(1)
    parts = parts_of(trained=3)
    states = [torch.get_rng_state(), torch.get_rng_state()]
    writer_of(tmp_path).save(checkpoint_of(parts), states, {"step": 3, "world_size": 2})
    return tmp_path / "step-00000003"


def small_run(run_dir: Path, **changes: Any) -> TrainConfig:
    sizes: dict[str, Any] = {"dataset_size": 50, "micro_batch_size": 10, "max_epochs": 2}
    sizes |= {"input_dim": 4, "hidden_dim": 8, "checkpoint_every_steps": 2, "keep_last": 9}
    return TrainConfig(run_dir=run_dir, device="cpu", **(sizes | changes))


class StopAt:
    """A sink that sends its own process SIGTERM, so that ``step`` is the last one."""

    def __init__(self, step: int) -> None:
        self.before = step - 1

    def emit(self, record: Mapping[str, Any]) -> None:
        event = "checkpoint_saved" if self.before else "run_start"
        if (record["event"], record["step"]) == (event, self.before):
            os.kill(os.getpid(), signal.SIGTERM)

    def close(self) -> None:
        pass


class TestLayout:
    def test_a_run_leaves_the_folders_that_the_contract_names(self, tmp_path: Path) -> None:
        """Other tools read these names without this code."""
        cfg = small_run(tmp_path / "run")
        result = run(cfg)
        checkpoints = tmp_path / "run" / "checkpoints"
        # Every second step, each epoch's end (5, 10), and none twice.
        names = [f"step-{step:08d}" for step in (2, 4, 5, 6, 8, 10)]
        assert sorted(path.name for path in checkpoints.iterdir()) == names
        record = json.loads((tmp_path / "run" / "config.json").read_text())
        for name in names:
            folder = checkpoints / name
            assert sorted(path.name for path in folder.iterdir()) == [
                "manifest.json",
                "rng-rank-0.pt",
                "state.pt",
            ]
            manifest = verify(folder)
            assert manifest["format"] == 1
            assert manifest["step"] == int(name[5:])
            assert manifest["epoch"] == manifest["step"] // 5
            assert manifest["world_size"] == 1
            assert manifest["identity"] == record["identity"]
            assert manifest["digest"] == record["digest"]
            assert manifest["config"] == record["config"]
            assert isinstance(manifest["time"], float)
            assert set(manifest["files"]) == {"rng-rank-0.pt", "state.pt"}
            for file, facts in manifest["files"].items():
                assert facts["size"] == (folder / file).stat().st_size
            state = torch.load(folder / "state.pt", weights_only=True)
            wanted = {"model", "optimizer", "scaler", "sampler", "step", "epoch"}
            assert wanted <= set(state)
            assert state["step"] == state["sampler"]["position"] == manifest["step"]
            torch.load(folder / "rng-rank-0.pt", weights_only=True)
        model = build_model(cfg, 4, 8)
        model.load_state_dict(state["model"])
        assert weights_sha256(model) == result["weights_sha256"]

    def test_a_finished_run_changes_no_file(self, tmp_path: Path) -> None:
        """The handbook rewrites its final checkpoint, where a crash can still destroy it."""
        cfg = small_run(tmp_path / "run")
        first = run(cfg)
        before = contents(tmp_path)
        times = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
        assert run(cfg) == first
        assert contents(tmp_path) == before
        assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == times

    def test_a_run_that_has_ended_holds_no_file_open(self, tmp_path: Path) -> None:
        """A kernel that keeps the lock keeps every other process out of the run."""
        run(small_run(tmp_path / "run"))
        links = [path for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
        assert not [link for link in map(os.readlink, links) if str(tmp_path) in link]

    def test_nothing_in_it_can_run_code(self, folder: Path) -> None:
        """A pickle is a program; torch's default load refuses the handbook's own checkpoint."""
        for path in folder.glob("*.pt"):
            torch.load(path, weights_only=True)
        state = torch.load(folder / "state.pt", weights_only=True)
        assert state["scaler"] is None
        assert state["losses"] == [2.0, 1.9, 1.8]

    def test_names_do_not_carry_a_wrapper(self, folder: Path) -> None:
        """A checkpoint of two ranks must load on one."""
        state = torch.load(folder / "state.pt", weights_only=True)
        assert all(name.startswith("layers.") for name in state["model"])


class Recorder:
    """What the operating system is asked to do, in order, by file descriptor."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[tuple[str, int]] = []
        self.manifest_existed: list[bool] = []
        self.fsync, self.rename = os.fsync, os.rename
        self.root = Path()
        monkeypatch.setattr(os, "fsync", self.on_fsync)
        monkeypatch.setattr(os, "rename", self.on_rename)

    def on_fsync(self, descriptor: int) -> None:
        self.fsync(descriptor)
        self.calls.append(("fsync", os.fstat(descriptor).st_ino))
        self.manifest_existed.append(any(self.root.glob("tmp-*/manifest.json")))

    def on_rename(self, source: Any, target: Any, **options: Any) -> None:
        self.calls.append(("rename", os.stat(source).st_ino))
        self.manifest_existed.append(True)
        self.rename(source, target, **options)


class TestPublish:
    def test_contents_then_manifest_then_rename_then_parent(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """After a power loss, the name must not exist without the content it promises."""
        recorder = Recorder(monkeypatch)
        recorder.root = tmp_path
        folder = publish_step(tmp_path, 12)
        names = {path.stat().st_ino: path.name for path in folder.iterdir()}
        names |= {folder.stat().st_ino: "folder", tmp_path.stat().st_ino: "parent"}
        calls = [f"{verb} {names[inode]}" for verb, inode in recorder.calls]
        assert sorted(calls[:3]) == [
            "fsync rng-rank-0.pt",
            "fsync rng-rank-1.pt",
            "fsync state.pt",
        ]
        assert calls[3:] == [
            "fsync manifest.json",
            "fsync folder",
            "rename folder",
            "fsync parent",
        ]
        assert recorder.manifest_existed[:4] == [False, False, False, True]

    def test_a_kill_at_any_moment_leaves_no_torn_checkpoint(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The handbook writes in place, and every restart then loads the torn file."""

        outcomes = []
        for moment in range(12):
            calls = count()

            def dying(
                real: Callable[..., Any], calls: Iterator[int] = calls, moment: int = moment
            ) -> Callable[..., Any]:
                def call(*arguments: Any, **options: Any) -> Any:
                    if next(calls) == moment:
                        raise KeyboardInterrupt
                    return real(*arguments, **options)

                return call

            checkpoints = tmp_path / str(moment)
            with monkeypatch.context() as patch:
                patch.setattr(os, "fsync", dying(os.fsync))
                patch.setattr(os, "rename", dying(os.rename))
                with suppress(KeyboardInterrupt):
                    publish_step(checkpoints, 7)
            for folder in published_steps(checkpoints).values():
                assert verify(folder)["step"] == 7
            outcomes.append(bool(published_steps(checkpoints)))
        assert outcomes == sorted(outcomes)
        assert {False, True} == set(outcomes)

    @pytest.mark.parametrize("is_empty", [True, False])
    def test_an_existing_folder_is_never_written_into(
        self, tmp_path: Path, is_empty: bool
    ) -> None:
        """rename(2) silently replaces an empty folder."""
        folder = publish_step(tmp_path, 5)
        if is_empty:
            for path in folder.iterdir():
                path.unlink()
        before = contents(folder)
        with pytest.raises(FileExistsError, match="step-00000005 exists"):
            publish_step(tmp_path, 5)
        assert contents(folder) == before

    def test_what_is_not_published_has_another_name(self, tmp_path: Path) -> None:
        """If a restore can choose a half-written folder, that folder is a torn checkpoint."""
        folder = publish_step(tmp_path, 5)
        (tmp_path / "tmp-step-00000009").mkdir()
        (tmp_path / "old-step-00000004-ab").mkdir()
        (tmp_path / "step-").mkdir()
        (tmp_path / "step-00000011.part").mkdir()
        set_aside(publish_step(tmp_path, 8))
        assert published_steps(tmp_path) == {5: folder}

    def test_the_newest_is_the_one_with_the_highest_number(self, tmp_path: Path) -> None:
        """As text, step-99999999 comes after step-100000000, and step-9 after both."""
        steps = [9, 120, 99_999_999, 100_000_000, 1_234_567_890_123]
        for step in steps:
            publish_step(tmp_path, step)
        (tmp_path / "step-00000009").rename(tmp_path / "step-9")
        (tmp_path / "step-00000120").rename(tmp_path / "step-120")
        assert list(published_steps(tmp_path)) == sorted(steps, reverse=True)
        for step in sorted(steps, reverse=True):
            newest, manifest, damaged = latest_checkpoint_path(tmp_path)
            assert newest is not None
            assert (manifest["step"], damaged) == (step, {})
            set_aside(newest)


class TestVerify:
    def test_an_intact_checkpoint_passes(self, folder: Path) -> None:
        """If verification refused everything, no run could resume."""
        assert verify(folder)["step"] == 3

    @pytest.mark.parametrize("name", ["state.pt", "rng-rank-0.pt", "rng-rank-1.pt"])
    def test_one_flipped_bit_in_a_file_is_refused(self, folder: Path, name: str) -> None:
        """torch.load returns an optimizer moment with a flipped bit without complaint."""
        path = folder / name
        good = path.read_bytes()
        positions = {*range(0, len(good), 61), *range(40), *range(len(good) - 40, len(good))}
        for position in sorted(positions):
            flipped = bytearray(good)
            flipped[position] ^= 1 << position % 8
            path.write_bytes(flipped)
            with pytest.raises(DamagedCheckpoint, match=name):
                verify(folder)
        path.write_bytes(good)
        assert verify(folder)

    def test_one_flipped_bit_in_the_manifest_is_refused_or_means_nothing(
        self, folder: Path
    ) -> None:
        """A manifest that can be wrong about step or identity proves nothing."""
        path = folder / "manifest.json"
        good, manifest = path.read_bytes(), verify(folder)
        for position in range(len(good)):
            flipped = bytearray(good)
            flipped[position] ^= 1 << position % 8
            path.write_bytes(flipped)
            try:
                # Whitespace between the values may differ.
                assert verify(folder) == manifest, position
            except DamagedCheckpoint:
                pass
            except UserError:  # the format's digit became a higher one: refused as well
                assert good[position - 10 : position].endswith(b'"format": ')

    @pytest.mark.parametrize("key", ["format", "step", "world_size", "files", "sha256"])
    def test_a_manifest_without_a_key_is_refused(self, folder: Path, key: str) -> None:
        """Deleting a key by hand must not make a manifest more permissive."""
        manifest = verify(folder)
        del manifest[key]
        (folder / "manifest.json").write_text(json.dumps(manifest))
        with pytest.raises(DamagedCheckpoint, match=r"manifest\.json|KeyError"):
            verify(folder)

    @pytest.mark.parametrize(
        "text", ["", "{", "[]", "null", "7", '"x"', '{"files": 3}', "\x00"]
    )
    def test_a_file_that_is_not_a_manifest_is_refused(self, folder: Path, text: str) -> None:
        """A crash can leave any content there; none of it may end in a traceback."""
        (folder / "manifest.json").write_text(text)
        with pytest.raises(DamagedCheckpoint):
            verify(folder)

    @pytest.mark.parametrize("name", ["state.pt", "rng-rank-1.pt", "manifest.json"])
    @pytest.mark.parametrize(
        "harm", ["truncated", "emptied", "missing", "swapped", "longer", "folder"]
    )
    def test_a_file_that_is_not_the_one_saved_is_refused(
        self, folder: Path, name: str, harm: str
    ) -> None:
        """A kill during the save leaves exactly such files."""
        path, good = folder / name, (folder / name).read_bytes()
        if harm == "swapped":
            other = folder / "rng-rank-0.pt"
            other.write_bytes(os.urandom(100))
            path.write_bytes(other.read_bytes())
        elif harm in ("missing", "folder"):
            path.unlink()
            if harm == "folder":
                path.mkdir()
        else:
            contents = {"truncated": good[:-1], "emptied": b"", "longer": good + b"0"}
            path.write_bytes(contents[harm])
        with pytest.raises(DamagedCheckpoint):
            verify(folder)

    def test_files_swapped_between_ranks_are_refused(self, folder: Path) -> None:
        """Rank 1 would continue rank 0's dropout."""
        one, other = folder / "rng-rank-0.pt", folder / "state.pt"
        first, second = one.read_bytes(), other.read_bytes()
        one.write_bytes(second)
        other.write_bytes(first)
        with pytest.raises(DamagedCheckpoint, match=r"(state|rng-rank-0)\.pt is .* says"):
            verify(folder)


class TestLatest:
    def test_without_checkpoints_there_is_none(self, tmp_path: Path) -> None:
        """The first start is not an error."""
        assert latest_checkpoint_path(tmp_path / "none") == (None, {}, {})
        assert latest_checkpoint_path(tmp_path) == (None, {}, {})

    def test_a_damaged_one_gives_way_to_the_one_before_and_says_why(
        self, tmp_path: Path
    ) -> None:
        """The handbook takes the newest blindly and dies at every restart."""
        folders = [publish_step(tmp_path, step) for step in (3, 6, 9, 12)]
        (folders[3] / "state.pt").write_bytes(b"torn")
        (folders[2] / "rng-rank-1.pt").unlink()
        before = contents(tmp_path)
        newest, manifest, damaged = latest_checkpoint_path(tmp_path)
        assert newest == folders[1]
        assert manifest["step"] == 6
        assert list(damaged) == [folders[3], folders[2]]
        assert "state.pt" in damaged[folders[3]]
        assert "rng-rank-1.pt" in damaged[folders[2]]
        assert contents(tmp_path) == before  # only looked

    def test_if_none_is_intact_the_run_is_refused(self, tmp_path: Path) -> None:
        """Silently starting over throws the training away and calls it a resume."""
        for step in (3, 6):
            (publish_step(tmp_path, step) / "state.pt").write_bytes(b"")
        with pytest.raises(UserError, match=r"step-00000006: state\.pt is .*--start-over"):
            latest_checkpoint_path(tmp_path)
        assert list(published_steps(tmp_path)) == [6, 3]

    @pytest.mark.parametrize("is_signed", [True, False])
    def test_a_newer_format_is_refused_and_left_alone(
        self, tmp_path: Path, is_signed: bool
    ) -> None:
        """Setting a newer trainer's checkpoint aside would quietly undo its work."""
        publish_step(tmp_path, 3)
        folder = publish_step(tmp_path, 6)
        manifest = json.loads((folder / "manifest.json").read_text())
        manifest["format"] = 99
        if is_signed:
            manifest["sha256"] = manifest_sha256(manifest)
        (folder / "manifest.json").write_text(json.dumps(manifest))
        with pytest.raises(UserError, match=r"step-00000006: format 99, .* up to 1.*Update"):
            latest_checkpoint_path(tmp_path)
        assert folder.is_dir()

    def test_a_run_falls_back_sets_aside_and_ends_at_the_same_weights(
        self, tmp_path: Path
    ) -> None:
        """Nobody is on call to delete a damaged folder at night."""
        straight = run(small_run(tmp_path / "straight", dropout=0.2))
        cfg = small_run(tmp_path / "run", dropout=0.2)
        run(small_run(tmp_path / "run", dropout=0.2, max_epochs=1, decay_steps=10))
        checkpoints = tmp_path / "run" / "checkpoints"
        (checkpoints / "step-00000005" / "state.pt").write_bytes(b"torn")
        assert run(cfg)["weights_sha256"] == straight["weights_sha256"]
        (aside,) = checkpoints.glob("rejected-*")
        assert (aside / "state.pt").read_bytes() == b"torn"
        log = (tmp_path / "run/logs/rank-0.jsonl").read_text().splitlines()
        events = [json.loads(line) for line in log]
        (rejected,) = [e for e in events if e["event"] == "checkpoint_rejected"]
        assert rejected["folder"] == "step-00000005"
        assert "state.pt" in rejected["reason"]
        (restored,) = [e for e in events if e["event"] == "checkpoint_restored"]
        assert restored["step"] == 4

    def test_what_is_set_aside_is_renamed_and_kept(self, tmp_path: Path) -> None:
        """A damaged checkpoint is evidence, and it may be the only one left."""
        for _ in range(2):
            folder = publish_step(tmp_path, 3)
            before = contents(folder)
            aside = set_aside(folder)
            assert not folder.exists()
            assert contents(aside) == before
        assert len(list(tmp_path.glob("rejected-step-00000003*"))) == 2
        assert published_steps(tmp_path) == {}


class TestRetention:
    def test_the_newest_are_kept(self, tmp_path: Path) -> None:
        """Without a limit, a long run fills the disk and then dies while saving."""
        for step in (1, 2, 3, 10):
            publish_step(tmp_path, step)
        retain(tmp_path, 5)
        assert list(published_steps(tmp_path)) == [10, 3, 2, 1]
        retain(tmp_path, 2)
        assert sorted(path.name for path in tmp_path.iterdir()) == [
            "step-00000003",
            "step-00000010",
        ]

    @pytest.mark.parametrize("name", ["state.pt", "manifest.json"])
    def test_nothing_is_deleted_unless_the_newest_is_intact(
        self, tmp_path: Path, name: str
    ) -> None:
        """Deleting the last good one because a bad one was written leaves none."""
        folders = [publish_step(tmp_path, step) for step in (1, 2, 3)]
        (folders[2] / name).write_bytes(b"")
        with pytest.raises(DamagedCheckpoint):
            retain(tmp_path, 1)
        assert list(published_steps(tmp_path)) == [3, 2, 1]

    def test_the_newest_is_read_back_after_it_is_published(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A disk that lies about a write is caught while the older checkpoint still exists."""
        parts, writer = parts_of(trained=1), writer_of(tmp_path, keep_last=1)
        writer.save(checkpoint_of(parts), [0], {"step": 1})
        real = torch.save

        def tearing_publish(temporary: Path, target: Path, facts: Any) -> None:
            publish(temporary, target, facts)
            real({}, target / "state.pt")

        monkeypatch.setattr(checkpoint_writer, "publish", tearing_publish)
        with pytest.raises(DamagedCheckpoint, match=r"state\.pt"):
            writer.save(checkpoint_of(parts), [0], {"step": 2})
        assert latest_checkpoint_path(tmp_path)[0] == tmp_path / "step-00000001"

    def test_an_interrupted_deletion_leaves_no_half_checkpoint(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Half a checkpoint under its own name looks damaged, or like the newest one."""

        def kill(path: Any, *_: Any, **__: Any) -> None:
            next(Path(path).iterdir()).unlink()
            raise KeyboardInterrupt

        for step in (1, 2, 3):
            publish_step(tmp_path, step)
        with monkeypatch.context() as patch:
            patch.setattr("shutil.rmtree", kill)
            with pytest.raises(KeyboardInterrupt):
                retain(tmp_path, 1)
        for folder in published_steps(tmp_path).values():
            verify(folder)
        retain(tmp_path, 1)
        assert [path.name for path in tmp_path.iterdir()] == ["step-00000003"]

    def test_the_next_start_removes_what_a_kill_left_and_nothing_of_anyone_elses(
        self, tmp_path: Path
    ) -> None:
        """Half-written checkpoints fill the disk; a stray file is not ours to delete."""
        cfg = small_run(tmp_path / "run")
        run(cfg)
        checkpoints = tmp_path / "run" / "checkpoints"
        ours = [f"tmp-{'0a' * 16}", "old-step-00000002-0123abcd"]
        for name in (*ours, "old-notes", "tmp-mine"):
            (checkpoints / name).mkdir()
        for name in ("old-x", "tmp-x", f"tmp-{'1b' * 16}"):
            (checkpoints / name).write_text("mine")
        run(replace(cfg, max_epochs=cfg.max_epochs + 1))
        names = {path.name for path in checkpoints.iterdir()}
        assert names.isdisjoint(ours)
        assert {"old-x", "tmp-x", f"tmp-{'1b' * 16}", "old-notes", "tmp-mine"} <= names

    def test_a_run_keeps_as_many_as_it_is_told(self, tmp_path: Path) -> None:
        """The setting must reach the writer."""
        run(small_run(tmp_path / "run", keep_last=2))
        found = sorted(path.name for path in (tmp_path / "run/checkpoints").iterdir())
        assert found == ["step-00000008", "step-00000010"]


class Gate:
    """A torch.save that waits until it is let through, and counts the calls in progress."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open, self.entered, self.inside, self.most = (
            threading.Event(),
            threading.Event(),
            0,
            0,
        )
        self.real = torch.save
        monkeypatch.setattr(torch, "save", self.save)

    def save(self, *arguments: Any, **options: Any) -> None:
        self.inside += 1
        self.most = max(self.most, self.inside)
        self.entered.set()
        assert self.open.wait(20)
        self.real(*arguments, **options)
        self.inside -= 1


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    gate = Gate(monkeypatch)
    yield gate
    gate.open.set()


class TestAsync:
    def test_training_can_continue_while_it_is_written(
        self, tmp_path: Path, gate: Gate
    ) -> None:
        """A checkpoint that mixes two steps loads without an error and matches neither."""
        parts, writer = parts_of(trained=2), writer_of(tmp_path, is_async=True)
        expected = copy.deepcopy(checkpoint_of(parts))
        writer.save(checkpoint_of(parts), [0], {"step": 2})
        assert gate.entered.wait(20)
        for parameter in parts["model"].parameters():
            parameter.data.fill_(float("nan"))
        for state in parts["optimizer"].state.values():
            for tensor in state.values():
                tensor.fill_(-1)
        parts["sampler"].commit()
        assert published_steps(tmp_path) == {}
        gate.open.set()
        writer.wait()
        verify(tmp_path / "step-00000002")
        state = torch.load(tmp_path / "step-00000002/state.pt", weights_only=True)
        torch.testing.assert_close(state, expected, rtol=0, atol=0)

    def test_a_second_save_does_not_overwrite_the_first_ones_snapshot(
        self, tmp_path: Path, gate: Gate
    ) -> None:
        """Buffers are reused: at most one save may be in flight."""
        parts, writer = parts_of(trained=2), writer_of(tmp_path, is_async=True)
        shas = [weights_sha256(parts["model"])]
        writer.save(checkpoint_of(parts), [0], {"step": 2})
        for parameter in parts["model"].parameters():
            parameter.data.add_(1)
        shas.append(weights_sha256(parts["model"]))
        second = threading.Thread(
            target=writer.save, args=(checkpoint_of(parts), [0], {"step": 3})
        )
        second.start()
        second.join(0.1)
        assert second.is_alive()
        gate.open.set()
        second.join(20)
        writer.wait()
        assert gate.most == 1
        for step, sha in zip((2, 3), shas, strict=True):
            state = torch.load(tmp_path / f"step-{step:08d}/state.pt", weights_only=True)
            parts["model"].load_state_dict(state["model"])
            assert weights_sha256(parts["model"]) == sha

    def test_a_failure_is_known_as_soon_as_it_happens(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A run that keeps training without checkpoints loses everything at its first kill."""
        parts, writer = parts_of(trained=2), writer_of(tmp_path, is_async=True)

        def full(*_: Any, **__: Any) -> None:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(torch, "save", full)
            writer.save(checkpoint_of(parts), [0], {"step": 2})
            while writer.error() is None:
                pass
        assert isinstance(writer.error(), OSError)
        with pytest.raises(OSError, match="No space left"):
            writer.wait()
        assert published_steps(tmp_path) == {}
        assert writer.error() is None
        writer.save(checkpoint_of(parts), [0], {"step": 3})
        writer.wait()
        assert list(published_steps(tmp_path)) == [3]

    def test_the_next_save_raises_what_the_last_one_failed_with(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A caller that never asks must still find out."""
        parts, writer = parts_of(trained=2), writer_of(tmp_path, is_async=True)
        publish_step(tmp_path, 2)
        writer.save(checkpoint_of(parts), [0], {"step": 2})
        with pytest.raises(FileExistsError, match="step-00000002 exists"):
            writer.save(checkpoint_of(parts), [0], {"step": 3})

    def test_while_nothing_has_failed_there_is_no_error(
        self, tmp_path: Path, gate: Gate
    ) -> None:
        """Asking must not block: it happens at every step."""
        parts, writer = parts_of(trained=2), writer_of(tmp_path, is_async=True)
        assert writer.error() is None
        writer.save(checkpoint_of(parts), [0], {"step": 2})
        assert gate.entered.wait(20)
        assert writer.error() is None
        gate.open.set()
        writer.wait()
        assert writer.error() is None

    def test_a_run_does_not_end_before_its_last_checkpoint(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The last save is the one everybody wants."""
        real, threads = torch.save, set()

        def slow(*arguments: Any, **options: Any) -> None:
            threads.add(threading.current_thread())
            threading.Event().wait(0.1)
            real(*arguments, **options)

        monkeypatch.setattr(torch, "save", slow)
        run(small_run(tmp_path / "run", async_checkpoint=True, checkpoint_every_steps=100))
        assert threading.current_thread() not in threads
        checkpoints = tmp_path / "run/checkpoints"
        found = sorted(path.name for path in checkpoints.iterdir())
        assert found == ["step-00000005", "step-00000010"]
        log = (tmp_path / "run/logs/rank-0.jsonl").read_text().splitlines()
        events = [(e["event"], e["step"]) for e in map(json.loads, log)]
        assert events.index(("checkpoint_saved", 10)) < events.index(("run_end", 10))

    def test_a_run_that_fails_waits_for_the_save_in_flight_too(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The checkpoint that was nearly done is the one to resume from."""
        real, fetch, before = torch.save, TrainingView.__getitems__, threading.enumerate()

        def slow(*arguments: Any, **options: Any) -> None:
            threading.Event().wait(0.2)
            real(*arguments, **options)

        def failing(self: TrainingView, keys: list[SampleKey]) -> MicroBatch:
            if keys and keys[0].epoch == 1:
                raise RuntimeError("the disk with the data is gone")
            return fetch(self, keys)

        monkeypatch.setattr(torch, "save", slow)
        monkeypatch.setattr(TrainingView, "__getitems__", failing)
        with pytest.raises(RuntimeError, match="is gone"):
            run(small_run(tmp_path / "run", async_checkpoint=True, checkpoint_every_steps=9))
        found = list(published_steps(tmp_path / "run/checkpoints"))
        # A file or a thread that was left behind is reported here, not in another test.
        while set(threading.enumerate()) - set(before):
            gc.collect()
        gc.collect()
        assert found == [5]

    def test_it_saves_the_same_bytes_as_a_synchronous_one(self, tmp_path: Path) -> None:
        """An operation setting must not affect the training."""
        weights = [
            run(small_run(tmp_path / str(is_async), dropout=0.3, async_checkpoint=is_async))
            for is_async in (False, True)
        ]
        assert weights[0]["weights_sha256"] == weights[1]["weights_sha256"]
        for step in (2, 5, 10):
            paths = [
                tmp_path / f"{is_async}/checkpoints/step-{step:08d}/state.pt"
                for is_async in (False, True)
            ]
            states = [torch.load(path, weights_only=True) for path in paths]
            torch.testing.assert_close(states[0], states[1], rtol=0, atol=0)


class TestRestore:
    def test_it_brings_everything_back(self, tmp_path: Path) -> None:
        """A resume without moments or position is a different training run."""
        saved = parts_of(trained=4, amp="fp16")
        saved["scaler"].load_state_dict(saved["scaler"].state_dict() | {"scale": 2.0**9})
        save_checkpoint(writer_of(tmp_path), checkpoint_of(saved, epoch=7), {"step": 4})
        fresh = parts_of(amp="fp16")
        state = restore_if_present(tmp_path / "step-00000004", fresh, CPU)
        assert state is not None
        assert (state["step"], state["epoch"], state["losses"]) == (4, 7, [2.0, 1.9, 1.8])
        for name in ("model", "optimizer", "scaler", "sampler"):
            ours, theirs = fresh[name].state_dict(), saved[name].state_dict()
            torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
        assert fresh["sampler"].position == 4
        assert fresh["scaler"].get_scale() == 2.0**9

    def test_without_a_checkpoint_nothing_happens(self) -> None:
        """The first start takes the same code path as every other."""
        parts = parts_of(trained=1)
        before = weights_sha256(parts["model"])
        assert restore_if_present(None, parts, CPU) is None
        restore_rng(None, 0)
        assert weights_sha256(parts["model"]) == before

    def test_hyperparameters_stay_as_configured(self, tmp_path: Path) -> None:
        """The handbook's lr silently stays what it was when the checkpoint was written."""
        saved = parts_of(trained=2, learning_rate=1e-3, weight_decay=0.5)
        writer_of(tmp_path).save(checkpoint_of(saved), [0], {"step": 2})
        fresh = parts_of(learning_rate=7e-4, weight_decay=0.25)
        restore_if_present(tmp_path / "step-00000002", fresh, CPU)
        groups = fresh["optimizer"].param_groups
        assert [group["lr"] for group in groups] == [7e-4, 7e-4]
        assert [group["weight_decay"] for group in groups] == [0.25, 0.0]
        ours, theirs = (p["optimizer"].state_dict()["state"] for p in (fresh, saved))
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
        assert len(ours) == 4

    @pytest.mark.parametrize(("before", "now"), [("no", "fp16"), ("fp16", "no")])
    def test_autocast_may_change_on_a_resume(
        self, tmp_path: Path, before: str, now: str
    ) -> None:
        """Loading a disabled scaler's empty state into a real one is an error in torch."""
        saved, fresh = parts_of(trained=2, amp=before), parts_of(amp=now)
        writer_of(tmp_path).save(checkpoint_of(saved), [0], {"step": 2})
        restore_if_present(tmp_path / "step-00000002", fresh, CPU)
        assert weights_sha256(fresh["model"]) == weights_sha256(saved["model"])
        assert (fresh["scaler"] is None) == (now == "no")
        if fresh["scaler"]:
            assert fresh["scaler"].get_scale() == 65536


class TestRandomStreams:
    def draw(self) -> list[float]:
        return [
            *(random.random(), random.gauss(0, 1)),
            *np.random.rand(3).tolist(),
            *np.random.randn(3).tolist(),
            *torch.rand(3).tolist(),
            *torch.randn(3).tolist(),
        ]

    def test_they_continue_where_the_checkpoint_was(self, tmp_path: Path) -> None:
        """Unless dropout continues as in the uninterrupted run, nothing is bit-exact."""
        setup_seed(3, "x")
        self.draw()  # gauss and randn keep half a pair back: that is state as well
        save_checkpoint(writer_of(tmp_path), without_a_draw(), {"step": 0})
        setup_seed(3, "x")
        self.draw()
        expected = self.draw()
        setup_seed(99)
        restore_rng(tmp_path / "step-00000000", 0)
        assert self.draw() == expected

    def test_a_rank_that_the_checkpoint_lacks_keeps_its_own_seed(self, tmp_path: Path) -> None:
        """When the world size grows, a new rank has no past to continue."""
        save_checkpoint(writer_of(tmp_path), without_a_draw(), {"step": 0})
        setup_seed(5, "rank", 1)
        restore_rng(tmp_path / "step-00000000", 1)
        drawn = self.draw()
        setup_seed(5, "rank", 1)
        assert self.draw() == drawn

    def test_each_rank_has_its_own_stream(self) -> None:
        """The handbook gives all ranks one seed, so two ranks drop the same units."""
        draws = []
        for parts in [(17, "rank", 0), (17, "rank", 1), (18, "rank", 0), (17, "weights")]:
            setup_seed(*parts)
            draws.append(self.draw())
        for position in range(len(draws[0])):
            assert len({draw[position] for draw in draws}) == 4
        setup_seed(17, "rank", 0)
        assert self.draw() == draws[0]

    def test_making_a_checkpoint_draws_nothing(self, tmp_path: Path) -> None:
        """Saving more often must not change the training."""
        setup_seed(1)
        expected = self.draw()
        setup_seed(1)
        writer = writer_of(tmp_path, is_async=True)
        save_checkpoint(writer, without_a_draw(), {"step": 0})
        writer.wait()
        assert self.draw() == expected


def start_of(lr: float | None, scales: bool) -> Start:
    """A start whose schedule gives ``lr`` in its first steps; None: the user changed it."""
    amp = "fp16" if scales else "no"
    cfg = TrainConfig(learning_rate=lr or 0.0, decay_steps=10**9, amp=amp)
    changes = {"learning_rate": [1e-3, 0.0]} if lr is None else {"dropout": [0.0, 0.1]}
    return Start(cfg, {}, 1, None, None, {}, changes, [])


class TestValidateResume:
    def check(
        self,
        name: str,
        position: int = 4,
        lr: float | None = 1e-3,
        scales: bool = False,
        after: tuple[float, ...] = (1.7, 1.8),
        schedule: StepSchedule = TEN_STEPS,
        **changes: Any,
    ) -> bool | None:
        parts = parts_of(trained=4, amp="fp16" if scales else "no")
        state = checkpoint_of(parts, losses=[2.0, 1.9, 1.8, 1.9]) | changes
        start = start_of(lr, scales)
        return validate_resume(state, start, schedule, position, after)[name]

    def test_a_good_resume_passes_every_check(self) -> None:
        """An alarm that always goes off gets turned off."""
        state = checkpoint_of(parts_of(trained=4, amp="fp16"), losses=[2.0, 1.9, 1.8])
        checks = validate_resume(state, start_of(1e-3, True), TEN_STEPS, 4, [1.8, 1.7])
        assert checks == dict.fromkeys(
            [
                "step_monotone",
                "sampler_position_continuous",
                "learning_rate_continuous",
                "optimizer_state_present",
                "scaler_state_present",
                "loss_continuous",
            ],
            True,
        )

    @pytest.mark.parametrize("step", [3, 5])
    def test_a_step_that_jumps_is_seen(self, step: int) -> None:
        """Replayed or lost steps."""
        assert self.check("step_monotone", step=step) is False

    @pytest.mark.parametrize("position", [3, 5])
    def test_a_sampler_that_jumps_is_seen(self, position: int) -> None:
        """The off-by-one that trains a sample twice."""
        sampler = {"position": position}
        assert self.check("sampler_position_continuous", sampler=sampler) is False

    @pytest.mark.parametrize("lr", [0.0, 1e-4, 1e-2])
    def test_a_learning_rate_that_jumps_is_seen(self, lr: float) -> None:
        """A schedule that restarts warms up a trained model."""
        assert self.check("learning_rate_continuous", lr=lr) is False

    def test_an_optimizer_without_moments_is_seen(self) -> None:
        """Without them, Adam's first steps are far too large for a trained model."""
        empty = {"state": {}, "param_groups": []}
        assert self.check("optimizer_state_present", optimizer=empty) is False

    def test_a_missing_scaler_is_seen_only_where_one_is_needed(self) -> None:
        """Without its state, it has to find its scale again by skipping steps."""
        assert self.check("scaler_state_present", scales=True, scaler=None) is False
        assert self.check("scaler_state_present", scales=True) is True
        assert self.check("scaler_state_present", scales=False) is None

    def test_a_loss_that_jumps_is_seen(self) -> None:
        """The weights are not the ones that were saved."""
        assert self.check("loss_continuous", after=(5.0, 5.0)) is False
        assert self.check("loss_continuous", after=(1.9, 2.05)) is True

    def test_a_step_of_one_sample_is_not_a_jump(self) -> None:
        """The last step of an epoch may have a single sample, whose loss can be anything."""
        short = StepSchedule(21, 10, 9)  # steps of 10, 10 and 1 samples
        steps: dict[str, Any] = {"schedule": short, "step": 6, "position": 6}
        losses = [2.0, 1.9, 0.1, 1.8, 1.9, 9.0]
        after = (1.8, 1.9, 20.0, 1.7)
        assert self.check("loss_continuous", losses=losses, after=after, **steps) is True
        after = (3.0, 3.1, 0.1, 3.0)
        assert self.check("loss_continuous", losses=losses, after=after, **steps) is False

    def test_too_few_losses_are_no_verdict(self) -> None:
        """None is not False: nothing was found wrong."""
        assert self.check("loss_continuous", after=()) is None
        assert self.check("loss_continuous", losses=[2.0, 1.9]) is None

    @pytest.mark.parametrize("bad", [float("nan"), float("inf")])
    def test_losses_that_are_not_finite_do_not_crash(self, bad: float) -> None:
        """With --on-nonfinite skip they are in the log, and the run must still resume."""
        assert self.check("loss_continuous", losses=[2.0, bad, 1.8, 1.9]) in (True, False, None)
        assert self.check("loss_continuous", after=(bad, 1.9)) in (False, None)

    @pytest.mark.parametrize(
        "settings",
        [
            {"warmup_steps": 6, "decay_steps": 10},
            {"warmup_steps": 0, "decay_steps": 6},
            {"warmup_steps": 0, "decay_steps": 10, "min_lr_fraction": 0.0},
        ],
    )
    def test_no_step_of_a_schedule_looks_like_a_jump(
        self, tmp_path: Path, settings: dict[str, Any]
    ) -> None:
        """A false alarm during warm-up or in a short run looks like a bug in the resume."""
        for step in (1, 4, 9):
            cfg = small_run(tmp_path / str(step), checkpoint_every_steps=1, **settings)
            assert run(cfg, sinks=[StopAt(step)])["step"] == step
            run(cfg)
            log = (cfg.run_dir / "logs/rank-0.jsonl").read_text().splitlines()
            events = [json.loads(line) for line in log]
            (verdict,) = [e for e in events if e["event"] == "resume_validated"]
            assert verdict["checks"]["learning_rate_continuous"] is True, (step, verdict)
            assert verdict["ok"], (step, verdict)

    def test_a_different_schedule_is_detected(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Code that computes a different rate for the same step has lost the schedule."""
        cfg = small_run(tmp_path / "run", checkpoint_every_steps=1)
        run(cfg, sinks=[StopAt(4)])
        for module in (launch, resume_check):
            monkeypatch.setattr(
                module, "learning_rate_at", lambda cfg, step: 1e-4, raising=False
            )
        run(cfg)
        log = (cfg.run_dir / "logs/rank-0.jsonl").read_text().splitlines()
        (verdict,) = [e for e in map(json.loads, log) if e["event"] == "resume_validated"]
        assert verdict["checks"]["learning_rate_continuous"] is False
        assert not verdict["ok"]

    def test_a_learning_rate_that_the_user_changed_is_not_judged(self) -> None:
        """A change that was requested and is reported is not the resume's fault."""
        assert self.check("learning_rate_continuous", lr=None) is None


def reseal(folder: Path, **changes: Any) -> None:
    """Change a manifest; its hashes then match itself and the files as they are now."""
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["files"] = {path.name: describe(path) for path in folder.glob("*.pt")}
    manifest |= changes
    manifest["sha256"] = manifest_sha256(manifest)
    (folder / "manifest.json").write_text(json.dumps(manifest))


class Malicious:
    """Pickles as a call that creates a folder."""

    def __init__(self, proof: Path) -> None:
        self.proof = proof

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.proof),)


class TestWhatOnlyContentBetrays:
    def test_a_checkpoint_under_another_steps_name_is_damaged(self, tmp_path: Path) -> None:
        """The run would reach a step that already exists, and no restart would help."""
        folder = publish_step(tmp_path, 8)
        with pytest.raises(DamagedCheckpoint, match="step is 9, but the manifest says 8"):
            verify(folder.rename(tmp_path / "step-00000009"))

    @pytest.mark.parametrize("files", [{}, {"rng-rank-0.pt": None}])
    def test_a_manifest_vouches_for_the_state(
        self, tmp_path: Path, files: dict[str, None]
    ) -> None:
        """A file that it does not list would be loaded unverified."""
        folder = publish_step(tmp_path, 8)
        reseal(folder, files={name: describe(folder / name) for name in files})
        with pytest.raises(DamagedCheckpoint, match="state"):
            verify(folder)

    def test_a_manifest_nested_without_end_is_damaged(self, folder: Path) -> None:
        """Python's parser gives up with an error that is not a ValueError."""
        (folder / "manifest.json").write_text("[" * 100_000)
        with pytest.raises(DamagedCheckpoint, match="RecursionError"):
            verify(folder)

    @pytest.mark.parametrize("name", ["state.pt", "rng-rank-0.pt"])
    def test_code_in_a_checkpoint_is_refused_and_not_run(
        self, tmp_path: Path, name: str
    ) -> None:
        """The user learns which folder to move, instead of torch's advice to trust the file."""
        cfg = small_run(tmp_path / "run", checkpoint_every_steps=1)
        run(cfg, sinks=[StopAt(4)])
        newest = tmp_path / "run/checkpoints/step-00000004"
        torch.save({"model": Malicious(tmp_path / "was-run")}, newest / name)
        reseal(newest)
        before = contents(cfg.run_dir)
        with pytest.raises(UserError, match="00000004 matches its manifest but can't be"):
            run(cfg)
        assert contents(cfg.run_dir) == before
        assert not (tmp_path / "was-run").exists()


class TestStorage:
    def test_a_folder_that_cannot_be_read_is_not_taken_for_an_empty_one(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The run would start over at step 0, next to its own checkpoints."""
        publish_step(tmp_path, 8)

        def denied(*_: Any) -> None:
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr(os, "listdir", denied)
        monkeypatch.setattr(os, "scandir", denied)
        with pytest.raises(PermissionError):
            published_steps(tmp_path)

    def test_a_full_disk_is_an_error_of_files(self, tmp_path: Path) -> None:
        """torch reports it as a RuntimeError about a position, which would be a traceback."""
        writer = writer_of(tmp_path)
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
        try:
            with pytest.raises(OSError, match=r"torch\.save failed there"):
                writer.save(checkpoint_of(parts_of(trained=2)), [0], {"step": 2})
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert list(tmp_path.iterdir()) == [], "what is left would keep the disk full"

    def test_an_error_of_the_device_is_not_blamed_on_the_disk(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Exit code 2 would tell a supervisor not to restart the job."""

        def lost(*_: Any) -> None:
            raise torch.OutOfMemoryError("CUDA out of memory")

        monkeypatch.setattr(torch, "save", lost)
        with pytest.raises(torch.OutOfMemoryError):
            writer_of(tmp_path).save({}, [0], {"step": 2})

    def test_a_checkpoint_that_is_a_link_goes_and_leaves_what_it_links_to(
        self, tmp_path: Path
    ) -> None:
        """A user may move one to another disk; if it can't be deleted, later saves fail."""
        elsewhere = publish_step(tmp_path, 8).rename(tmp_path / "elsewhere")
        (tmp_path / "step-00000008").symlink_to(elsewhere)
        publish_step(tmp_path, 9)
        retain(tmp_path, keep_last=1)
        assert list(published_steps(tmp_path)) == [9]
        assert not list(tmp_path.glob("old-*"))
        assert (elsewhere / "state.pt").is_file()

    def test_a_line_that_a_full_disk_took_half_of_is_completed(self, tmp_path: Path) -> None:
        """The next line would be glued to it, and the audit would lose both steps."""

        class NearlyFull:
            def __init__(self, file: Any) -> None:
                self.file = file

            def write(self, content: bytes) -> int:
                return int(self.file.write(content[:7]))

        sink = JsonlSink(tmp_path / "x.jsonl")
        file, sink.file = sink.file, NearlyFull(sink.file)  # type: ignore[assignment]
        sink.emit({"step": 1, "samples": [1, 2, 3]})
        file.close()
        line = json.loads((tmp_path / "x.jsonl").read_text())
        assert line == {"step": 1, "samples": [1, 2, 3]}

    @pytest.mark.parametrize(
        ("module", "name"), [(run_log, "log_rank_event"), (progress, "append_trace")]
    )
    def test_a_log_that_cannot_be_written_ends_the_run_with_a_message(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: Any, name: str
    ) -> None:
        """If one rank raises alone, its peers see only a broken connection."""
        calls, original = [], getattr(module, name)

        def failing(*arguments: Any, **fields: Any) -> None:
            calls.append(1)
            if len(calls) == 4:
                raise OSError(28, "No space left on device")
            original(*arguments, **fields)

        monkeypatch.setattr(module, name, failing)
        with pytest.raises(UserError, match="No space left"):
            run(small_run(tmp_path / "run", log_every=1))
