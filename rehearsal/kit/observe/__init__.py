"""What graders use inside a rank, where torch is loaded: models, data, recorders."""
