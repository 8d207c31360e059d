import queue
import threading

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def read(pairs, batch_size, ready):
    """Put batches, then None for ever: a rank that is done has empty batches left."""
    batch = []
    try:
        for pair in pairs:
            batch.append(pair)
            if len(batch) == batch_size:
                ready.put(batch)
                batch = []
    except Exception as error:
        ready.put(error)
    ready.put(batch)
    ready.put(None)


def train(model, stream, *, epochs, batch_size, lr, warmup_steps):
    """With DDP: a rank that has read all its samples runs forward and backward on none."""
    world_size, rank = dist.get_world_size(), dist.get_rank()
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=lr, momentum=0.9)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / warmup_steps)
    )
    history, nothing = [], None
    for epoch in range(epochs):
        ready = queue.Queue(2)
        threading.Thread(
            target=read, args=(stream(epoch), batch_size, ready), daemon=True
        ).start()
        sums, num_steps, is_done = torch.zeros(2, dtype=torch.float64), 0, False
        while True:
            batch = None if is_done else ready.get()
            if isinstance(batch, Exception):
                raise batch
            is_done = is_done or not batch
            counts = [None] * world_size
            dist.all_gather_object(counts, len(batch or ()))
            if sum(counts) == 0:
                break
            if batch:
                inputs, targets = (torch.stack(part) for part in zip(*batch))
            else:
                if nothing is None:
                    weight = next(iter(model.parameters()))
                    nothing = torch.zeros(0, weight.shape[1]), torch.zeros(0, 2)
                inputs, targets = nothing
            loss = (ddp(inputs) - targets).pow(2).sum()
            optimizer.zero_grad()
            # DDP divides by the world size.
            (loss * world_size / sum(counts)).backward()
            optimizer.step()
            schedule.step()
            num_steps += 1
            sums += torch.tensor([loss.detach().item(), len(inputs)])
        dist.all_reduce(sums)
        history.append(float(sums[0] / sums[1]))
        if rank == 0:
            text = f"epoch {epoch}: {num_steps} steps, {int(sums[1])} samples"
            print(f"{text}, loss {history[-1]:.6f}")
    return history
