"""Sinks for TensorBoard and Prometheus, in addition to the JSON lines that every run writes.

Both packages are extras. Nothing here is imported unless ``--export`` asks for it.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

# %% active="py"
from trainer_core.metrics import Sink
from trainer_core.settings import UserError


# %%
def numbers(record: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """The metrics in a train_progress event: loss, lr, rates, and each phase's p50 in ms.

    A loss or norm that isn't finite is null in the event, and NaN here. If it were left out, a
    gauge would keep showing the last finite value, and the run would look healthy.
    """
    for name in ("loss", "lr", "grad_norm", "samples_per_s", "skipped_steps"):
        yield name, math.nan if record[name] is None else float(record[name])
    for name, spent in record["phases"].items():
        yield f"{name}_ms", float(spent["p50"])


class TensorBoardSink:
    """Writes this rank's scalars under RUN/tensorboard/rank-R."""

    def __init__(self) -> None:
        self.run_dir = ""
        self.writer: Any = None

    def emit(self, record: Mapping[str, Any]) -> None:
        """Write the metrics of a train_progress event; run_start says where."""
        if record["event"] == "run_start":
            self.run_dir = record["run_dir"]
        if record["event"] == "train_progress":
            if self.writer is None:
                from torch.utils.tensorboard import SummaryWriter

                self.writer = SummaryWriter(f"{self.run_dir}/tensorboard/rank-{record['rank']}")
            for name, value in numbers(record):
                self.writer.add_scalar(name, value, record["step"])

    def close(self) -> None:
        """Flush and close the event file."""
        if self.writer is not None:
            self.writer.close()


class PrometheusSink:
    """Serves this rank's gauges on port 9400 + local rank."""

    FIRST_PORT = 9400

    def __init__(self) -> None:
        self.gauges: dict[str, Any] = {}
        self.server: Any = None

    def emit(self, record: Mapping[str, Any]) -> None:
        """Set the gauges from a train_progress event; ignore other events."""
        import prometheus_client

        if record["event"] == "train_progress":
            if self.server is None:
                self.registry = prometheus_client.CollectorRegistry()
                port = self.FIRST_PORT + record["local_rank"]
                self.server, _ = prometheus_client.start_http_server(
                    port, registry=self.registry
                )
            for name, value in [("step", float(record["step"])), *numbers(record)]:
                if name not in self.gauges:
                    self.gauges[name] = prometheus_client.Gauge(
                        name=f"trainer_{name}",
                        documentation=f"{name} of the last train_progress",
                        labelnames=["rank"],
                        registry=self.registry,
                    )
                self.gauges[name].labels(rank=record["rank"]).set(value)

    def close(self) -> None:
        """Stop serving."""
        if self.server is not None:
            self.server.shutdown()
            self.server.server_close()  # otherwise the port stays taken


def build_exporters(names: Sequence[str]) -> list[Sink]:
    """The sinks that ``--export`` names. They don't write or serve before the first event.

    Raises:
        UserError: for an unknown name, or a package that isn't installed.
    """
    packages = {"tensorboard": "tensorboard", "prometheus": "prometheus_client"}
    sinks: list[Sink] = []
    for name in names:
        if name not in packages:
            raise UserError(
                f"--export {name}: no such exporter, so its metrics would be lost. Choose "
                f"{' or '.join(packages)}."
            )
        if importlib.util.find_spec(packages[name]) is None:
            raise UserError(
                f"--export {name}: the package {packages[name]} is not installed, so its "
                f"metrics would be lost. Run: pip install -c constraints.txt -e '.[{name}]'"
            )
        sinks.append(TensorBoardSink() if name == "tensorboard" else PrometheusSink())
    return sinks
