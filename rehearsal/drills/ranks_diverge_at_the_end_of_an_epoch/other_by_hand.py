import torch
import torch.distributed as dist


def train(model, epochs, *, lr, grad_accum_steps):
    """Sums gradients by hand, right before the update that uses them."""
    for tensor in model.state_dict().values():
        dist.broadcast(tensor, 0)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    for micro_batches in epochs:
        for first in range(0, len(micro_batches), grad_accum_steps):
            step = micro_batches[first : first + grad_accum_steps]
            optimizer.zero_grad()
            for inputs, targets in step:
                loss = (model(inputs) - targets).pow(2).sum(1).mean()
                (loss / len(step)).backward()
            used = [p for p in model.parameters() if p.grad is not None]
            flat = torch.nn.utils.parameters_to_vector([p.grad for p in used])
            dist.all_reduce(flat)
            flat /= dist.get_world_size()
            torch.nn.utils.vector_to_parameters(flat, [p.grad for p in used])
            optimizer.step()
