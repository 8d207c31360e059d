"""The clock and the interviewer's last line, in the corner while the panel is out of view.

The cells to type in are below the panel. JupyterLab takes a cell that is out of view out of the
page, but its widgets still change, so a script can follow them. Text is copied as text.
"""

from __future__ import annotations

import json

PIN = """
(({key}) => {
  const pinned = "position:absolute;bottom:1em;right:2em;z-index:10;padding:.4em .8em;" +
    "max-width:30em;border:1px solid;border-radius:.4em;white-space:pre-wrap;" +
    "color:var(--jp-ui-font-color0,inherit);background:var(--jp-layout-color1,Canvas);";
  const run = root => {
    const panel = root.closest(".jp-NotebookPanel");
    root.dataset.pins = 1;
    if (!panel) return;
    panel.querySelectorAll(":scope > .rehearsal-pin").forEach(old => old.remove());
    const pin = document.createElement("div");
    pin.className = "rehearsal-pin";
    pin.append(document.createElement("b"), document.createElement("div"));
    panel.append(pin);
    let isInView = true, changed = Date.now();
    const draw = () => {
      if (!panel.isConnected || !pin.isConnected) return clearInterval(timer);
      const now = root.querySelector(".rehearsal-now");
      const last = root.querySelector(".rehearsal-last");
      const state = now ? now.dataset.state : "over";
      // A clock that doesn't change any more has lost its kernel.
      const isDead = state === "running" && Date.now() - changed > 15000;
      const isHidden = isInView || state === "over" || isDead;
      pin.style.cssText = isHidden ? "display:none" : pinned;
      pin.children[0].textContent = now ? now.textContent : "";
      const text = last ? last.textContent : "";
      pin.children[1].textContent = text.length > 300 ? text.slice(0, 300) + "..." : text;
    };
    const timer = setInterval(draw, 3000);
    new MutationObserver(() => { changed = Date.now(); draw(); })
      .observe(root, {subtree: true, childList: true, characterData: true});
    new IntersectionObserver(seen => { isInView = seen.at(-1).isIntersecting; draw(); })
      .observe(root);
  };
  const find = tries => {  // a front end may run this before the widgets are in the page
    const roots = document.querySelectorAll(`.${key}:not([data-pins])`);
    roots.forEach(run);
    if (!roots.length && tries) setTimeout(find, 100, tries - 1);
  };
  find(100);
})
"""


def pin_html(key: str) -> str:
    """What pins the panel whose widgets have this class.

    Args:
        key: a CSS class of its own.
    """
    return f"<script>{PIN.strip()}({json.dumps({'key': key})})</script>"
