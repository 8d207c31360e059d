"""Optional packages: imported when a function needs one, and named when it's missing.

Supports the biotech track.
"""

from __future__ import annotations

import importlib
from types import ModuleType

# %% active="py"
from trainer_core.settings import UserError


# %%
def load(module: str, purpose: str) -> ModuleType:
    """Import ``module``, such as ``rdkit.Chem``, for ``purpose``: "standardizing molecules".

    Raises:
        UserError: if its package isn't installed. A package that is there but broken raises
            what its import raises.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0]
        if (error.name or "").partition(".")[0] != package:
            raise
        raise UserError(
            f"{package} isn't installed, and {purpose} needs it. The rest of the suite works "
            "without it. Run: pip install -e '.[bio]'"
        ) from None
