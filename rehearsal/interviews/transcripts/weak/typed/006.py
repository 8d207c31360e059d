def save_checkpoint(model, epoch):
    torch.save(model.state_dict(), "checkpoint.pt")


def load_checkpoint(model):
    model.load_state_dict(torch.load("checkpoint.pt"))
