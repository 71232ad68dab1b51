"""Engines turn requests into answers; `base` is their interface.

In come Arrow tables of requests, out go groups of answers as they finish. No engine reads input, writes
output or knows slices' versions.
"""
