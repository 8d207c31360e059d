import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def newest_intact(folder):
    """Rank 0 tries the files, newest first, until one loads; the others get its state."""
    box = [None]
    if dist.get_rank() == 0:
        for path in sorted(folder.glob("*.pt"), reverse=True):
            try:
                box[0] = torch.load(path)
                break
            except Exception as error:
                print(f"{path.name} is damaged ({error}) and set aside")
                path.rename(path.with_suffix(".torn"))
    dist.broadcast_object_list(box, 0)
    return box[0]


def train(model, inputs, targets, *, folder, epochs, global_batch_size, checkpoint_every, lr):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    ddp = DistributedDataParallel(model, find_unused_parameters=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    run = newest_intact(folder) or {"step": 0}
    if run["step"]:
        model.load_state_dict(run["model"])
        optimizer.load_state_dict(run["optimizer"])
    step = run["step"]
    for epoch in range(epochs):
        order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(epoch))
        for batch, samples in enumerate(order.split(global_batch_size), 1):
            if epoch * -(-len(inputs) // global_batch_size) + batch <= step:
                continue
            mine = samples[rank::world_size]
            optimizer.zero_grad()
            loss = (ddp(inputs[mine]) - targets[mine]).pow(2).sum()
            (loss * world_size / len(samples)).backward()
            optimizer.step()
            step += 1
            if rank == 0 and step % checkpoint_every == 0:
                run = {"step": step, "model": model.state_dict()}
                torch.save(
                    run | {"optimizer": optimizer.state_dict()}, folder / f"{step:08d}.pt"
                )
