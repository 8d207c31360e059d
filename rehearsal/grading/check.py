"""A check: the learner's text runs on ranks, scenario by scenario, and is judged.

Called by the notebook's ``check``, by the command line and by the graders' own tests alike.
"""

from __future__ import annotations

import copyreg
import importlib
import inspect
import linecache
import signal
import sys
import time
import traceback
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

from rehearsal.engine.reports import Blank, Fault, Mismatch
from rehearsal.grading.drill import Drill, Scenario, load, module_at
from rehearsal.engine.reports import RankReport
from rehearsal.engine.ranks import (
    ONCE_MORE,
    SERVER_ENDED,
    STOOD_STILL,
    run_ranks,
    stand_at_the_meeting,
)
from rehearsal.grading.verdict import ENGINE_FINDINGS, Finding, Verdict
from rehearsal.grading.verdict import cheat_findings, failure_verdict

if TYPE_CHECKING:
    from rehearsal.engine.rank import RankContext  # with torch, which only a check needs

ATTEMPT = "attempt"  # the module in which a text is executed


SERVER_KILLED = ENGINE_FINDINGS(
    "server-killed", "the process that starts the ranks ended while this code ran"
)


Outcome = tuple[Any, Sequence[Finding], str]  # status, findings, detail


class Attempt(NamedTuple):
    """What was typed: as a text to execute in each rank, or as objects of a notebook."""

    source: str | None
    file: str  # what tracebacks call the text
    objects: bytes  # cloudpickle of the needed names; empty with a source
    lines: dict[str, str]  # file name: text


def attempt_of_source(source: str, file: str = "attempt.py") -> Attempt:
    """An attempt from the text of a file."""
    return Attempt(source, file, b"", {file: source})


def attempt_of_namespace(drill: Drill, namespace: Mapping[str, object]) -> Attempt:
    """An attempt from objects, and from what is known of the text that made them.

    Raises:
        Exception: what pickling raises, for an object that cannot travel.
    """
    objects = {name: namespace[name] for name in drill.needs if name in namespace}
    files = {code.co_filename for value in objects.values() for code in codes_of(value)}
    # Cells that the needed names lean on, as IPython calls them.
    cells = [f for f in linecache.cache if f.startswith("<ipython") or "ipykernel_" in f]
    texts = {file: "".join(linecache.getlines(file)) for file in [*cells, *files]}
    lines = {f: text for f, text in texts.items() if text and "site-packages" not in f}
    try:
        import cloudpickle
    except ImportError:
        print(
            "cloudpickle is not installed: the text of your cells is executed again in each "
            "rank, so names from other cells are missing there. Run: pip install cloudpickle"
        )
        return attempt_of_source("\n\n".join(lines.values()))
    import torch

    # Code that uses torch and any attribute called classes or ops takes these along, as
    # submodules; they are modules of a type that does not pickle.
    for module in (torch.classes, torch.ops):
        copyreg.pickle(type(module), _module_by_name)
    return Attempt(None, "", cloudpickle.dumps(objects), lines)


def _module_by_name(module: types.ModuleType) -> tuple[Callable[..., Any], tuple[str]]:
    return importlib.import_module, (module.__name__,)


def functions_of(value: object) -> list[types.FunctionType]:
    """A function itself, or a class's methods."""
    members = vars(value).values() if inspect.isclass(value) else [value]
    found = [inspect.unwrap(m) for m in members if inspect.isroutine(m) or callable(m)]
    return [f for f in found if isinstance(f, types.FunctionType)]


def codes_of(value: object) -> list[types.CodeType]:
    """The code of a function, or of a class's methods."""
    return [function.__code__ for function in functions_of(value)]


def is_blank(value: object) -> bool:
    """Whether a function, or each method of a class that is not a dunder, only raises
    NotImplementedError."""
    codes = codes_of(value)
    return bool(codes) and all(code.co_names == ("NotImplementedError",) for code in codes)


