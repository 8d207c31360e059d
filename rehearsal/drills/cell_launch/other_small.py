"""The cell as you'd type it in an interview: build, restore, step, commit, save."""

from dataclasses import replace

from trainer_core.checkpoint import build_checkpoint, latest_checkpoint_path
from trainer_core.checkpoint import restore_if_present, save_checkpoint
from trainer_core.data import ResumeAwareDistributedSampler, TrainingView
from trainer_core.data import build_dataloader, build_dataset, plan_steps
from trainer_core.distributed import cleanup_dist, maybe_init_dist, wrap_model
from trainer_core.metrics import StepTimers
from trainer_core.model import build_model, build_optimizer, build_scaler, learning_rate_at
from trainer_core.model import weights_sha256
from trainer_core.checkpoint_writer import CheckpointWriter
from trainer_core.rng import restore_rng, setup_seed
from trainer_core.collectives import any_rank, raise_on_all_ranks
from trainer_core.signals import stop_on_sigterm
from trainer_core.train import Trainer, read_records, train_step


def run(cfg, *, sinks=()):
    with stop_on_sigterm() as stop:
        info = maybe_init_dist(cfg)
        try:
            return train(replace(cfg, world_size=info.world_size), info, stop)
        finally:
            cleanup_dist()


def train(cfg, info, stop):
    source = build_dataset(cfg)
    schedule = plan_steps(cfg, source)
    cfg = replace(cfg, decay_steps=cfg.decay_steps or schedule.total_steps)
    view = TrainingView(source, seed=cfg.seed, input_noise=cfg.input_noise)
    nothing = view.__getitems__([])
    setup_seed(cfg.seed, "weights")
    model = build_model(cfg, nothing.inputs.shape[-1], source.num_classes).to(info.device)
    optimizer, scaler = build_optimizer(cfg, model), build_scaler(cfg, info.device)
    sampler = ResumeAwareDistributedSampler(schedule, cfg, info.rank, info.world_size)
    parts = {"model": model, "optimizer": optimizer, "scaler": scaler, "sampler": sampler}
    checkpoints = cfg.run_dir / "checkpoints"
    folder, _, _ = latest_checkpoint_path(checkpoints)
    state = restore_if_present(folder, parts, info.device)
    losses = state["losses"] if state else []
    wrapped = wrap_model(model, info, nothing.inputs)
    setup_seed(cfg.seed, "rank", info.rank, sampler.position)
    restore_rng(folder, info.rank)
    trainer = Trainer(cfg, info.device, wrapped, optimizer, scaler, StepTimers(info.device))
    writer = CheckpointWriter(checkpoints, cfg.keep_last, False, lambda *a, **k: None)
    batches = iter(build_dataloader(view, sampler, cfg, info.device))
    stopping = False
    while sampler.position < schedule.total_steps and not stopping:
        epoch, first, last = schedule.slots(sampler.position)
        step, error = sampler.position + 1, None
        try:
            micro_batches = [next(batches) for _ in range(sampler.micro_steps)]
        except Exception as caught:
            error = caught
        raise_on_all_ranks(error)
        (stopping,) = any_rank(stop.is_set())()
        train_step(trainer, micro_batches, last - first, learning_rate_at(cfg, step))
        losses = [*losses, *(r.loss for r in read_records(trainer, step))][-20:]
        sampler.commit()
        ends = last == schedule.num_samples or stopping
        if ends or step % cfg.checkpoint_every_steps == 0:
            facts = {"step": step, "epoch": step // schedule.steps_per_epoch}
            saved = build_checkpoint(parts, learning_rate=0.0, losses=losses, **facts)
            save_checkpoint(writer, saved, {**facts, "time": 0.0})
    done = sampler.position == schedule.total_steps
    return {
        "status": "done" if done else "preempted", "step": sampler.position,
        "epoch": sampler.position // schedule.steps_per_epoch, "loss": losses[-1],
        "weights_sha256": weights_sha256(model), "run_dir": str(cfg.run_dir),
    }
