COMPONENTS = {  # in no particular order; not all of them belong to the lift
    "artifact_store": "durable storage that all nodes share; a checkpoint in it is complete",
    "config_service": "the settings and code version of each run, kept under its run id",
    "container": "an image with the code and every dependency pinned",
    "cost_policy": "rules that stop, shrink or move a run, given its cost and its progress",
    "custom_scheduler": "our own placement of jobs on nodes",
    "data_manifest": "the immutable list of samples and shards a run trains on",
    "launcher": "starts one process per device on every node and tells each its rank",
    "metrics": "events and measurements from every rank, collected in one place",
    "module": "the notebook's trainer as importable code, started by a command with flags",
    "retry_policy": "rules for what gets restarted after which failure, and how often",
    "tensor_parallelism": "each layer's matrices split across devices",
}
FAILURES = {  # what happens without one of them
    "a_person_starts_it": "every run starts with somebody executing cells in a notebook",
    "idle_until_morning": "a lost node waits for a person; a hopeless job restarts all night",
    "lost_with_the_node": "when a machine dies, the progress on its disk dies with it",
    "no_rank_identity": "the processes don't find each other, or all think they're rank 0",
    "other_data_after_resume": "files came and went, so a position now means different samples",
    "other_library_per_node": "the same commit fails, or gives different results, on one node",
    "pays_for_nothing": "a run that has stopped improving keeps its machines",
    "slow_kernels": "the devices are busy with operations that could be fused",
    "unnoticed_stall": "one rank hangs for hours, and nobody can say which",
    "weights_of_unknown_origin": "nobody can say which learning rate produced this checkpoint",
}
METRICS = {  # where it would show first
    "cost_per_gain": "dollars per point of validation score gained",
    "goodput": "time in steps that counted over time paid for, with restarts by cause",
    "gpu_utilization": "the share of time in which a kernel was running",
    "heartbeat_age": "seconds since each rank's last completed step",
    "image_digests": "number of distinct software versions across a run's nodes",
    "last_good_checkpoint_age": "minutes of work a failure right now would cost",
    "manual_steps": "what a person has to type between a commit and step 1",
    "manifest_mismatches": "resumes whose data fingerprint differs from the first start's",
    "ranks_joined": "processes in the group, out of those requested",
    "training_loss": "mean loss over the last few steps",
    "untraceable_checkpoints": "checkpoints whose settings digest is in no record",
}


def plan():
    """The lift from notebook to production, in build order.

    One entry per component: {"component": ..., "fails_without": ..., "metric": ...}.
    """
    raise NotImplementedError
