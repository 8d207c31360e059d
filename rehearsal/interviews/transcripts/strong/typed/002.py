class TinyNet(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(8, 64), nn.GELU(), nn.Dropout(cfg.dropout), nn.Linear(64, 4)
        )

    def forward(self, x):
        return self.body(x)


def learning_rate_at(cfg, step):
    warmup = cfg.warmup_steps
    return cfg.learning_rate * (step / warmup if step < warmup else (warmup / step) ** 0.5)


def maybe_init_dist(cfg):
    rank, world_size = (int(os.environ.get(n, d)) for n, d in (("RANK", 0), ("WORLD_SIZE", 1)))
    if world_size > 1:
        dist.init_process_group("gloo" if cfg.device == "cpu" else "nccl")
    return rank, world_size


def wrap_model(cfg, model):
    wrapped = nn.parallel.DistributedDataParallel(model)
    # DDP reorders its buckets after the first backward. Get that over with at every start,
    # or a resumed run sums in another order than the first one.
    wrapped(torch.zeros(0, 8, device=cfg.device)).sum().backward()
    return wrapped


def train_step(cfg, model, optimizer, inputs, labels, S, W, timers):
    """One optimizer step. S samples over all W ranks."""
    optimizer.zero_grad()
    micro, total = cfg.micro_batch_size, 0.0
    for i in range(0, max(1, len(labels)), micro):  # at least once: an empty share still syncs
        last = i + micro >= len(labels)
        with nullcontext() if W == 1 or last else model.no_sync():
            logits = model(inputs[i : i + micro])
            loss = nn.functional.cross_entropy(logits, labels[i : i + micro], reduction="sum")
            timers.end("forward")
            (loss * W / S).backward()  # DDP averages over ranks, and I want sum / S
            timers.end("backward")
        total += loss.detach()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
    optimizer.step()
    timers.end("optimizer")
    return total / S
