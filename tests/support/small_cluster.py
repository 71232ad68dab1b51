"""Runs one slice on a small Ray cluster: `python -m tests.support.small_cluster CPUS SPEC FOLDER`."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from airflow_provider_raydatallm.processor.__main__ import main
from benchmarks.embedded import local_ray

if __name__ == "__main__":
    cpus, spec, folder = sys.argv[1:]
    with local_ray(Path(folder), int(cpus)):
        began = time.monotonic()
        code = main(["run", spec, "--json"])
        print(f"ended after {time.monotonic() - began:.1f} s", file=sys.stderr)
    sys.exit(code)
