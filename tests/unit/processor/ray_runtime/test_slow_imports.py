from __future__ import annotations

import subprocess
import sys

import pytest

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


@pytest.mark.slow
def test_pandas_is_imported_only_where_it_is_used() -> None:
    subprocess.run([sys.executable, "-c", _PROGRAM], check=True)


_MODULES = """
import importlib, sys
for name in ("slice_run", "inference.slice_process", "engines.shared.engine"):
    importlib.import_module("airflow_provider_raydatallm.processor." + name)
print([m for m in ("pandas", "ray", "transformers", "torch", "vllm", "fastapi") if m in sys.modules])
"""


def test_modules_of_a_slice_import_nothing_slow() -> None:
    """The driver and the slice's process import them before they know what they need."""
    run = subprocess.run([sys.executable, "-c", _MODULES], check=True, capture_output=True, text=True)
    assert run.stdout == "[]\n"


_TWO_THREADS = """
import importlib, sys, threading
from airflow_provider_raydatallm.processor.ray_runtime import slow_imports

failures = []
half_way = threading.Event()

def unpickle():
    half_way.wait(60)
    try:
        with slow_imports.serve_imports():
            importlib.import_module("ray.serve._private.application_state").StatusOverview
    except BaseException as e:
        failures.append(e)

class Watch:
    def find_spec(self, name, path, target=None):
        if name == "ray.serve.api":
            half_way.set()
            other.join(2)  # the other thread goes first unless it waits

sys.meta_path.insert(0, Watch())
other = threading.Thread(target=unpickle)
other.start()
slow_imports.import_serve()
other.join()
assert not failures, failures
"""


@pytest.mark.slow
def test_threads_import_serve_one_after_the_other() -> None:
    subprocess.run([sys.executable, "-c", _TWO_THREADS], check=True)
