"""Measures a run: rows, tokens, seconds, GPU and CPU usage, and the advice drawn from them.

In: writer updates with counts and node samples. Out: progress, report sections, Prometheus gauges, advice.
Nothing here makes a run fail or changes its answers.
"""
