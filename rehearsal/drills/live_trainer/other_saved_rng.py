"""A DataLoader, and every rank's random state in the checkpoint instead of a seed per step."""

import hashlib
import json
import os
import time
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    run_dir: str = "run"
    dataset_size: int = 500
    max_epochs: int = 2
    seed: int = 1
    global_batch_size: int = 20
    micro_batch_size: int = 5
    learning_rate: float = 0.01
    warmup_steps: int = 5
    dropout: float = 0.1
    checkpoint_every_steps: int = 10
    device: str = "cpu"

    def __post_init__(self):
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, str):
                continue
            zero_is_fine = field.name in ("seed", "dropout")
            if not (0 <= value < float("inf")) or (value == 0 and not zero_is_fine):
                raise ValueError(f"{field.name}={value} is out of bounds")

    @property
    def steps_per_epoch(self):
        return (self.dataset_size - 1) // self.global_batch_size + 1


class ToyClassificationDataset(Dataset):
    def __init__(self, cfg):
        generator = torch.Generator().manual_seed(cfg.seed + 7)
        self.y = torch.randint(0, 2, (cfg.dataset_size,), generator=generator)
        self.x = torch.randn(cfg.dataset_size, 6, generator=generator)
        self.x[:, 0] += 3 * self.y

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


class ResumeAwareDistributedSampler:
    def __init__(self, cfg, rank, world_size, position):
        self.cfg, self.rank, self.world_size, self.position = cfg, rank, world_size, position

    def __iter__(self):
        n, G = self.cfg.dataset_size, self.cfg.global_batch_size
        total = self.cfg.max_epochs * self.cfg.steps_per_epoch
        for step in range(self.position, total):
            epoch, k = divmod(step, self.cfg.steps_per_epoch)
            key = hashlib.md5(f"{self.cfg.seed}|{epoch}".encode()).digest()
            generator = torch.Generator().manual_seed(int.from_bytes(key[:6], "big"))
            batch = torch.randperm(n, generator=generator)[k * G : (k + 1) * G].tolist()
            yield epoch, batch[self.rank :: self.world_size], len(batch)


class TinyNet(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(6, 12), nn.Tanh(), nn.Dropout(cfg.dropout), nn.Linear(12, 2)
        )

    def forward(self, x):
        return self.layers(x)


def learning_rate_at(cfg, step):
    total = cfg.max_epochs * cfg.steps_per_epoch + 1
    if step < cfg.warmup_steps:
        return cfg.learning_rate * step / cfg.warmup_steps
    return cfg.learning_rate * (total - step) / (total - cfg.warmup_steps)


def maybe_init_dist(cfg):
    rank = int(os.environ.get("RANK", 0))
    world_size = int(os.environ.get("WORLD_SIZE", 1))
    if world_size > 1:
        dist.init_process_group(backend="gloo" if cfg.device == "cpu" else "nccl")
    return rank, world_size


def wrap_model(cfg, model):
    return DistributedDataParallel(model)


def train_step(cfg, model, optimizer, inputs, labels, S, W, timers):
    model.train()
    optimizer.zero_grad(set_to_none=True)
    pieces = torch.arange(len(inputs)).split(cfg.micro_batch_size)
    returned = 0.0
    for number, piece in enumerate(pieces):
        if W > 1:
            model.require_backward_grad_sync = number == len(pieces) - 1
        logits = model(inputs[piece])
        losses = nn.functional.cross_entropy(logits, labels[piece], reduction="none")
        loss = losses.sum() / S
        (loss * W).backward()
        returned += float(loss)
    timers.end("forward and backward")
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    if not bool(norm.isfinite()):
        raise FloatingPointError("the gradient isn't finite")
    optimizer.step()
    timers.end("optimizer")
    return returned


def to_disk(path, data):
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(path):
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def save_checkpoint(folder, step, model, optimizer):
    """Every rank of a group calls this; rank 0 writes."""
    rng = [torch.get_rng_state()]
    if dist.is_initialized():
        rng = [None] * dist.get_world_size()
        dist.all_gather_object(rng, torch.get_rng_state())
        if dist.get_rank() > 0:
            return
    target = folder / f"step-{step:08d}"
    work = folder / f"work-{step}-{os.getpid()}-{time.time_ns()}"
    work.mkdir()
    torch.save({"model": model.state_dict(), "optim": optimizer.state_dict()}, work / "a.pt")
    torch.save({"rng": rng, "step": step}, work / "b.pt")
    sums = {}
    for name in ("a.pt", "b.pt"):
        data = (work / name).read_bytes()
        to_disk(work / name, data)
        sums[name] = hashlib.sha1(data).hexdigest()
    sums["self"] = hashlib.sha1(repr(sorted(sums.items())).encode()).hexdigest()
    to_disk(work / "sums.json", json.dumps(sums).encode())
    sync_folder(work)
    if target.exists():
        target.rename(folder / f"bad-{step}-{time.time_ns()}")
    work.rename(target)
    sync_folder(folder)


