"""Where a card is shown: links that work from a notebook, on Colab, and in Anki.

A place is a path in the project, and a heading in it: ``notebooks/03_deck.ipynb#By topic``. A
card of your own may also name a web page.
"""

from __future__ import annotations

import html
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from urllib.parse import quote

from rehearsal.session.addresses import is_colab, online

WEB = ("https://", "http://")
# Inside a widget, JupyterLab gives a link the color of the text around it, and no line.
AS_A_LINK = 'style="text-decoration:underline"'


def name_of(place: str) -> str:
    """What a person reads: the file's name, and the heading."""
    if place.startswith(WEB):
        return place
    path, _, heading = place.partition("#")
    return ", ".join(filter(None, [PurePosixPath(path).stem, heading]))


def address_from(folder: Path, place: str) -> str | None:
    """Where a link in a notebook in ``folder`` leads; None if the place isn't there.

    On Colab, where no notebook is a file, to the repository's.
    """
    if is_colab() or place.startswith(WEB):
        return address_online(place)
    path, _, heading = place.partition("#")
    # work/ is laid out like notebooks/, and both are in the project's folder.
    below = path.removeprefix("notebooks/")
    beside = ("", "../") if below != path else ("../", "../../")
    for way in beside:
        if (folder / way / below).is_file():
            return quote(f"{way}{below}") + (f"#{_anchor(heading)}" if heading else "")
    return None


def address_online(place: str) -> str | None:
    """Where any browser opens it; None if this project's repository isn't known.

    Without the heading: Colab has other anchors.
    """
    if place.startswith(WEB):
        return place
    address = online(place.partition("#")[0])
    return address and quote(address, safe=":/")


def _anchor(heading: str) -> str:
    """JupyterLab's name for a heading: its text as it is drawn, with dashes for spaces.

    JupyterLab doesn't decode it, so nothing is encoded but a percent sign, which would keep the
    link from opening. Such a link, and one with quotation marks, leads to the notebook's top.
    """
    return heading.replace("`", "").replace(" ", "-").replace("%", "%25")


def links(places: Iterable[tuple[str, str | None]]) -> str:
    """HTML for places and their addresses; one without an address is only named."""
    shown = []
    for place, address in places:
        name = html.escape(name_of(place))
        if address:
            name = f'<a href="{html.escape(address)}" target="_blank" {AS_A_LINK}>{name}</a>'
        shown.append(name)
    return "; ".join(shown)
