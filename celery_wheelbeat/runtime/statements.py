"""Read SQL from ``.sql`` files, one named statement per block: ``-- name: poll``.

A block ends where the next one begins, so statements may contain semicolons (trigger bodies). ``{name}`` in a block is
replaced by the block of that name.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_NAME = re.compile(r"^-- name: (\w+)\s*$", re.MULTILINE)
_PART = re.compile(r"\{(\w+)\}")


@cache
def read_statements(package: str, path: str) -> Mapping[str, str]:
    """Return name → statement of the file ``path`` inside ``package``, in the order of the file."""
    pieces = _NAME.split(files(package).joinpath(path).read_text(encoding="utf-8"))
    blocks = {name: text.strip().rstrip(";") for name, text in zip(pieces[1::2], pieces[2::2], strict=True)}

    def whole(text: str) -> str:
        return _PART.sub(lambda part: whole(blocks[part[1]]) if part[1] in blocks else part[0], text)

    return MappingProxyType({name: whole(text) for name, text in blocks.items()})
