"""What another value of an argument really changes, seen where rows are read, asked, answered and published,
and not by the fingerprint.

`cases` has pairs of values for each argument, over the files of a `world`; `table` finds arguments without.
`observation` runs the package's own code for a job, on a `bench` without Ray and GPUs: `asked` is what a
model gets, and `sharing` which rows get one answer. `needed` says which effect explains the difference of two
observations; `proof` compares it with what the argument declares, and with the hashes.
"""
