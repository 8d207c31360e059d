"""Where a browser opens a file of the project.

Badges, setup cells and the links of the coach all come from here, so they open and install the
same version.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, metadata

PROJECT = "distributed-trainer-rehearsal"
COLAB = "https://colab.research.google.com/github"


def notebook_of(drill_id: str, order: int) -> str:
    """The file name of a drill's notebook."""
    return f"{order:03}_{drill_id}.ipynb"


def ref_of(version: str) -> str:
    """The branch or tag that has a version: main while it is developed, v1.2.0 afterward."""
    return "main" if ".dev" in version else f"v{version}"


def repository_in(urls: Mapping[str, str]) -> str | None:
    """https://github.com/OWNER/NAME, as [project.urls] has the repository; None without one.

    Clones and browsers spell it with .git or a slash at the end, which Colab doesn't know.
    """
    url = urls.get("Repository", urls.get("repository", ""))
    found = re.fullmatch(r"(https://github\.com/[^/\s]+/[^/\s]+?)(\.git)?/*", str(url))
    return found and found[1]


def colab_address(repository: str, version: str, notebook: str = "") -> str:
    """Where Colab opens a notebook; without one, the list of all that the repository has.

    Args:
        repository: https://github.com/OWNER/NAME, as from ``repository_in``.
        notebook: its path under notebooks/.
    """
    place = f"{COLAB}/{repository.removeprefix('https://github.com/')}/blob/{ref_of(version)}"
    return f"{place}/notebooks/{notebook}" if notebook else place


def is_colab() -> bool:
    """Whether this process is Colab's, where no notebook is a file."""
    return "google.colab" in sys.modules


def online(path: str) -> str | None:
    """Where a file of the project is, at the version that is installed here.

    Colab opens a notebook, and GitHub shows anything else. None if the repository isn't known,
    as in a clone that was never installed.

    Args:
        path: in the project, such as notebooks/03_deck.ipynb.
    """
    try:
        installed = metadata(PROJECT)
    except PackageNotFoundError:
        return None
    urls = dict(url.split(", ", 1) for url in installed.get_all("Project-URL", []))
    if (repository := repository_in(urls)) is None:
        return None
    version = installed["Version"]
    if path.startswith("notebooks/") and path.endswith(".ipynb"):
        return colab_address(repository, version, path.removeprefix("notebooks/"))
    return f"{repository}/blob/{ref_of(version)}/{path}"
