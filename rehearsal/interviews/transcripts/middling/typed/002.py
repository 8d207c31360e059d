@dataclass(frozen=True)
class TrainConfig:
    run_dir: str = "runs/live"
    dataset_size: int = 2000
    max_epochs: int = 3
    seed: int = 0
    global_batch_size: int = 32
    micro_batch_size: int = 8
    learning_rate: float = 1e-3
    warmup_steps: int = 10
    dropout: float = 0.1
    checkpoint_every_steps: int = 25
    device: str = "cpu"

    def __post_init__(self):
        for name, value in vars(self).items():
            if name in ("run_dir", "device"):
                continue
            least = 0 if name in ("seed", "dropout") else 1e-9
            most = 1 if name == "dropout" else float("inf")
            if not (least <= value < most):
                raise ValueError(f"{name}={value} is out of range")

    @property
    def steps_per_epoch(self):
        return -(-self.dataset_size // self.global_batch_size)
