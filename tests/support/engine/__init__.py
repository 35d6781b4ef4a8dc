"""The engine: definitions in a few words, a model by brute force, days and restarts on a simulated clock."""
