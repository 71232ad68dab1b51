"""What makes two shared engines equal, and which engine can answer in place of another."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from airflow_provider_raydatallm.contract.log.secret_shapes import is_secret_name

_LIMIT = "max_model_len"
#: The same for each engine, or in its model's name.
_NOT_SHOWN = frozenset({"model", "disable_log_stats"})
#: The provider's own code.
_INSTALLED = Path(__file__).parents[3]


@dataclass(frozen=True)
class Identity:
    """
    :param model: its source.
    :param arguments: of vLLM, without secrets.
    :param family: a hash of all that must be equal for one engine to answer in place of another.
    """

    model: str
    arguments: Mapping[str, Any]
    family: str

    @classmethod
    def of(cls, model: str, arguments: Mapping[str, Any], others: Any) -> Identity:
        """:param others: what else must be equal, such as the environment."""
        must_be_equal = {n: v for n, v in arguments.items() if n != _LIMIT}
        # A node's provider may be upgraded under a running engine.
        code = _hash_files(_INSTALLED) if package_of_this_code() is None else None
        family = _hash([model, must_be_equal, others, code])
        return cls(model, {n: v for n, v in arguments.items() if not is_secret_name(n)}, family)

    def __str__(self) -> str:
        shown = [f"{n}={v!r}" for n, v in self.arguments.items() if n not in _NOT_SHOWN]
        return f"{self.model}{' with ' if shown else ''}{', '.join(shown)}"

    @property
    def limit(self) -> int | None:
        """Tokens of a prompt plus its answer; None: the model's own."""
        return self.arguments.get(_LIMIT)

    @property
    def name(self) -> str:
        model = re.sub(r"[^A-Za-z0-9_.-]+", "-", self.model.rstrip("/").rpartition("/")[2])[:40]
        return f"ray-llm-{model}-{_hash([self.family, self.limit])[:12]}"

    def covers(self, other: Identity) -> bool:
        """Whether this engine can answer in place of the other: all is equal but `max_model_len`, which is
        larger, or the model's own.

        Answers do not differ where the model does not depend on the limit, as the slice's rows are held to
        its own (`vllm/worker/row_limit`). Any other argument may change answers, or how fast they come.
        """
        if self.family != other.family or other.limit is None:
            return False
        return self.limit is None or self.limit >= other.limit

    def to_json(self) -> str:
        return json.dumps(asdict(self), default=str)

    @classmethod
    def from_json(cls, text: str) -> Identity:
        return cls(**json.loads(text))


def package_of_this_code() -> str | None:
    """Ray's URI of the package that brought this code; None if it is installed on the nodes."""
    parts = Path(__file__).parts
    return next((f"gcs://{p}.zip" for p in parts if p.startswith("_ray_pkg_")), None)


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


@cache
def _hash_files(folder: Path) -> str:
    """Returns a hash of the Python files in a folder."""
    found = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        found.update(f"{path.relative_to(folder)}\0".encode() + path.read_bytes())
    return found.hexdigest()
