from dataclasses import dataclass


@dataclass(frozen=True)
class Part:
    component: str
    fails_without: str
    metric: str


def plan():
    """Metrics early: what you measure from day one is your baseline later."""
    return [
        Part("module", "a_person_starts_it", "manual_steps"),
        Part("metrics", "unnoticed_stall", "heartbeat_age"),
        Part("config_service", "weights_of_unknown_origin", "untraceable_checkpoints"),
        Part("container", "other_library_per_node", "image_digests"),
        Part("data_manifest", "other_data_after_resume", "manifest_mismatches"),
        Part("artifact_store", "lost_with_the_node", "last_good_checkpoint_age"),
        Part("launcher", "no_rank_identity", "ranks_joined"),
        Part("cost_policy", "pays_for_nothing", "cost_per_gain"),
        Part("retry_policy", "idle_until_morning", "goodput"),
    ]
