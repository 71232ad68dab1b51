"""What both sides agree on of a job as a process: its beat, its phase, the variables that it may inherit.

Pure values. Nothing waits or starts a process here.
"""
