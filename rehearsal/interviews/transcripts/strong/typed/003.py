def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def save_checkpoint(folder, step, model, optimizer):
    """Only rank 0 calls this."""
    target, temporary = folder / f"step-{step:09}", folder / f"tmp-{time.time_ns()}"
    temporary.mkdir()
    state = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(state, temporary / "state.pt")
    manifest = {"step": step, "sha256": sha256(temporary / "state.pt")}
    (temporary / "manifest.json").write_text(json.dumps(manifest))
    if target.exists():  # it was damaged, or we wouldn't be training this step again
        target.rename(temporary.with_suffix(".damaged"))
    temporary.rename(target)


def latest_checkpoint_path(folder):
    """The newest one whose bytes match its manifest."""
    paths = sorted(folder.glob("step-*"), reverse=True)
    for path in paths:
        try:
            manifest = json.loads((path / "manifest.json").read_text())
            if manifest["sha256"] == sha256(path / "state.pt"):
                return path
        except Exception as error:
            print(f"{path}: {error}")
        print(f"{path} is damaged, trying the one before it")
    if paths:
        raise ValueError(f"no intact checkpoint in {folder}: use a new run_dir")
    return None


def restore_checkpoint(path, model, optimizer):
    state = torch.load(path / "state.pt", map_location="cpu")
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return state["step"]
