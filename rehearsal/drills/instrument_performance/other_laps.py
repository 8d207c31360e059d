import json
import time

import torch
import torch.distributed as dist

ORDER = ["data_wait", "other", "forward", "backward", "grad_sync", "optimizer", "checkpoint"]


class Laps:
    """A stopwatch whose laps follow one another without a gap."""

    def __init__(self, path):
        self.file, self.history, self.at = open(path, "a"), [], time.perf_counter_ns()

    def begin(self):
        self.laps = dict.fromkeys(ORDER, 0)
        self.first = self.at

    def end(self, name):
        now = time.perf_counter_ns()
        self.laps[name] += now - self.at
        self.at = now

    def write(self, rank, step):
        self.end("other")
        seconds = {name: lap / 1e9 for name, lap in self.laps.items()}
        line = {"event": "step", "rank": rank, "step": step, "phases_s": seconds}
        line["wall_s"] = (self.at - self.first) / 1e9
        self.history.append(line)
        self.file.write(json.dumps(line) + "\n")
        self.file.flush()

    def summary(self):
        rows = {name: sorted(line["phases_s"][name] for line in self.history) for name in ORDER}
        rows["wall"] = sorted(line["wall_s"] for line in self.history)
        places = {"p50_s": 0.5, "p95_s": 0.95, "max_s": 1.0}
        return {
            name: {key: row[round(share * (len(row) - 1))] for key, share in places.items()}
            for name, row in rows.items()
        }


def train(model, batches, *, lr, save, save_every, folder):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    laps, step = Laps(folder / f"rank-{rank}.jsonl"), 0
    laps.begin()
    for inputs, targets in batches:
        laps.end("data_wait")
        step += 1
        optimizer.zero_grad(set_to_none=True)
        laps.end("other")
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
        laps.end("forward")
        loss.backward()
        laps.end("backward")
        used = [p for p in model.parameters() if p.grad is not None]
        flat = torch.cat([p.grad.flatten() for p in used]) / world_size
        dist.all_reduce(flat)
        for p, part in zip(used, flat.split([p.numel() for p in used])):
            p.grad.copy_(part.view_as(p))
        laps.end("grad_sync")
        optimizer.step()
        laps.end("optimizer")
        if step % save_every == 0:
            save(step)
            laps.end("checkpoint")
        laps.write(rank, step)
        laps.begin()
    return laps.summary()
