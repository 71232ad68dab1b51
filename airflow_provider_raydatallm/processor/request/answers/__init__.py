"""An engine's answer as typed columns of its row, or the reason why the row failed.

In: an engine's answers. Out: tables of answered and of failed rows. Never here: asking an engine, or
stopping at a bad answer.
"""
