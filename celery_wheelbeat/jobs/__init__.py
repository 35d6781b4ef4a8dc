"""Jobs: a stored row becomes a compiled job, with its identity and its send options.

Job. ``rows`` defines the stored row and ``validation`` finds its problems. ``compile`` turns rows into a
``DefinitionBatch`` one by one, ``compile_columns`` thousands at once. ``identity`` computes job ids, jitter and run
ids; ``definitions`` holds the values that the other rooms exchange.

Words. A *monitor* is a definition that people edit in the admin; it is stored as a *row*. An *entry* is a definition in
``beat_schedule``. A *later run* is a row of ``later``. Each becomes a *job*, which the engine knows by an id: monitors
have ids ≥ 0, entries < 0, later runs ≥ ``LATER_IDS_FROM``. A *single-run job* is a monitor that is done after its first
confirmed run; a later run is none, because its job leaves the wheel by itself.

Threads and owners. Rows are compiled on the threads that read them, and in the processes that show forms. ``Shapes`` is
shared by the loading threads and locks itself. ``RouteTable`` belongs to the scheduling thread. Everything else is a
value or a pure function.

Never. A row never stops its neighbours: its result is a job or an ``InvalidMonitor``, for any content. Ids, jitter
and run ids never change between versions. Arrays are never written to after they were handed over. No I/O, no clock.
"""
