"""An envelope: the template of one form's messages on one transport, and the encoding of a job's parts.

Made from two messages that Celery rendered with different ids, times and arguments. The skeleton of the first must
render the second byte by byte, or the form is not for the fast lane. An envelope is valid for one process, one
connection and one configuration; its holder checks that with ``hooks.Guard`` and ``hooks.settings_token``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from copy import copy
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self, Union

from celery_wheelbeat.dispatch.messages.patterns import NOTHING, Own
from celery_wheelbeat.dispatch.messages.template import (
    TEXT_LENGTH_BYTES,
    Hole,
    MarkedValue,
    Pieces,
    Skeleton,
    TextHole,
    Uncut,
)
from celery_wheelbeat.jobs.headers import JOB

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from celery_wheelbeat.dispatch.messages.recording import Recording
    from celery_wheelbeat.dispatch.messages.run_ids import Octets
    from celery_wheelbeat.dispatch.messages.task_body import Encoded, TaskBody
    from celery_wheelbeat.dispatch.messages.template import Column, Messages
    from celery_wheelbeat.dispatch.messages.tracing import Traces
    from celery_wheelbeat.schedules.kinds import Int64s

NAME = "periodic_task_name"
_TIME_LENGTHS = (32, 26)
"""Lengths of ISO 8601 times with microseconds, with and without an offset."""


class SampleMessage(NamedTuple):
    """The values from which a recorded message was made."""

    run_id: str
    fire_ms: int
    name: str
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    own: Own = NOTHING


class Stamps(NamedTuple):
    """The values that differ from run to run, one element per message."""

    ids: Octets
    fire_ms: Int64s
    nonces: Octets
    tags: Column
    """Empty on AMQP."""
    now: datetime
    """The app's now: relative expiry counts from here."""
    traces: Traces | None = None
    """Required by envelopes that are ``observed``."""


class Places(Protocol):
    """The places that routing keys lead to."""

    def key_of(self, routing_key: str) -> bytes | str:
        """Return the key of the only place, or a reason for the celery lane."""

    def are_outdated(self) -> bool:
        """Return whether routing keys may lead elsewhere by now."""


