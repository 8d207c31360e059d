import json
import statistics
import time
from contextlib import contextmanager

import torch
import torch.distributed as dist

PHASES = ["data_wait", "forward", "backward", "grad_sync", "optimizer", "checkpoint", "other"]


@contextmanager
def phase(times, name):
    """Add a block's wall-clock time to a phase: a thread that waits costs time, too."""
    begin = time.perf_counter()
    try:
        yield
    finally:
        times[name] += time.perf_counter() - begin


def train(model, batches, *, lr, save, save_every, folder):
    """The same loop; it reports where its time goes."""
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    batches, step, lines = iter(batches), 0, []
    with open(folder / f"rank-{dist.get_rank()}.jsonl", "a", buffering=1) as log:
        begin = time.perf_counter()
        while True:
            times = dict.fromkeys(PHASES, 0.0)
            with phase(times, "data_wait"):
                batch = next(batches, None)
            if batch is None:
                break
            step += 1
            optimizer.zero_grad()
            with phase(times, "forward"):
                loss = (model(batch[0]) - batch[1]).pow(2).mean()
            with phase(times, "backward"):
                loss.backward()
            with phase(times, "grad_sync"):
                for parameter in model.parameters():
                    if parameter.grad is not None:
                        dist.all_reduce(parameter.grad)
                        parameter.grad /= dist.get_world_size()
            with phase(times, "optimizer"):
                optimizer.step()
            with phase(times, "checkpoint"):
                if step % save_every == 0:
                    save(step)
            # The next step begins where this one ends, so no time is lost between two lines.
            end = time.perf_counter()
            times["other"] = end - begin - sum(times.values())
            line = {"rank": dist.get_rank(), "step": step, "wall_s": end - begin}
            lines.append(line | {"phases_s": times})
            log.write(json.dumps(lines[-1]) + "\n")
            begin = end
    seen = {name: [line["phases_s"][name] for line in lines] for name in PHASES}
    seen["wall"] = [line["wall_s"] for line in lines]
    summary = {}
    for name, values in seen.items():
        cuts = statistics.quantiles(values, n=20, method="inclusive")
        # A stall rarer than one step in twenty shows in neither percentile, only in the max.
        summary[name] = {"p50_s": cuts[9], "p95_s": cuts[18], "max_s": max(values)}
    return summary
