"""The whole trainer, small enough to type in an interview: eight cells in one file.

    python trainer_core/live.py --run-dir RUN
    torchrun --nproc-per-node 2 trainer_core/live.py --run-dir RUN

It survives kill -9 because the order of the data is a function, and the position in that order
is one integer. What it leaves out is listed in notebooks/01_live.ipynb.

    n  samples in the dataset    G  global batch    W  world size    S  samples in a step
    B  micro-batch               D  features        C  classes
"""

# %%
import argparse
import gc
import hashlib
import json
import os
import time
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn


class UserError(ValueError):
    """Something the user can fix: one line and exit code 2."""


@dataclass(frozen=True)
class TrainConfig:
    run_dir: str = "runs/live"
    dataset_size: int = 2000
    max_epochs: int = 3
    seed: int = 17
    global_batch_size: int = 32  # fixed, so the number of ranks may change
    micro_batch_size: int = 8  # what fits in memory; accumulation follows
    learning_rate: float = 3e-3
    warmup_steps: int = 20
    dropout: float = 0.1
    checkpoint_every_steps: int = 25
    device: str = "cuda" if torch.cuda.is_available() else "cpu"

    def __post_init__(self):
        for name, value in vars(self).items():
            least, most = {"seed": (0, np.inf), "dropout": (0, 1)}.get(name, (1e-9, np.inf))
            if not isinstance(value, str) and not least <= value < most:
                raise UserError(f"{name}={value}: not in [{least}, {most})")

    @property
    def steps_per_epoch(self):
        return -(-self.dataset_size // self.global_batch_size)  # the last step takes the rest


# %%
def seed_for(*key):
    """A hash, so that (seed 1, epoch 21) can't collide with (seed 12, epoch 1)."""
    return int.from_bytes(hashlib.sha256(repr(key).encode()).digest()[:8])


class ToyClassificationDataset:
    def __init__(self, cfg):
        generator = torch.Generator().manual_seed(seed_for("data", cfg.seed))
        self.inputs = torch.randn(cfg.dataset_size, 8, generator=generator)  # (n, D)
        self.labels = self.inputs[:, :4].argmax(1)  # (n,)

    def __getitem__(self, samples):
        return self.inputs[samples], self.labels[samples]


def epoch_order(n, seed, epoch):
    return np.random.default_rng(seed_for("order", seed, epoch)).permutation(n)


@dataclass
class ResumeAwareDistributedSampler:
    """What follows after ``position`` completed steps: epoch, this rank's samples, S."""

    cfg: TrainConfig
    rank: int
    world_size: int
    position: int

    def __iter__(self):
        for epoch in range(self.position // self.cfg.steps_per_epoch, self.cfg.max_epochs):
            order = epoch_order(self.cfg.dataset_size, self.cfg.seed, epoch)
            # Cut into global batches first; then each batch is dealt to the ranks.
            batches = torch.from_numpy(order).split(self.cfg.global_batch_size)
            for batch in batches[max(0, self.position - epoch * self.cfg.steps_per_epoch) :]:
                yield epoch, batch[self.rank :: self.world_size], len(batch)


# %%
class TinyNet(nn.Sequential):
    def __init__(self, cfg):
        super().__init__(nn.Linear(8, 64), nn.GELU(), nn.Dropout(cfg.dropout), nn.Linear(64, 4))


def learning_rate_at(cfg, step):
    """Linear warmup, then 1/sqrt(step). A function has no state to save."""
    w = cfg.warmup_steps
    return cfg.learning_rate * (step / w if step < w else (w / step) ** 0.5)


# %%
def maybe_init_dist(cfg):
    """Rank and world size. torchrun tells each process who it is."""
    env = {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 1, **os.environ}
    rank, local_rank, W = (int(env[n]) for n in ("RANK", "LOCAL_RANK", "WORLD_SIZE"))
    if cfg.device != "cpu":
        if local_rank >= torch.cuda.device_count():
            raise UserError(f"device={cfg.device}: no GPU for rank {local_rank}")
        torch.cuda.set_device(local_rank)  # before anything is allocated
    if W > 1:
        # torchrun's store outlives a restart. The prefix hides the dead attempt's addresses,
        # but not its call for NCCL dumps. Ranks that answer it hang when they exit.
        store, *_ = next(dist.rendezvous("env://"))
        store.delete_key("exception_dump")
        store = dist.PrefixStore(env.get("TORCHELASTIC_RESTART_COUNT", ""), store)
        dist.init_process_group(store=store, rank=rank, world_size=W)
    return rank, W


def wrap_model(cfg, model):
    model = nn.parallel.DistributedDataParallel(model)
    # DDP reorders its buckets after the first backward pass, which changes the last bits of a
    # sum over 3 ranks or more. An empty pass at every start fixes the order.
    model(torch.zeros(0, 8, device=cfg.device)).sum().backward()
    return model


# %%
def train_step(cfg, model, optimizer, inputs, labels, S, W, timers):
    """One optimizer step; returns this rank's part of the mean loss."""
    amp = nullcontext() if cfg.device == "cpu" else torch.autocast(cfg.device, torch.bfloat16)
    B, total = cfg.micro_batch_size, 0.0
    model.zero_grad()
    for i in range(0, max(1, len(labels)), B):  # without samples, it syncs, too
        x, y = inputs[i : i + B], labels[i : i + B]
        # Only the last backward pass syncs. DDP decides that in the forward pass.
        syncs = W == 1 or i + B >= len(labels)
        with nullcontext() if syncs else model.no_sync():
            with amp:
                logits = model(x).float()  # (B, C)
            loss = nn.functional.cross_entropy(logits, y, reduction="sum")
            timers.end("forward")
            # We want sum/S. DDP averages over ranks, sum/W, so each rank's part weighs W/S.
            (W / S * loss).backward()
            timers.end("backward")
        total += loss.detach()
    nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0, error_if_nonfinite=True)
    optimizer.step()
    timers.end("optimizer")
    return total / S


# %%
def fsync(path):
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def save_checkpoint(folder, step, model, optimizer):
    """A kill leaves a complete checkpoint or none.

    Exactly one rank calls this; a second would set its checkpoint aside.
    """
    target, tmp = folder / f"step-{step:012}", folder / f"tmp-{time.time_ns()}"
    tmp.mkdir()
    state = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(state, tmp / "state.pt")
    manifest = {"step": step, "sha256": sha256(tmp / "state.pt")}
    (tmp / "manifest.json").write_text(json.dumps(manifest))
    for path in (*tmp.iterdir(), tmp):
        fsync(path)
    if target.exists():  # damaged, or we wouldn't be back here
        target.rename(f"{tmp}-damaged")
    tmp.rename(target)
    fsync(folder)


def latest_checkpoint_path(folder):
    """The newest intact checkpoint; None if there never was one."""
    paths = sorted(folder.glob("step-*"), reverse=True)
    for path in paths:
        with suppress(Exception):  # whatever is wrong with it, the one before it may be fine
            manifest = json.loads((path / "manifest.json").read_text())
            if manifest["sha256"] == sha256(path / "state.pt"):
                return path
        print(f"{path} is damaged")
    if paths:
        raise UserError(f"no intact checkpoint in {folder}: use a new run_dir")


def restore_checkpoint(path, model, optimizer):
    """Returns the number of completed steps."""
    state = torch.load(path / "state.pt", map_location="cpu")
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return state["step"]


# %%
class StepTimers:
    """Where one phase ends, the next begins, so the phases add up to the step."""

    def __init__(self):
        self.last, self.phases = time.perf_counter(), {}

    def end(self, phase):
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()  # or this would time the launch, not the work
        now = time.perf_counter()
        self.phases[phase] = self.phases.get(phase, 0) + now - self.last
        self.last = now


def log_rank_event(file, **fields):
    """One line, flushed: a SIGKILL can't take it back."""
    print(json.dumps({"time": time.time(), **fields}), file=file, flush=True)


# %%
def run(cfg):
    """Train to the end, from wherever the run folder says. Every rank calls this."""
    rank, W = maybe_init_dist(cfg)
    torch.manual_seed(seed_for("weights", cfg.seed))
    model = TinyNet(cfg).to(cfg.device)
    optimizer = torch.optim.AdamW(model.parameters())
    folder, ledgers = Path(cfg.run_dir, "checkpoints"), Path(cfg.run_dir, "ledger")
    for path in (folder, ledgers):
        os.makedirs(path, exist_ok=True)
    ledger = open(ledgers / f"rank-{rank}.jsonl", "a")
    found = [latest_checkpoint_path(folder), Path(ledger.name).read_text().count("run_start")]
    if W > 1:
        dist.broadcast_object_list(found)  # rank 0 decides, all follow
    step = restore_checkpoint(found[0], model, optimizer) if found[0] else 0
    who = {"attempt": found[1], "rank": rank, "world_size": W}
    if step < cfg.max_epochs * cfg.steps_per_epoch:
        log_rank_event(ledger, event="run_start", step=step, **who, **vars(cfg))
    dataset = ToyClassificationDataset(cfg)
    wrapped = wrap_model(cfg, model) if W > 1 else model
    timers = StepTimers()
    for epoch, samples, S in ResumeAwareDistributedSampler(cfg, rank, W, step):
        inputs, labels = (part.to(cfg.device) for part in dataset[samples])
        timers.end("data_wait")
        # A function of the step has nothing to restore. torch.manual_seed would take 0.2 ms:
        # without a GPU, it keeps a stack trace for the day one is initialized.
        for rng in (torch.default_generator, *torch.cuda.default_generators):
            rng.manual_seed(seed_for("dropout", cfg.seed, step, rank))
        optimizer.param_groups[0]["lr"] = learning_rate_at(cfg, step + 1)
        loss = train_step(cfg, wrapped, optimizer, inputs, labels, S, W, timers)
        step += 1  # the position moves only now, once the optimizer has stepped
        facts = {"epoch": epoch, "step": step, "loss": loss.item(), "phases": timers.phases}
        log_rank_event(ledger, samples=samples.tolist(), **facts, **who)
        timers.phases = {}
        timers.end("log")
        if step % cfg.checkpoint_every_steps == 0 or step % cfg.steps_per_epoch == 0:
            if W > 1:
                dist.all_reduce(loss)  # and a barrier: all ranks have written their lines
            if rank == 0:
                print(f"[rank 0/{W}] step {step} loss {loss:.4f}")
                save_checkpoint(folder, step, model, optimizer)
            timers.end("checkpoint")
    del wrapped
    gc.collect()  # a DDP wrapper that outlives its group can abort the process at exit
    if W > 1:
        dist.destroy_process_group()
    state = model.state_dict().items()
    digest = hashlib.sha256(b"".join(k.encode() + v.cpu().numpy().tobytes() for k, v in state))
    result = {"status": "done", "step": step, "weights_sha256": digest.hexdigest()}
    if rank == 0:
        print(json.dumps(result))
    return result


# %% active="py"
if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name, default in vars(TrainConfig()).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default)
    try:
        run(TrainConfig(**vars(parser.parse_args())))
    except UserError as error:
        parser.exit(2, f"live.py: {error}\n")
