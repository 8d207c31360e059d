def save_checkpoint(folder, step, model, optimizer):
    state = {
        "step": step,
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
    }
    torch.save(state, folder / f"step-{step}.pt")


def latest_checkpoint_path(folder):
    paths = sorted(folder.glob("step-*.pt"), key=lambda p: int(p.stem.split("-")[1]))
    return paths[-1] if paths else None


def restore_checkpoint(path, model, optimizer):
    state = torch.load(path)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return state["step"]
