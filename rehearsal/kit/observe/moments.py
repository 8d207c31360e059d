"""What would a kill leave behind, at each moment of a save? Runs in the ranks.

The files as they are before an operation are what a process killed there would leave: its
buffers are not in them either. So one save shows what a hundred kills would, whatever calls
it makes: ``torch.save``, ``open``, ``shutil.copyfile``, ``os.open``, ``Path.write_bytes``.
"""

from __future__ import annotations

import contextlib
import functools
import os
import random
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from rehearsal.engine.rank import CHANGES, WRITES, watch_torch_save

Files = dict[str, bytes | None]  # by path below the folder; None for a folder
THROUGH_LINKS = {"opening", "torch.save", "truncate"}  # these change what a link points to
PARTS = {"none": 0.0, "half": 0.5, "nearly all": 1.0}  # of a file that a kill cuts


class Link(bytes):
    """A symbolic link instead of a file's content: where it points to."""


class Moment(NamedTuple):
    """The files that a process killed at this moment would leave."""

    where: str  # "before the rename of a.tmp", "with half of the 9 new bytes of a.tmp written"
    part: str  # "before" an operation, "end" after the last one, or a key of PARTS
    note: Any  # what the caller noted, such as the number of steps so far
    files: Files
    # When each was written, in ns: a program may look for the newest.
    times: Mapping[str, int] = MappingProxyType({})

    def restore(self, folder: Path) -> Path:
        """Write the files to ``folder``, which must not exist; returns it."""
        folder.mkdir(parents=True)
        for name, content in sorted(self.files.items()):
            path = folder / name
            if content is None:
                path.mkdir(exist_ok=True, parents=True)
                continue
            path.parent.mkdir(exist_ok=True, parents=True)
            if isinstance(content, Link):
                path.symlink_to(os.fsdecode(content))
            else:
                path.write_bytes(content)
        for name in self.files.keys() & self.times.keys():
            at = self.times[name]
            os.utime(folder / name, ns=(at, at), follow_symlinks=False)
        return folder


class Operation(NamedTuple):
    """One file operation: opening a file to write, a rename, a removal, ..."""

    name: str
    path: str | None  # None if it isn't in the folder, but ``to`` is
    to: str | None = None
    truncates: bool = False

    def __str__(self) -> str:
        what = f"{self.name} of {self.path}"
        return what if self.path else f"{self.name} onto {self.to} of a file from elsewhere"


