"""One of several beats: what it sends, what it follows, and what it says about that.

Job. ``Member`` takes the looks of the keepers, asks ``membership.decide`` and carries the answer out with ``Holdings``,
which changes the share of the engine and the runs that wait in the dispatcher. A beat without rolls has none of this.

Threads and owners. The scheduling thread. The keepers and the pulse have their own threads.

States of a shard in one beat are those of ``membership``.

Never. Nothing here waits for a roll, but the end of the process, within its bound. No shard is sent before it was
announced on every roll that can be read.
"""
