"""The fast lane: numpy copies messages from envelopes, thousands at a time, and they are sent in batches.

Job: take blocks of pending runs, group them by form, render each group from its envelope, submit batches, and settle
their outcomes. Redis takes MULTI + LPUSH + EXEC; RabbitMQ takes pre-encoded frames and answers with publisher confirms.
A run moves to the celery lane, with a reason, when its message cannot be proven equal to Celery's own.

Threads and owners: the scheduling thread owns the lane, the registry, ``LaneChoice``, ``Answers``, ``JobMessages`` and
the canary. The publisher thread owns the ``Wire`` (the connection); it also makes envelopes and renders comparisons,
because a message depends on the connection. They exchange immutable values: ``Batch`` → ``Outcome``, question →
``FormVerdict``, ``compare`` → ``Comparison``.

States of a form::

    unasked → asked ─┬→ envelope   rendered here; the canary compares it again
       ↑             ├→ reason     its jobs take the celery lane
       │             └→ refused    its jobs are quarantined
       └── reconnect, changed settings or hooks: every form;
           a reason or refusal that is old; a redefined job

A batch: drafted → submitted → on the wire → outcome. A batch with a poisoned message is halved, and each half is sent
with nothing else on the way, until single messages are left.

Never: render a batch on the publisher thread; publish on the scheduling thread; use an envelope that has not
been proven with two messages of Celery's; reuse a nonce after an uncertain outcome.
"""
