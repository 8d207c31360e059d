def plan():
    """First what must not get lost, then the machines."""
    identity = [
        ("data_manifest", "other_data_after_resume", "manifest_mismatches"),
        ("module", "a_person_starts_it", "manual_steps"),
        ("config_service", "weights_of_unknown_origin", "untraceable_checkpoints"),
        ("artifact_store", "lost_with_the_node", "last_good_checkpoint_age"),
    ]
    machines = [
        ("container", "other_library_per_node", "image_digests"),
        ("launcher", "no_rank_identity", "ranks_joined"),
        ("metrics", "unnoticed_stall", "heartbeat_age"),
    ]
    yield from identity + machines
    yield "retry_policy", "idle_until_morning", "goodput"
    yield "cost_policy", "pays_for_nothing", "cost_per_gain"
