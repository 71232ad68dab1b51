"""The Ray job of an attempt: found or submitted, followed, judged, stopped.

Comes in: a submission, what is recorded of earlier tries, a job's log and status. Goes out: a verdict. Never
here: the operator's arguments (`task/arguments`), HTTP (`hooks`).
"""
