"""Lineage: asset events, OpenLineage datasets and facets of a run.

Comes in: a spec and the operator's result. Goes out: event extras and OpenLineage values.
Never here: reading storage; imports of OpenLineage, which is optional, outside `facets` and `TYPE_CHECKING`.
"""
