"""What a beat reports about itself: status document, metrics, probes, forecast, log lines about missed time.

Job. Turn values of the scheduling thread into documents and metric families. ``status`` builds the document that every
display reads; ``metrics`` is the closed table of families that every exporter renders.

Threads and owners. The scheduling thread builds values and surveys the load. ``wheelbeat-http`` serves probes from the
last ``Sight``, which is replaced and never changed. OpenTelemetry's reader threads read the same ``Sight``.

Never. A failure here stops no run. No job, task or monitor name becomes a label.
"""
