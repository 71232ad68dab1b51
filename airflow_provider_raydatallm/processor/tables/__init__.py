"""Whole tables, as people look at them: their slices, with state and figures, samples and differences.

In: a table's `output_path`. Out: what storage says now. Never here: a change of anything.
"""
