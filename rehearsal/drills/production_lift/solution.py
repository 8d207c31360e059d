def plan():
    """Each step builds on the ones before: the same code anywhere, then many processes of it,
    then what outlives them, then evidence, then rules."""
    steps = [
        # The same code everywhere, started without a person.
        ("module", "a_person_starts_it", "manual_steps"),
        ("container", "other_library_per_node", "image_digests"),
        ("launcher", "no_rank_identity", "ranks_joined"),
        # What outlives a process: data, settings, progress.
        ("data_manifest", "other_data_after_resume", "manifest_mismatches"),
        ("config_service", "weights_of_unknown_origin", "untraceable_checkpoints"),
        ("artifact_store", "lost_with_the_node", "last_good_checkpoint_age"),
        # Evidence before the rules that act on it.
        ("metrics", "unnoticed_stall", "heartbeat_age"),
        ("retry_policy", "idle_until_morning", "goodput"),
        ("cost_policy", "pays_for_nothing", "cost_per_gain"),
    ]
    return [dict(zip(("component", "fails_without", "metric"), step)) for step in steps]