def mismatch_of(value: object, signature: str) -> str:
    """What is wrong with the arguments that ``value`` takes; "" if it can be called so."""
    if not callable(value):
        return f"is a {type(value).__name__}; expected {signature}"
    scope: dict[str, Any] = {}
    exec(f"def wanted{signature}: ...", scope)
    wanted = inspect.signature(scope["wanted"])
    try:
        found = inspect.signature(value)
    except (TypeError, ValueError):
        return ""
    kinds = inspect.Parameter
    positional = [
        p.name
        for p in wanted.parameters.values()
        if p.kind in (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD)
    ]
    keywords = [p.name for p in wanted.parameters.values() if p.kind is kinds.KEYWORD_ONLY]
    try:
        found.bind(*positional, **dict.fromkeys(keywords))
    except TypeError as error:
        return f"takes {found}, expected {signature} ({error})"
    return ""


# ---------------------------------------------------------------- in the ranks


def run_scenario(
    context: RankContext, grader: Path, needs: Mapping[str, str], name: str, attempt: Attempt
) -> Any:
    """Load the learner's names and hand them to the scenario's body. Runs in each rank."""
    module = module_at(grader)
    scenario = next(s for s in module.SCENARIOS if s.name == name)
    # Formatting a stack (torch.manual_seed does it) reads the lines of the grader and of the
    # modules beside it: read now, they do not count as a peek.
    for loaded, beside in list(sys.modules.items()):
        if loaded.partition(".")[0] == module.__name__:
            linecache.getlines(str(beside.__file__))
    context.arm()
    context.record("begin")
    if attempt.source is None:
        import cloudpickle

        names = cloudpickle.loads(attempt.objects)
        stand_in_for_main(names)
    else:
        typed = types.ModuleType(ATTEMPT)
        sys.modules[ATTEMPT] = typed  # classes in it pickle by this name
        # As a cell runs: without the __future__ imports of this file.
        code = compile(attempt.source, attempt.file, "exec", dont_inherit=True)
        exec(code, vars(typed))
        names = vars(typed)
    wrong = [(n, "is missing") for n in needs if n not in names]
    wrong += [
        (n, what)
        for n, signature in needs.items()
        if n in names and (what := mismatch_of(names[n], signature))
    ]
    if wrong:
        raise Mismatch(*wrong)
    if blank := [n for n in needs if is_blank(names[n])]:
        raise Blank(*blank)
    return scenario.body(context, SimpleNamespace(**{n: names[n] for n in needs}))


def stand_in_for_main(names: Mapping[str, object]) -> None:
    """Give this process a ``__main__`` with what came from the notebook's.

    A class typed in a notebook pickles as ``__main__.Batch``; loader workers send such objects.
    """
    main = types.ModuleType("__main__")
    for value in names.values():
        for function in functions_of(value):
            vars(main).update(function.__globals__)
    vars(main).update(names)
    sys.modules["__main__"] = main


# ---------------------------------------------------------------- in the kernel


def grade(
    drill: str, namespace: Mapping[str, object], *, echo: Callable[[str], None] | None = None
) -> Verdict:
    """Judge the names in ``namespace``; needs no notebook.

    Args:
        drill: its id.
        namespace: the learner's names, as of ``globals()`` in a notebook.
        echo: called with each line that a rank prints.

    Raises:
        UnknownDrill: with the nearest id.
    """
    the_drill = load(drill)
    if not any(name in namespace for name in the_drill.needs):
        text = f"none of {', '.join(the_drill.needs)} is defined"
        nothing = ENGINE_FINDINGS("not-attempted", text)
        return Verdict(
            drill=the_drill.id,
            status="not_attempted",
            findings=[nothing],
            after=f'start("{the_drill.id}")',
        )
    try:
        attempt = attempt_of_namespace(the_drill, namespace)
    except Exception as error:
        finding = ENGINE_FINDINGS("cannot-travel", f"{type(error).__name__}: {error}")
        return Verdict(
            drill=the_drill.id, status="wrong", findings=[finding], after=_after(the_drill)
        )
    return grade_attempt(the_drill, attempt, echo=echo)


def grade_source(
    drill: str,
    source: str,
    *,
    file: str = "attempt.py",
    echo: Callable[[str], None] | None = None,
) -> Verdict:
    """Judge a text, which is executed in the ranks only."""
    return grade_attempt(load(drill), attempt_of_source(source, file), echo=echo)


