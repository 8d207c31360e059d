"""What a rank prints: passed on while it runs, and kept up to a bound."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

OUTPUT_SHOWN = 200  # lines per rank
LINE_SHOWN = 2000  # characters of a line
CHUNK = 2**20  # bytes read at a time


class Tail:
    """Follows the file of one rank's output.

    Args:
        echo: called with each line, prefixed with the rank.
    """

    def __init__(self, path: Path, rank: int, echo: Callable[[str], None] | None) -> None:
        self.path, self.rank, self.echo = path, rank, echo
        self.position, self.num_lines, self.text = 0, 0, ""

    def show(self, *, is_last: bool = False) -> None:
        """Pass on the complete lines that are new; at the end, an incomplete one as well."""
        if not self.path.exists() or self.path.stat().st_size == self.position:
            return
        with self.path.open("rb") as file:
            file.seek(self.position)
            new = file.read(CHUNK)
        # Do not wait for the end of a line that fills a whole chunk.
        is_endless = len(new) == CHUNK and b"\n" not in new
        complete = len(new) if is_last or is_endless else new.rfind(b"\n") + 1
        self.position += complete
        for line in new[:complete].decode(errors="replace").splitlines():
            self._show_line(line)

    def _show_line(self, line: str) -> None:
        self.num_lines += 1
        if len(line) > LINE_SHOWN:
            line = f"{line[:LINE_SHOWN]} ... ({len(line)} characters)"
        if self.num_lines <= OUTPUT_SHOWN:
            self.text += line + "\n"
            if self.echo:
                self.echo(f"[{self.rank}] {line}")
        elif self.num_lines == OUTPUT_SHOWN + 1 and self.echo:
            self.echo(f"[{self.rank}] (more than {OUTPUT_SHOWN} lines; the rest is not shown)")
