"""Databases of monitors: real ones, one in memory, and rows of any content."""