def is_intact(path):
    try:
        sums = json.loads((path / "sums.json").read_bytes())
        claimed = sums.pop("self")
        if claimed != hashlib.sha1(repr(sorted(sums.items())).encode()).hexdigest():
            return False
        found = {name: hashlib.sha1((path / name).read_bytes()).hexdigest() for name in sums}
        return found == sums
    except (OSError, ValueError, KeyError, AttributeError):
        return False


def latest_checkpoint_path(folder):
    there = sorted(folder.glob("step-*"))
    good = [path for path in there if is_intact(path)]
    if there and not good:
        raise ValueError(f"{folder}: {len(there)} checkpoints, none intact")
    return good[-1] if good else None


def restore_checkpoint(path, model, optimizer):
    state, rest = torch.load(path / "a.pt"), torch.load(path / "b.pt")
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optim"])
    rank = int(os.environ.get("RANK", 0))
    if rank < len(rest["rng"]):
        torch.set_rng_state(rest["rng"][rank])
    else:  # a rank that wasn't there before
        torch.manual_seed(10_000 * rest["step"] + rank)
    return rest["step"]


class StepTimers:
    def __init__(self):
        self.phases, self._since = {}, time.perf_counter()

    def end(self, phase):
        now = time.perf_counter()
        self.phases[phase] = self.phases.get(phase, 0.0) + (now - self._since)
        self._since = now


def log_rank_event(file, **fields):
    line = {"time": time.time()} | fields
    file.write(json.dumps(line) + "\n")
    file.flush()


def run(cfg):
    rank, W = maybe_init_dist(cfg)
    checkpoints, ledger = Path(cfg.run_dir, "checkpoints"), Path(cfg.run_dir, "ledger")
    checkpoints.mkdir(parents=True, exist_ok=True)
    ledger.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(cfg.seed)
    model = TinyNet(cfg)
    torch.manual_seed(1000 * cfg.seed + rank)
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.1)
    attempts = [
        json.loads(line)["attempt"]
        for path in ledger.glob("*.jsonl")
        for line in path.read_text().splitlines()
    ]
    agreed = [str(latest_checkpoint_path(checkpoints) or ""), max(attempts, default=-1) + 1]
    if W > 1:
        dist.broadcast_object_list(agreed, src=0)
    trained = wrap_model(cfg, model) if W > 1 else model
    step = 0
    if agreed[0]:
        step = restore_checkpoint(Path(agreed[0]), model, optimizer)
    plan = list(ResumeAwareDistributedSampler(cfg, rank, W, step))
    loader = DataLoader(
        ToyClassificationDataset(cfg),
        batch_sampler=[samples for _, samples, _ in plan if samples],
        generator=torch.Generator().manual_seed(0),  # it draws a base seed; not from ours
    )
    batches = iter(loader)
    timers = StepTimers()
    with open(ledger / f"rank-{rank}.jsonl", "a") as lines:
        for epoch, samples, S in plan:
            empty = torch.zeros(0, 6), torch.zeros(0, dtype=torch.long)
            x, y = next(batches) if samples else empty
            timers.end("data")
            for group in optimizer.param_groups:
                group["lr"] = learning_rate_at(cfg, step + 1)
            train_step(cfg, trained, optimizer, x, y, S, W, timers)
            step += 1
            line = dict(epoch=epoch, step=step, rank=rank, world_size=W, attempt=agreed[1])
            log_rank_event(lines, samples=samples, phases=timers.phases, **line)
            timers.phases = {}
            if step % cfg.checkpoint_every_steps == 0 or step % cfg.steps_per_epoch == 0:
                save_checkpoint(checkpoints, step, model, optimizer)
            timers.end("checkpoint and log")
    sha = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        sha.update(name.encode())
        sha.update(tensor.numpy().tobytes())
    del trained
    if W > 1:
        dist.barrier()
        dist.destroy_process_group()
    config = asdict(cfg)
    return {"status": "done", "step": step, "weights_sha256": sha.hexdigest(), "config": config}
