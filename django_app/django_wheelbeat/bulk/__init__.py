"""Changes to many monitors: the operations, one transaction per chunk, and progress across several requests.

``operations``: what is changed. ``chunk``: one transaction, with audit and history. ``progress``: the pass over all
chunks. ``dependents``: what a deletion cascades to.

Imported by ``transfer`` and ``admin``. Imports ``database`` and ``monitors``; never ``transfer`` or ``admin``.

Never: holds all monitors of a bulk in memory, locks more than one chunk at a time, or rolls back a committed chunk
because a later one failed.
"""
