"""Kill, run again, audit: the proof that no kill loses, duplicates or alters a row. `python -m
tests.chaos`; `python -m tests.chaos.own_clusters` for slices that have Ray clusters made."""
