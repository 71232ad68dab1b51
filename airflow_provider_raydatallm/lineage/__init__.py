"""Lineage: asset events, OpenLineage datasets and facets of a run.

Comes in: a spec and the operator's result. Goes out: event extras and OpenLineage values. Never here: reading
storage; module-level imports of OpenLineage outside `facets`, which is optional.
"""
