"""The whole beat under one seed: simulated clock, database and broker, and an auditor that recomputes every run."""
