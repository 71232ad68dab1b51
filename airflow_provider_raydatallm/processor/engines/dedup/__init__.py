"""Answers identical requests once: within a slice (`coordinator`), and across slices (`answer_cache`).

In come keys of requests and new answers, out go answers that already exist. It never fails a slice: what is
lost is inferred again.
"""
