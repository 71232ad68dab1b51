"""What a row shows a model beside its text.

In come a row's files, or their addresses; out go checked, decoded media of a bounded size. A file that is
refused is its row's failure. This runs in feeders on CPUs, never in an engine's process.
"""
