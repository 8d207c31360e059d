import copy
import os

import torch
import torch.distributed as dist


def averaged_copy(model):
    """A copy of the model with the mean of all ranks' running statistics."""
    copied = copy.deepcopy(model)
    for name, buffer in copied.named_buffers():
        if name.endswith(("running_mean", "running_var")):
            everyone = [torch.empty_like(buffer) for _ in range(dist.get_world_size())]
            dist.all_gather(everyone, buffer)
            buffer.copy_(torch.stack(everyone).mean(0))
    return copied


def train(
    model, inputs, targets, held_out, *, folder, epochs, global_batch_size, checkpoint_every, lr
):
    """Each rank keeps its own statistics while it trains; what is used is an averaged copy."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    names, speeds = [name for name, _ in model.named_parameters()], {}
    for tensor in model.state_dict().values():
        dist.broadcast(tensor, 0)
    done = 0
    numbers = [int(path.stem) for path in folder.glob("*.checkpoint")]
    dist.barrier()
    if numbers:
        done = max(numbers)
        model_state, speeds = torch.load(folder / f"{done}.checkpoint")
        model.load_state_dict(model_state)
    evaluations = []
    order, size = list(range(len(inputs))), global_batch_size
    batches = [order[first : first + size] for first in range(0, len(order), size)]
    for step in range(done + 1, epochs * len(batches) + 1):
        batch = batches[(step - 1) % len(batches)]
        mine = batch[rank::world_size]
        parameters = [model.get_parameter(name) for name in names]
        loss = ((model(inputs[mine]) - targets[mine]) ** 2).sum() / len(batch)
        grads = torch.autograd.grad(loss, parameters)
        for name, parameter, grad in zip(names, parameters, grads):
            dist.all_reduce(grad)
            speeds[name] = grad + 0.9 * speeds[name] if name in speeds else grad
            with torch.no_grad():
                parameter -= lr * speeds[name]
        if step % checkpoint_every == 0:
            averaged = averaged_copy(model)
            if rank == 0:
                torch.save([averaged.state_dict(), speeds], folder / "unfinished")
                os.rename(folder / "unfinished", folder / f"{step}.checkpoint")
        if step % len(batches) == 0:
            averaged = averaged_copy(model).eval()
            held_inputs, held_targets = held_out
            with torch.no_grad():
                outputs = averaged(held_inputs[rank::world_size])
            sums = torch.tensor(
                [(outputs - held_targets[rank::world_size]).pow(2).sum(), len(outputs)]
            )
            dist.all_reduce(sums)
            evaluations.append(sums[0].item() / sums[1].item())
            if rank == 0:
                print("step", f"{step}:", "evaluation", round(evaluations[-1], 5))
    model.load_state_dict(averaged_copy(model).state_dict())
    return evaluations
