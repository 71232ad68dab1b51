"""The newest epoch that a slice's files know, whatever became of its leases. Imports only fsspec, for the
Airflow side."""

from __future__ import annotations

import contextlib

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.processor.storage.store import Store
from airflow_provider_raydatallm.processor.store import versions
from airflow_provider_raydatallm.processor.store.file_names import (
    CHECKPOINT,
    LAST_NUMBER,
    epoch_in_checkpoint,
)
from airflow_provider_raydatallm.processor.store.rejections import read_rejections


def newest_epoch_written(metadata: Store) -> int:
    """Returns the newest epoch of what runs published or kept, and people rejected; 0 where there is nothing.

    An epoch that came again would count as that run's.
    """
    epochs = [0]
    for question in metadata.names(CHECKPOINT):
        folder = f"{CHECKPOINT}/{question}"
        names = metadata.tree(folder)
        found = (epoch_in_checkpoint(name.rpartition("/")[2]) for name in names)
        epochs += [epoch for epoch in found if epoch is not None]
        with contextlib.suppress(SliceError):  # a damaged one ends the run that counts its rows
            epochs += [rejection.last_epoch for _, rejection in read_rejections(metadata, folder, names)]
    # After what is kept, which goes once it is published. No run comes to the last number by counting.
    return max(versions.epoch(metadata), *(epoch for epoch in epochs if epoch < LAST_NUMBER))
