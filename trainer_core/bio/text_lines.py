"""Lines of a text file, plain or gzipped, with the line's number when one can't be read.

Supports the biotech track's tables and FASTA files.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

# %% active="py"
from trainer_core.settings import UserError

# %%
GZIP_MAGIC = b"\x1f\x8b"


def is_gzip(path: Path) -> bool:
    """Whether the file begins as gzip does, whatever its name.

    Raises:
        UserError: if it is missing or empty.
    """
    try:
        with path.open("rb") as file:
            start = file.read(2)
    except OSError as error:
        raise UserError(
            f"{path}: {error.strerror or error}. Nothing was read. Check the path."
        ) from None
    if not start:
        raise UserError(
            f"{path}: the file is empty. Training on it would end at once and report success. "
            "Copy or export it again."
        )
    return start == GZIP_MAGIC


def numbered_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Each line's number, from 1, and its bytes, line break included. Constant memory.

    Raises:
        UserError: if the file is missing or empty, or its gzip stream is damaged.
    """
    number = 0
    with gzip.open(path) if is_gzip(path) else path.open("rb") as file:
        lines: IO[bytes] = file  # type: ignore[assignment]
        try:
            for number, line in enumerate(lines, start=1):
                yield number, line
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise UserError(
                f"{path}, row {number + 1}: the gzip stream is damaged ({error}). All that "
                "follows is lost, and a shorter dataset would train without a word. Copy the "
                "file again; gzip -t checks it."
            ) from None


def decoded_lines(path: Path, on_bad: Callable[[int, str], None]) -> Iterator[tuple[int, str]]:
    """The lines as text, without a byte-order mark.

    Args:
        on_bad: is called with the number and the fault of a line that isn't UTF-8. It raises,
            or returns to skip the line.
    """
    for number, line in numbered_lines(path):
        try:
            yield number, line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            on_bad(
                number,
                f"byte {error.start + 1} isn't UTF-8. Text in another encoding would change "
                "names and values silently. Convert the file with iconv -f LATIN1 -t UTF-8",
            )
