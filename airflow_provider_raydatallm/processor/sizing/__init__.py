"""Chooses sizes (workers, batches, lengths) and checks them against model and cluster before anything starts.

In: facts of the job, model and cluster. Out: sizes and findings.
Pure arithmetic; only `cluster_probe` talks to the cluster, and nothing here starts an engine.
"""
