"""A secrets backend of Airflow that can be away, as Vault is while it is sealed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from airflow.sdk.bases.secrets_backend import BaseSecretsBackend


class SealedBackend(BaseSecretsBackend):
    """Has a connection's URI in the folder's file of its id. Away while the folder has a file `sealed`, and
    for the first lookups of each process, as many as its file `slow` says."""

    def __init__(self, folder: str) -> None:
        self._folder, self._lookups = Path(folder), 0

    def get_conn_value(self, conn_id: str, team_name: str | None = None) -> str | None:
        self._lookups += 1
        slow = self._folder / "slow"
        if (self._folder / "sealed").exists() or (slow.exists() and self._lookups <= int(slow.read_text())):
            raise ConnectionError("the vault is sealed: token=sesame")
        file = self._folder / conn_id
        return file.read_text() if file.exists() else None


class Vault:
    """The folder of a `SealedBackend`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)

    @property
    def environment(self) -> dict[str, str]:
        """Airflow's settings for it."""
        name = f"{SealedBackend.__module__}.{SealedBackend.__qualname__}"
        kwargs = f'{{"folder": "{self.folder}"}}'
        return {"AIRFLOW__SECRETS__BACKEND": name, "AIRFLOW__SECRETS__BACKEND_KWARGS": kwargs}

    def put(self, conn_id: str, value: str) -> None:
        (self.folder / conn_id).write_text(value)

    def seal(self) -> None:
        (self.folder / "sealed").touch()

    def open(self) -> None:
        (self.folder / "sealed").unlink(missing_ok=True)

    def fail_first(self, lookups: int) -> None:
        (self.folder / "slow").write_text(str(lookups))


@contextmanager
def vault_of_this_process(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Iterator[Vault]:
    """The vault that Airflow asks first in this process."""
    # Airflow 3.2 keeps none.
    from airflow.sdk.configuration import clear_secrets_backends_cache

    vault = Vault(folder)
    for name, value in vault.environment.items():
        monkeypatch.setenv(name, value)
    clear_secrets_backends_cache()
    yield vault
    clear_secrets_backends_cache()
