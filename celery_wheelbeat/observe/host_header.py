"""The header ``Host`` of a request: the name that its client used for this port.

A web page can let its own name point to the address of a beat (DNS rebinding), and its scripts could then read the
answers as if they were the page's own. Such requests carry the name of the page, so a name that is not configured gets
no answer. An address in the header cannot come from there.
"""

from __future__ import annotations

import re
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final

from celery_wheelbeat.jobs.names import matches

if TYPE_CHECKING:
    from collections.abc import Sequence

_HOST: Final = re.compile(r"(?:\[([^\[\]]+)\]|([^\s:/?#@\[\]]+))(?::\d*)?")
"""An IPv6 address in brackets, or a name or another address; then perhaps a port."""


def is_known(host: str, patterns: Sequence[str]) -> bool:
    """Say whether ``host`` is an address, ``localhost``, or matches one of ``patterns``, whatever the port."""
    found = _HOST.fullmatch(host)
    if found is None:
        return False
    address, name = found[1], (found[2] or "").lower().removesuffix(".")
    if _is_address(address or name):
        return True
    return address is None and (name == "localhost" or matches(name, [pattern.lower() for pattern in patterns]))


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True
