"""What a check grades in a real kernel, driven as JupyterLab drives it: with the cells' ids."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from jupyter_client.manager import start_new_kernel

from rehearsal.grading.drill import load

ROOT = Path(__file__).resolve().parents[1]
ID = "lift_to_distributed"
DRILL = load(ID)
RENAMED = DRILL.solution.replace("def train(", "def train_2(")
BROKEN = DRILL.solution.replace("def train(", "def train(:")

pytestmark = [
    pytest.mark.ranks,
    # The kernel says so on stderr; here it is alone on its machine.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


class Kernel:
    """A kernel in the folder of the notebooks, and what its cells show."""

    def __init__(self, folder: Path) -> None:
        self.manager, self.client = start_new_kernel(
            kernel_name="python3",
            cwd=str(folder),
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        )
        self.html = ""

    def run(self, source: str, cell: str | None) -> str:
        """Run a cell; returns what it shows as text.

        Args:
            cell: its id, as JupyterLab and VS Code send it; None for a front end without ids.
        """
        client = self.client
        content = {
            "code": source,
            "silent": False,
            "store_history": True,
            "user_expressions": {},
            "allow_stdin": False,
            "stop_on_error": False,
        }
        request = client.session.msg("execute_request", content)
        request["metadata"] = {} if cell is None else {"cellId": cell}
        client.shell_channel.send(request)
        shown: list[str] = []
        while True:
            message = client.get_iopub_msg(timeout=120)
            if message["parent_header"].get("msg_id") != request["header"]["msg_id"]:
                continue
            kind, content = message["msg_type"], message["content"]
            if kind == "stream":
                shown.append(content["text"])
            elif kind == "error":
                shown.append(f"{content['ename']}: {content['evalue']}")
            elif kind in ("display_data", "execute_result"):
                shown.append(content["data"].get("text/plain", ""))
                self.html = content["data"].get("text/html", self.html)
            elif kind == "status" and content["execution_state"] == "idle":
                return "\n".join(shown)

    def check(self) -> str:
        return self.run(f'verdict = check("{ID}", seed=7)', "check")

    def close(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


@pytest.fixture
def kernel() -> Iterator[Kernel]:
    mine = Kernel(ROOT / "notebooks" / "drills")
    try:
        assert mine.run("import rehearsal\nfrom rehearsal import check", "setup") == ""
        yield mine
    finally:
        mine.close()


def test_the_code_on_the_screen_is_graded_or_none(kernel: Kernel) -> None:
    """Contract 7, from a fresh kernel to a pass, over every way to leave old code behind."""
    said = kernel.check()
    assert "NOT ATTEMPTED" in said
    assert "run the cell above that defines train" in said
    assert "brief" not in said

    kernel.run(DRILL.solution, "a")
    said = kernel.check()
    assert "PASSED" in said
    assert "graded cell [3]" in said
    assert "seed 7" in said
    assert kernel.run("verdict.seed, list(verdict.cells)", "look") == "(7, [3])"

    kernel.run(RENAMED, "a")
    said = kernel.check()
    assert "NOT ATTEMPTED" in said
    assert "cell [6] no longer defines train" in said

    assert "SyntaxError" in kernel.run(BROKEN, "a")
    said = kernel.check()
    assert "NOT ATTEMPTED" in said
    assert "cell [8] has a syntax error" in said

    assert "ZeroDivisionError" in kernel.run(f"{DRILL.solution}\n1 / 0", "a")
    assert "cell [10] raised ZeroDivisionError" in kernel.check()

    kernel.run(f"%%time\n{DRILL.solution}", "b")
    assert "graded cell [12]" in kernel.check()


def test_after_a_pass_there_is_a_link_to_the_next_notebook(kernel: Kernel) -> None:
    """A link to a folder opens an error dialog in JupyterLab."""
    kernel.run(DRILL.solution, "a")
    said = kernel.check()
    assert 'start("' in said.splitlines()[-1]
    name = said.splitlines()[-1].partition('start("')[2].partition('"')[0]
    (notebook,) = (ROOT / "notebooks" / "drills").glob(f"*_{name}.ipynb")
    assert f'<a href="{notebook.name}">' in kernel.html
    assert kernel.html.rindex("<a href") > kernel.html.rindex("seed")


def test_a_front_end_without_ids_goes_by_what_is_redefined(kernel: Kernel) -> None:
    """Some clients run cells without saying which."""
    kernel.run(DRILL.solution, None)
    assert "graded cell [2]" in kernel.check()
    kernel.run(BROKEN, None)
    assert "cell [4] has a syntax error" in kernel.check()
    kernel.run(DRILL.solution, None)
    assert "graded cell [6]" in kernel.check()
