"""What the handbook's chapters run and draw: ``notebooks/handbook/``.

A chapter shows the code that it is about in its own cells. What several chapters share, and
what would distract there (starting ranks, drawing, published figures), is in these modules.
"""

from __future__ import annotations

from rehearsal.handbook.missing_names import explain_missing_names
from rehearsal.session.display import has_front_end, shell

if has_front_end():
    explain_missing_names(shell())
