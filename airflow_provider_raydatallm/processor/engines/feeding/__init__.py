"""Feeders on CPUs: everything around an engine's workers.

In come blocks of requests, out go answers in groups as they finish, whatever block they are of. Workers get
token ids only; a row that fails, dies with its worker or is late never holds up others.
"""
