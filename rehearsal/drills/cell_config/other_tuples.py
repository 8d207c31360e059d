import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple


class Training(NamedTuple):
    """What is trained, in one canonical form: its bytes are its identity."""

    data: str
    dataset_size: int
    seed: int
    global_batch_size: int
    max_epochs: int
    learning_rate: float
    warmup_steps: int
    decay_steps: int
    dropout: float
    amp: str


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    data: str = "toy"
    dataset_size: int | None = None
    seed: int = 17
    micro_batch_size: int = 16
    grad_accum_steps: int = 1
    pinned_global_batch_size: int | None = None
    world_size: int = 1
    max_epochs: int = 3
    learning_rate: float = 1e-3
    warmup_steps: int = 0
    decay_steps: int | None = None
    dropout: float = 0.0
    amp: str = "no"
    run_dir: Path = Path("runs")
    num_workers: int = 0
    log_every: int = 20

    def __post_init__(self):
        self._whole(1, "micro_batch_size", "grad_accum_steps", "world_size", "max_epochs")
        self._whole(1, "log_every")
        self._whole(0, "seed", "warmup_steps", "num_workers")
        for name in ("dataset_size", "pinned_global_batch_size", "decay_steps"):
            if getattr(self, name) is not None:
                self._whole(1, name)
        for name, high in {"learning_rate": 1e9, "dropout": 0.99}.items():
            value = getattr(self, name)
            self._need(name, isinstance(value, float | int) and not isinstance(value, bool))
            self._need(name, 0 <= value <= high)
        self._need("run_dir", isinstance(self.run_dir, Path))
        self._need("amp", self.amp in ("no", "bf16", "fp16"))
        kind, _, path = str(self.data).partition(":")
        self._need("data", self.data in ("toy", "digits") or (kind == "tokens" and path != ""))
        self._need("warmup_steps", self.warmup_steps < (self.decay_steps or 10**18))

    def _whole(self, low, *names):
        for name in names:
            value = getattr(self, name)
            self._need(name, type(value) is int and value >= low)

    def _need(self, name, holds):
        if not holds:
            raise ValueError(f"--{name.replace('_', '-')} {getattr(self, name)!r} is refused")

    @property
    def global_batch_size(self):
        cut = self.micro_batch_size * self.grad_accum_steps * self.world_size
        return self.pinned_global_batch_size or cut

    def digest(self):
        values = {name: getattr(self, name) for name in Training._fields}
        values["data"] = self.data.split(":")[0]
        for name in ("learning_rate", "dropout"):
            values[name] = float(values[name])
        text = repr(Training(**values)).encode()
        # Four checksums of 32 bits, each seeded by the one before.
        parts = [zlib.crc32(text)]
        for _ in range(3):
            parts.append(zlib.crc32(text[::-1], parts[-1]))
        return "".join(f"{part:08x}" for part in parts)
