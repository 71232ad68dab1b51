"""Keys and short values that all processes on a cluster see, without an actor for them.

They lie in the key-value store of Ray's head (`ray.experimental.internal_kv`), which keeps a key until
somebody deletes it, also when its job died.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ClusterStore:
    """Picklable. All keys of a kind, by their names: what follows `prefix`."""

    prefix: str

    @classmethod
    def of_kind(cls, kind: str, *run: str) -> ClusterStore:
        """The provider's own keys of a kind.

        :param run: a name that no other run has, where each run has its own.
        """
        return cls(" ".join((f"ray-llm-{kind}", *run, "")))

    def put(self, name: str, value: str = "") -> None:
        _kv()._internal_kv_put(self.prefix + name, value)

    def get(self, name: str) -> str | None:
        value = _kv()._internal_kv_get(self.prefix + name)
        return None if value is None else value.decode()

    def names(self, prefix: str = "") -> list[str]:
        """Returns the names that begin with this prefix, in any order."""
        keys = _kv()._internal_kv_list(self.prefix + prefix)
        return [key.decode().removeprefix(self.prefix) for key in keys]

    def delete(self, name: str) -> None:
        _kv()._internal_kv_del(self.prefix + name)

    def clear(self) -> None:
        _kv()._internal_kv_del(self.prefix, del_by_prefix=True)


def _kv() -> Any:
    from ray.experimental import internal_kv

    return internal_kv


#: What the Jobs API stores as packages of code, under their names.
UPLOADED = ClusterStore("gcs://")
#: Ray's own keys.
RAY = ClusterStore("")
