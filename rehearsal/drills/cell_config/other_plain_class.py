import hashlib
import math
from pathlib import Path

COUNT, OPTIONAL_COUNT, NUMBER, TEXT = "count", "optional count", "number", "text"
# name: (what it is, default, low, high, whether it defines the training)
SETTINGS = {
    "data": (TEXT, "toy", None, None, True),
    "dataset_size": (OPTIONAL_COUNT, None, 1, math.inf, True),
    "seed": (COUNT, 17, 0, math.inf, True),
    "micro_batch_size": (COUNT, 16, 1, math.inf, False),
    "grad_accum_steps": (COUNT, 1, 1, math.inf, False),
    "pinned_global_batch_size": (OPTIONAL_COUNT, None, 1, math.inf, False),
    "world_size": (COUNT, 1, 1, math.inf, False),
    "max_epochs": (COUNT, 3, 1, math.inf, True),
    "learning_rate": (NUMBER, 1e-3, 0.0, 1e6, True),
    "warmup_steps": (COUNT, 0, 0, math.inf, True),
    "decay_steps": (OPTIONAL_COUNT, None, 1, math.inf, True),
    "dropout": (NUMBER, 0.0, 0.0, 0.99, True),
    "amp": (TEXT, "no", None, None, True),
    "run_dir": (Path, Path("runs"), None, None, False),
    "num_workers": (COUNT, 0, 0, math.inf, False),
    "log_every": (COUNT, 20, 1, math.inf, False),
}


def wrong(name, value, why):
    return ValueError(f"{name}={value!r} {why}")


class TrainConfig:
    """Values in a private dict; attributes are looked up in it and never set."""

    def __init__(self, **given):
        values = {name: row[1] for name, row in SETTINGS.items()}
        for name, value in given.items():
            if name not in SETTINGS:
                raise TypeError(f"no setting {name}")
            kind, _, low, high, _ = SETTINGS[name]
            if kind is Path or kind is TEXT:
                if not isinstance(value, Path if kind is Path else str):
                    raise wrong(name, value, "is of the wrong type")
            elif not (kind is OPTIONAL_COUNT and value is None):
                types = (int, float) if kind is NUMBER else (int,)
                if type(value) not in types:
                    raise wrong(name, value, f"is not a {kind}")
                if math.isnan(value) or value < low or value > high:
                    raise wrong(name, value, f"is not in {low} to {high}")
            values[name] = value
        if values["amp"] not in ("no", "bf16", "fp16"):
            raise wrong("amp", values["amp"], "is not no, bf16 or fp16")
        kind, colon, path = values["data"].partition(":")
        if (kind, bool(path)) not in (("toy", False), ("digits", False), ("tokens", True)):
            raise wrong("data", values["data"], "is not a dataset")
        if values["decay_steps"] and values["warmup_steps"] >= values["decay_steps"]:
            raise wrong("warmup_steps", values["warmup_steps"], "leaves no step to decay over")
        vars(self)["_values"] = values

    def __getattr__(self, name):
        try:
            return vars(self)["_values"][name]
        except KeyError:
            raise AttributeError(name) from None

    def __setattr__(self, name, value):
        raise AttributeError(f"{name}: a config cannot be changed")

    @property
    def global_batch_size(self):
        if self.pinned_global_batch_size is not None:
            return self.pinned_global_batch_size
        return self.micro_batch_size * self.grad_accum_steps * self.world_size

    def digest(self):
        state = hashlib.blake2b(f"batch={self.global_batch_size}".encode())
        for name in sorted(SETTINGS):
            kind, *_, defines = SETTINGS[name]
            value = getattr(self, name)
            if defines:
                value = value.split(":")[0] if name == "data" else value
                value = value * 1.0 if kind is NUMBER else value
                state.update(f";{name}={value!r}".encode())
        return state.hexdigest()
