"""The triggers that wait for jobs in the triggerer.

Comes in: a serialized `JobRef`. Goes out: one event with the verdict.
Never here: reading storage, or turning a verdict into the task's outcome.
"""
