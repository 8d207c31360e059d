"""No DDP: gradients are summed by hand. A checkpoint is one file that begins with its hash."""

import hashlib
import json
import math
import os
import random
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F

LIMITS = {
    "dataset_size": 1,
    "max_epochs": 1,
    "seed": 0,
    "global_batch_size": 1,
    "micro_batch_size": 1,
    "learning_rate": 1e-12,
    "warmup_steps": 1,
    "dropout": 0,
    "checkpoint_every_steps": 1,
}


class TrainConfig:
    def __init__(
        self,
        run_dir="run",
        dataset_size=1000,
        max_epochs=2,
        seed=0,
        global_batch_size=16,
        micro_batch_size=4,
        learning_rate=0.01,
        warmup_steps=10,
        dropout=0.0,
        checkpoint_every_steps=10,
        device="cpu",
    ):
        values = {name: value for name, value in locals().items() if name != "self"}
        for name, value in values.items():
            if name in LIMITS and not (math.isfinite(value) and value >= LIMITS[name]):
                raise ValueError(f"{name} is {value:g}; it must be at least {LIMITS[name]}")
            object.__setattr__(self, name, value)

    def __setattr__(self, name, value):
        raise AttributeError(f"{name} can't be changed")


class ToyClassificationDataset:
    def __init__(self, cfg):
        self.cfg = cfg

    def __len__(self):
        return self.cfg.dataset_size

    def __getitem__(self, i):
        if not 0 <= i < len(self):
            raise IndexError(i)
        draw = random.Random(f"{self.cfg.seed}/{i}")
        label = draw.randrange(3)
        # Five bits: many samples have equal inputs.
        row = [float(draw.random() < (0.8 if d == label else 0.3)) for d in range(5)]
        return torch.tensor(row), torch.tensor(label)


class ResumeAwareDistributedSampler:
    def __init__(self, cfg, rank, world_size, position):
        self.cfg, self.rank, self.world_size, self.position = cfg, rank, world_size, position

    def __iter__(self):
        cfg = self.cfg
        per_epoch = math.ceil(cfg.dataset_size / cfg.global_batch_size)
        for step in range(self.position, per_epoch * cfg.max_epochs):
            epoch, place = divmod(step, per_epoch)
            order = list(range(cfg.dataset_size))
            random.Random(f"order {cfg.seed} {epoch}").shuffle(order)
            first = place * cfg.global_batch_size
            batch = order[first : first + cfg.global_batch_size]
            low = len(batch) * self.rank // self.world_size
            high = len(batch) * (self.rank + 1) // self.world_size
            yield epoch, batch[low:high], len(batch)


