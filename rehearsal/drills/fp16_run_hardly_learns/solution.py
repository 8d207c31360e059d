import torch
import torch.distributed as dist


class Accumulator:
    """The micro-batches of each optimizer step, and the loss of a step over all ranks."""

    def __init__(self, micro_batches, grad_accum_steps):
        self.micro_batches, self.grad_accum_steps = micro_batches, grad_accum_steps

    def __iter__(self):
        group = []
        for micro_batch in self.micro_batches:
            group.append(micro_batch)
            if len(group) == self.grad_accum_steps:
                yield group
                group = []

    @staticmethod
    def mean_over_ranks(local_loss):
        loss = torch.tensor(local_loss, dtype=torch.float64)
        dist.all_reduce(loss)
        return loss.item() / dist.get_world_size()


def start_together(model):
    """Give all ranks rank 0's weights."""
    for tensor in model.state_dict().values():
        dist.broadcast(tensor, 0)


def average_gradients(model):
    """Average the gradients over the ranks, in one message."""
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    flat = torch.cat([grad.flatten() for grad in grads])
    # Still scaled: an overflow on one rank reaches all of them here, so all will skip.
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    for grad, part in zip(grads, flat.split([grad.numel() for grad in grads])):
        grad.copy_(part.view_as(grad))


def accumulate(model, scaler, group):
    """Add up the gradients of a step's micro-batches; return their mean loss."""
    local_loss = 0.0
    for inputs, targets in group:
        # The model computes in half precision, the loss in single.
        loss = (model(inputs).float() - targets).pow(2).sum(1).mean() / len(group)
        scaler.scale(loss).backward()
        local_loss += loss.item()
    return local_loss


def train_step(model, optimizer, scaler, group, max_norm):
    """One optimizer step; returns what the log says about it."""
    optimizer.zero_grad()
    local_loss = accumulate(model, scaler, group)
    scale = scaler.get_scale()
    average_gradients(model)
    # Looks for an overflow as well: after the all-reduce, where all ranks see the same numbers.
    scaler.unscale_(optimizer)
    grad_norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm).item()
    scaler.step(optimizer)
    scaler.update()
    # The scaler says so only by lowering its scale.
    skipped = scaler.get_scale() < scale
    return {
        "loss": Accumulator.mean_over_ranks(local_loss),
        "grad_norm": None if skipped else grad_norm,
        "scale": scale,
        "skipped": skipped,
    }


def train(model, micro_batches, *, lr, max_norm, grad_accum_steps, init_scale, growth_interval):
    """Train in half precision; return one log entry per step."""
    start_together(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    scaler = torch.amp.GradScaler(
        "cpu",
        init_scale=init_scale,
        growth_factor=2.0,
        backoff_factor=0.5,
        growth_interval=growth_interval,
    )
    log = []
    for step, group in enumerate(Accumulator(micro_batches, grad_accum_steps), 1):
        entry = train_step(model, optimizer, scaler, group, max_norm)
        if dist.get_rank() == 0 and entry["skipped"]:
            print(f"step {step}: overflow at scale {entry['scale']:g}, skipped", flush=True)
        log.append(entry)
    return log
