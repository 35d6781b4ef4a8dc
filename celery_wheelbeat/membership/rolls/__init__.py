"""Rolls: the stores in which beats say that they are here.

Job. Each module implements ``membership.Roll`` with one kind of store: a table, a hash in Redis, a folder. Whatever can
write one value per beat and list all of them can be a roll.

Threads and owners. One thread uses a roll and owns its connection. A roll connects at its first call and again after
each error.

Never. No lock that outlives a call, no session state: a transaction pooler may stand in between. No exception but
``RollDown``. No wait beyond ``wait_s`` for each exchange with the store.
"""
