"""Builds requests from input rows and parses answers into published columns.

In: tables of a unit's rows, an engine's answers. Out: tables of requests, of answered and of failed rows.
Never here: running an engine, or writing files.
"""
