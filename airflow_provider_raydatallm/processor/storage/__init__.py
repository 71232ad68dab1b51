"""Files on a disk or an object store.

In: addresses. Out: files that appear whole or not at all, and what a store can do. Never here: what the files
of a slice mean (`store`).
"""
