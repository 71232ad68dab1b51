"""How long things may take, and what they may cost."""

from __future__ import annotations

import datetime as dt
from typing import Annotated

from pydantic import Field

from airflow_provider_raydatallm.contract.base import Group, OptionalSeconds, Seconds
from airflow_provider_raydatallm.contract.spec.field import Affects, leaf


class Limits(Group):
    """How long a job may take, and what its GPUs may cost."""

    queue: Seconds = leaf(
        24 * 3600.0,
        affects=Affects.NOTHING,
        doc="how long the job may wait until all resources of its engine are free at once. Default: a day.",
    )
    stall: Seconds = leaf(
        1800.0,
        affects=Affects.NOTHING,
        doc="time without a finished row after which the job fails. A retry keeps finished rows. Default: 30 "
        "minutes.",
    )
    max_cost: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = leaf(
        None,
        affects=Affects.NOTHING,
        doc="what the slice's GPUs may cost, all of its tries together, in the currency of "
        "`engine.gpu_hour_price`. A run that reaches it ends, keeps the finished rows and publishes nothing; "
        "a higher limit continues. Default: no limit.",
    )


class TaskLimits(Limits):
    """How long things may take: text such as `"30m"` or `"1h30m"`, seconds, or a timedelta."""

    # How long the task waits, which is no part of the job: `task.arguments.WaitLimits` reads these.
    orphan: OptionalSeconds = leaf(
        1800.0,
        affects=Affects.NOTHING,
        doc="time without a waiting task after which the job ends, with finished rows kept; at least a "
        'minute. Meanwhile it publishes nothing. None or "never": it never ends, and publishes. Default: '
        "30 minutes.",
    )
    reconnect: Seconds = leaf(
        600.0,
        affects=Affects.NOTHING,
        doc="how long the cluster, or a secrets backend, may be away, or the token refused. Default: 10 "
        "minutes.",
    )
    finish_by: OptionalSeconds | dt.time = leaf(
        None,
        affects=Affects.NOTHING,
        doc="when the slice should be finished: a duration from the run's start, or a time of day "
        '(`"07:00"`, in the schedule\'s timezone). A job that will be late logs this early, with the '
        "workers it would need; it is not stopped. With bounds in `engine.workers`, as many run as finish in "
        "time.",
    )
