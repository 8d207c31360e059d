from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class TrainConfig:
    def __init__(self, *, num_samples, batch_size, epochs, lr, seed, folder):
        if min(num_samples, batch_size, epochs) <= 0:
            raise ValueError("num_samples, batch_size and epochs must be positive")
        self.num_samples, self.batch_size, self.epochs = num_samples, batch_size, epochs
        self.lr, self.seed, self.folder = lr, seed, Path(folder)


class Blobs(Dataset):
    """Four clusters, one per class."""

    def __init__(self, count, seed):
        generator = torch.Generator().manual_seed(seed)
        self.classes = torch.arange(count) % 4
        self.inputs = torch.randn(count, 2, 3, generator=generator)
        self.inputs += self.classes.view(-1, 1, 1)

    def __len__(self):
        return len(self.classes)

    def __getitem__(self, index):
        return self.inputs[index], int(self.classes[index])


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(6, 12), nn.ReLU(), nn.Dropout(0.1))
        self.head = nn.Linear(12, 4)

    def forward(self, inputs):
        return self.head(self.body(inputs))


def make_dataset(config):
    return Blobs(config.num_samples, 1234)


def make_model(config):
    return Net()


def run(config):
    """Order, dropout and initial weights come from the global generator; its state is saved."""
    torch.manual_seed(config.seed)
    model = make_model(config)
    optimizer = torch.optim.SGD(model.parameters(), lr=config.lr, momentum=0.9)
    loader = DataLoader(make_dataset(config), batch_size=config.batch_size, shuffle=True)
    criterion = nn.CrossEntropyLoss(reduction="sum")
    epoch, saves = 0, sorted(config.folder.glob("epoch-*.pt"))
    if saves:
        epoch, weights, optimizer_state, rng = torch.load(saves[-1])
        model.load_state_dict(weights)
        optimizer.load_state_dict(optimizer_state)
        torch.set_rng_state(rng)
    history = []
    model.train()
    while epoch < config.epochs:
        seen, total = 0, 0.0
        for inputs, classes in loader:
            optimizer.zero_grad(set_to_none=True)
            loss = criterion(model(inputs), classes)
            (loss / len(classes)).backward()
            optimizer.step()
            seen, total = seen + len(classes), total + float(loss)
        history.append({"epoch": epoch, "loss": total / seen, "samples": seen})
        epoch += 1
        state = (epoch, model.state_dict(), optimizer.state_dict(), torch.get_rng_state())
        torch.save(state, config.folder / "unfinished")
        (config.folder / "unfinished").rename(config.folder / f"epoch-{epoch:06d}.pt")
    return history
