"""Where the coach's words go: to a notebook's front end, or to a terminal.

Nothing here imports IPython unless IPython is already running.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from rehearsal.grading.verdict import Verdict
from rehearsal.session.terminal import plain, spelled


def shell() -> Any:
    """The running IPython shell, or None."""
    return sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None


def has_front_end() -> bool:
    """Whether this is a notebook's process, whose output a front end draws."""
    return hasattr(shell(), "kernel")


def show(
    text: str,
    rich: Mapping[str, str] | None = None,
    *,
    is_code: bool = False,
    display_id: str | None = None,
) -> None:
    """Show plain text; in a notebook, richer formats of it if there are any.

    Args:
        rich: MIME type to content.
        is_code: print it unchanged, even where advice is spelled as commands.
        display_id: under which a notebook can update it later.
    """
    if not has_front_end():
        print(text if is_code else spelled(text))
        return
    from IPython.display import display

    display({"text/plain": text, **(rich or {})}, raw=True, display_id=display_id)


def show_markdown(markdown: str, *, text: str | None = None, is_code: bool = False) -> None:
    """Show Markdown: drawn in a notebook, as plain text in a terminal.

    Args:
        text: what a terminal shows instead.
    """
    show(
        plain(markdown) if text is None else text, {"text/markdown": markdown}, is_code=is_code
    )


def show_verdict(verdict: Verdict) -> None:
    """Show it now, but not again as the value of the cell that asked for it."""
    rich = {"text/html": verdict._repr_html_()}
    show(str(verdict), rich)
    running = shell()
    if running is None:
        return
    here = running.execution_count

    def show_later(value: Verdict) -> None:
        if value is not verdict or running.execution_count != here:
            show(str(value), {"text/html": value._repr_html_()})

    running.display_formatter.ipython_display_formatter.for_type(Verdict, show_later)
