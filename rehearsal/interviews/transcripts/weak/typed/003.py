class ToyClassificationDataset(Dataset):
    def __init__(self, cfg=None):
        self.x = torch.randn(1000, 8)
        self.y = torch.randint(0, 4, (1000,))

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


class TinyNet(nn.Module):
    def __init__(self, cfg=None):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 4))

    def forward(self, x):
        return self.net(x)