class TinyNet(torch.nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.hidden = torch.nn.Linear(5, 16)
        self.out = torch.nn.Linear(16, 3)
        self.p = cfg.dropout

    def forward(self, x):
        return self.out(F.dropout(torch.relu(self.hidden(x)), self.p, self.training))


def learning_rate_at(cfg, step):
    if step <= cfg.warmup_steps:
        return cfg.learning_rate * step / cfg.warmup_steps
    return cfg.learning_rate * 0.99 ** (step - cfg.warmup_steps)


def maybe_init_dist(cfg):
    if "RANK" not in os.environ:
        return 0, 1
    if int(os.environ["WORLD_SIZE"]) > 1:
        dist.init_process_group("nccl" if cfg.device == "cuda" else "gloo")
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def wrap_model(cfg, model):
    for tensor in model.state_dict().values():
        dist.broadcast(tensor, 0)
    return model


def train_step(cfg, model, optimizer, inputs, labels, S, W, timers):
    optimizer.zero_grad()
    total = torch.zeros(())
    for first in range(0, len(inputs), cfg.micro_batch_size):
        part = slice(first, first + cfg.micro_batch_size)
        loss = F.cross_entropy(model(inputs[part]), labels[part], reduction="sum") / S
        loss.backward()
        total += loss.detach()
    timers.end("compute")
    parameters = list(model.parameters())
    for parameter in parameters:
        if parameter.grad is None:  # no samples on this rank
            parameter.grad = torch.zeros_like(parameter)
    if W > 1:
        flat = torch.cat([p.grad.flatten() for p in parameters])
        dist.all_reduce(flat)
        torch.nn.utils.vector_to_parameters(flat, [p.grad for p in parameters])
    norm = torch.nn.utils.clip_grad_norm_(parameters, 1.0)
    if not torch.isfinite(norm):
        raise RuntimeError(f"the gradient's norm is {norm}")
    optimizer.step()
    timers.end("update")
    return total


def digest(data):
    return hashlib.blake2b(data).hexdigest()


def save_checkpoint(folder, step, model, optimizer):
    path = Path(folder) / f"{step}.pt"
    temporary = path.with_suffix(".tmp")
    state = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(state, temporary)
    data = temporary.read_bytes()
    with open(temporary, "wb") as file:  # the digest comes first, in the same file
        file.write(digest(data).encode() + data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    descriptor = os.open(folder, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def latest_checkpoint_path(folder):
    paths = sorted(Path(folder).glob("*.pt"), key=lambda path: int(path.stem))
    for path in reversed(paths):
        data = path.read_bytes()
        if digest(data[128:]).encode() == data[:128]:
            return path
    if paths:
        raise ValueError(f"all of {len(paths)} checkpoints in {folder} are damaged")
    return None


def restore_checkpoint(path, model, optimizer):
    import io

    state = torch.load(io.BytesIO(path.read_bytes()[128:]))
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return state["step"]


class StepTimers:
    def __init__(self):
        self.phases = {}
        self.mark = time.monotonic()

    def end(self, phase):
        before, self.mark = self.mark, time.monotonic()
        self.phases.setdefault(phase, 0.0)
        self.phases[phase] += self.mark - before

    def take(self):
        taken, self.phases = self.phases, {}
        return taken


def log_rank_event(file, **fields):
    file.write(json.dumps(dict(fields, time=time.time())) + "\n")
    file.flush()


def run(cfg):
    rank, W = maybe_init_dist(cfg)
    torch.manual_seed(cfg.seed)
    model = TinyNet(cfg)
    if W > 1:
        wrap_model(cfg, model)
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.0)
    root = Path(cfg.run_dir)
    (root / "checkpoints").mkdir(parents=True, exist_ok=True)
    (root / "ledger").mkdir(exist_ok=True)
    facts = [None, 0]
    if rank == 0:
        facts[0] = latest_checkpoint_path(root / "checkpoints")
        ledger = root / "ledger" / "rank-0.jsonl"
        for line in ledger.read_text().splitlines() if ledger.exists() else ():
            facts[1] = max(facts[1], json.loads(line)["attempt"] + 1)
    if W > 1:
        dist.broadcast_object_list(facts)
    path, attempt = facts
    step = restore_checkpoint(path, model, optimizer) if path else 0
    per_epoch = math.ceil(cfg.dataset_size / cfg.global_batch_size)
    dataset = ToyClassificationDataset(cfg)
    timers = StepTimers()
    with open(root / "ledger" / f"rank-{rank}.jsonl", "a") as file:
        for epoch, samples, S in ResumeAwareDistributedSampler(cfg, rank, W, step):
            rows = [dataset[i] for i in samples]
            inputs = torch.stack([x for x, _ in rows]) if rows else torch.zeros(0, 5)
            labels = torch.tensor([int(y) for _, y in rows], dtype=torch.long)
            timers.end("data")
            step += 1
            torch.manual_seed(hash((cfg.seed, step, rank)))  # same in every process
            for group in optimizer.param_groups:
                group["lr"] = learning_rate_at(cfg, step)
            train_step(cfg, model, optimizer, inputs, labels, S, W, timers)
            log_rank_event(
                file,
                attempt=attempt,
                epoch=epoch,
                step=step,
                rank=rank,
                world_size=W,
                samples=list(samples),
                phases=timers.take(),
            )
            if step % cfg.checkpoint_every_steps == 0 or step % per_epoch == 0:
                if W > 1:
                    dist.barrier()
                if rank == 0:
                    save_checkpoint(root / "checkpoints", step, model, optimizer)
            timers.end("save")
    if W > 1:
        dist.destroy_process_group()
    hashed = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        hashed.update(name.encode())
        hashed.update(tensor.numpy().tobytes())
    return {"status": "done", "step": step, "weights_sha256": hashed.hexdigest()}
