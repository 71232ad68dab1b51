"""A short share of `python -m tests.chaos.own_clusters`."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.chaos.cluster_stage import stage
from tests.chaos.own_clusters import Campaign

SEED = 20260131


@pytest.mark.long
def test_kills_at_random_leave_no_cluster_behind(tmp_path: Path) -> None:
    with stage() as on:
        campaign = Campaign(on, SEED, tmp_path, ["made"])
        campaign.run(3, until=time.time() + 1200)
    assert campaign.kills.total() >= 3
    assert not campaign.failed
