import json
import os
from time import monotonic

import numpy
import torch
import torch.distributed as dist

NAMES = ["data_wait", "forward", "backward", "grad_sync", "optimizer", "checkpoint"]


def timed(batches, marks):
    """Yield the batches and put the wait for each into ``marks``."""
    source = iter(batches)
    while True:
        begin = monotonic()
        try:
            batch = next(source)
        except StopIteration:
            return
        marks["data_wait"] = monotonic() - begin
        yield batch


def call(marks, name, function, *args):
    begin = monotonic()
    try:
        return function(*args)
    finally:
        marks[name] = marks.get(name, 0.0) + monotonic() - begin


def average(parameters):
    """Start all transfers, then wait for all of them."""
    grads = [p.grad for p in parameters if p.grad is not None]
    for work in [dist.all_reduce(grad, async_op=True) for grad in grads]:
        work.wait()
    for grad in grads:
        grad.div_(dist.get_world_size())


def train(model, batches, *, lr, save, save_every, folder):
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    path, marks = f"{folder}/rank-{dist.get_rank()}.jsonl", {}
    file = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    table, began = [], monotonic()
    for number, (inputs, targets) in enumerate(timed(batches, marks)):

        def forward():
            return (model(inputs) - targets).pow(2).mean()

        optimizer.zero_grad()
        loss = call(marks, "forward", forward)
        call(marks, "backward", loss.backward)
        call(marks, "grad_sync", average, list(model.parameters()))
        call(marks, "optimizer", optimizer.step)
        if (number + 1) % save_every == 0:
            call(marks, "checkpoint", save, number + 1)
        phases = {name: marks.get(name, 0.0) for name in NAMES}
        marks.clear()
        now = monotonic()
        phases["other"] = now - began - sum(phases.values())
        table.append([*phases.values(), now - began])
        line = {"step": number + 1, "rank": dist.get_rank(), "wall_s": now - began}
        os.write(file, (json.dumps(line | {"phases_s": phases}) + "\n").encode())
        began = now
    os.close(file)
    cuts = numpy.percentile(numpy.array(table), [50, 95, 100], axis=0).T.tolist()
    keys = ["p50_s", "p95_s", "max_s"]
    return {name: dict(zip(keys, row)) for name, row in zip([*NAMES, "other", "wall"], cuts)}
