import queue
import threading

import torch
import torch.distributed as dist


class Prefetcher:
    """Reads a stream's batches on a thread, up to ``depth`` ahead of the training loop."""

    def __init__(self, stream, batch_size, depth=3):
        self.stream, self.batch_size = stream, batch_size
        self.ready = queue.Queue(maxsize=depth)
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        pairs = []
        try:
            for pair in self.stream:
                pairs.append(pair)
                if len(pairs) == self.batch_size:
                    self.ready.put(pairs)
                    pairs = []
            if pairs:
                self.ready.put(pairs)
            self.ready.put(None)
        except Exception as error:  # raised again in the training loop
            self.ready.put(error)

    def _next(self):
        pairs = self.ready.get()
        if isinstance(pairs, Exception):
            raise pairs
        return pairs

    def __iter__(self):
        while (pairs := self._next()) is not None:
            inputs, targets = zip(*pairs)
            yield torch.stack(inputs), torch.stack(targets)


class EpochMeter:
    """Sums of an epoch's losses and samples: local until the epoch's end, then global."""

    def __init__(self, group):
        self.group, self.sums = group, torch.zeros(2, dtype=torch.float64)

    def add(self, losses):
        self.sums += torch.tensor([losses.detach().sum().item(), len(losses)])

    def result(self):
        dist.all_reduce(self.sums, group=self.group)
        loss, num_samples = self.sums.tolist()
        return loss / num_samples, int(num_samples)


def warm_up(optimizer, step, lr, warmup_steps):
    """Raise the learning rate linearly; ``step`` is the number of completed steps."""
    for group in optimizer.param_groups:
        group["lr"] = lr * min(1.0, (step + 1) / warmup_steps)


def average_gradients(model):
    """Average over the ranks, with one all-reduce for all parameters."""
    grads = [parameter.grad for parameter in model.parameters()]
    flat = torch.cat([grad.flatten() for grad in grads])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    for grad, part in zip(grads, flat.split([grad.numel() for grad in grads])):
        grad.copy_(part.view_as(grad))


def report(epoch, num_steps, loss, num_samples):
    """One line per epoch, from rank 0: the numbers are the same on all ranks."""
    if dist.get_rank() == 0:
        text = f"epoch {epoch}: {num_steps} steps, {num_samples} samples"
        print(f"{text}, loss {loss:.6f}", flush=True)


def train(model, stream, *, epochs, batch_size, lr, warmup_steps):
    """Train on a stream per rank; return each epoch's mean loss."""
    for tensor in model.state_dict().values():
        dist.broadcast(tensor, 0)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    # A group of their own: metrics never queue behind gradients.
    metrics = dist.new_group()
    step, history = 0, []
    for epoch in range(epochs):
        first, meter = step, EpochMeter(metrics)
        for inputs, targets in Prefetcher(stream(epoch), batch_size):
            warm_up(optimizer, step, lr, warmup_steps)
            optimizer.zero_grad()
            losses = (model(inputs) - targets).pow(2).sum(1)
            losses.mean().backward()
            average_gradients(model)
            optimizer.step()
            step += 1
            meter.add(losses)
        loss, num_samples = meter.result()
        report(epoch, step - first, loss, num_samples)
        history.append(loss)
    return history
