"""A roll in etcd 3.4 or newer: one key a beat, written and listed in one transaction through the JSON gateway.

Needs no client library. etcd is a store with consensus: lines in it survive the loss of a machine.
It tells no times, so a beat that ended long ago counts as live for three heartbeats after this one has started.
"""

from __future__ import annotations

import http.client
import json
import ssl
from base64 import b64decode, b64encode
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from celery_wheelbeat.errors import InvalidSetting, RollDown, reason_of
from celery_wheelbeat.membership import Heard, Peer

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

PORT = 2379


class EtcdRoll:
    """``Roll`` at ``etcd://[user:password@]host[:port][,host…]``, or ``etcds://`` for TLS.

    ``wait_s`` bounds the connect and each read. After a failure the next host is asked.
    """

    def __init__(self, url: str, namespace: str, beat_id: str, wait_s: float) -> None:
        scheme, _, rest = url.partition("://")
        credentials, _, hosts = rest.rstrip("/").rpartition("@")
        if scheme not in ("etcd", "etcds") or not hosts:
            raise InvalidSetting(f"wheelbeat_rolls: {scheme}://…: expected etcd://host:2379,host:2379 or etcds://…")
        user, _, password = credentials.partition(":")
        self._credentials = (unquote(user), unquote(password)) if user else None
        self._tls = ssl.create_default_context() if scheme == "etcds" else None
        self._hosts = hosts.split(",")
        self._wait_s = wait_s
        self._prefix = f"/wheelbeat/{namespace}/"
        self._beat_id = beat_id
        self._connection: http.client.HTTPConnection | None = None
        self._headers: dict[str, str] = {}

    def beat(self, text: str) -> Heard:
        """See ``Roll``."""
        put = {"request_put": {"key": _coded(self._prefix + self._beat_id), "value": _coded(text)}}
        with self._errors():
            answer = self._call("/v3/kv/txn", {"success": [put, {"request_range": self._all()}]})
            found = [self._peer(pair) for pair in answer["responses"][1]["response_range"]["kvs"]]
        (mine,) = [peer for peer in found if peer.beat_id == self._beat_id]
        return Heard([peer for peer in found if peer is not mine], mine.order, None)

    def leave(self, text: str) -> None:
        """See ``Roll``."""
        self.beat(text)

    def fence(self, beat_id: str) -> bool:  # noqa: ARG002 - etcd does not know the connections to the broker
        """See ``Roll``."""
        return False

    def forget(self, beat_ids: Collection[str]) -> None:
        """See ``Roll``."""
        deletes = [{"request_delete_range": {"key": _coded(self._prefix + one)}} for one in sorted(beat_ids)]
        if deletes:
            with self._errors():
                self._call("/v3/kv/txn", {"success": deletes})

    def close(self) -> None:
        """See ``Roll``."""
        connection, self._connection = self._connection, None
        self._headers = {}
        if connection is not None:
            connection.close()

    def _all(self) -> dict[str, str]:
        """Return the range of all keys with the prefix; it ends before the sign that follows ``/``."""
        return {"key": _coded(self._prefix), "range_end": _coded(self._prefix[:-1] + chr(ord("/") + 1))}

    def _peer(self, pair: dict[str, str]) -> Peer:
        beat_id = b64decode(pair["key"]).decode(errors="replace").removeprefix(self._prefix)
        text = b64decode(pair.get("value", "")).decode(errors="replace")
        return Peer(beat_id, int(pair["create_revision"]), int(pair["version"]), None, text)

    def _call(self, path: str, request: dict[str, Any]) -> Any:
        if self._connection is None:
            self._connection = connection = self._made()
            if self._credentials is not None:
                name, password = self._credentials
                token = _post(connection, "/v3/auth/authenticate", {"name": name, "password": password}, {})["token"]
                self._headers = {"Authorization": token}
        return _post(self._connection, path, request, self._headers)

    def _made(self) -> http.client.HTTPConnection:
        host, _, port = self._hosts[0].partition(":")
        at = (host, int(port or PORT))
        if self._tls is None:
            return http.client.HTTPConnection(*at, timeout=self._wait_s)
        return http.client.HTTPSConnection(*at, timeout=self._wait_s, context=self._tls)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self.close()
            self._hosts = _rotated(self._hosts)
            raise RollDown(f"roll in etcd: {reason_of(error)}") from error


def _post(
    connection: http.client.HTTPConnection, path: str, request: dict[str, Any], headers: Mapping[str, str]
) -> Any:
    connection.request("POST", path, json.dumps(request), headers)
    answer = connection.getresponse()
    body = answer.read()
    if answer.status != http.HTTPStatus.OK:
        raise http.client.HTTPException(f"{answer.status} {body.decode(errors='replace'):.200}")
    return json.loads(body)


def _coded(text: str) -> str:
    return b64encode(text.encode()).decode()


def _rotated(hosts: Sequence[str]) -> list[str]:
    return [*hosts[1:], hosts[0]]
