"""Stand-ins for the stores of lines, held to the same conformance suite as the real ones."""
