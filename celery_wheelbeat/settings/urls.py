"""URLs of servers: parsing, and errors that never show more of a URL than its scheme.

A URL contains a password, and so may any part of it that cannot be parsed.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, unquote, urlsplit

from celery_wheelbeat.errors import InvalidSetting

if TYPE_CHECKING:
    from typing import Any
    from urllib.parse import SplitResult

_SCHEME = re.compile(r"[A-Za-z][\w+.-]*")
UNREADABLE = "cannot be read: in a password, write / ? # [ ] @ : % as %2F %3F %23 %5B %5D %40 %3A %25"


def scheme_of(url: str) -> str:
    """Return the scheme, shown in messages in place of the URL; ``unknown`` if it has none."""
    name, is_url, _ = url.partition("://")
    return name if is_url and _SCHEME.fullmatch(name) else "unknown"


def split_url(what: str, url: str) -> SplitResult:
    """Split ``url``. Raises ``InvalidSetting``, which names ``what``, if it or its port cannot be parsed."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:  # its text quotes a part of the URL
        raise InvalidSetting(f"{what} ({scheme_of(url)}) {UNREADABLE}") from None
    return parts


def conninfo_of(what: str, url: str) -> dict[str, Any]:
    """Return the parameters of a ``postgresql://`` URL; raises as ``split_url``, or ImportError without psycopg."""
    import psycopg  # noqa: PLC0415 - an optional extra

    try:
        given = psycopg.conninfo.conninfo_to_dict(url)
        ports = str(given.get("port") or "").split(",")  # one for each host
    except psycopg.Error:  # its text quotes the URL
        ports = ["unread"]
    if not all(port.isdecimal() for port in ports if port):
        raise InvalidSetting(f"{what} ({scheme_of(url)}) {UNREADABLE}")
    return given


def mysql_parameters(what: str, url: str) -> dict[str, Any]:
    """Return the parameters of a ``mysql://`` URL for MySQLdb; raises as ``split_url``."""
    parts = split_url(what, url)
    given = {
        "host": parts.hostname,
        "port": parts.port,
        "user": unquote(parts.username) if parts.username else None,
        "password": unquote(parts.password) if parts.password else None,
        "database": unquote(parts.path.removeprefix("/")),
        "charset": "utf8mb4",
        **dict(parse_qsl(parts.query)),
    }
    return {key: value for key, value in given.items() if value is not None}