@contextmanager
def watch_moments(
    folder: Path, note: Callable[[], Any] = lambda: None
) -> Iterator[list[Moment]]:
    """Collect every moment at which a kill would leave other files in ``folder``.

        with watch_moments(folder) as moments:
            save(folder / "latest.pt", state)
        for number, moment in enumerate(moments):
            restore(moment.restore(folder.with_name(f"killed-{number}")))

    Yields the list, which is complete once the context ends. Operations of all threads of this
    process count; those of other ranks are in the files as far as they have got.

    Args:
        folder: may be created later.
        note: called at each moment.
    """
    folder = folder.resolve()
    moments: list[Moment] = []
    lock = threading.RLock()
    before: tuple[Operation, Files, Mapping[str, int], Any] | None = None
    opened: set[str] = set()
    is_open = True

    def take(operation: Operation | None) -> None:
        nonlocal before
        now, noted = files_in(folder), note()
        times = when_written(folder, now)
        if before is not None:
            moments.extend(cut_writes(*before, now, times, opened))
        if operation is not None:
            moments.append(Moment(f"before the {operation}", "before", noted, now, times))
            before = operation, now, times, noted
            name, path, to, _ = operation
            if name in ("opening", "torch.save") and path is not None:
                opened.add(path)
            if name == "rename" and path is not None and to is not None:
                # A file may be written to under its new name, if it was not closed before.
                opened.update([renamed(other, path, to) for other in opened])
        else:
            moments.append(Moment("after its last file operation", "end", noted, now, times))

    def see(name: str, path: object, to: object = None, *, truncates: bool = False) -> None:
        inside = below(folder, path, through_links=name in THROUGH_LINKS)
        inside_to = below(folder, to)
        if inside is not None or inside_to is not None:
            with lock:
                if is_open:
                    take(Operation(name, inside, inside_to, truncates))

    def audit(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITES:
            see("opening", arguments[0], truncates=bool(arguments[2] & os.O_TRUNC))
        elif event in ("os.rename", "os.link"):
            path, to, folder_of_path, folder_of_to = arguments
            see(event[3:], in_folder(path, folder_of_path), in_folder(to, folder_of_to))
        elif event == "os.truncate":
            see(event[3:], arguments[0])
        elif event == "os.symlink":
            see(event[3:], in_folder(arguments[1], arguments[2]))
        elif event in CHANGES:
            see(event[3:], in_folder(arguments[0], arguments[-1]))

    sync = os.fsync

    @functools.wraps(sync)
    def watched_sync(fd: Any) -> None:
        see("fsync", path_of(fd if isinstance(fd, int) else fd.fileno()))
        sync(fd)

    os.fsync = watched_sync
    sys.addaudithook(audit)
    unwatch = watch_torch_save(lambda file: see("torch.save", file, truncates=True))
    try:
        yield moments
    finally:
        unwatch()
        os.fsync = sync
        with lock:  # a thread of the learner's may be in the middle of a moment
            is_open = False
            take(None)


def path_of(descriptor: int) -> str | None:
    """The path of an open file or folder; None where there is no /proc to ask, as on macOS."""
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        return None


def in_folder(path: Any, descriptor: int) -> Any:
    """A path that may be relative to an open folder, as ``shutil.rmtree`` passes it."""
    if descriptor < 0 or os.path.isabs(path):
        return path
    opened = path_of(descriptor)
    return None if opened is None else os.path.join(opened, os.fsdecode(path))


def below(folder: Path, path: object, *, through_links: bool = False) -> str | None:
    """A path relative to the resolved folder; None if it lies elsewhere, or is a descriptor."""
    if not isinstance(path, str | bytes | os.PathLike):
        return None
    parent, name = os.path.split(os.path.abspath(os.fsdecode(path)))
    full, root = os.path.join(os.path.realpath(parent), name), f"{folder}{os.sep}"
    if through_links:
        full = os.path.realpath(full)
    return full.removeprefix(root) if full.startswith(root) else None


def files_in(folder: Path) -> Files:
    """Every file, link and folder below ``folder``, except what is removed in the meantime."""
    found: Files = {}
    for root, folders, names in os.walk(folder):
        for name in [*folders, *names]:
            path = os.path.join(root, name)
            with contextlib.suppress(FileNotFoundError):
                found[os.path.relpath(path, folder)] = content_at(path, folder)
    return found


def content_at(path: str, folder: Path) -> bytes | None:
    """What is at a path: a file's bytes, a ``Link``, or None for a folder."""
    if os.path.islink(path):
        target = os.readlink(path)
        if os.path.isabs(target) and below(folder, target) is not None:
            target = os.path.relpath(target, os.path.dirname(path))  # it's restored elsewhere
        return Link(os.fsencode(target))
    if os.path.isdir(path):
        return None
    with open(path, "rb") as file:
        return file.read()


def when_written(folder: Path, names: Iterable[str]) -> dict[str, int]:
    """When each of these was last written, in ns."""
    found = {}
    for name in names:
        with contextlib.suppress(FileNotFoundError):
            found[name] = os.lstat(folder / name).st_mtime_ns
    return found


def cut_writes(
    operation: Operation,
    files: Files,
    times: Mapping[str, int],
    noted: Any,
    later: Files,
    later_times: Mapping[str, int],
    opened: set[str],
) -> Iterator[Moment]:
    """The moments in the middle of what was written between an operation and the next one.

    Args:
        files, times: before the operation.
        later, later_times: before the next one.
        opened: what this process has opened to write. What else has changed meanwhile is the
            work of another rank, which may have renamed a whole file.
    """
    done = with_effect(operation, files, later)
    for name in sorted(opened & later.keys()):
        written, old = later[name], done.get(name) or b""
        if written is None or isinstance(written, Link) or written == done.get(name):
            continue
        # What is appended to leaves the old part; what overwrites it, the rest of the old.
        begin = common_length(old, written)
        for part, share in PARTS.items():
            size = min(begin + int(share * (len(written) - begin)), len(written) - 1)
            size = max(size, begin)
            what = f"with {part} of the {len(written) - begin} new bytes of {name} written"
            torn = written[:size] + old[size:]
            yield Moment(what, part, noted, {**done, name: torn}, {**times, **later_times})


def renamed(name: str, path: str, to: str) -> str:
    """The name of a file once ``path``, which may be its folder, is called ``to``."""
    is_moved = name == path or name.startswith(f"{path}{os.sep}")
    return to + name.removeprefix(path) if is_moved else name


def common_length(old: bytes, new: bytes) -> int:
    """How many bytes two contents have in common at their beginning."""
    if new.startswith(old):
        return len(old)
    pairs = zip(old, new, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), len(new))


def with_effect(operation: Operation, files: Files, later: Files) -> Files:
    """The files right after an operation, before anything was written."""
    name, path, to, truncates = operation
    done = dict(files)
    if path is None:  # a file or folder from elsewhere
        came = {n: data for n, data in later.items() if to and renamed(n, to, "") != n}
        return done | came
    if truncates and path in later:
        done[path] = b""
    if name in ("truncate", "symlink") and path in later:
        done[path] = later[path]
    if name == "rename" and path not in later:
        moved = {n: renamed(n, path, to or "") for n in files if renamed(n, path, "") != n}
        for old, new in moved.items():  # it replaces what had the name
            content = done.pop(old)
            if to is not None:  # or else it left the folder
                done[new] = content
    if name == "link" and to is not None and path in files:
        done[to] = files[path]
    if name in ("remove", "rmdir"):
        done = {p: content for p, content in done.items() if p in later}
    return done


def drawn_moments(
    moments: Sequence[Moment], at_most: int, draw: random.Random
) -> list[tuple[int, Moment]]:
    """One of each kind of moment, drawn, each with its number, in order.

    A kind is what a kill would interrupt: the same operation on a file of the same name, apart
    from the digits in it, at the same part of its bytes. Moments that leave the same files
    count once.
    """
    different = {repr(sorted(m.files.items(), key=str)): n for n, m in enumerate(moments)}
    kinds: dict[str, list[int]] = {}
    for number in sorted(different.values()):
        kinds.setdefault(re.sub(r"[0-9a-f]{8,}|\d+", "#", moments[number].where), []).append(
            number
        )
    numbers = [draw.choice(of_kind) for of_kind in kinds.values()]
    return [(n, moments[n]) for n in sorted(draw.sample(numbers, min(at_most, len(numbers))))]
