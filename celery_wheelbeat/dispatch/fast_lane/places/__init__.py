"""Places: where the messages of a form go if their jobs decide it by queue, routing key or priority.

Job: split the jobs of a form by the list that their messages go to; hold back those whose queue is not declared yet.

Threads and owners: the scheduling thread owns everything here. Queues are declared by the publisher thread.

States of a queue::

    unknown → asked ─┬→ declared   its runs are sent
       ↑             └→ reason     its runs take the celery lane
       └── changed settings or hooks; a reason that is old; a reconnect, where nothing would report a missing queue

Never: declare a queue; hold back runs of other queues; render.
"""
