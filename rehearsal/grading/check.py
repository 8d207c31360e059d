"""A check, seen from the caller's process: what was typed goes to the ranks, and is judged.

Called by ``check`` in a notebook, by the command line, and by the graders' own tests. Nothing a
learner typed runs here; ``in_rank.py`` is the other half.
"""

from __future__ import annotations

import copyreg
import importlib
import linecache
import random
import signal
import sys
import time
import traceback
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from rehearsal.engine import ranks
from rehearsal.engine.plain_message import PlainMessage
from rehearsal.engine.ranks import (
    RUNNING_AGAIN,
    SERVER_ENDED,
    STUCK_MEETING,
    run_ranks,
    stuck_while_meeting,
)
from rehearsal.engine.reports import Fault, RankReport
from rehearsal.grading.attempt import Attempt, codes_of
from rehearsal.grading.drill import Drill, Scenario, load
from rehearsal.grading.typed import (
    half_typed,
    incident_again,
    is_untouched,
    outcome_of_text,
    text_of,
)
from rehearsal.grading.verdict import (
    ENGINE_FINDINGS,
    Finding,
    Status,
    Verdict,
    cheat_findings,
    failure_verdict,
    missing_text,
)

# By name: this process needs none of the code that runs in a rank.
RUN_SCENARIO = "rehearsal.grading.in_rank:run_scenario"
KIT = Path(__file__).parents[1] / "kit"

SERVER_KILLED = ENGINE_FINDINGS(
    "server-killed", "the process that starts the ranks ended while this code ran"
)

# What to do about a program that is checked before anything in it has changed.
FIND_IT = {"bug": "find its cause, change the program", "debug": "find a bug, fix it"}
Outcome = tuple[Status, Sequence[Finding], str]  # status, findings, detail
DRAWN_SEEDS = range(1_000_000)  # short enough to type


class BadSeed(PlainMessage, ValueError):
    """The seed is not a whole number, 0 or more."""


def drawn_seed(seed: int | None) -> int:
    """The seed, if a verdict can show it and somebody can type it again; for None, a new one.

    Raises:
        BadSeed: if it is not a whole number, 0 or more.
    """
    if seed is None:
        return random.SystemRandom().choice(DRAWN_SEEDS)
    if type(seed) is int and seed >= 0:
        return seed
    raise BadSeed(
        f"seed={seed!r}: a seed is a whole number, 0 or more, such as the one that a verdict "
        "shows; nothing was checked. Pass that number, or no seed: each check then draws one."
    )


def warm_up() -> None:
    """Start the server that forks the ranks, in the background, with what any check needs.

    A notebook's first cell calls it, so that the server is ready by the time you have read the
    brief.
    """
    kit = [path.relative_to(KIT.parents[1]) for path in sorted(KIT.rglob("[!_]*.py"))]
    names = [".".join(path.with_suffix("").parts) for path in kit]
    ranks.warm_up("rehearsal.grading.in_rank", *names)


def attempt_of_source(source: str, file: str = "attempt.py") -> Attempt:
    """An attempt from the text of a file."""
    return Attempt(source, file, b"", {file: source})


def attempt_of_namespace(drill: Drill, namespace: Mapping[str, object]) -> Attempt:
    """An attempt from objects, and from as much of their source as is known.

    Raises:
        Exception: whatever pickling raises for an object that cannot be sent.
    """
    objects = {name: namespace[name] for name in drill.needs if name in namespace}
    files = {code.co_filename for value in objects.values() for code in codes_of(value)}
    # Cells that the needed names may use, under the names IPython gives them.
    cells = [f for f in linecache.cache if f.startswith("<ipython") or "ipykernel_" in f]
    texts = {file: "".join(linecache.getlines(file)) for file in [*cells, *files]}
    lines = {f: text for f, text in texts.items() if text and "site-packages" not in f}
    try:
        import cloudpickle
    except ImportError:
        magic = "%" if "IPython" in sys.modules else ""  # in a cell, or at a terminal
        print(
            "cloudpickle is not installed, so each rank executes the source of your cells "
            "again, and names from other cells are missing there. "
            f"Run: {magic}pip install cloudpickle"
        )
        return attempt_of_source("\n\n".join(lines.values()))
    import torch

    # cloudpickle sends these along with code that uses torch and any attribute called classes
    # or ops. They are modules of a type that does not pickle.
    for module in (torch.classes, torch.ops):
        copyreg.pickle(type(module), _module_by_name)
    return Attempt(None, "", cloudpickle.dumps(objects), lines)


