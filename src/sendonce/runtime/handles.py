"""Whether this process, or this machine, may open no more files: connections are files too.

That is nobody's fault but ours, so no provider is blamed for it and no delivery spends an attempt. What meets
it says so in many ways (a look-up of names has its own, SQLite too), so it is asked for where something could
not be opened.
"""

from __future__ import annotations

import errno
import os
from typing import Final

_NONE_LEFT: Final = frozenset({errno.EMFILE, errno.ENFILE})


def none_left() -> bool:
    try:
        handle = os.open(os.devnull, os.O_RDONLY)
    except OSError as error:
        return error.errno in _NONE_LEFT
    os.close(handle)
    return False


def is_none_left(failure: BaseException | None) -> bool:
    """Whether a failure says so, or what caused it does; or it is so right now."""
    while failure is not None:
        if isinstance(failure, OSError) and failure.errno in _NONE_LEFT:
            return True
        failure = failure.__cause__ or failure.__context__
    return none_left()