class Envelope(ABC):
    """Base of the envelopes of all transports. Envelopes of equal ``identity`` make equal messages."""

    skeleton: Skeleton
    opening_width = 0

    def __init__(self, recording: Recording, body: TaskBody) -> None:
        self.key = recording.key
        self.exchange = recording.exchange
        self.routing_key = recording.routing_key
        self.body = body
        self.lifetime = _lifetime(recording)
        self.observers: Sequence[str] = ()
        """Tracing tools whose headers are part of its messages."""
        self.texts: tuple[TextHole, ...] = ()
        """The holes of job-specific texts."""
        self.places: Places | None = None
        """Where job-specific routing keys lead; None: all messages go to ``key``."""
        self._before_key: str | None = None
        """Value of the header ``wheelbeat_job`` up to the key of the job; None without that header."""
        self._stretch: Mapping[str, Any] = {}
        """The headers from the first job-specific one up to the name."""

    @abstractmethod
    def pieces(self, encoded: Encoded, name: str, own: Own = NOTHING) -> Pieces:
        """Return the job-specific parts of one job, whose arguments ``body`` has encoded."""

    @staticmethod
    @abstractmethod
    def write_name(name: str) -> bytes:
        """Return the header ``periodic_task_name`` as this transport writes it."""

    @staticmethod
    @abstractmethod
    def write_headers(headers: Mapping[str, Any]) -> bytes:
        """Return consecutive headers as this transport writes them; raises if a value cannot be written."""

    @staticmethod
    @abstractmethod
    def write_text(text: str, *, short: bool) -> bytes:
        """Return a job-specific text as this transport writes it; raises if it cannot be written."""

    @property
    def names_key(self) -> bool:
        """Whether its messages contain the key of the job."""
        return self._before_key is not None

    @abstractmethod
    def fires(self, fire_ms: Int64s) -> Octets:
        """Return fire times as this transport writes them, one row each."""

    @staticmethod
    @abstractmethod
    def write_time(seconds: float) -> bytes:
        """Return a time as this transport writes it."""

    def key_of(self, own: Own) -> bytes | str:
        """Return the key of the place for a job's messages, or why they need the celery lane."""
        return self.places.key_of(own.routing_key) if self.places is not None else self.key

    def towards(self, key: bytes) -> Self:
        """Return this envelope for the place ``key``; its messages are the same, so both share cached parts."""
        other = copy(self)
        other.__dict__["identity"] = self.identity
        other.key = key
        return other

    @property
    def observed(self) -> bool:
        """Whether its messages have holes that ``Stamps.traces`` fills."""
        return Hole.TRACE in self.skeleton.holes or Hole.QUEUED_AT in self.skeleton.holes

    def unframed(self, message: bytes) -> bytes:
        """Return ``message`` without the framing that the fast lane adds, as a recording holds it."""
        return message

    def render(self, pieces: Mapping[Hole | TextHole, Column], stamps: Stamps) -> Messages:
        """Return one message per job of ``pieces``, with ``stamps``."""
        columns: dict[Hole | TextHole, Column] = {
            Hole.ID: stamps.ids,
            Hole.FIRE: self.fires(stamps.fire_ms),
            Hole.NONCE: stamps.nonces,
            Hole.TAG: stamps.tags,
            **pieces,
        }
        if self.lifetime is not None:
            expires = (stamps.now.astimezone(UTC) + self.lifetime).astimezone(stamps.now.tzinfo)
            columns[Hole.EXPIRES] = expires.isoformat(timespec="microseconds").encode()
        if stamps.traces is not None:
            columns[Hole.TRACE], columns[Hole.SPAN] = stamps.traces.traces, stamps.traces.spans
            columns[Hole.OTHER_TRACE] = stamps.traces.other_traces
            columns[Hole.OTHER_SPAN] = stamps.traces.other_spans
            columns[Hole.CHANCE] = stamps.traces.chances
            columns[Hole.QUEUED_AT] = self.write_time(stamps.traces.queued_at_s)
            columns[Hole.STARTED_AT] = stamps.traces.started_at
        return self.skeleton.render(columns)

    def _find_own(self, recording: Recording, sample: SampleMessage) -> bytes:
        """Find and return the job-specific stretch of headers in a recorded message. Raises ``Uncut``."""
        names = list(recording.headers)
        job = str(recording.headers.get(JOB, ""))
        if sample.own.key and job.endswith(sample.own.key):
            self._before_key = job.removesuffix(sample.own.key)
        varying = [*sample.own.headers, *([JOB] if self.names_key else []), NAME]
        first = min((names.index(name) for name in varying if name in names), default=0)
        stretch = names[first : names.index(NAME) + 1]
        if not set(varying) <= set(stretch):
            raise Uncut("its own headers do not stand before its name")
        self._stretch = {name: None if name in varying else recording.headers[name] for name in stretch}
        return self._own_text(sample.name, sample.own)

    def _own_text(self, name: str, own: Own) -> bytes:
        if len(self._stretch) == 1:
            return self.write_name(name)
        headers = {**self._stretch, **own.headers, NAME: name}
        if self._before_key is not None:
            headers[JOB] = self._before_key + own.key
        return self.write_headers(headers)

    def _find_texts(self, wire: bytes, own: Own, *, short: bool = False, start: int = 0) -> list[MarkedValue]:
        """Find the job-specific texts of a recorded message from ``start`` on, and return their marks.

        A text that is not found has no effect on the message; the second recording proves that.
        """
        marks = []
        for option, text in own.texts.items():
            written = self.write_text(text, short=short)
            if wire.find(written, start) >= 0:
                marks.append(MarkedValue(TextHole(option, short), written, None, start))
        self.texts += tuple(mark.hole for mark in marks if isinstance(mark.hole, TextHole))
        return marks

    def _texts_of(self, own: Own) -> list[bytes]:
        texts = own.texts
        return [self.write_text(texts[hole.option], short=hole.short) for hole in self.texts]

    def _with_texts(self, pieces: Pieces, texts: Sequence[bytes]) -> Pieces:
        """Add texts and their lengths; see ``Pieces``."""
        lengths = b"".join(len(text).to_bytes(TEXT_LENGTH_BYTES, "little") for text in texts)
        return pieces._replace(opening=lengths + pieces.opening, name=b"".join((pieces.name, *texts)))

    @cached_property
    def identity(self) -> tuple[object, ...]:
        """Return the values that determine the bytes of its messages."""
        return (
            self.key,
            self.exchange,
            self.routing_key,
            self.skeleton,
            self.lifetime,
            self._before_key,
            repr(self._stretch),
            self.body.identity(),
        )


def marks_of(recording: Recording, sample: SampleMessage) -> list[MarkedValue]:
    """Return the marks that every transport writes in the same way. Raises ``Uncut``."""
    headers = recording.headers
    fixed_id = headers["id"] != sample.run_id
    marks = [MarkedValue(Hole.NONCE, headers["wheelbeat_nonce"].encode(), None)]
    if not fixed_id:
        marks.append(MarkedValue(Hole.ID, sample.run_id.encode(), 2 + (headers["root_id"] == sample.run_id)))
    if headers.get("eta") is not None:
        raise Uncut("it has a countdown or an eta")
    if headers.get("expires") is not None:
        if not has_all_digits(recording):
            raise Uncut(f"its expiry {headers['expires']!r} has no microseconds")
        marks.append(MarkedValue(Hole.EXPIRES, headers["expires"].encode()))
    return marks


def has_all_digits(recording: Recording) -> bool:
    """Return whether the expiry, if any, has full length: Python omits microseconds that are 0."""
    expires = recording.headers.get("expires")
    return expires is None or len(expires) in _TIME_LENGTHS


def _lifetime(recording: Recording) -> timedelta | None:
    """Return the relative expiry; the comparison of two recordings detects a fixed one."""
    if recording.headers.get("expires") is None:
        return None
    try:
        return timedelta(milliseconds=int(recording.properties["expiration"]))
    except (KeyError, ValueError):
        raise Uncut("it expires without saying after how long") from None


def expected_now(recording: Recording, lifetime: timedelta | None) -> datetime:
    """Return the instant at which a recorded message with a relative expiry was made."""
    if lifetime is None:
        return datetime.min  # noqa: DTZ901 - not used without an expiry
    return datetime.fromisoformat(recording.headers["expires"]) - lifetime


class Refusal(NamedTuple):
    """No lane can send a message of a form: the broker, the serializer or user code refuses it."""

    reason: str
    error: BaseException | None = None
    """The exception behind it, for its traceback."""


Answer = Union["Envelope", str, Refusal]
"""An envelope, the reason for the celery lane, or a refusal, which quarantines the jobs."""
