"""Readers that know nothing of the provider: they read whatever ends in `.parquet` below the table's root."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any
from urllib.parse import urlparse

from airflow_provider_raydatallm.reader import published_dataset

Row = dict[str, Any]


def readers(slice_path: str) -> dict[str, Callable[[], list[Row]]]:
    """By name: each reads the whole table, whose one slice this is."""
    table = slice_path.rpartition("/")[0]
    return {
        "published_dataset": lambda: published_dataset(slice_path).to_table().to_pylist(),
        "pyarrow": lambda: read_by_pyarrow(table),
        "DuckDB": lambda: read_by_duckdb(table),
        "Polars": lambda: read_by_polars(table),
    }


def read_by_pyarrow(table: str) -> list[Row]:
    import pyarrow.dataset

    fs, path = None, table
    if table.startswith("s3://"):
        import pyarrow.fs

        endpoint = urlparse(os.environ["AWS_ENDPOINT_URL"])
        fs = pyarrow.fs.S3FileSystem(endpoint_override=endpoint.netloc, scheme=endpoint.scheme)
        path = table.removeprefix("s3://")
    rows: list[Row] = pyarrow.dataset.dataset(path, filesystem=fs, format="parquet").to_table().to_pylist()
    return rows


def read_by_duckdb(table: str) -> list[Row]:
    import duckdb

    with duckdb.connect(config={"threads": 1}) as connection:
        if table.startswith("s3://"):
            from airflow_provider_raydatallm.processor.storage.filesystem import open_fs

            connection.register_filesystem(open_fs(table)[0])
        query = f"SELECT * FROM read_parquet('{table}/**/*.parquet', hive_partitioning=false)"
        rows: list[Row] = connection.sql(query).to_arrow_table().to_pylist()
        return rows


def read_by_polars(table: str) -> list[Row]:
    import polars

    options = {}
    if table.startswith("s3://"):
        options = {
            "aws_endpoint_url": os.environ["AWS_ENDPOINT_URL"], "aws_allow_http": "true",
            "aws_access_key_id": os.environ["AWS_ACCESS_KEY_ID"],
            "aws_secret_access_key": os.environ["AWS_SECRET_ACCESS_KEY"],
            "aws_region": os.environ["AWS_DEFAULT_REGION"],
        }  # fmt: skip
    scan = polars.scan_parquet(f"{table}/", hive_partitioning=False, storage_options=options or None)
    rows: list[Row] = scan.collect().to_arrow().to_pylist()
    return rows
