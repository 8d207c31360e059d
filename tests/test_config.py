"""Settings: wrong ones are refused with a way out, and the digest names the training."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import FrozenInstanceError, fields, replace
from pathlib import Path
from typing import Any

import pytest
from trainer_core.config import TrainConfig
from trainer_core.settings import UserError, with_flags

ROOT = Path(__file__).resolve().parents[1]
NAN, INF = float("nan"), float("inf")

# Field, a value that is refused, and the rule that the message must state.
REFUSED: list[tuple[str, Any, str]] = [
    ("dataset_size", 0, "at least 1"),
    ("dataset_size", 1.5, "of type int"),
    ("seed", -1, "at least 0"),
    ("seed", None, "of type int"),
    ("input_dim", 0, "at least 1"),
    ("hidden_dim", 0, "at least 1"),
    ("num_layers", 0, "at least 1"),
    ("num_heads", 0, "at least 1"),
    ("seq_len", 0, "at least 1"),
    ("vocab_size", 1, "at least 2 and at most 65536"),
    ("vocab_size", 65537, "at least 2 and at most 65536"),
    ("micro_batch_size", 0, "at least 1"),
    ("micro_batch_size", True, "of type int"),
    ("micro_batch_size", "16", "of type int"),
    ("grad_accum_steps", 0, "at least 1"),
    ("grad_accum_steps", False, "of type int"),
    ("pinned_global_batch_size", 0, "at least 1"),
    ("world_size", 0, "at least 1"),
    ("max_epochs", 0, "at least 1"),
    ("max_epochs", 10**15, "at least 1 and at most 1000000000"),
    ("hash_all_data", "yes", "of type bool"),
    ("learning_rate", -1e-9, "at least 0.0 and finite"),
    ("learning_rate", NAN, "at least 0.0 and finite"),
    ("learning_rate", INF, "at least 0.0 and finite"),
    ("learning_rate", True, "of type float"),
    ("learning_rate", "3e-4", "of type float"),
    ("min_lr_fraction", -0.1, "at least 0.0 and at most 1.0"),
    ("min_lr_fraction", 1.1, "at least 0.0 and at most 1.0"),
    ("min_lr_fraction", NAN, "at least 0.0 and at most 1.0"),
    ("warmup_steps", -1, "at least 0"),
    ("decay_steps", 0, "at least 1"),
    ("weight_decay", -0.01, "at least 0.0 and finite"),
    ("weight_decay", NAN, "at least 0.0 and finite"),
    ("max_grad_norm", 0.0, "at least 1e-12 and finite"),
    ("max_grad_norm", INF, "at least 1e-12 and finite"),
    ("dropout", -0.1, "at least 0.0 and at most 0.99"),
    ("dropout", 1.0, "at least 0.0 and at most 0.99"),
    ("input_noise", -1.0, "at least 0.0 and finite"),
    ("amp", True, "of type str"),
    ("amp", "float16", "one of no, bf16, fp16"),
    ("on_nonfinite", "ignore", "one of stop, skip"),
    ("run_dir", "runs/first", "of type Path"),
    ("device", "gpu", "one of auto, cpu, cuda"),
    ("num_workers", -1, "at least 0"),
    ("checkpoint_every_steps", 0, "at least 1"),
    ("keep_last", 0, "at least 1"),
    ("async_checkpoint", 1, "of type bool"),
    ("log_every", 0, "at least 1"),
    ("trace_steps", -1, "at least 0"),
    ("dist_timeout_s", 0.5, "at least 1.0 and at most 1000000.0"),
    ("dist_timeout_s", 1e20, "at least 1.0 and at most 1000000.0"),
    ("hang_timeout_s", 0.5, "at least 1.0 and at most 1000000.0"),
    ("start_over", "yes", "of type bool"),
]

# The bounds themselves, which are allowed.
ACCEPTED: list[tuple[str, Any]] = [
    ("data", "digits"),
    ("data", "tokens:some/file.bin"),
    ("data", "tokens:C:/file.bin"),
    ("dataset_size", None),
    ("dataset_size", 1),
    ("seed", 0),
    ("seed", 2**70),
    ("num_layers", 1),
    ("vocab_size", 2),
    ("vocab_size", 65536),
    ("pinned_global_batch_size", 1),
    ("learning_rate", 0.0),
    ("learning_rate", 1),
    ("min_lr_fraction", 0.0),
    ("min_lr_fraction", 1.0),
    ("max_grad_norm", None),
    ("dropout", 0.99),
    ("amp", "fp16"),
    ("run_dir", Path("/elsewhere/run")),
    ("num_workers", 0),
    ("trace_steps", 0),
    ("dist_timeout_s", 1),
    ("dist_timeout_s", 1e6),
]

# For each field that defines the training: a value other than the default.
DEFINING: dict[str, Any] = {
    "data": "digits",
    "dataset_size": 100,
    "seed": 18,
    "input_dim": 33,
    "hidden_dim": 65,
    "num_layers": 3,
    "num_heads": 2,
    "seq_len": 32,
    "vocab_size": 512,
    "micro_batch_size": 17,
    "grad_accum_steps": 2,
    "pinned_global_batch_size": 31,
    "world_size": 2,
    "max_epochs": 4,
    "learning_rate": 3e-4,
    "min_lr_fraction": 0.0,
    "warmup_steps": 5,
    "decay_steps": 100,
    "weight_decay": 0.1,
    "max_grad_norm": None,
    "dropout": 0.1,
    "input_noise": 0.1,
    "amp": "bf16",
    "on_nonfinite": "skip",
}
OPERATION: dict[str, Any] = {
    "run_dir": Path("/elsewhere"),
    "device": "cpu",
    "num_workers": 2,
    "checkpoint_every_steps": 7,
    "keep_last": 1,
    "async_checkpoint": True,
    "log_every": 1,
    "trace_steps": 0,
    "dist_timeout_s": 30.0,
    "hang_timeout_s": 30.0,
    "hash_all_data": True,
    "start_over": True,
}


class TestSpelling:
    @pytest.mark.parametrize(
        ("message", "at_a_command_line"),
        [
            ("max_epochs=3: too few", "--max-epochs 3: too few"),
            ("data=toy has no data", "--data toy has no data"),
            ("use start_over=True.", "use --start-over."),
            ("Leave input_noise at 0", "Leave --input-noise at 0"),
            ("/x/run_dir/max_epochs=3/y: no", "/x/run_dir/max_epochs=3/y: no"),
            ("my_seed=3, seedless=1", "my_seed=3, seedless=1"),
        ],
    )
    def test_a_setting_is_named_in_the_terms_of_where_it_is_read(
        self, message: str, at_a_command_line: str
    ) -> None:
        """A notebook has no flags, a shell has no arguments, and a path has neither."""
        names = [spec.name for spec in fields(TrainConfig)]
        assert with_flags(message, names) == at_a_command_line


class TestBounds:
    @pytest.mark.parametrize(("name", "value", "rule"), REFUSED)
    def test_a_value_outside_its_bounds_is_refused(
        self, name: str, value: Any, rule: str
    ) -> None:
        """A wrong setting that is found after an hour costs an hour."""
        with pytest.raises(UserError, match=f"^{name}=.*: must be {rule}.* Change {name} and"):
            TrainConfig(**{name: value})

    @pytest.mark.parametrize(("name", "value"), ACCEPTED)
    def test_a_value_on_its_bound_is_accepted(self, name: str, value: Any) -> None:
        """A bound that is off by one refuses a value that its own message allows."""
        assert getattr(TrainConfig(**{name: value}), name) == value

    def test_each_field_has_a_value_that_is_refused(self) -> None:
        """A field added without a check would take anything."""
        combined = {"data"}
        assert {name for name, _, _ in REFUSED} | combined == {
            field.name for field in fields(TrainConfig)
        }

    @pytest.mark.parametrize(
        "data", ["", "imagenet", "tokens", "tokens:", "toy:3", "digits:", "Toy"]
    )
    def test_an_unknown_dataset_is_refused(self, data: str) -> None:
        """A typo that falls back to toy data trains the wrong thing with a good loss."""
        with pytest.raises(UserError, match=f"^data={data}: .*Choose toy, digits, or tokens"):
            TrainConfig(data=data)

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            (
                {"hidden_dim": 30, "num_heads": 4},
                "^hidden_dim=30 isn't a multiple of num_heads=4.*Change one",
            ),
            ({"input_noise": 0.5}, "^input_noise=0.5: .*Leave input_noise at 0"),
        ],
    )
    def test_settings_that_contradict_each_other_are_refused(
        self, changes: dict[str, Any], message: str
    ) -> None:
        """torch would complain later, in terms of tensors, on every rank."""
        with pytest.raises(UserError, match=message):
            TrainConfig(data="tokens:file", **changes)
        assert TrainConfig(data="toy", **changes)

    @pytest.mark.parametrize("warmup_steps", [10, 11])
    def test_a_warm_up_without_a_decay_after_it_is_refused(self, warmup_steps: int) -> None:
        """The cosine would divide by zero, or run backwards."""
        message = rf"^warmup_steps={warmup_steps} uses up all .*decay_steps=10.*Lower the first"
        with pytest.raises(UserError, match=message):
            TrainConfig(warmup_steps=warmup_steps, decay_steps=10)
        assert TrainConfig(warmup_steps=9, decay_steps=10)

    def test_a_message_is_short_and_names_the_value(self) -> None:
        """Nobody reads a wall of text."""
        for name, value, _ in REFUSED:
            with pytest.raises(UserError) as refusal:
                TrainConfig(**{name: value})
            message = str(refusal.value)
            assert len(message) < 300, message
            assert repr(value) in message

    def test_a_setting_cannot_be_changed_or_misspelled_after_construction(self) -> None:
        """A change after the checks would never be checked."""
        cfg = TrainConfig()
        with pytest.raises(FrozenInstanceError):
            cfg.seed = 3  # type: ignore[misc]
        with pytest.raises(TypeError, match="learning_rat"):
            TrainConfig(learning_rat=1.0)  # type: ignore[call-arg]
        with pytest.raises(UserError, match="seed=-1"):
            replace(cfg, seed=-1)


class TestGlobalBatch:
    def test_it_is_micro_batch_times_accumulation_times_ranks(self) -> None:
        """The handbook claims 64 in its metadata and trains 16."""
        cfg = TrainConfig(micro_batch_size=16, grad_accum_steps=4, world_size=3)
        assert cfg.global_batch_size == 192

    def test_pinned_it_is_that_number_at_any_world_size(self) -> None:
        """A batch that grows with the number of machines trains differently."""
        for world_size in (1, 2, 3, 5):
            cfg = TrainConfig(world_size=world_size, pinned_global_batch_size=32)
            assert cfg.global_batch_size == 32


class TestDigest:
    @pytest.mark.ranks
    def test_it_is_equal_in_processes_with_different_hash_seeds(self) -> None:
        """hash() of a str differs per process: every restart would look like a new config."""
        code = (
            "from trainer_core.config import TrainConfig; "
            "print(TrainConfig(data='digits', seed=3).digest())"
        )
        digests = []
        for hash_seed in ("0", "1"):
            environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": hash_seed}
            environment |= {"RANK": hash_seed, "WORLD_SIZE": "2"}
            run = subprocess.run(
                [sys.executable, "-c", code],
                env=environment,
                capture_output=True,
                text=True,
                check=True,
            )
            digests.append(run.stdout.strip())
        assert digests == [TrainConfig(data="digits", seed=3).digest()] * 2
        assert len(bytes.fromhex(digests[0])) == 32

    @pytest.mark.parametrize("name", OPERATION)
    def test_a_field_without_effect_on_the_training_does_not_change_it(self, name: str) -> None:
        """A run that moves to another disk is still the same run."""
        changed = TrainConfig(**{name: OPERATION[name]})
        assert getattr(changed, name) != getattr(TrainConfig(), name)
        assert changed.digest() == TrainConfig().digest()

    def test_how_the_global_batch_is_split_does_not_change_it(self) -> None:
        """Twice the machines with half the micro-batch train the same thing."""
        cuts = [(64, 1, 1), (16, 4, 1), (16, 2, 2), (8, 1, 8)]
        digests = {
            TrainConfig(micro_batch_size=b, grad_accum_steps=a, world_size=w).digest()
            for b, a, w in cuts
        }
        digests |= {
            TrainConfig(pinned_global_batch_size=64, world_size=w).digest() for w in (1, 3)
        }
        assert len(digests) == 1

    def test_the_path_of_the_tokens_does_not_change_it(self) -> None:
        """The same file on another disk is the same data; its fingerprint says so."""
        here, there = TrainConfig(data="tokens:/a/x.bin"), TrainConfig(data="tokens:/b/x.bin")
        assert here.digest() == there.digest()

    @pytest.mark.parametrize("name", DEFINING)
    def test_a_field_that_changes_the_training_changes_it(self, name: str) -> None:
        """Two different trainings with one digest can't be told apart later."""
        assert TrainConfig(**{name: DEFINING[name]}).digest() != TrainConfig().digest()

    def test_each_field_is_known_to_define_the_training_or_not(self) -> None:
        """A field that nobody thought about would silently be left out."""
        names = [field.name for field in fields(TrainConfig)]
        assert sorted([*DEFINING, *OPERATION]) == sorted(names)

    def test_a_whole_number_and_its_float_are_the_same_setting(self) -> None:
        """The command line gives 1.0, a notebook 1: one run would have two digests."""
        assert TrainConfig(learning_rate=1).digest() == TrainConfig(learning_rate=1.0).digest()