def _module_by_name(module: types.ModuleType) -> tuple[Callable[..., Any], tuple[str]]:
    return importlib.import_module, (module.__name__,)


def grade(
    drill: str,
    namespace: Mapping[str, object],
    *,
    echo: Callable[[str], None] | None = None,
    seed: int | None = None,
) -> Verdict:
    """Judge the names in ``namespace``; works without a notebook.

        verdict = rehearsal.grade("lift_to_distributed", globals())
        assert verdict.status == "passed", verdict

    Args:
        drill: its id.
        namespace: where the learner's names are, such as ``globals()``.
        echo: called with each line that a rank prints.
        seed: what the scenarios draw their numbers from; the verdict has it. Drawn if None.

    Raises:
        UnknownDrill: if there is no such drill; the message offers the nearest id.
        BadSeed: if the seed is not a whole number, 0 or more.
        CannotStartRanks: if the server that forks the ranks cannot be started.
    """
    the_drill, seed = load(drill), drawn_seed(seed)
    if not any(name in namespace for name in the_drill.needs):
        nothing = ENGINE_FINDINGS("not-attempted", missing_text(list(the_drill.needs)))
        return _unrun(the_drill, ("not_attempted", [nothing], ""), "write it")
    text = text_of(the_drill, namespace)
    if the_drill.is_broken and is_untouched(the_drill, text):
        return _unrun(the_drill, incident_again(the_drill), FIND_IT[the_drill.kind])
    try:
        attempt = attempt_of_namespace(the_drill, namespace)
    except Exception as error:
        finding = ENGINE_FINDINGS("cannot-travel", f"{type(error).__name__}: {error}")
        return _unrun(the_drill, ("wrong", [finding], ""))
    verdict = grade_attempt(the_drill, attempt, echo=echo, seed=seed)
    return _with_halves(the_drill, text, verdict)


def grade_source(
    drill: str,
    source: str,
    *,
    file: str = "attempt.py",
    echo: Callable[[str], None] | None = None,
    seed: int | None = None,
) -> Verdict:
    """Judge the text of a file. Only the ranks execute it.

    rehearsal.grade_source("lift_to_distributed", Path("attempt.py").read_text()).status

    Args:
        drill: its id.
        file: the name that tracebacks give to the text.
        echo: called with each line that a rank prints.
        seed: what the scenarios draw their numbers from; the verdict has it. Drawn if None.

    Raises:
        UnknownDrill: if there is no such drill; the message offers the nearest id.
        BadSeed: if the seed is not a whole number, 0 or more.
        CannotStartRanks: if the server that forks the ranks cannot be started.
    """
    the_drill, seed = load(drill), drawn_seed(seed)
    if verdict := verdict_without_ranks(the_drill, source, file):
        return verdict
    attempt = attempt_of_source(source, file)
    verdict = grade_attempt(the_drill, attempt, echo=echo, seed=seed)
    return _with_halves(the_drill, source, verdict)


def verdict_without_ranks(drill: Drill, source: str, file: str) -> Verdict | None:
    """The verdict on a text that no rank has to run: empty, unparsable, or untouched."""
    if drill.is_broken and is_untouched(drill, source):
        return _unrun(drill, incident_again(drill), FIND_IT[drill.kind])
    if outcome := outcome_of_text(source, file):
        advice = "fix that line" if outcome[0] == "crashed" else "write it"
        return _unrun(drill, outcome, advice)
    return None


