"""Checks of answers that end: whoever steers a model can write what takes other checks without end.

In: a schema, a pattern, an answer. Out: whether it is valid, or a TimeoutError. Never here: how the row
fails.
"""
