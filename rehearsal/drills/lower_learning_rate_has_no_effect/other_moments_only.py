import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def factor(step):
    """The factor on the rates in a step, counted from 0: warmup, then decay."""
    return min(1.0, (step + 1) / 3) * 0.9**step


def groups_of(model, lr, weight_decay):
    """Vectors have twice the learning rate of matrices, and no weight decay."""
    matrices = [p for p in model.parameters() if p.ndim > 1]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    return [
        {"params": matrices, "lr": lr, "weight_decay": weight_decay},
        {"params": vectors, "lr": 2 * lr, "weight_decay": 0.0},
    ]


def train(
    model, inputs, targets, *, folder, steps, global_batch_size, lr, weight_decay, save_every
):
    """Only weights, moments and the position come from the file; settings never do."""
    path, done = folder / "latest.pt", 0
    parameters = dict(model.named_parameters())
    optimizer = torch.optim.AdamW(groups_of(model, lr, weight_decay))
    ordered = [p for group in optimizer.param_groups for p in group["params"]]
    if path.exists():
        state = torch.load(path)
        model.load_state_dict(state["model"])
        for number, moments in state["optimizer"]["state"].items():
            optimizer.state[ordered[number]] = moments
        done = state["step"]
    # Built in the middle of a run, the schedule starts there, with the rates of these groups.
    for group in optimizer.param_groups:
        group["initial_lr"] = group["lr"]
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor, last_epoch=done - 1)
    ddp = DistributedDataParallel(model, find_unused_parameters=True)
    for step in range(done, steps):
        samples = torch.arange(step * global_batch_size, (step + 1) * global_batch_size)
        mine = samples.tensor_split(dist.get_world_size())[dist.get_rank()] % len(inputs)
        loss = (ddp(inputs[mine]) - targets[mine]).square().sum() / global_batch_size
        optimizer.zero_grad()
        (loss * dist.get_world_size()).backward()
        optimizer.step()
        schedule.step()
        if dist.get_rank() == 0 and (step + 1) % save_every == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save(state | {"step": step + 1, "names": list(parameters)}, f"{path}.new")
            path.with_name("latest.pt.new").rename(path)