def _unrun(drill: Drill, outcome: Outcome, advice: str = "") -> Verdict:
    """The verdict on what no rank had to run; ``advice`` says what to do before a check."""
    status, findings, detail = outcome
    return Verdict(
        drill=drill.id,
        status=status,
        findings=list(findings),
        detail=detail,
        after=f'{advice}, then run check("{drill.id}")' if advice else _after(drill),
    )


def _with_halves(drill: Drill, text: str, verdict: Verdict) -> Verdict:
    """The verdict; if only half of the names are typed, it says which half."""
    half = half_typed(drill, text)
    if verdict.status != "not_attempted" or verdict.stages or not half:
        return verdict
    # A typed name that takes the wrong arguments has a finding of its own.
    wrong = [finding for finding in verdict.findings if finding.code != "not-attempted"]
    if wrong:
        return verdict
    return replace(verdict, findings=[ENGINE_FINDINGS("not-attempted", half)])


def grade_attempt(
    drill: Drill,
    attempt: Attempt,
    *,
    echo: Callable[[str], None] | None = None,
    at_most_s: float = float("inf"),
    seed: int | None = None,
) -> Verdict:
    """Judge an attempt; judge it once more if the machine may be to blame, not the code.

    Args:
        at_most_s: caps the deadline of every scenario, in seconds.
        seed: what the scenarios draw their numbers from; drawn if None.

    Raises:
        BadSeed: if the seed is not a whole number, 0 or more.
        CannotStartRanks: if the server that forks the ranks cannot be started.
    """
    began = time.perf_counter()
    seed = drawn_seed(seed)
    for is_last_try in (False, True):
        # A fresh folder for each try: files left by the first would be evidence in the second.
        with TemporaryDirectory(prefix="rehearsal-") as folder:
            ran = run_scenarios(
                drill, attempt, Path(folder), echo=echo, at_most_s=at_most_s, seed=seed
            )
        if is_last_try or not ran.excuse:
            break
        if echo:
            echo(f"{ran.excuse} {RUNNING_AGAIN}")
    status, findings, detail = ran.outcome
    after = drill.deeper if status == "passed" else _after(drill, status)
    if ran.stages and status == "not_attempted":
        findings, after = (), f'type the next cell, then run check("{drill.id}") again'
    return Verdict(
        drill=drill.id,
        status=status,
        findings=list(findings),
        detail=detail,
        after=after,
        seconds=time.perf_counter() - began,
        world_sizes=ran.world_sizes,
        seed=seed,
        stages=ran.stages,
        next_stage=ran.next_stage,
        scenario=ran.scenario,
    )


class Ran(NamedTuple):
    """What came of a check's scenarios."""

    outcome: Outcome
    excuse: str  # if the code may not be to blame: what went wrong instead
    world_sizes: Sequence[int]
    stages: Sequence[str] = ()  # those that passed
    next_stage: str = ""  # the first that did not
    scenario: str = ""  # the one that ended the check


