"""URLs of servers: read, and spoken of without what they hold.

A URL holds a password, and so may any piece of it that could not be understood. No message shows more than its scheme.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from celery_wheelbeat.errors import InvalidSetting

if TYPE_CHECKING:
    from typing import Any
    from urllib.parse import SplitResult

_SCHEME = re.compile(r"[A-Za-z][\w+.-]*")
UNREADABLE = "cannot be read: in a password, write / ? # [ ] @ : % as %2F %3F %23 %5B %5D %40 %3A %25"


def scheme_of(url: str) -> str:
    """Return the scheme, to be shown in place of the URL; ``unknown`` where it has none."""
    name, is_url, _ = url.partition("://")
    return name if is_url and _SCHEME.fullmatch(name) else "unknown"


def split_url(what: str, url: str) -> SplitResult:
    """Split ``url``, whose port is a number or missing; raises ``InvalidSetting`` that names ``what`` it is for."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:  # whose text shows a piece of the URL
        raise InvalidSetting(f"{what} ({scheme_of(url)}) {UNREADABLE}") from None
    return parts


def conninfo_of(what: str, url: str) -> dict[str, Any]:
    """Read the parameters of a ``postgresql://`` URL, as ``split_url`` does; raises ImportError without its driver."""
    import psycopg  # noqa: PLC0415 - an optional extra

    try:
        given = psycopg.conninfo.conninfo_to_dict(url)
        ports = str(given.get("port") or "").split(",")  # one for each host
    except psycopg.Error:  # whose text shows the URL
        ports = ["unread"]
    if not all(port.isdecimal() for port in ports if port):
        raise InvalidSetting(f"{what} ({scheme_of(url)}) {UNREADABLE}")
    return given
