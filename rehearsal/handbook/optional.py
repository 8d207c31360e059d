"""Packages that only some cells of a chapter need: install them, or say which cells can't run.

    use_if_installed("rdkit", "h5py")     in the imports' cell

On Colab, what is missing is installed. Elsewhere the cell says what is missing and how to get
it, and each cell that can't run says so in a line instead of failing, so that Run All goes on.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import subprocess
import sys
from typing import Any

from rehearsal.session.display import shell

ON_PYPI = {"sklearn": "scikit-learn"}  # where the package has another name than the module
REPORT = "_say_why_it_cannot_run"  # names in the notebook, chosen so that no cell has them
SHOW = "_show_last_value"


def use_if_installed(*modules: str) -> None:
    """Install the modules that are missing (on Colab), or prepare the notebook for their lack.

    Raises:
        RuntimeError: on Colab, if pip fails.
    """
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if not missing:
        return
    packages = [ON_PYPI.get(name, name) for name in missing]
    if "google.colab" in sys.modules:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", *packages]
        if subprocess.run(pip).returncode:
            raise RuntimeError(
                f"pip could not install {', '.join(packages)}; the lines above say why. Check "
                "that this runtime has internet access, then run this cell again."
            )
        importlib.invalidate_caches()
        return
    print(
        f"This kernel has no {', '.join(packages)}. Run `pip install {' '.join(packages)}` in "
        "its environment, then restart it and run all cells. Until then, cells that need it "
        "say so and do nothing else."
    )
    skip_what_cannot_run(shell(), frozenset(missing))


def skip_what_cannot_run(notebook: Any, missing: frozenset[str]) -> None:
    """Have each later cell print one line where it would fail without ``missing``.

    Args:
        notebook: IPython's shell; None outside of one.
    """
    if notebook is None:
        return

    def report(error: Exception) -> None:
        if not is_consequence(error, missing):
            raise error
        print(
            f"Skipped: this cell needs {', '.join(sorted(missing))}, or what a cell made of it."
        )

    notebook.push({REPORT: report, SHOW: show})
    notebook.ast_transformers.append(Guard())


def is_consequence(error: Exception, missing: frozenset[str]) -> bool:
    """Whether a cell failed over a missing package, its own or one above."""
    if isinstance(error, ImportError):
        return (error.name or "").partition(".")[0] in missing
    lacks = any(f"{name} isn't installed" in str(error) for name in missing)
    return lacks or isinstance(error, NameError)


def show(value: object) -> None:
    """Display a cell's last value, as the notebook would have."""
    if value is not None:
        from IPython.display import display

        display(value)


class Guard(ast.NodeTransformer):
    """Put a cell into a ``try``, and show its last value from there."""

    def visit_Module(self, node: ast.Module) -> ast.Module:
        if node.body:
            last = node.body[-1]
            if isinstance(last, ast.Expr):
                call = ast.Call(ast.Name(SHOW, ast.Load()), [last.value], [])
                node.body[-1] = ast.Expr(call)
            guarded = ast.parse(f"try: pass\nexcept Exception as error: {REPORT}(error)")
            assert isinstance(guarded.body[0], ast.Try)
            guarded.body[0].body = node.body
            node.body = guarded.body
        return ast.fix_missing_locations(node)
