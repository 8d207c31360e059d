class StepTimers:
    """One phase begins where the last one ended, so the phases add up."""

    def __init__(self):
        self.last, self.phases = time.perf_counter(), {}

    def end(self, phase):
        now = time.perf_counter()
        self.phases[phase] = self.phases.get(phase, 0.0) + now - self.last
        self.last = now


def log_rank_event(file, **fields):
    print(json.dumps({"time": time.time(), **fields}), file=file, flush=True)


def run(cfg):
    rank, W = maybe_init_dist(cfg)
    torch.manual_seed(derived_seed("weights", cfg.seed))
    model = TinyNet(cfg).to(cfg.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=cfg.learning_rate)
    folder, ledgers = Path(cfg.run_dir, "checkpoints"), Path(cfg.run_dir, "ledger")
    for path in (folder, ledgers):
        path.mkdir(parents=True, exist_ok=True)
    ledger = open(ledgers / f"rank-{rank}.jsonl", "a")
    decided = [latest_checkpoint_path(folder), count_starts(ledgers)] if rank == 0 else [None] * 2
    if W > 1:
        dist.broadcast_object_list(decided)  # rank 0 looks, everybody follows
    path, attempt = decided
    step = restore_checkpoint(path, model, optimizer) if path else 0
    who = {"attempt": attempt, "rank": rank, "world_size": W}
    if step < cfg.max_epochs * cfg.steps_per_epoch:
        log_rank_event(ledger, event="run_start", step=step, **who)
    data, timers = ToyClassificationDataset(cfg), StepTimers()
    wrapped = wrap_model(cfg, model) if W > 1 else model
    for epoch, samples, S in ResumeAwareDistributedSampler(cfg, rank, W, step):
        inputs, labels = data[samples]
        timers.end("data_wait")
        torch.manual_seed(derived_seed("dropout", cfg.seed, step, rank))
        optimizer.param_groups[0]["lr"] = learning_rate_at(cfg, step + 1)
        loss = train_step(cfg, wrapped, optimizer, inputs, labels, S, W, timers)
        step += 1  # only now
        facts = {"epoch": epoch, "step": step, "phases": timers.phases}
        log_rank_event(ledger, samples=samples.tolist(), **facts, **who)
        timers.phases = {}
        if step % cfg.checkpoint_every_steps == 0 or step % cfg.steps_per_epoch == 0:
            if W > 1:
                dist.all_reduce(loss)  # everybody has written their line
            if rank == 0:
                save_checkpoint(folder, step, model, optimizer)
            timers.end("checkpoint")
    del wrapped
    gc.collect()
    if W > 1:
        dist.destroy_process_group()
    digest = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        digest.update(name.encode() + tensor.cpu().numpy().tobytes())
    result = {"status": "done", "step": step, "weights_sha256": digest.hexdigest()}
    if rank == 0:
        print(json.dumps(result))
    return result


def count_starts(ledgers):
    path = ledgers / "rank-0.jsonl"
    return path.read_text().count("run_start") if path.exists() else 0
