"""Gates look at figures of the answers that are published, whatever was taken over before: by a run that read
the files in another way, or in a file that is damaged since."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.processor.earlier_answers import find_earlier
from airflow_provider_raydatallm.processor.slice_run import inspect_slice
from tests.support.counting_model import CountingModel
from tests.support.in_process import InProcess, changed, job_of
from tests.support.in_process import run_in_process as run
from tests.support.slice_files import folders_of

N = 20
FEW_TOKENS = {"of": "output_tokens", "min": 4}  # each answer has three


class KilledError(BaseException):
    pass


@pytest.fixture
def cluster() -> InProcess:
    """Its model cuts half of the answers."""
    model = CountingModel(lambda n: n < 10)
    model.fails = lambda n: False
    return InProcess(answer=model)


@pytest.fixture
def job(tmp_path: Path, cluster: InProcess) -> SliceJob:
    """Published, and then taken over by a version that waits, or by a run that died."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "0.csv").write_text("n\n" + "".join(f"{n}\n" for n in range(N)))
    job = job_of(
        input_path=f"{tmp_path}/in/", output_path=f"{tmp_path}/out", prompt="{n}",
        quality__max_quarantine=0.9, rerun__on_config_change="recompute", rerun__on_input_change="recompute",
        publish__on_schema_change="accept",
    )  # fmt: skip
    assert run(job, cluster).outcome == "published"
    return job


@pytest.fixture(params=["waits", "died"])
def taken_over(
    request: pytest.FixtureRequest, job: SliceJob, cluster: InProcess, monkeypatch: pytest.MonkeyPatch
) -> SliceJob:
    edited = changed(job, publish__details=["attempts"], quality__gates=[{"of": "rows", "then": "hold"}])
    if request.param == "waits":
        assert run(edited, cluster).outcome == "held"
        return job

    def die(*args: Any, **kwargs: Any) -> None:
        raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr("airflow_provider_raydatallm.processor.build_run.BuildRun.stage", die)
        with pytest.raises(KilledError):
            run(edited, cluster)
    return job


def test_totals_of_another_reading_are_not_added(taken_over: SliceJob, cluster: InProcess) -> None:
    as_number = changed(taken_over, source__column_types={"n": "int64"})
    before = cluster.answered
    with pytest.raises(SliceError, match="output_tokens"):
        run(changed(as_number, quality__gates=[FEW_TOKENS]), cluster)
    report = run(changed(as_number, quality__gates=[{"of": "truncated", "max": 0.6}]), cluster)
    assert (report.outcome, cluster.answered - before) == ("published", N)
    assert (report.counts.truncated, report.tokens.output) == (10, 3 * N)


@pytest.mark.parametrize("damaged", ["carried000001-rows-*.arrow", "carried-over-000001.json"])
def test_what_was_taken_over_counts_once_where_it_is_damaged(
    taken_over: SliceJob, cluster: InProcess, damaged: str
) -> None:
    [file] = Path(taken_over.paths.metadata).rglob(damaged)
    file.write_bytes(b"{")
    Path(taken_over.input_path, "1.csv").write_text("n\n20\n21\n")
    before = cluster.answered
    with pytest.raises(SliceError, match="output_tokens"):
        run(changed(taken_over, rerun__on_input_change="extend", quality__gates=[FEW_TOKENS]), cluster)
    report = run(changed(taken_over, rerun__on_input_change="extend"), cluster)
    assert cluster.answered - before == 2
    assert (report.counts.truncated, report.tokens.output) == (10, 3 * (N + 2))


def test_a_plan_of_another_reading_says_that_all_rows_are_asked(
    taken_over: SliceJob, cluster: InProcess
) -> None:
    as_number = changed(taken_over, source__column_types={"n": "int64"})
    build, _ = inspect_slice(as_number, folders_of(as_number), read_only=True)
    assert build is not None
    earlier, asked = find_earlier(build, build.load_state())
    assert (earlier.answered, asked) == (0, N)
