"""Stand-ins follow their protocols; exporters show what a run measures, and end with it."""

from __future__ import annotations

import inspect
import math
import os
import socket
import sys
import types
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
from sinks import Collected

from rehearsal.faults.breaks import kill
from rehearsal.faults.jobs import small, start
from trainer_core.checkpoint_format import verify
from trainer_core.config import TrainConfig
from trainer_core.integrations import exporters, interfaces
from trainer_core.integrations.exporters import (
    PrometheusSink,
    TensorBoardSink,
    build_exporters,
    numbers,
)
from trainer_core.integrations.interfaces import (
    FolderStore,
    HostListBootstrap,
    LocalScheduler,
    download_newest,
    restart_while_useful,
    upload_checkpoint,
)
from trainer_core.launch import run
from trainer_core.local_launcher import LocalRanks
from trainer_core.metrics import Sink
from trainer_core.settings import UserError

# Ranks cannot import a test module; its functions travel by value.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize(
    ("protocol", "stand_in"),
    [
        (interfaces.Bootstrap, HostListBootstrap),
        (interfaces.ObjectStore, FolderStore),
        (interfaces.Scheduler, LocalScheduler),
        (Sink, TensorBoardSink),
        (Sink, PrometheusSink),
    ],
)
def test_each_stand_in_has_the_methods_of_its_protocol(protocol: type, stand_in: type) -> None:
    """To replace a stand-in with the real thing, the protocol is all you have to go by."""
    methods = {name: m for name, m in vars(protocol).items() if inspect.isfunction(m)}
    methods = {name: m for name, m in methods.items() if not name.startswith("_")}
    assert methods
    for name, method in methods.items():
        assert inspect.signature(getattr(stand_in, name)) == inspect.signature(method), name


def train_listed(cfg: TrainConfig, port: int) -> dict[str, Any]:
    """Train as one process of two hosts, started by something that torch doesn't know."""
    index = int(os.environ["RANK"])
    torchruns = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "TORCHELASTIC_USE_AGENT_STORE")
    for name in (*torchruns, "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_PORT"):
        del os.environ[name]
    hosts = ["127.0.0.1", "localhost"]
    bootstrap = HostListBootstrap(hosts, 1, host_index=index, local_rank=0, port=port)
    os.environ.update(bootstrap.world().environment())
    return run(cfg)


class TestBootstrap:
    def test_every_rank_is_taken_once_and_all_meet_at_the_first_host(self) -> None:
        """If two processes have the same rank, the job waits forever for the missing one."""
        hosts = ["a", "b", "c"]
        worlds = [
            HostListBootstrap(hosts, 2, h, at, 4).world() for h in range(3) for at in (0, 1)
        ]
        assert [world.rank for world in worlds] == [0, 1, 2, 3, 4, 5]
        assert [world.local_rank for world in worlds] == [0, 1, 0, 1, 0, 1]
        assert {world[2:] for world in worlds} == {(6, 2, "a", 4)}

    @pytest.mark.ranks
    def test_a_job_that_torchrun_did_not_start_trains(self, tmp_path: Path) -> None:
        """A trainer that only its own launcher can start does not fit into a cluster."""
        cfg = small(tmp_path / "run")
        results = LocalRanks(partial(train_listed, cfg, free_port()), 2).wait(60)
        assert [result.exitcode for result in results] == [0, 0], results[0].traceback
        assert [result.value["step"] for result in results] == [26, 26]


class Failing(FolderStore):
    """A store that fails after some objects."""

    left = 2

    def put_if_absent(self, key: str, content: bytes) -> bool:
        Failing.left -= 1
        if Failing.left < 0:
            raise ConnectionError("the store does not answer")
        return super().put_if_absent(key, content)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run folder of one epoch on one rank."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    run(small(folder, max_epochs=1, decay_steps=52, dropout=0.2))
    return folder


