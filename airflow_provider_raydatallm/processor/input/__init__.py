"""Finds a slice's input files, plans them as units of rows, and reads a unit's rows.

In: the spec's input path and column settings. Out: a listing, a deterministic plan, Arrow tables in input
order. Never here: writing, or Ray.
"""
