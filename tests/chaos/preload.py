"""Imported once by the server that the processes of trials are forked from: nothing here opens a connection
or starts a thread."""

import gc

import pyarrow.dataset
import pyarrow.fs  # noqa: F401

import tests.chaos.changes
import tests.chaos.polling
import tests.chaos.work  # noqa: F401
from tests.chaos.storage import prepare_clients

prepare_clients()
gc.freeze()
