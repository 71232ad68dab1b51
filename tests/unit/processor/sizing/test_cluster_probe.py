from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.processor.sizing.cluster_probe import check_model_folder


def test_model_folder_that_no_node_could_check_is_a_transient_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ray.nodes", list)
    with pytest.raises(SliceError, match="no node of the cluster answered within 25 s") as e:
        check_model_folder(f"{tmp_path}/model")
    assert e.value.kind == "transient"
    (tmp_path / "config.json").touch()
    check_model_folder(str(tmp_path))  # this node has it
