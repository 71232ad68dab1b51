"""Turns a slice's fragments into a version, and makes the table show the newest one.

In: a plan, the fragments that count. Out: staged Parquet, a commit, the table and its quarantine. Never here:
a row without its answer or its error, or a token spent.
"""
