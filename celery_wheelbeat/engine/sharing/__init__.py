"""Several beats: which shards this process answers for, and what it keeps of the others.

Job. Every beat turns the whole wheel. ``Share`` enters in the ledger only the runs of the shards that this process
answers for; the runs of the others go to ``Followed``, until the mark of their owner has passed them.

Threads and owners. The scheduling thread; the engine owns ``Share``, which owns ``Followed``.

States of a shard: *answered for* or *followed*. ``Engine.follow`` and ``Engine.take`` change them. Alone, a process
answers for all of them.

Never. No I/O and no clock; no decision which shards to take.
"""
