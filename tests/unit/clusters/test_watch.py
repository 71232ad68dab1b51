from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

from airflow_provider_raydatallm.clusters.kuberay.api import KubernetesApi
from airflow_provider_raydatallm.clusters.kuberay.watch import RayJobWatch

MADE = {"metadata": {"name": "made"}}


class SlowApi(KubernetesApi):
    """Whose list was taken before the cluster was made, and comes after."""

    def __init__(self) -> None:
        super().__init__("kubernetes_default", "ml")
        self.is_asked, self.is_made, self.end = threading.Event(), threading.Event(), threading.Event()

    def find(self, labels: str) -> tuple[list[dict[str, Any]], str]:
        self.is_asked.set()
        assert self.is_made.wait(10)
        return [], "1"

    def watch(self, labels: str, version: str) -> Iterator[tuple[str, dict[str, Any]]]:
        self.end.wait(10)
        yield "DELETED", MADE


def test_cluster_that_was_made_while_others_were_listed_is_not_taken_for_ended() -> None:
    api = SlowApi()
    watch = RayJobWatch(api)
    threading.Thread(target=watch.get, args=("other",)).start()
    assert api.is_asked.wait(10)
    watch.note(MADE)
    api.is_made.set()
    assert watch.get("made") == MADE
    assert watch.get("other") is None
    api.end.set()
