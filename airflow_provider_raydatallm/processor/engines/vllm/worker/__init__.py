"""The process that holds a GPU.

In: rows of token ids, of many feeders. Out: groups of finished answers. Never here: the slice, its files,
or what its answers mean.
"""
