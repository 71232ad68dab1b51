"""What a job says of a slice: its report and counters, or an error of a known kind.

Both sides read it. Values and pure functions; nothing is read or written here.
"""
