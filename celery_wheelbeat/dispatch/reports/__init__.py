"""Numbers and log lines about sends: lateness of confirmed runs, lines per send, lines per failure.

Job: keep memory and log volume bounded at any rate of sending: quantiles from buckets, a limit of lines per tick, one
failure line a minute for each reason.

Threads and owners: ``Lateness`` belongs to the scheduling thread; a ``Pace`` and a ``FailureLines`` belong to the
thread that made them.

Never: influence what is sent or when.
"""
