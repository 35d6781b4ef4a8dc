"""Check of the header ``Host`` against DNS rebinding.

A web page can point its own name to the address of a beat; its scripts could then read the responses as same-origin.
Such requests carry the name of the page in ``Host``, so only configured names are served. IP addresses are always
accepted: they cannot come from such a page.
"""

from __future__ import annotations

import re
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final

from celery_wheelbeat.jobs.names import matches

if TYPE_CHECKING:
    from collections.abc import Sequence

_HOST: Final = re.compile(r"(?:\[([^\[\]]+)\]|([^\s:/?#@\[\]]+))(?::\d*)?")
"""An IPv6 address in brackets, or a name or an IPv4 address; then an optional port."""


def is_known(host: str, patterns: Sequence[str]) -> bool:
    """Return whether ``host`` is an address, ``localhost``, or matches one of ``patterns``; the port is ignored."""
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
