"""Which samples are trained: nothing crashes, and the loss falls."""

from __future__ import annotations


from rehearsal.incidents.evidence import Evidence
from rehearsal.incidents.kinds.kind import Claim, Fix, See
from rehearsal.incidents.kinds.layers import code_fault, deploy, in_module
from rehearsal.incidents.kinds.setups import preempted
from rehearsal.incidents.world import Edit

REFUTED = "The nightly audit of the run exits with 1, and the weights are due to ship today."


duplicate_shards = code_fault(
    id="duplicate_shards",
    title="All ranks train on the same share of each batch",
    alarm="audit",
    alert=lambda e: REFUTED,
    inject=deploy(
        Edit(
            module="data.py",
            old="[self.rank :: self.world_size].tolist()",
            new="[:: self.world_size].tolist()",
        ),
        message="data: slice without the extra index",
    ),
    claims=(
        Claim("samples trained more than once", lambda e: float(e.audit.duplicates), 1, 100),
        Claim("samples never trained", lambda e: float(e.audit.misses), 1, 100),
    ),
    wrong=lambda plan: (
        Fix({"num_workers": 2}, "the loader must hand out batches twice"),
        Fix({"learning_rate": plan.settings["learning_rate"] / 2}, "the run overfits"),
    ),
    path=(
        See(
            "audit",
            "What does the audit count: duplicates, misses, or the wrong order?",
            "Hundreds of samples trained twice, and as many never. No step is missing.",
            "symptom",
        ),
        See(
            "ledger",
            "Which ranks trained the duplicates, and in which step?",
            "In every step, all ranks list the same sample ids.",
            "mechanism",
        ),
        in_module(
            "data.py",
            "What computes a rank's share?",
            "data.py slices the batch without the rank, so every rank takes rank 0's share. "
            "The last deployment changed that line.",
        ),
    ),
    chain=(
        "the last deployment removed the rank from the slice that makes a rank's share",
        "all ranks train on the same samples, and the rest of each batch is never read",
        "the loss falls as usual, and the audit counts duplicates and misses",
    ),
    prevention="Run the audit in CI on two ranks, and alert on samples shared by ranks in a "
    "step.",
    like=("wrong_epoch_seed", "skipped_samples_after_resume"),
)


wrong_epoch_seed = code_fault(
    id="wrong_epoch_seed",
    title="Every epoch has the same order",
    alarm="audit",
    alert=lambda e: REFUTED,
    inject=deploy(
        Edit(
            module="data.py",
            old="order = EpochOrder(self.schedule.num_samples, seed=self.seed, epoch=epoch)",
            new="order = EpochOrder(self.schedule.num_samples, seed=self.seed, epoch=0)",
        ),
        message="data: one order object is enough",
    ),
    claims=(
        Claim(
            "ledger lines out of the planned order", lambda e: float(e.audit.wrong_lines), 1, 20
        ),
        Claim(
            "steps of epoch 1 that repeat epoch 0's samples",
            lambda e: repeated_steps(e),
            0.1,
            0.9,
        ),
    ),
    wrong=lambda plan: (
        Fix({"num_workers": 2}, "the loader must restart its order"),
        Fix({"checkpoint_every_steps": 5}, "the sampler's state must be saved more often"),
    ),
    path=(
        See(
            "audit",
            "What does the audit count: duplicates, misses, or the wrong order?",
            "No duplicate and no miss: the lines of the second epoch are out of order.",
            "symptom",
        ),
        See(
            "ledger",
            "What do the first steps of the two epochs have in common?",
            "The same samples in the same steps: epoch 1 repeats epoch 0.",
            "mechanism",
        ),
        in_module(
            "data.py",
            "What decides the order of an epoch?",
            "data.py builds the order with epoch=0, whatever the epoch.",
        ),
    ),
    chain=(
        "the last deployment fixed the epoch in the order's key to 0",
        "every epoch shuffles the same way, so the same samples meet in the same batches",
        "each sample is trained once per epoch, and the audit finds the wrong order from epoch "
        "1",
    ),
    prevention="Test that two epochs have different orders; run the audit in CI over two "
    "epochs.",
    like=("duplicate_shards", "skipped_samples_after_resume"),
)


def repeated_steps(evidence: Evidence) -> float:
    """The share of epoch 1's steps whose samples are those of the same step of epoch 0."""
    trained = {
        line["step"]: set(line["samples"]) for line in evidence.ledger if not line["rank"]
    }
    per_epoch = evidence.audit.total_steps // 2
    pairs = [(trained[s], trained.get(s + per_epoch)) for s in trained if s <= per_epoch]
    return sum(first == second for first, second in pairs) / max(len(pairs), 1)


skipped_samples_after_resume = code_fault(
    id="skipped_samples_after_resume",
    title="A resume skips the batches that the loader had prefetched",
    alarm="audit",
    alert=lambda e: REFUTED,
    setup=preempted,
    inject=deploy(
        Edit(
            module="data.py",
            old="        self.position = 0\n",
            new="        self.position = 0\n        self.ahead = 0\n",
        ),
        Edit(
            module="data.py",
            old='        self.position = state["position"]\n',
            new='        self.position = state["position"]\n'
            "        self.ahead = 2  # the loader had these ready\n",
        ),
        Edit(
            module="data.py",
            old="            yield from self.micro_batches(position)\n",
            new="            last = self.schedule.total_steps - 1\n"
            "            yield from self.micro_batches(min(position + self.ahead, last))\n",
        ),
        message="data: continue where the loader was",
    ),
    claims=(
        Claim("samples never trained", lambda e: float(e.audit.misses), 1, 10),
        Claim(
            "ledger lines out of the planned order", lambda e: float(e.audit.wrong_lines), 1, 10
        ),
    ),
    wrong=lambda plan: (
        Fix(
            {"num_workers": 0, "keep_last": 5}, "without loader processes nothing is prefetched"
        ),
        Fix({"checkpoint_every_steps": 5}, "with more checkpoints less is skipped"),
    ),
    path=(
        See(
            "audit",
            "What does the audit count, and from which step on?",
            "Misses and lines out of order, all of them after the step that the second attempt "
            "restored.",
            "symptom",
        ),
        See(
            "ledger",
            "Which samples did the first step after the resume train?",
            "Those that belong two steps later. The steps before the kill are as planned.",
            "mechanism",
            ("restarts", "logs"),
        ),
        in_module(
            "data.py",
            "What does the sampler restore besides the position?",
            "data.py adds what the loader had prefetched to the committed position.",
        ),
    ),
    chain=(
        "the last deployment resumes where the loader was, not where the optimizer was",
        "batches that were prefetched but never trained are skipped after every resume",
        "the audit counts misses from the first restart on; an uninterrupted run has none",
    ),
    prevention="Resume in CI, and audit the resumed run; the position moves on commit, never "
    "on fetch.",
    like=("duplicate_shards", "wrong_epoch_seed", "rare_checkpoints"),
    clashes=("noisy_restart",),
)

KINDS = (duplicate_shards, wrong_epoch_seed, skipped_samples_after_resume)
