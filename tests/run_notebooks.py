"""Runs notebooks' cells in one process, without kernels: python run_notebooks.py SPEC.

SPEC is JSON, a list of [path, text of the blank's cell or null]. Prints one line of JSON per
notebook: its path, the verdicts that ``check`` returned, the drills whose clock started, and
what a cell raised.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from IPython.core.interactiveshell import InteractiveShell

from rehearsal import forget
from rehearsal.session import coach
from rehearsal.engine.ranks import shut_down
from rehearsal.session.progress import progress


def main(spec: str) -> None:
    """Run them one after the other, each in a fresh namespace."""
    verdicts = []
    settle = coach._settle

    def recorded(drill, text, verdict):  # type: ignore[no-untyped-def]
        verdicts.append([verdict.drill, verdict.status, [f.code for f in verdict.findings]])
        return settle(drill, text, verdict)

    coach._settle = recorded
    shell = InteractiveShell.instance()
    shell.history_manager.enabled = False
    for path, typed in json.loads(spec):
        verdicts.clear()
        shell.reset(new_session=False)
        raised = ""
        forget()
        for cell in json.loads(Path(path).read_text())["cells"]:
            if cell["cell_type"] != "code":
                continue
            text = "".join(cell["source"])
            if typed is not None and cell["metadata"]["origin"].endswith("blank.py#0:drill"):
                text = typed
            result = shell.run_cell(text, store_history=True)
            if not result.success:
                raised = repr(result.error_before_exec or result.error_in_exec)
                break
        # On a line of its own: the cells print too.
        started = [entry.drill for entry in progress().entries() if entry.kind == "start"]
        result = {"path": path, "verdicts": verdicts, "started": started, "raised": raised}
        print("\nRESULT " + json.dumps(result))
    shut_down()


if __name__ == "__main__":
    main(Path(sys.argv[1]).read_text())  # a file: the solutions are too long for an argument