def run_scenarios(
    drill: Drill,
    attempt: Attempt,
    folder: Path,
    *,
    echo: Callable[[str], None] | None,
    at_most_s: float,
    seed: int,
) -> Ran:
    """Run the scenarios in order, up to the first that does not pass.

    In a drill judged by stages, those whose names are still blank are skipped.
    """
    warm_up()
    reports_of = dict[str, Sequence[RankReport]]()
    sizes: set[int] = set()
    blank: set[str] = set()  # names that are known to be blank or missing
    skipped: dict[str, Outcome] = {}  # by stage

    def ran(outcome: Outcome, excuse: str, at: str, scenario: str = "") -> Ran:
        names = [stage.name for stage in drill.stages]
        reached = names[: names.index(at)] if at else names
        passed = [name for name in reached if name not in skipped]
        next_stage = at or next(iter(skipped), "")
        return Ran(outcome, excuse, sorted(sizes), passed, next_stage, scenario)

    for number, planned in enumerate(drill.scenarios(seed)):
        scenario = replace(planned, deadline_s=min(planned.deadline_s, at_most_s))
        needs = drill.needs_of(scenario)
        builds_on_skipped = any(
            stage.name in skipped and set(stage.calls) <= set(needs) for stage in drill.stages
        )
        if builds_on_skipped or blank & set(needs):
            skipped.setdefault(scenario.stage, next(iter(skipped.values())))
            continue
        if scenario.body is None:
            outcome = judged(drill, scenario, (), reports_of)
            if outcome[0] != "passed":
                return ran(outcome, "", scenario.stage, scenario.name)
            continue
        sizes.add(scenario.world_size)
        try:
            reports = run_ranks(
                RUN_SCENARIO,
                drill.folder / "grader.py",
                dict(needs),
                scenario.name,
                attempt,
                bool(scenario.stage),
                world_size=scenario.world_size,
                folder=folder,
                fault=scenario.fault,
                deadline_s=scenario.deadline_s,
                echo=echo,
                lines=attempt.lines,
                seed=seed,
                shift=number,
            )
        except ConnectionError as error:
            killed: Outcome = ("crashed", [SERVER_KILLED], str(error))
            return ran(killed, SERVER_ENDED, scenario.stage, scenario.name)
        outcome = judged(drill, scenario, reports, reports_of)
        if outcome[0] == "not_attempted" and scenario.stage:
            names = sorted({name for report in reports for name in report.blank})
            found = f"{', '.join(names)}: still missing, empty, or raising NotImplementedError"
            to_type = ENGINE_FINDINGS("not-attempted", found)
            skipped[scenario.stage] = ("not_attempted", [to_type], "")
            blank |= set(names)
        elif outcome[0] != "passed":
            excuse = STUCK_MEETING if stuck_while_meeting(reports) else ""
            return ran(outcome, excuse, scenario.stage, scenario.name)
        reports_of[scenario.name] = reports
    return ran(next(iter(skipped.values()), ("passed", (), "")), "", "")


def judged(
    drill: Drill,
    scenario: Scenario,
    reports: Sequence[RankReport],
    earlier: Mapping[str, Sequence[RankReport]],
) -> Outcome:
    """The outcome of one scenario, even if its judge fails."""
    try:
        return judge(scenario, reports, earlier)
    except Exception as error:  # our defect; the notebook must survive it
        return grader_failed(drill, scenario, error)


def judge(
    scenario: Scenario,
    reports: Sequence[RankReport],
    earlier: Mapping[str, Sequence[RankReport]],
) -> Outcome:
    """Status, findings and detail of one scenario."""
    if cheats := cheat_findings(reports):
        return "wrong", cheats, ""
    # A rank killed by the scenario's own fault did not crash, nor did the ranks that lost it.
    expected = any(was_struck(report, scenario.fault) for report in reports)
    failure = None if expected else failure_verdict(reports, scenario.deadline_s)
    if failure is not None and (
        not scenario.judges_failures
        or failure[1][0].code in ("wrong-signature", "not-attempted")
    ):
        return failure
    findings = list(scenario.judge(reports, earlier))
    if findings and failure:
        # The judge names the cause; what happened is still a hang.
        return "hung" if failure[0] == "hung" else "wrong", findings, failure[2]
    if findings:
        return "wrong", findings, ""
    return failure or ("passed", (), "")


def grader_failed(drill: Drill, scenario: Scenario, error: Exception) -> Outcome:
    """The outcome when the judge itself raised: it says nothing about the learner's code."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    found = f"the grader of {drill.id} failed in its scenario {scenario.name!r}: "
    found += f"{type(error).__name__}: {error} (line {place.lineno} in {place.name})"
    return "crashed", [ENGINE_FINDINGS("grader-failed", found)], ""


def was_struck(report: RankReport, fault: Fault | None) -> bool:
    """Whether the scenario's own fault ended this rank: its signal, or a file-size limit."""
    if fault is None or fault.rank not in (None, report.rank):
        return False
    return report.exitcode in (-getattr(signal, "SIG" + fault.signal), -signal.SIGXFSZ)


def _after(drill: Drill, status: str = "wrong") -> str:
    if status == "not_attempted":
        return f'write it, then run check("{drill.id}")'
    return f'hint("{drill.id}")'
