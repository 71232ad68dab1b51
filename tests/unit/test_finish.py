from __future__ import annotations

from datetime import UTC, datetime, time, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from airflow_provider_raydatallm.arguments import finish_at, finish_by_of
from airflow_provider_raydatallm.processor.finish import Late, late

BEGAN = datetime(2026, 3, 28, 4, 30, tzinfo=UTC)  # 05:30 in Berlin, the night before its clocks go forward
BERLIN = ZoneInfo("Europe/Berlin")


@pytest.mark.parametrize(
    ("given", "at"),
    [
        (timedelta(hours=2), datetime(2026, 3, 28, 6, 30, tzinfo=UTC)),
        (90, datetime(2026, 3, 28, 4, 31, 30, tzinfo=UTC)),
        ("07:00", datetime(2026, 3, 28, 6, 0, tzinfo=UTC)),  # today, by the schedule's clock
        (time(5), datetime(2026, 3, 29, 3, 0, tzinfo=UTC)),  # tomorrow, in summer time
        (time(5, tzinfo=UTC), datetime(2026, 3, 28, 5, 0, tzinfo=UTC)),
    ],
)
def test_finish_by_is_a_duration_or_the_next_time_of_day(given: Any, at: datetime) -> None:
    by = finish_by_of(given)
    assert by is not None
    assert finish_at(by, BEGAN, BERLIN) == at


@pytest.mark.parametrize("wrong", ["tomorrow", "25:00", 0, timedelta(0), [1]])
def test_finish_by_that_is_neither_is_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match="finish_by is"):
        finish_by_of(wrong)


def test_late_is_told_early_with_the_workers_that_would_do() -> None:
    # Two workers at 100 rows/s together, an hour for 720,000 rows: they need two.
    given: dict[str, Any] = {"rows_left": 720_000, "rows_per_s": 100.0, "workers": 2}
    found = late(3600, 0, seconds=60, **given)
    assert found == Late(finish_by=3600, seconds=3600, workers=4)
    assert str(found) == "3,600 s later than finish_by (1970-01-01 01:00 UTC): 4 workers would make it"
    assert late(7200, 0, seconds=60, **given) is None
    assert late(3600, 0, seconds=5, **given) is None  # too early to tell
    assert late(3600, 0, seconds=60, **{**given, "rows_per_s": None}) is None
    over = late(3600, 4000, seconds=5, **given)
    assert over is not None
    assert (over.seconds, over.workers) == (7600, None)
