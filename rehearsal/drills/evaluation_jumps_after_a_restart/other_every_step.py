import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def average(tensors):
    """Replace each tensor by its mean over the ranks, in one message."""
    flat = torch.cat([tensor.flatten() for tensor in tensors])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    for tensor, part in zip(tensors, flat.split([tensor.numel() for tensor in tensors])):
        tensor.copy_(part.view_as(tensor))


def evaluation_loss(model, inputs, targets, rank, world_size):
    model.eval()
    sums = torch.zeros(2)
    with torch.inference_mode():
        for sample in range(rank, len(inputs), world_size):
            error = model(inputs[sample : sample + 1]) - targets[sample]
            sums += torch.tensor([error.square().sum(), 1.0])
    dist.all_reduce(sums)
    model.train()
    return float(sums[0] / sums[1])


def train(
    model, inputs, targets, held_out, *, folder, epochs, global_batch_size, checkpoint_every, lr
):
    """With DDP, which must not broadcast rank 0's buffers before each forward pass."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    for buffer in model.buffers():
        dist.broadcast(buffer, 0)
    ddp = DistributedDataParallel(model, broadcast_buffers=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    averaged = [value for value in model.buffers() if value.dtype == torch.float32]
    done, evaluations = 0, []
    path = folder / "latest.pt"
    if path.exists():
        state = torch.load(path, weights_only=False)
        done = state.pop("done")
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    dist.barrier()
    step = 0
    for _ in range(epochs):
        for first in range(0, len(inputs), global_batch_size):
            step += 1
            if step <= done:
                continue
            batch = slice(first, first + global_batch_size)
            ours, wanted = inputs[batch], targets[batch]
            loss = (ddp(ours[rank::world_size]) - wanted[rank::world_size]).pow(2).sum()
            optimizer.zero_grad()
            (loss * world_size / len(ours)).backward()
            optimizer.step()
            average(averaged)
            if step % checkpoint_every == 0 and rank == 0:
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                torch.save({**state, "done": step}, folder / "next.pt")
                (folder / "next.pt").replace(path)
        if step > done:
            evaluations.append(evaluation_loss(model, *held_out, rank, world_size))
            if rank == 0:
                print(f"step {step}: evaluation {evaluations[-1]:.4f}")
    return evaluations
