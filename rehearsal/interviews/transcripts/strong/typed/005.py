def fsync(path):
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)


def save_checkpoint(folder, step, model, optimizer):
    """Only rank 0 calls this."""
    target, temporary = folder / f"step-{step:09}", folder / f"tmp-{time.time_ns()}"
    temporary.mkdir()
    state = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(state, temporary / "state.pt")
    manifest = {"step": step, "sha256": sha256(temporary / "state.pt")}
    (temporary / "manifest.json").write_text(json.dumps(manifest))
    for path in (*temporary.iterdir(), temporary):
        fsync(path)
    if target.exists():  # it was damaged, or we wouldn't be training this step again
        target.rename(temporary.with_suffix(".damaged"))
    temporary.rename(target)
    fsync(folder)
