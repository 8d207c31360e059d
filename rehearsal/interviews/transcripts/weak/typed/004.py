def run(cfg=None):
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    model = DDP(TinyNet().to(rank))
    optimizer = torch.optim.Adam(model.parameters(), lr=LR)
    loader = DataLoader(ToyClassificationDataset(), batch_size=BATCH, shuffle=True)
    for epoch in range(EPOCHS):
        total = 0
        for inputs, labels in loader:
            loss = nn.functional.cross_entropy(model(inputs.to(rank)), labels.to(rank))
            loss.backward()
            optimizer.step()
            total += loss.item()
        print(f"epoch {epoch} loss {total / len(loader)}")
