"""Reads published slices: always one version, never a mix, even while a slice is being replaced.

Any Parquet reader may read a slice's folder directly (docs/guarantees.md says what holds then); these
functions read the files that the newest commit names.
"""

from airflow_provider_raydatallm.processor.sinks.reading import published_dataset, published_files

__all__ = ["published_dataset", "published_files"]
