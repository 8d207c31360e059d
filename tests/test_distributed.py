"""Which device a process takes, from what it sees."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.distributed import TCPStore
from torch.distributed.elastic.multiprocessing import PContext
from trainer_core import distributed
from trainer_core.config import TrainConfig
from trainer_core.distributed import RankInfo, choose_device, maybe_init_dist
from trainer_core.distributed import refuse_shared_device
from trainer_core.rendezvous import attempt_store
from trainer_core.settings import UserError


@pytest.fixture
def visible(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Pretend that this process sees that many GPUs."""
    return lambda count: monkeypatch.setattr(torch.cuda, "device_count", lambda: count)


class TestChooseDevice:
    @pytest.mark.parametrize("choice", ["auto", "cuda"])
    def test_one_visible_gpu_is_this_ranks(
        self, visible: Callable[[int], None], choice: str
    ) -> None:
        """srun --gpus-per-task=1 and one GPU per container number it 0 in every process."""
        visible(1)
        assert choose_device(choice, local_rank=3, ranks_here=4) == torch.device("cuda", 0)

    @pytest.mark.parametrize("num_gpus", [4, 8])
    def test_of_all_gpus_of_the_node_each_rank_takes_its_own(
        self, visible: Callable[[int], None], num_gpus: int
    ) -> None:
        """Two ranks on one GPU run at half speed, or out of memory."""
        visible(num_gpus)
        assert choose_device("auto", local_rank=3, ranks_here=4) == torch.device("cuda", 3)

    @pytest.mark.parametrize("local_rank", [0, 3])
    def test_too_few_gpus_are_refused_on_every_rank_with_both_numbers(
        self, visible: Callable[[int], None], local_rank: int
    ) -> None:
        """If only the rank without a GPU raised, the others would wait for it."""
        visible(2)
        message = r"4 rank\(s\) on this node, but this process sees 2 GPU\(s\)"
        with pytest.raises(UserError, match=message):
            choose_device("auto", local_rank, ranks_here=4)

    def test_cuda_without_a_gpu_is_refused_and_auto_takes_the_cpu(
        self, visible: Callable[[int], None]
    ) -> None:
        """A silent fallback is noticed when the bill arrives."""
        visible(0)
        with pytest.raises(UserError, match=r"device=cuda: .* sees 0 GPU\(s\)"):
            choose_device("cuda", local_rank=0, ranks_here=1)
        assert choose_device("auto", local_rank=0, ranks_here=1).type == "cpu"

    def test_cpu_is_cpu_whatever_there_is(self, visible: Callable[[int], None]) -> None:
        """Two gloo ranks on a machine with one GPU are what the demo runs."""
        visible(1)
        assert choose_device("cpu", local_rank=1, ranks_here=2).type == "cpu"

    def test_the_launchers_environment_is_read(
        self, visible: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The rank on this node picks the device, not the rank in the job."""
        visible(2)
        taken: list[torch.device] = []
        monkeypatch.setattr(torch.cuda, "set_device", taken.append)
        for name, value in {"LOCAL_RANK": 1, "LOCAL_WORLD_SIZE": 2}.items():
            monkeypatch.setenv(name, str(value))
        info = maybe_init_dist(TrainConfig())
        assert taken == [info.device] == [torch.device("cuda", 1)]


class TestRestart:
    def test_a_restart_does_not_answer_the_dead(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """NCCL's request for dumps ignores any prefix; a rank that reads it hangs at exit."""
        torchruns = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        torchruns.set("exception_dump", b"\0\0\0\0")
        monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
        monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
        monkeypatch.setenv("MASTER_PORT", str(torchruns.port))
        attempt_store(0, 1, timedelta(seconds=10))
        assert not torchruns.check(["exception_dump"])


class TestTorchrun:
    """What the documents claim about it."""

    @pytest.mark.ranks
    def test_it_sets_how_nccl_handles_errors(self, tmp_path: Path) -> None:
        """torch's own default, 3, applies only without torchrun."""
        script = tmp_path / "show.py"
        script.write_text("import os; print(os.environ['TORCH_NCCL_ASYNC_ERROR_HANDLING'])")
        words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=1"]
        done = subprocess.run(
            [sys.executable, *words, str(script)], capture_output=True, text=True, check=True
        )
        assert done.stdout.split() == ["1"]

    def test_it_waits_30_s_before_it_kills(self) -> None:
        """A rank that is blocked on the GPU delays the restart by that much."""
        assert inspect.signature(PContext.close).parameters["timeout"].default == 30


class TestSharedDevice:
    @pytest.mark.parametrize(
        ("uuids", "shared"), [(["a", "b"], None), (["a", "a", "b"], "0, 1"), ([None] * 2, None)]
    )
    def test_ranks_that_share_a_gpu_are_named(
        self, monkeypatch: pytest.MonkeyPatch, uuids: list[str | None], shared: str | None
    ) -> None:
        """Each of them sees one GPU, and NCCL's error says nothing about that."""
        device = torch.device("cuda" if uuids[0] else "cpu", 0)
        properties = SimpleNamespace(uuid=uuids[0])
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
        monkeypatch.setattr(distributed, "gather_objects", lambda _: uuids)
        info = RankInfo(0, 0, len(uuids), device)
        if shared is None:
            refuse_shared_device(info)
        else:
            with pytest.raises(UserError, match=rf"ranks \[{shared}\] share a GPU"):
                refuse_shared_device(info)
