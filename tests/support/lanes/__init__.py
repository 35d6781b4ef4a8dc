"""The two lanes on a real broker, without a beat."""
