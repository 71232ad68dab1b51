"""Files that readers got wrong, by their published issues, are published value by value or refused before a
row is paid; and `columns=` is the way out of a column that is refused."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_raydatallm.contract.result.errors import SliceError
from tests.oracle.check import check
from tests.oracle.fault_files.by_arrow import BY_ARROW
from tests.oracle.fault_files.by_bytes import BY_BYTES
from tests.oracle.fault_files.by_others import BY_OTHERS
from tests.oracle.fault_files.fault_file import FaultFile
from tests.oracle.judges import connection, quoted
from tests.support.in_process import InProcess, changed, job_of, run_in_process

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("file", [*BY_ARROW, *BY_BYTES, *BY_OTHERS], ids=lambda file: file.name)
def test_known_fault_file_comes_out_as_it_went_in_or_is_refused(file: FaultFile) -> None:
    check(file)


@pytest.mark.parametrize("value", [
    "INTERVAL 1 month", "{'a': [INTERVAL 1 month]}", "'12:00:00+02'::TIMETZ",
])  # fmt: skip
def test_columns_is_the_way_out_of_a_type_that_is_refused(tmp_path: Path, value: str) -> None:
    (tmp_path / "in").mkdir()
    target = quoted(f"{tmp_path}/in/a.parquet")
    connection().sql(f"copy (select 'a' as name, {value} as odd) to {target} (format parquet)")
    job = job_of(input_path=f"{tmp_path}/in/", output_path=f"{tmp_path}/out")
    cluster = InProcess()
    with pytest.raises(SliceError, match=r"a\.parquet.*'odd'.*columns=") as refused:
        run_in_process(job, cluster)
    assert (refused.value.kind, cluster.answered) == ("input", 0)
    run_in_process(changed(job, columns=["name"]), cluster)
    published = pq.read_table(job.slice_path, partitioning=None)
    assert published.select(["name"]).equals(pa.table({"name": ["a"]}))
