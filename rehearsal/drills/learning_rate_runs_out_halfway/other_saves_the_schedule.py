import os

import torch
import torch.distributed as dist
from torch.optim.lr_scheduler import LambdaLR


def micro_batches_of(samples, size):
    return [samples[first : first + size] for first in range(0, len(samples), size)]


def train(model, inputs, targets, *, folder, epochs, global_batch_size, micro_batch_size,
          warmup_steps, checkpoint_every, lr):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    for tensor in model.state_dict().values():
        dist.broadcast(tensor, 0)
    groups = [{"params": [], "lr": lr}, {"params": [], "lr": 2 * lr}]
    for name, parameter in model.named_parameters():
        groups[name.endswith("bias")]["params"].append(parameter)
    optimizer = torch.optim.SGD(groups, momentum=0.9)
    firsts = list(range(0, len(inputs), global_batch_size)) * epochs
    steps = len(firsts)

    def factor(step):
        rising = (step + 1) / warmup_steps
        falling = (steps - step) / (steps - warmup_steps)
        return rising if step < warmup_steps else falling

    schedule = LambdaLR(optimizer, factor)
    parts = {"model": model, "optimizer": optimizer, "schedule": schedule}
    saved = sorted(folder.glob("*.pt"), key=lambda path: int(path.stem))
    if saved:
        for name, state in torch.load(saved[-1]).items():
            parts[name].load_state_dict(state)
    rates = []
    for first in firsts[schedule.last_epoch :]:
        batch = list(range(first, min(first + global_batch_size, len(inputs))))
        optimizer.zero_grad()
        for samples in micro_batches_of(batch[rank::world_size], micro_batch_size):
            loss = (model(inputs[samples]) - targets[samples]).pow(2).sum()
            (loss / len(batch)).backward()
        for parameter in model.parameters():
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad)
        rate = schedule.get_last_lr()[0]
        optimizer.step()
        schedule.step()
        rates.append((schedule.last_epoch, rate))
        if schedule.last_epoch % checkpoint_every == 0 and rank == 0:
            state = {name: part.state_dict() for name, part in parts.items()}
            torch.save(state, folder / "new")
            os.replace(folder / "new", folder / f"{schedule.last_epoch}.pt")
    return rates