class TestObjectStore:
    def test_an_object_is_written_once(self, tmp_path: Path) -> None:
        """If a late upload moved the pointer back, everything trained since would be lost."""
        store = FolderStore(tmp_path)
        assert store.put_if_absent("a/b", b"first")
        assert not store.put_if_absent("a/b", b"second")
        assert store.get("a/b") == b"first"
        assert store.keys("") == ["a/b"]

    def test_of_many_writers_one_wins_and_all_others_know(self, tmp_path: Path) -> None:
        """Two uploads that both think they are the published one agree on nothing."""
        store = FolderStore(tmp_path)
        contents = [bytes([i]) * 100_000 for i in range(16)]
        with ThreadPoolExecutor(16) as pool:
            stored = list(pool.map(partial(store.put_if_absent, "key"), contents))
        assert stored.count(True) == 1
        assert store.get("key") == contents[stored.index(True)]

    def test_an_interrupted_put_leaves_no_key(self, tmp_path: Path) -> None:
        """Half an object under its own name is still half an object."""
        store = FolderStore(tmp_path)

        def cut(*_: Any) -> None:
            raise KeyboardInterrupt

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Path, "unlink", cut)
            with pytest.raises(KeyboardInterrupt):
                store.put_if_absent("key", b"content")
        assert store.keys("") == ["key"]

    def test_keys_are_sorted_and_a_prefix_is_text(self, tmp_path: Path) -> None:
        """Stores have no folders: a prefix that ends inside a name still matches."""
        store = FolderStore(tmp_path)
        for key in ("b/2", "b/10", "a", "bb"):
            store.put_if_absent(key, b"")
        assert store.keys("b") == ["b/10", "b/2", "bb"]
        assert store.keys("b/1") == ["b/10"]
        assert store.keys("c") == []

    def test_a_run_resumes_from_the_store_on_another_disk(
        self, tmp_path: Path, trained: Path
    ) -> None:
        """A checkpoint that dies with its node is useless."""
        store = FolderStore(tmp_path / "store")
        for folder in (trained / "checkpoints").glob("step-*"):
            assert upload_checkpoint(store, folder)
        cfg = small(tmp_path / "elsewhere", dropout=0.2)
        there = download_newest(store, cfg.run_dir / "checkpoints")
        assert there is not None
        assert verify(there)["step"] == 26
        assert files_of(there) == files_of(trained / "checkpoints" / "step-00000026")
        resumed, straight = run(cfg), run(small(tmp_path / "straight", dropout=0.2))
        assert resumed["step"] == 52
        assert resumed["weights_sha256"] == straight["weights_sha256"]

    def test_the_newest_is_the_highest_number(self, tmp_path: Path) -> None:
        """As text, step-99999999 comes after step-100000000."""
        store = FolderStore(tmp_path / "store")
        for step in ("step-99999999", "step-100000000", "step-00000120"):
            (tmp_path / step).mkdir()
            (tmp_path / step / "state.pt").write_text(step)
            upload_checkpoint(store, tmp_path / step)
        there = download_newest(store, tmp_path / "checkpoints")
        assert there == tmp_path / "checkpoints" / "step-100000000"
        assert (there / "state.pt").read_text() == "step-100000000"

    def test_without_a_checkpoint_there_is_none(self, tmp_path: Path) -> None:
        """The first start of a run finds an empty store."""
        assert download_newest(FolderStore(tmp_path / "store"), tmp_path / "here") is None
        assert not (tmp_path / "here").exists()

    def test_an_interrupted_upload_shows_nothing_and_breaks_nothing(
        self, tmp_path: Path
    ) -> None:
        """Half of one upload and half of the next add up to a checkpoint that nobody saved."""
        store, folder = FolderStore(tmp_path / "store"), tmp_path / "step-00000003"
        folder.mkdir()
        for content in ("first", "second"):
            for name in ("manifest.json", "rng-rank-0.pt", "state.pt"):
                (folder / name).write_text(content)
            if content == "first":
                with pytest.raises(ConnectionError):
                    upload_checkpoint(Failing(store.root), folder)
                assert len(store.keys("uploads/")) == 2
                assert download_newest(store, tmp_path / "nothing") is None
        assert upload_checkpoint(store, folder)
        there = download_newest(store, tmp_path / "here")
        assert there is not None
        assert files_of(there) == files_of(folder)

    def test_an_interrupted_download_is_not_a_checkpoint(
        self, tmp_path: Path, trained: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Only complete folders are named step-...; half of one breaks the next start."""
        store, gets = FolderStore(tmp_path / "store"), []
        upload_checkpoint(store, trained / "checkpoints" / "step-00000026")
        get = FolderStore.get

        def failing(self: FolderStore, key: str) -> bytes:
            gets.append(key)
            if len(gets) == 3:
                raise ConnectionError("the store does not answer")
            return get(self, key)

        monkeypatch.setattr(FolderStore, "get", failing)
        with pytest.raises(ConnectionError):
            download_newest(store, tmp_path / "here")
        assert not list((tmp_path / "here").glob("step-*"))
        there = download_newest(store, tmp_path / "here")
        assert there is not None
        assert verify(there)["step"] == 26

    def test_of_two_uploads_of_a_step_the_first_one_wins(self, tmp_path: Path) -> None:
        """A rank that comes back late must not replace what others have resumed from."""
        store, folder = FolderStore(tmp_path / "store"), tmp_path / "step-00000003"
        folder.mkdir()
        (folder / "state.pt").write_text("first")
        assert upload_checkpoint(store, folder)
        (folder / "state.pt").write_text("second")
        assert not upload_checkpoint(store, folder)
        there = download_newest(store, tmp_path / "here")
        assert there is not None
        assert (there / "state.pt").read_text() == "first"


def job_of(*codes: int | None) -> Callable[[], Any]:
    """A job that ends with the next of ``codes`` at each start."""
    return partial(next, iter(codes))


class TestScheduler:
    def test_a_job_is_known_by_its_id(self) -> None:
        """If two jobs share an id, the wrong one gets restarted."""
        scheduler = LocalScheduler()
        first, second = scheduler.submit(job_of(1, 0)), scheduler.submit(job_of(3))
        assert (scheduler.exit_code(first), scheduler.exit_code(second)) == (1, 3)
        scheduler.requeue(first)
        assert (scheduler.exit_code(first), scheduler.exit_code(second)) == (0, 3)

    @pytest.mark.parametrize(
        ("codes", "restarts", "last"),
        [
            ([0], 0, 0),
            ([1, -9, 0, 1], 2, 0),
            ([2, 0], 0, 2),  # a person has to fix something
            ([1, 2, 0], 1, 2),
            ([1, 1, 1, 1, 1, 0], 4, 1),  # max_restarts
            ([None, 0], 0, None),  # still running
        ],
    )
    def test_a_job_is_restarted_only_if_that_can_help(
        self, codes: list[int | None], restarts: int, last: int | None
    ) -> None:
        """Restarting a mistyped flag all night blocks the machines until morning."""
        scheduler = LocalScheduler()
        job_id = scheduler.submit(job_of(*codes))
        assert restart_while_useful(scheduler, job_id, max_restarts=4) == restarts
        assert scheduler.exit_code(job_id) == last

    @pytest.mark.ranks
    def test_a_killed_run_is_restarted_to_its_end(self, tmp_path: Path) -> None:
        """The exit code of a killed rank must not forbid a restart."""
        kills = iter([partial(kill, 1, 5), partial(kill, 0, 9), None])

        def job() -> int:
            results = start(small(tmp_path / "run"), 2, next(kills))
            return next((r.exitcode for r in results if r.exitcode), 0)

        scheduler = LocalScheduler()
        job_id = scheduler.submit(job)
        assert restart_while_useful(scheduler, job_id, max_restarts=3) == 2
        assert scheduler.exit_code(job_id) == 0


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> list[Mapping[str, Any]]:
    """What a real run gives to its sinks."""
    sink = Collected()
    run(small(tmp_path_factory.mktemp("records") / "run", log_every=26), sinks=[sink])
    return sink.records


def progress_of(records: list[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [record for record in records if record["event"] == "train_progress"]


class TestBuildExporters:
    def test_an_unknown_name_is_refused(self) -> None:
        """A run of a week would end without the curves that were requested."""
        rule = "no such exporter, so its metrics would be lost"
        with pytest.raises(
            UserError, match=f"--export wandb: {rule}. Choose tensorboard or prometheus."
        ):
            build_exporters(["prometheus", "wandb"])

    @pytest.mark.parametrize(
        ("name", "package"),
        [("tensorboard", "tensorboard"), ("prometheus", "prometheus_client")],
    )
    def test_a_missing_package_is_refused_before_the_first_step(
        self, monkeypatch: pytest.MonkeyPatch, name: str, package: str
    ) -> None:
        """Discovered only at the first event, it would end a job that is already training."""
        known = lambda wanted: None if wanted == package else object()  # noqa: E731
        monkeypatch.setattr(exporters.importlib.util, "find_spec", known)
        with pytest.raises(UserError) as error:
            build_exporters([name])
        assert f"--export {name}: the package {package} is not installed" in str(error.value)
        assert "its metrics would be lost" in str(error.value)
        assert str(error.value).endswith(f"Run: pip install -c constraints.txt -e '.[{name}]'")

    def test_the_sinks_come_in_the_order_of_the_names(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Each is requested separately; none brings in the other."""
        monkeypatch.setattr(exporters.importlib.util, "find_spec", lambda _: object())
        sinks = build_exporters(["prometheus", "tensorboard", "prometheus"])
        assert [type(sink) for sink in sinks] == [
            PrometheusSink,
            TensorBoardSink,
            PrometheusSink,
        ]
        assert build_exporters([]) == []


class TestNumbers:
    def test_they_are_those_of_the_event(self, records: list[Mapping[str, Any]]) -> None:
        """A curve must not appear under another metric's name."""
        record = progress_of(records)[0]
        found = dict(numbers(record))
        for name in ("loss", "lr", "grad_norm", "samples_per_s", "skipped_steps"):
            assert found.pop(name) == record[name]
        assert found == {f"{n}_ms": spent["p50"] for n, spent in record["phases"].items()}
        assert "data_wait_ms" in found

    def test_a_loss_that_is_not_a_number_is_nan(self, records: list[Mapping[str, Any]]) -> None:
        """The event has null for it; as 0 it would look like the best loss ever."""
        record = {**progress_of(records)[0], "loss": None, "grad_norm": None}
        found = dict(numbers(record))
        assert math.isnan(found["loss"])
        assert math.isnan(found["grad_norm"])


class Writer:
    """What TensorBoardSink uses of SummaryWriter."""

    def __init__(self, folder: str) -> None:
        self.folder, self.is_closed = folder, False
        self.scalars: list[tuple[str, float, int]] = []

    def add_scalar(self, name: str, value: float, step: int) -> None:
        self.scalars.append((name, value, step))

    def close(self) -> None:
        self.is_closed = True


class TestTensorBoard:
    def test_each_progress_event_becomes_scalars_of_its_step(
        self, records: list[Mapping[str, Any]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Ranks that write into one folder draw one zigzag."""
        package = types.ModuleType("torch.utils.tensorboard")
        package.SummaryWriter = Writer  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", package)
        sink = TensorBoardSink()
        for record in records:
            sink.emit({**record, "rank": 3})
        sink.close()
        assert sink.writer.is_closed
        assert sink.writer.folder == f"{records[0]['run_dir']}/tensorboard/rank-3"
        assert sink.writer.scalars == [
            (name, value, record["step"])
            for record in progress_of(records)
            for name, value in numbers(record)
        ]
        assert {step for _, _, step in sink.writer.scalars} == {26, 52}

    def test_a_run_that_never_logs_leaves_no_file(
        self, records: list[Mapping[str, Any]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A refused start writes nothing; nor does its exporter."""
        monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
        sink = TensorBoardSink()
        sink.emit(records[0])
        assert records[0]["event"] == "run_start"
        sink.close()
        assert sink.writer is None


@pytest.fixture
def prometheus(monkeypatch: pytest.MonkeyPatch) -> Iterator[PrometheusSink]:
    """A sink on a port that nothing else uses: rank 5 of the job, rank 1 of its node."""
    monkeypatch.setattr(PrometheusSink, "FIRST_PORT", free_port() - 1)
    sink = PrometheusSink()
    yield sink
    sink.close()


def scrape(port: int) -> dict[str, float]:
    """What the server of this port says, without comments."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {name: float(value) for name, value in pairs}


class TestPrometheus:
    def test_the_gauges_are_those_of_the_last_progress_event(
        self, records: list[Mapping[str, Any]], prometheus: PrometheusSink
    ) -> None:
        """Nobody wants an alert on a number from hours ago."""
        for record in progress_of(records):
            prometheus.emit({**record, "rank": 5, "local_rank": 1})
            expected = {"step": record["step"], **dict(numbers(record))}
            assert scrape(PrometheusSink.FIRST_PORT + 1) == {
                f'trainer_{name}{{rank="5"}}': value for name, value in expected.items()
            }

    def test_after_a_nan_it_shows_nan_not_the_last_finite_loss(
        self, records: list[Mapping[str, Any]], prometheus: PrometheusSink
    ) -> None:
        """A dashboard with the last good loss says that a diverged run is healthy."""
        record = {**progress_of(records)[0], "rank": 5, "local_rank": 1}
        prometheus.emit(record)
        prometheus.emit({**record, "loss": None})
        assert math.isnan(scrape(PrometheusSink.FIRST_PORT + 1)['trainer_loss{rank="5"}'])

    def test_it_listens_only_once_there_is_something_to_say(
        self, records: list[Mapping[str, Any]], prometheus: PrometheusSink
    ) -> None:
        """A refused start would take the port of the job next to it."""
        prometheus.emit({**records[0], "local_rank": 1})
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", PrometheusSink.FIRST_PORT + 1), 10)

    def test_close_frees_the_port(
        self, records: list[Mapping[str, Any]], prometheus: PrometheusSink
    ) -> None:
        """Otherwise a scraper waits for an answer, and the next run for the port."""
        prometheus.emit({**progress_of(records)[0], "local_rank": 1})
        prometheus.close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", PrometheusSink.FIRST_PORT + 1), 10)
