"""The triggers that wait for jobs in the triggerer.

Comes in: a serialized `JobRef`, or the `QueuePlace` of a task that is to submit its job. Goes out: one event,
with the verdict or that it is the task's turn.
Never here: reading storage, or turning a verdict into the task's outcome.
"""
