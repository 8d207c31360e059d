"""Its own files, signals and votes; from the package, only what earlier cells define."""

import os
import signal
from dataclasses import replace

import torch
import torch.distributed as dist

from trainer_core.data import ResumeAwareDistributedSampler, TrainingView
from trainer_core.data import build_dataset, plan_steps
from trainer_core.distributed import cleanup_dist, maybe_init_dist, wrap_model
from trainer_core.metrics import StepTimers
from trainer_core.model import build_model, build_optimizer, learning_rate_at, weights_sha256
from trainer_core.rng import rng_state, set_rng_state, setup_seed
from trainer_core.train import Trainer, read_records, train_step


def run(cfg):
    asked = []
    signal.signal(signal.SIGTERM, lambda *_: asked.append(True))
    info = maybe_init_dist(cfg)
    summary = work(replace(cfg, world_size=info.world_size), info, asked)
    cleanup_dist()
    return summary


def gathered(value):
    if not dist.is_initialized():
        return [value]
    values = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def work(cfg, info, asked):
    source = build_dataset(cfg)
    schedule = plan_steps(cfg, source)
    cfg = replace(cfg, decay_steps=cfg.decay_steps or schedule.total_steps)
    view = TrainingView(source, seed=cfg.seed, input_noise=cfg.input_noise)
    setup_seed(cfg.seed, "weights")
    empty = view.__getitems__([]).inputs
    model = build_model(cfg, empty.shape[-1], source.num_classes)
    optimizer = build_optimizer(cfg, model)
    sampler = ResumeAwareDistributedSampler(schedule, cfg, info.rank, info.world_size)
    cfg.run_dir.mkdir(parents=True, exist_ok=True)
    path, loss = cfg.run_dir / "newest.pt", None
    saved = torch.load(path) if path.exists() else None
    if saved:
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        sampler.position, loss = saved["position"], saved["loss"]
    wrapped = wrap_model(model, info, empty)
    setup_seed(cfg.seed, "rank", info.rank)
    if saved:
        set_rng_state(saved["rng"][info.rank])
    trainer = Trainer(cfg, info.device, wrapped, optimizer, None, StepTimers(info.device))
    done = sampler.position == schedule.total_steps
    while not done:
        step = sampler.position + 1
        _, first, last = schedule.slots(sampler.position)
        problem, batches = "", []
        try:
            batches = [view.__getitems__(k) for k in sampler.micro_batches(sampler.position)]
        except Exception as error:
            problem = repr(error)
        votes = gathered((bool(asked), problem))
        for rank, (_, text) in enumerate(votes):
            if text:
                raise RuntimeError(f"[rank {rank}/{len(votes)}] {text}")
        train_step(trainer, batches, last - first, learning_rate_at(cfg, step))
        loss = read_records(trainer, step)[-1].loss
        sampler.position = step
        done = step == schedule.total_steps or any(stop for stop, _ in votes)
        if done or last == schedule.num_samples or step % cfg.checkpoint_every_steps == 0:
            everything = {
                "model": model.state_dict(), "optimizer": optimizer.state_dict(),
                "position": step, "loss": loss, "rng": gathered(rng_state()),
            }
            if info.rank == 0:
                torch.save(everything, path.with_suffix(".tmp"))
                os.replace(path.with_suffix(".tmp"), path)
            gathered("saved")
    return {
        "status": "done" if sampler.position == schedule.total_steps else "preempted",
        "step": sampler.position, "epoch": sampler.position // schedule.steps_per_epoch,
        "loss": loss, "weights_sha256": weights_sha256(model), "run_dir": str(cfg.run_dir),
    }
