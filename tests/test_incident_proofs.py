"""The record of the proofs: what is proved again, and what isn't."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rehearsal.incidents import digest as digests
from rehearsal.incidents import prove
from rehearsal.incidents.digest import bare, digest
from rehearsal.incidents.draw import draw
from rehearsal.incidents.proof import Proof


@pytest.fixture
def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Which proofs ran; none of them runs a job."""
    done: list[tuple[str, int]] = []

    def prove_one(name: str, seed: int, folder: Path) -> Proof:
        done.append((name, seed))
        return Proof(name, seed, [], 1.0, 2.0)

    monkeypatch.setattr(prove, "RECORD", tmp_path / "incidents.json")
    monkeypatch.setattr(prove, "prove_one", prove_one)
    return done


def quietly(names: list[str], num_seeds: int) -> bool:
    return prove.prove(names, range(num_seeds), lambda line: None)


class TestProve:
    def test_what_is_current_is_not_proved_again(self, ran: list[tuple[str, int]]) -> None:
        """All proofs take hours."""
        assert quietly(["slow_rank", "full_disk"], 2)
        assert len(ran) == 4
        assert quietly(["slow_rank", "full_disk"], 3)
        assert ran[4:] == [("slow_rank", 2), ("full_disk", 2)]

    def test_an_interrupted_proof_loses_only_itself(
        self, ran: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Ctrl-C in the third hour must not cost three hours."""
        usual = prove.prove_one

        def interrupted(name: str, seed: int, folder: Path) -> Proof:
            if seed == 2:
                raise KeyboardInterrupt
            return usual(name, seed, folder)

        monkeypatch.setattr(prove, "prove_one", interrupted)
        with pytest.raises(KeyboardInterrupt):
            quietly(["slow_rank"], 4)
        monkeypatch.setattr(prove, "prove_one", usual)
        assert quietly(["slow_rank"], 4)
        assert ran == [("slow_rank", seed) for seed in range(4)]

    def test_a_failed_proof_is_recorded_and_tried_again(
        self, ran: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A failure that is skipped the next time looks like a success."""

        def failing(name: str, seed: int, folder: Path) -> Proof:
            return Proof(name, seed, ["it didn't show"], 1.0, 2.0)

        usual = prove.prove_one
        monkeypatch.setattr(prove, "prove_one", failing)
        assert not quietly(["slow_rank"], 1)
        assert prove.read_record()["slow_rank"]["0"]["problems"] == ["it didn't show"]
        monkeypatch.setattr(prove, "prove_one", usual)
        assert quietly(["slow_rank"], 1)
        assert ran == [("slow_rank", 0)]
        assert prove.read_record()["slow_rank"]["0"]["problems"] == []

    def test_it_says_how_long_a_case_takes(self, ran: list[tuple[str, int]]) -> None:
        """The figures in the documentation are these, also when nothing is left to prove."""
        said: list[str] = []
        for _ in range(2):
            said.clear()
            prove.prove(["slow_rank"], range(3), said.append)
        assert said == [
            "3 of 3 proofs are current",
            "a case: median 1.0 s, longest 1.0 s",
            "a rerun after the reference fix: median 2.0 s, longest 2.0 s",
        ]

    def test_two_processes_share_the_work(self, ran: list[tuple[str, int]]) -> None:
        """With one per core it takes half the time, if they don't do the same."""
        with prove.alone("slow_rank", 0) as is_mine:
            assert is_mine
            quietly(["slow_rank"], 2)
        assert ran == [("slow_rank", 1)]

    def test_the_record_is_json_with_a_proof_per_line(self, ran: list[tuple[str, int]]) -> None:
        """A diff shows which proofs are new."""
        quietly(["slow_rank", "memory_leak+skewed_clock"], 12)
        text = prove.RECORD.read_text()
        assert list(json.loads(text)["slow_rank"]) == [str(seed) for seed in range(12)]
        assert sum("digest" in line for line in text.splitlines()) == len(ran)


Change = Callable[[str], str]


class TestDigest:
    def other(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, module: str, change: Change
    ) -> Callable[[str], str]:
        """The digest of a kind's case once a module's text has changed."""
        usual, changed = digests.path_of, tmp_path / "changed.py"
        text = usual(module).read_text()
        changed.write_text(change(text))
        assert changed.read_text() != text

        def path_of(name: str) -> Path:
            return changed if name == module else usual(name)

        def of(kind: str) -> str:
            digests.machinery.cache_clear()
            with monkeypatch.context() as patched:
                patched.setattr(digests, "path_of", path_of)
                found = digest(draw(3, kind))
            digests.machinery.cache_clear()
            return found

        return of

    @pytest.mark.parametrize(
        ("module", "old", "new"),
        [
            ("agent", "  # below the run folder", "  # in the run folder"),
            ("world", '"""One machine.', '"""A machine.'),
            ("kinds.storage", "How did each attempt end?", "And how did each one end?"),
            ("kinds.storage", "Alert on free space", "Watch the free space"),
        ],
    )
    def test_words_and_comments_do_not_count(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, module: str, old: str, new: str
    ) -> None:
        """Otherwise nobody would improve a sentence."""
        name = f"rehearsal.incidents.{module}"
        after = self.other(monkeypatch, tmp_path, name, lambda text: text.replace(old, new))
        assert after("full_disk") == digest(draw(3, "full_disk"))

    @pytest.mark.parametrize(
        ("module", "old", "new", "kinds"),
        [
            (
                "evidence",
                "return high(ratios, 0.75)",
                "return high(ratios, 0.5)",
                ["slow_rank"],
            ),
            ("kinds.storage", "No space left", "no space left", ["full_disk"]),
            ("kinds.storage", "ms > limit", "ms >= limit", ["full_disk", "retry_storm"]),
        ],
    )
    def test_what_a_proof_depends_on_counts(
        self,
        monkeypatch: pytest.MonkeyPatch,
        tmp_path: Path,
        module: str,
        old: str,
        new: str,
        kinds: list[str],
    ) -> None:
        """The record would claim what nobody has seen."""
        name = f"rehearsal.incidents.{module}"
        after = self.other(monkeypatch, tmp_path, name, lambda text: text.replace(old, new))
        for kind in kinds:
            assert after(kind) != digest(draw(3, kind))

    def test_a_change_of_one_kind_leaves_the_others_current(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        """There are hundreds of proofs, and one kind has twenty."""

        def change(text: str) -> str:
            return text.replace("No space left", "no space left")

        name = "rehearsal.incidents.kinds.storage"
        after = self.other(monkeypatch, tmp_path, name, change)
        for kind in ("retry_storm", "slow_rank", "checkpoint_every_20_minutes"):
            assert after(kind) == digest(draw(3, kind))

    def test_another_plan_is_another_proof(self) -> None:
        """Seeds, kinds and limits all differ."""
        names = ["slow_rank", "slow_network", "no_fault", "memory_leak+skewed_clock"]
        found = {digest(draw(seed, name)) for seed in range(5) for name in names}
        assert len(found) == 20

    def test_the_trainer_counts(self) -> None:
        """A proof is about the trainer that ran."""
        text = "\n".join(digests.machinery())
        for name in ("def train_step", "def save_checkpoint", "def audit_run", "class Agent"):
            assert name in text

    def test_a_module_of_words_stays_valid_code(self, tmp_path: Path) -> None:
        """What is left is compared as text, so it has to be whole."""
        path = tmp_path / "words.py"
        path.write_text('"""Doc."""\n\n\ndef f():\n    """Doc."""\n\n\nx = f(title="a", y=1)\n')
        assert ast.unparse(bare(path)) == "def f():\n    pass\nx = f(y=1)"


def test_the_record_has_every_kind_and_no_failure() -> None:
    """docs/incidents.json is what the project claims about its cases."""
    record: dict[str, dict[str, Any]] = json.loads(prove.RECORD.read_text())
    assert list(record) == prove.NAMES
    for name, proofs in record.items():
        assert set(map(str, range(20))) <= set(proofs), name
        assert [seed for seed, facts in proofs.items() if facts["problems"]] == [], name
