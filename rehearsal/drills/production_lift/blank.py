COMPONENTS = {  # in no order; not all of them belong to the lift
    "artifact_store": "durable storage that all nodes share; a checkpoint in it is whole",
    "config_service": "settings and code version of each run, kept under the run's id",
    "container": "an image with the code and every dependency at a fixed version",
    "cost_policy": "rules that end, shrink or move a run, by what it costs and what it yields",
    "custom_scheduler": "our own placement of jobs on nodes",
    "data_manifest": "the immutable list of samples and shards that a run trains on",
    "launcher": "starts a process per device on every node, and tells each its rank",
    "metrics": "events and measurements of every rank, collected in one place",
    "module": "the notebook's trainer as importable code, started by a command with flags",
    "retry_policy": "rules for what is started again after which fault, and how often",
    "tensor_parallelism": "each layer's matrices split among devices",
}
FAILURES = {  # what happens without one of them
    "a_person_starts_it": "every run begins with somebody who executes cells in a kernel",
    "idle_until_morning": "a lost node waits for a person, a hopeless start repeats itself",
    "lost_with_the_node": "when a machine goes, the progress that was on its disk goes with it",
    "no_rank_identity": "the processes do not find each other, or all believe to be rank 0",
    "other_data_after_resume": "files have come and gone: a position means other samples now",
    "other_library_per_node": "the same commit fails, or computes otherwise, on one node",
    "pays_for_nothing": "a run that has stopped getting better keeps its machines",
    "slow_kernels": "the devices are busy, with operations that could be fused",
    "unnoticed_stall": "one rank stands still for hours, and nobody can say which",
    "weights_of_unknown_origin": "nobody can tell which learning rate made this checkpoint",
}
METRICS = {  # where one would see it first
    "cost_per_gain": "money per improvement of the validation score",
    "goodput": "time in steps that counted, over the time paid for, with restarts by cause",
    "gpu_utilisation": "the share of time in which a kernel ran",
    "heartbeat_age": "seconds since each rank's last completed step",
    "image_digests": "number of different software versions among a run's nodes",
    "last_good_checkpoint_age": "minutes of work that a failure now would cost",
    "manual_steps": "what a person types between a commit and step 1",
    "manifest_mismatches": "resumes whose data fingerprint is not that of the first start",
    "ranks_joined": "processes in the group, over those that were asked for",
    "training_loss": "the mean loss of the last steps",
    "untraceable_checkpoints": "checkpoints whose settings digest no record knows",
}


def plan():
    """The lift from notebook to production, in the order of building it.

    A list with an entry per component: {"component": ..., "fails_without": ..., "metric": ...}.
    """
    raise NotImplementedError
