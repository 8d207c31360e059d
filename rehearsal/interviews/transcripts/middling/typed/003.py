class TinyNet(nn.Sequential):
    def __init__(self, cfg):
        super().__init__(
            nn.Linear(8, 64), nn.GELU(), nn.Dropout(cfg.dropout), nn.Linear(64, 4)
        )


def learning_rate_at(cfg, step):
    if step < cfg.warmup_steps:
        return cfg.learning_rate * step / cfg.warmup_steps
    return cfg.learning_rate * (cfg.warmup_steps / step) ** 0.5


def maybe_init_dist(cfg):
    rank = int(os.environ.get("RANK", 0))
    world_size = int(os.environ.get("WORLD_SIZE", 1))
    if world_size > 1:
        dist.init_process_group("gloo" if cfg.device == "cpu" else "nccl")
    return rank, world_size


def wrap_model(cfg, model):
    return nn.parallel.DistributedDataParallel(model)


def train_step(cfg, model, optimizer, inputs, labels, S, W, timers):
    optimizer.zero_grad()
    total = 0.0
    chunks = max(1, -(-len(labels) // cfg.micro_batch_size))
    for i in range(chunks):
        x = inputs[i * cfg.micro_batch_size : (i + 1) * cfg.micro_batch_size]
        y = labels[i * cfg.micro_batch_size : (i + 1) * cfg.micro_batch_size]
        if W > 1 and i + 1 < chunks:
            with model.no_sync():
                loss = nn.functional.cross_entropy(model(x), y, reduction="sum")
                (loss * W / S).backward()
        else:
            loss = nn.functional.cross_entropy(model(x), y, reduction="sum")
            (loss * W / S).backward()
        total += loss.detach()
    timers.end("backward")
    nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
    optimizer.step()
    timers.end("optimizer")
    return total / S
