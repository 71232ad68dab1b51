"""Input formats: each reads its files as ranges of rows, and says which types they have.

A format is a class in a file of its own; `registry` lists them. A broken file is an error that names it and
the place.
"""
