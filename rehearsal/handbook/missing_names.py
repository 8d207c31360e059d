"""A cell that was run before the ones above it: what to do, below its traceback."""

from __future__ import annotations

from types import TracebackType
from typing import Any

NOTE = (
    "If {name} is made in a cell further up, that cell hasn't run in this kernel. Choose Run > "
    "Run All Above Selected Cell (on Colab: Runtime > Run before), then run this cell again."
)


def explain_missing_names(shell: Any) -> None:
    """Have a notebook say what to do about a NameError. The traceback stays as it is.

    Args:
        shell: IPython's.
    """

    def explain(
        shell: Any,
        kind: type[NameError],
        error: NameError,
        trace: TracebackType,
        tb_offset: int | None = None,
    ) -> Any:
        error.add_note(NOTE.format(name=error.name))
        return shell.showtraceback((kind, error, trace), tb_offset=tb_offset)

    shell.set_custom_exc((NameError,), explain)
