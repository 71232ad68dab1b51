"""Imported once by the server that the processes of trials are forked from: nothing here opens a connection
or starts a thread."""

import tests.chaos.work  # noqa: F401
from tests.chaos.storage import prepare_clients

prepare_clients()
