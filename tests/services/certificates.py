"""Certificates for private servers: an authority of the test's own and one certificate for 127.0.0.1."""

from __future__ import annotations

import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from .server import program

if TYPE_CHECKING:
    from collections.abc import Iterator


class Certificates(NamedTuple):
    """Files that any user may read, keys included: they are worth nothing outside of the test."""

    authority: Path
    certificate: Path
    key: Path

    @property
    def redis(self) -> dict[str, str]:
        """Options of a Redis server; it also needs a ``tls-port``."""
        return {
            "tls-ca-cert-file": str(self.authority),
            "tls-cert-file": str(self.certificate),
            "tls-key-file": str(self.key),
            "tls-auth-clients": "no",
        }

    @property
    def redis_client(self) -> dict[str, str]:
        """What a client that checks the server's certificate goes by, in the words of redis-py, kombu and Celery."""
        return {"ssl_cert_reqs": "required", "ssl_ca_certs": str(self.authority)}

    @property
    def rabbitmq(self) -> dict[str, str]:
        """Options of a RabbitMQ node; it also needs ``listeners.ssl.1``."""
        return {
            "ssl_options.cacertfile": str(self.authority),
            "ssl_options.certfile": str(self.certificate),
            "ssl_options.keyfile": str(self.key),
            "ssl_options.verify": "verify_none",
        }


@contextmanager
def certificates() -> Iterator[Certificates]:
    """Make an authority and a certificate of it; the files are gone at the end."""
    openssl = program("openssl", package="openssl")
    with tempfile.TemporaryDirectory(prefix="wheelbeat-tls-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        ca, ca_key = folder / "ca.pem", folder / "ca.key"
        cert, key, request = folder / "server.pem", folder / "server.key", folder / "server.csr"
        extensions = folder / "server.ext"
        # Since Python 3.13 a client demands what RFC 5280 requires: what the keys are for, and whose key signed.
        extensions.write_text(
            "subjectAltName = IP:127.0.0.1, DNS:localhost\nkeyUsage = digitalSignature\n"
            "subjectKeyIdentifier = hash\nauthorityKeyIdentifier = keyid\n"
        )
        signs = ("-addext", "keyUsage = critical, keyCertSign, cRLSign")
        fresh = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
        for words in (
            ("req", "-x509", *fresh, "-days", "2", "-subj", "/CN=tests", *signs, "-keyout", ca_key, "-out", ca),
            ("req", *fresh, "-subj", "/CN=127.0.0.1", "-keyout", key, "-out", request),
            (
                *("x509", "-req", "-in", request, "-CA", ca, "-CAkey", ca_key, "-CAcreateserial"),
                *("-days", "2", "-extfile", extensions, "-out", cert),
            ),
        ):
            subprocess.run([openssl, *map(str, words)], check=True, capture_output=True, timeout=60)
        for file in (ca, cert, key):
            file.chmod(0o644)
        yield Certificates(ca, cert, key)
