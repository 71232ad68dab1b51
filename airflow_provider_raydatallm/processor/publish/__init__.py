"""Turns a sealed version's fragments into the published table.

In: a plan, a seal, the fragments that it names. Out: Parquet parts, quarantine, commit. Never here: a row
without its answer or its error, or a token spent.
"""
