"""Sends a slice's job to the cluster: code, the spec, the task's function, storage credentials.

In: a validated `SliceJob`, the user's functions and connections. Out: zip packages, a runtime environment, a
started Ray job. Never here: waiting for the job, or importing ray, torch or pandas.
"""
