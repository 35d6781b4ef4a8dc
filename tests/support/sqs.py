"""An HTTP endpoint that takes messages as Amazon SQS does, and remembers the bytes it was sent."""

from __future__ import annotations

import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from uuid import uuid4

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self


class SqsEndpoint:
    """Answers ``SendMessage`` and what kombu asks before it, on a free port of loopback."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        """The bodies of all ``SendMessage`` requests, as they came over the wire."""
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                answer = endpoint.answer(self.headers["X-Amz-Target"].rpartition(".")[2], body)
                text = json.dumps(answer).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/x-amz-json-1.0")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_port

    def answer(self, action: str, body: bytes) -> dict[str, Any]:
        """Take note of a message; return what SQS says to ``action``."""
        asked = json.loads(body)
        if action == "SendMessage":
            self.bodies.append(body)
            digest = hashlib.md5(asked["MessageBody"].encode(), usedforsecurity=False).hexdigest()
            return {"MessageId": str(uuid4()), "MD5OfMessageBody": digest}
        return {"Attributes": {"ApproximateNumberOfMessages": "0"}} if action == "GetQueueAttributes" else {}

    def conf(self, queue: str) -> dict[str, Any]:
        """Return Celery's settings for ``queue`` at this endpoint."""
        url = f"http://127.0.0.1:{self.port}"
        return {
            "broker_url": f"sqs://key:secret@127.0.0.1:{self.port}",
            "broker_transport_options": {
                "region": "eu-west-1",
                "is_secure": False,
                "predefined_queues": {
                    queue: {"url": f"{url}/1/{queue}", "access_key_id": "k", "secret_access_key": "s"}
                },
            },
            "task_default_queue": queue,
        }

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
