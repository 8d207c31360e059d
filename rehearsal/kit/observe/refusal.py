"""How does the learner's code refuse bad arguments?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def refusal(
    make: Callable[..., Any], *, into: list[Any] | None = None, **arguments: Any
) -> list[Any] | None:
    """How ``make`` refuses: class, whether it is a ValueError, message. None if it does not.

    Args:
        into: a list to which the result is appended if there is one.
    """
    try:
        made = make(**arguments)
        if into is not None:
            into.append(made)
    except NotImplementedError:
        raise
    except Exception as error:
        return [type(error).__name__, isinstance(error, ValueError), str(error)]
    return None
