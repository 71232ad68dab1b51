from __future__ import annotations

import subprocess
import sys

_PROGRAM = """
import sys
from airflow_provider_raydatallm.processor.ray_runtime import slow_imports

slow_imports.keep_pandas_from_pyarrow()
import pyarrow as pa
pa.array([1, None])
assert slow_imports.import_serve().status
assert "pandas" not in sys.modules
import pandas  # whoever needs it has it, and pyarrow converts to it
assert pa.table({"a": [1]}).to_pandas().equals(pandas.DataFrame({"a": [1]}))
"""


def test_pandas_is_imported_only_where_it_is_used() -> None:
    subprocess.run([sys.executable, "-c", _PROGRAM], check=True)
