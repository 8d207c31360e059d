"""Copy the learner's notebooks to work/, where you can type without changing the repository.

work/ is laid out like notebooks/, so links to the modules, to the docs and between notebooks
work in the copies too. A file that exists in work/ is never overwritten. If a notebook has
changed since it was copied, the newer version goes next to yours:

    work/01_live_blank.ipynb                  yours
    work/01_live_blank.newer-1f0c2a9b.ipynb   the newer version

Called by ``make lab``. Git ignores work/.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# An empty file in here for each version that was copied: its path, and its hash.
COPIED = ".copied"


class WorkFolderError(Exception):
    """work/ can't be used; the message says what to do."""


def notebooks_in(folder: Path) -> Iterator[Path]:
    """The notebooks under ``folder``, relative to it, without Jupyter's own copies of them."""
    for path in sorted(folder.rglob("*.ipynb")):
        relative = path.relative_to(folder)
        if not any(part.startswith(".") for part in relative.parts):
            yield relative


def write_new(path: Path, content: bytes) -> bool:
    """Write a file unless there is one already; returns whether it was written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        file = path.open("xb")  # refuses whatever exists, a dangling link too
    except FileExistsError:
        return False
    try:
        with file:
            file.write(content)
    except BaseException:  # a full disk or Ctrl-C: half a notebook would stay forever
        path.unlink()
        raise
    return True


def copy_notebooks(source: Path, work: Path) -> tuple[list[Path], list[Path]]:
    """Copy what ``work`` doesn't have yet.

    Returns:
        The notebooks that were copied under their own names, and the newer versions that were
        put beside a file; all relative to ``work``.

    Raises:
        WorkFolderError: if that fails, such as on a full disk, or where work is a file.
    """
    copied, newer = [], []
    try:
        for name in notebooks_in(source):
            content = (source / name).read_bytes()
            version = hashlib.sha256(content).hexdigest()[:8]
            record = work / COPIED / f"{name}.{version}"
            beside = name.with_suffix(f".newer-{version}.ipynb")
            if write_new(work / name, content):
                copied.append(name)
            elif not record.exists() and (work / name).read_bytes() != content:
                newer += [beside] if write_new(work / beside, content) else []
            # Last: if this is interrupted, the next start looks at the notebook again.
            write_new(record, b"")
    except OSError as error:
        raise WorkFolderError(
            f"The notebooks can't be copied to {work} ({error}). Your own files there are as "
            "they were. Fix that, or rename what is in the way, then run make lab again."
        ) from error
    return copied, newer


def main(argv: Sequence[str] | None = None, *, root: Path = ROOT) -> int:
    """Returns 0, or 2 for what the user can fix."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.parse_args(argv)
    try:
        copied, newer = copy_notebooks(root / "notebooks", root / "work")
    except WorkFolderError as error:
        print(f"work_folder: {error}", file=sys.stderr)
        return 2
    if copied:
        count = f"{len(copied)} notebook{'' if len(copied) == 1 else 's'}"
        print(f"Copied {count} to work/. Type there; git ignores that folder.")
    for path in newer:
        yours = path.with_name(path.name.partition(".newer-")[0] + ".ipynb")
        print(f"work/{yours} is yours and stays as it is. The newer version: work/{path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
