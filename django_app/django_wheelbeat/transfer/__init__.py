"""Monitors as files, and from other schedulers: one shape of record, one way in.

A record names its monitor and holds columns as people write them (``interval: "5m"``, instants in ISO 8601, arguments
as JSON). Sources yield records; ``imports`` compares them with what is stored, says what would change, and changes it.
"""
