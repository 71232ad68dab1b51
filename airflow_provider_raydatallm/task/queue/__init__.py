"""Few jobs wait on a cluster: tasks hold their submissions, in the order in which they started.

Comes in: a task that is to submit its job. Goes out: its place, or its turn. Never here: the submission.
"""
