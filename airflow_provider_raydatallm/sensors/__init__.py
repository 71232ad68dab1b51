"""Tasks that wait for a slice that others publish.

In: a table's path and a slice's key. Out: the published report. Never here: a job, or a change of the table.
"""
