class StepTimers:
    def __init__(self):
        self.last = time.perf_counter()
        self.phases = {}

    def end(self, phase):
        now = time.perf_counter()
        self.phases[phase] = self.phases.get(phase, 0) + now - self.last
        self.last = now


def log_rank_event(file, **fields):
    file.write(json.dumps({"time": time.time(), **fields}) + "\n")
    file.flush()


def run(cfg):
    rank, world_size = maybe_init_dist(cfg)
    torch.manual_seed(cfg.seed)
    model = TinyNet(cfg).to(cfg.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=cfg.learning_rate)
    folder = Path(cfg.run_dir) / "checkpoints"
    folder.mkdir(parents=True, exist_ok=True)
    path = latest_checkpoint_path(folder)
    position = restore_checkpoint(path, model, optimizer) if path else 0
    wrapped = wrap_model(cfg, model) if world_size > 1 else model
    data, timers = ToyClassificationDataset(cfg), StepTimers()
    (Path(cfg.run_dir) / "ledger").mkdir(exist_ok=True)
    with open(Path(cfg.run_dir) / "ledger" / f"rank-{rank}.jsonl", "a") as ledger:
        for epoch, samples, S in ResumeAwareDistributedSampler(
            cfg, rank, world_size, position
        ):
            inputs, labels = data[samples]
            optimizer.param_groups[0]["lr"] = learning_rate_at(cfg, position + 1)
            train_step(cfg, wrapped, optimizer, inputs, labels, S, world_size, timers)
            position += 1
            log_rank_event(
                ledger, epoch=epoch, step=position, rank=rank, samples=samples.tolist()
            )
            if rank == 0 and position % cfg.checkpoint_every_steps == 0:
                save_checkpoint(folder, position, model, optimizer)
