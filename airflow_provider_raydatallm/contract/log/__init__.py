"""Lines of a job's log: those for machines, those for people, and what must not stand in them.

Both sides read and write them. Pure functions on text; nothing is printed here.
"""
