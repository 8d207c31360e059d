"""Every identity field makes a resume fail when it changes, and no other field does."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from trainer_core.config import TrainConfig
from trainer_core.data import StepSchedule
from trainer_core.resume import refuse_other_run, run_identity
from trainer_core.settings import UserError, flag_name

KINDS = {spec.name: spec.metadata["kind"] for spec in fields(TrainConfig)}
# A value that differs from the default, where adding 1 or flipping it won't do.
OTHER: dict[str, Any] = {
    "data": "digits",
    "dataset_size": 999,
    "hidden_dim": 128,
    "num_heads": 8,
    "pinned_global_batch_size": 999,
    "decay_steps": 9999,
    "min_lr_fraction": 0.5,
    "dropout": 0.5,
    "amp": "bf16",
    "on_nonfinite": "skip",
    "run_dir": Path("elsewhere"),
    "device": "cpu",
}


def changed(cfg: TrainConfig, name: str) -> TrainConfig:
    value = getattr(cfg, name)
    other = OTHER.get(name, not value if isinstance(value, bool) else None)
    if other is None:
        other = value + 1
    assert other != value
    return replace(cfg, **{name: other})


def identity_of(cfg: TrainConfig) -> dict[str, Any]:
    schedule = StepSchedule(cfg.dataset_size or 1000, cfg.global_batch_size, cfg.max_epochs)
    return run_identity(cfg, schedule, fingerprint="the same")


def config_that_reads(name: str) -> TrainConfig:
    """A config whose data reads the field; toy data where every kind does."""
    only = {spec.name: spec.metadata.get("only") for spec in fields(TrainConfig)}[name]
    only = "" if name == "hash_all_data" else only  # it would read the file
    return TrainConfig(data="tokens:here.bin" if only == "tokens" else "toy")


@pytest.mark.parametrize("name", [name for name, kind in KINDS.items() if kind == "identity"])
def test_changing_an_identity_field_is_refused_by_its_flag(name: str) -> None:
    """If the identity forgets a field, a resume loads weights that it can't use."""
    cfg = config_that_reads(name)
    ours, theirs = identity_of(changed(cfg, name)), identity_of(cfg)
    with pytest.raises(UserError, match=f"Use {flag_name(name)} "):
        refuse_other_run(Path("run"), ours, theirs)


@pytest.mark.parametrize(
    "name", [name for name, kind in KINDS.items() if kind in ("training", "operation")]
)
def test_changing_any_other_field_keeps_the_identity(name: str) -> None:
    """A run that refuses a new learning rate has to be started from scratch."""
    cfg = config_that_reads(name)
    assert identity_of(changed(cfg, name)) == identity_of(cfg)


@pytest.mark.parametrize("name", [name for name, kind in KINDS.items() if kind == "batch_cut"])
def test_how_the_batch_is_split_counts_only_by_its_size(name: str) -> None:
    """Pinned, the batch may be split differently on other machines."""
    cfg = TrainConfig()
    assert identity_of(changed(cfg, name)) != identity_of(cfg)
    if name != "pinned_global_batch_size":
        pinned = TrainConfig(pinned_global_batch_size=64)
        assert identity_of(changed(pinned, name)) == identity_of(pinned)


@pytest.mark.parametrize("data", ["toy", "digits"])
def test_a_field_that_this_data_does_not_read_is_not_part_of_it(data: str) -> None:
    """A flag without effect must not stop a run."""
    cfg = TrainConfig(data=data)
    assert identity_of(changed(cfg, "num_heads")) == identity_of(cfg)


def test_moved_data_is_the_same_data() -> None:
    """Its content is what counts, and the fingerprint says that."""
    here, there = TrainConfig(data="tokens:here.bin"), TrainConfig(data="tokens:there.bin")
    assert identity_of(here) == identity_of(there)


def test_an_identity_written_by_an_older_version_is_compared_by_what_it_has() -> None:
    """A new identity field must not make every earlier checkpoint useless."""
    ours = identity_of(TrainConfig())
    theirs = {name: value for name, value in ours.items() if name != "hidden_dim"}
    refuse_other_run(Path("run"), ours, theirs)
