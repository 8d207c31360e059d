import queue
import threading

import torch
import torch.distributed as dist


class Reader:
    """One rank's batches, read by a thread; afterwards None, as often as asked."""

    def __init__(self, pairs, batch_size):
        self.batches, self.room = queue.SimpleQueue(), threading.Semaphore(4)
        self.is_done, self.error = False, None
        threading.Thread(target=self.fill, args=(pairs, batch_size), daemon=True).start()

    def fill(self, pairs, batch_size):
        batch = []
        self.room.acquire()
        try:
            for pair in pairs:
                batch.append(pair)
                if len(batch) == batch_size:
                    self.batches.put(batch)
                    batch = []
                    self.room.acquire()
        except Exception as error:
            self.error = error
            batch = None
        self.batches.put(batch or None)
        self.batches.put(None)

    def next(self):
        if self.is_done:
            return None
        batch = self.batches.get()
        self.room.release()
        self.is_done = batch is None
        if self.is_done and self.error:
            raise self.error
        return batch


def train(model, stream, *, epochs, batch_size, lr, warmup_steps):
    """Sum gradients and count samples in one message; divide when the step's count is known."""
    flat = torch.cat([tensor.flatten() for tensor in model.state_dict().values()])
    dist.broadcast(flat, 0)
    torch.nn.utils.vector_to_parameters(flat, model.parameters())
    parameters = list(model.parameters())
    momentum = torch.zeros_like(flat)
    optimizer = torch.optim.SGD(parameters, lr=lr)
    history, step = [], 0
    for epoch in range(epochs):
        reader = Reader(stream(epoch), batch_size)
        total, seen, begun = 0.0, 0, step
        while True:
            batch = reader.next()
            message = torch.zeros(len(flat) + 2)  # gradients, loss, samples
            if batch is not None:
                inputs, targets = map(torch.stack, zip(*batch))
                loss = (model(inputs) - targets).square().sum()
                grads = torch.autograd.grad(loss, parameters)
                sums = [loss.detach().view(1), torch.tensor([float(len(batch))])]
                message = torch.cat([grad.flatten() for grad in grads] + sums)
            dist.all_reduce(message)
            if message[-1] == 0:
                break
            total, seen = total + float(message[-2]), seen + int(message[-1])
            momentum = 0.9 * momentum + message[:-2] / message[-1]
            for parameter, part in zip(
                parameters, momentum.split([parameter.numel() for parameter in parameters])
            ):
                parameter.grad = part.view_as(parameter).clone()
            step += 1
            optimizer.param_groups[0]["lr"] = lr * min(1, step / warmup_steps)
            optimizer.step()
        history.append(total / seen)
        if dist.get_rank() == 0:
            text = f"epoch {epoch}: {step - begun} steps, {seen} samples"
            print(f"{text}, loss {history[-1]:.4f}")
    return history
