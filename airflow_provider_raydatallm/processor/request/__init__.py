"""Builds requests from input rows, and parses answers (`answers/`).

In: tables of a unit's rows. Out: tables of requests. Never here: running an engine, or writing files.
"""
