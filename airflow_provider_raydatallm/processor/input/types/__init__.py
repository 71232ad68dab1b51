"""The table of types: what a column is in each file, what all of them are together, what its table has
already.

In come Arrow types, with the files that hold them. Out goes one type for all of them that holds each value as
it is, or an error that names both files. No value is changed here, and no file is opened.
"""
