"""Figures that others published, to stand beside one's own.

What belongs here: their data model, reading the files they come in, and keeping what was read.
What does not: anything that was measured by this platform (`records`).
"""
