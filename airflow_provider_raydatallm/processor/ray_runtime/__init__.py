"""Everything that talks to the Ray runtime itself: connection, store, signals, marks, state of jobs, GPUs.

In: names, ids and callables. Out: plain values and actor handles.
Nothing here knows slices, rows or engines.
"""
