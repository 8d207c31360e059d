"""What the findings are called, which rules they state, and where they tell you to look."""

from __future__ import annotations

from rehearsal.grading.verdict import FindingTable

NO_TRACE = "a test leaves no trace: training continues with this network"
RELATIVE = "an output is off if its error is more than 1e-4 of its own norm"

TABLE = FindingTable(
    {
        "collective-on-some-ranks": (
            "the run hangs or fails: the ranks' collectives differ",
            "every rank issues every collective, whatever its own molecules have shown",
            "at what happens between the first break on a rank and the collective",
        ),
        "wrong-return-value": (
            "broken_symmetries doesn't return a set",
            "every rank returns a set of names",
            "at what you return",
        ),
        "runs-in-training-mode": (
            "the network is tested in training mode, or part of it is",
            "in training mode, dropout drops at random, so two calls differ without any motion",
            "at the mode of every module when the network is called",
        ),
        "records-a-graph": (
            "the network's outputs carry a graph for backward",
            "nobody calls backward on a test, and the graph keeps every activation in memory",
            "at what surrounds the calls of the network",
        ),
        "changes-its-arguments": (
            "a call writes into the tensors that it's given",
            "the next step trains on this batch, as it was",
            "at operations that work in place",
        ),
        "changes-the-model": (
            "a call leaves weights, buffers, gradients or modes different from before",
            NO_TRACE,
            "at everything that you set on the network, module by module, on every way out",
        ),
        "changes-global-state": (
            "a call draws from a global generator, or changes another global setting",
            NO_TRACE,
            "at the generator that draws, and at what is switched on or off",
        ),
        "raises-without-reason": (
            "ValueError is raised although neither output is all zeros",
            "a test can fail as soon as one scalar and one vector aren't 0",
            "at what decides that there's nothing to test",
        ),
        "accepts-zeros": (
            "outputs of zeros on a rank don't make every rank raise ValueError",
            "zeros stay zeros under any motion: a test that can't fail proves nothing",
            "at which outputs you look at, and at which ranks find out",
        ),
        "ranks-differ": (
            "the ranks return different sets",
            "a rank that stops alone leaves the others hanging: all act on one verdict",
            "at what is exchanged, and at what each rank makes of it",
        ),
        "calls-it-broken": (
            "a network that keeps every symmetry is said to break one",
            "a correct network's output follows the motion, up to rounding",
            "at what each output should become, and at what its error is compared with",
        ),
        "mirror-as-rotation": (
            "a network that only a mirror changes is said to break rotation",
            "half of all orthogonal matrices aren't rotations",
            "at the determinants of the matrices that you draw",
        ),
        "names-another-symmetry": (
            "a symmetry is named that the network keeps, next to one that it breaks",
            "each motion is tested alone: the one that fails names the bug",
            "at what a motion changes besides what its name says",
        ),
        "misses-rotation": (
            "a network that breaks rotation passes",
            "for every rotation R, scalars stay and vectors become R v",
            "at the rotations that you try",
        ),
        "misses-reflection": (
            "a network that breaks reflection passes",
            "reflections are all orthogonal matrices of determinant -1; rotations don't imply "
            "them",
            "at which reflections you try, and whether you still do once a rotation has failed",
        ),
        "misses-translation": (
            "a network that breaks translation passes",
            "for every shift, scalars and vectors stay",
            "at the shifts that you try",
        ),
        "misses-permutation": (
            "a network that breaks permutation passes",
            "in any order of the nodes, scalars stay and vectors come in that order",
            "at the orders that you try",
        ),
        "misses-in-one-output": (
            "a break that only one of the outputs shows passes",
            "scalars and vectors each have a symmetry, and each can lose it alone",
            "at both outputs, and at the direction of a vector as well as its length",
        ),
        "misses-off-axis": (
            "a break that shows off one axis, or between quarter turns, passes",
            "the symmetry is that of all directions, not of the axes of a file",
            "at which rotations and which reflections your draws can give",
        ),
        "misses-far-away": (
            "a break that only shows far from the origin passes",
            "a symmetry has to hold wherever a molecule may lie",
            "at how far your shifts go",
        ),
        "misses-between-graphs": (
            "a graph that depends on the other graphs of its batch passes",
            "a graph's outputs depend on that graph only",
            "at how the graphs of a batch move relative to each other",
        ),
        "misses-small-output": (
            "a break passes in an output whose unit makes its numbers small",
            RELATIVE,
            "at what an error is compared with, and in which type",
        ),
        "misses-precision": (
            "a network whose geometry is rounded to TF32 or bf16 passes",
            RELATIVE + ", in the precision of the training",
            "at your tolerance, and at the type in which the network runs",
        ),
        "wrong-tolerance": (
            "a change a little over the tolerance passes, or one below it doesn't",
            RELATIVE,
            "at your tolerance, and at what it's a fraction of",
        ),
        "misses-nan": (
            "a network that returns NaN passes",
            "NaN isn't within any tolerance",
            "at how your comparison turns out for NaN, on one rank and between ranks",
        ),
        "misses-another-break": (
            "of the symmetries that a network breaks, one isn't named",
            "the set has every symmetry that's broken",
            "at what happens after the first break",
        ),
        "misses-another-rank": (
            "a break that only one rank's molecules show is missing from the set",
            "a network that fails on one rank's molecules is broken",
            "at which ranks' findings are in the result",
        ),
        "too-few-draws": (
            "a motion is tried fewer than 4 times, or the same one over and over",
            "some breaks show in some motions only: draw each kind at least 4 times",
            "at what each round draws anew, and at how many rounds there are",
        ),
        "misses-some-motions": (
            "a break that only some rotations, shifts or orders show passes",
            "any rotation, any direction of a shift and any order may be the one that shows it",
            "at which motions your draws can give, and which they can't",
        ),
    }
)