def grade_attempt(
    drill: Drill,
    attempt: Attempt,
    *,
    echo: Callable[[str], None] | None = None,
    at_most_s: float = float("inf"),
) -> Verdict:
    """Judge what was typed; a second time where the first may have failed by itself.

    Args:
        at_most_s: a deadline for each scenario that has a longer one.
    """
    began = time.perf_counter()
    for is_last_try in (False, True):
        # Each in a folder of its own: what the first has left would be evidence in the second.
        with TemporaryDirectory(prefix="rehearsal-") as folder:
            outcome, excuse, count = run_scenarios(
                drill, attempt, Path(folder), echo=echo, at_most_s=at_most_s
            )
        if is_last_try or not excuse:
            break
        if echo:
            echo(f"{excuse} {ONCE_MORE}")
    status, findings, detail = outcome
    sizes = {scenario.world_size for scenario in drill.scenarios[:count]}
    after = drill.deeper if status == "passed" else _after(drill, status)
    return Verdict(
        drill=drill.id,
        status=status,
        findings=list(findings),
        detail=detail,
        after=after,
        seconds=time.perf_counter() - began,
        world_sizes=sorted(sizes),
    )


def run_scenarios(
    drill: Drill,
    attempt: Attempt,
    folder: Path,
    *,
    echo: Callable[[str], None] | None,
    at_most_s: float,
) -> tuple[Outcome, str, int]:
    """Run the scenarios in order, up to the first that has a finding.

    Returns:
        The outcome; what may have ended a job that was not the learner's code, or ""; how many
        scenarios were run.
    """
    reports_of = dict[str, Sequence[RankReport]]()
    for count, scenario in enumerate(drill.scenarios, 1):
        try:
            reports = run_ranks(
                run_scenario,
                drill.folder / "grader.py",
                dict(drill.needs),
                scenario.name,
                attempt,
                world_size=scenario.world_size,
                folder=folder,
                fault=scenario.fault,
                deadline_s=min(scenario.deadline_s, at_most_s),
                echo=echo,
                lines=attempt.lines,
            )
        except ConnectionError as error:
            return ("crashed", [SERVER_KILLED], str(error)), SERVER_ENDED, count
        try:
            outcome = judge(scenario, reports, reports_of)
        except Exception as error:  # a defect of ours; the kernel and the rest go on
            outcome = grader_failed(drill, scenario, error)
        if outcome[0] != "passed":
            return outcome, STOOD_STILL if stand_at_the_meeting(reports) else "", count
        reports_of[scenario.name] = reports
    return ("passed", (), ""), "", len(drill.scenarios)


def judge(
    scenario: Scenario,
    reports: Sequence[RankReport],
    earlier: Mapping[str, Sequence[RankReport]],
) -> Outcome:
    """Status, findings and detail of one scenario."""
    if cheats := cheat_findings(reports):
        return "wrong", cheats, ""
    # A rank that the scenario's own fault has ended did not crash, nor did those that lost it.
    expected = any(was_struck(report, scenario.fault) for report in reports)
    failure = None if expected else failure_verdict(reports, scenario.deadline_s)
    if failure is not None and (
        not scenario.judges_failures
        or failure[1][0].code in ("wrong-signature", "not-attempted")
    ):
        return failure
    findings = list(scenario.judge(reports, earlier))
    if findings and failure:
        # The judge names the cause; that every rank stood still remains what happened.
        return "hung" if failure[0] == "hung" else "wrong", findings, failure[2]
    if findings:
        return "wrong", findings, ""
    return failure or ("passed", (), "")


def grader_failed(drill: Drill, scenario: Scenario, error: Exception) -> Outcome:
    """What is said where a judge itself raised: no verdict on the learner's code."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    found = f"the grader of {drill.id} failed in its scenario {scenario.name!r}: "
    found += f"{type(error).__name__}: {error} (line {place.lineno} in {place.name})"
    return "crashed", [ENGINE_FINDINGS("grader-failed", found)], ""


def was_struck(report: RankReport, fault: Fault | None) -> bool:
    """Whether the scenario's own signal has ended this rank, or its limit on a file."""
    if fault is None or fault.rank not in (None, report.rank):
        return False
    return report.exitcode in (-getattr(signal, "SIG" + fault.signal), -signal.SIGXFSZ)


def _after(drill: Drill, status: str = "wrong") -> str:
    if status == "not_attempted":
        return f'start("{drill.id}") shows the brief'
    return f'hint("{drill.id}")'
