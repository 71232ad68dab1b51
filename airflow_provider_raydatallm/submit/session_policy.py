"""The policy of a role's session: no more than the tables that a slice reads and writes.

A session may do what both its role and its policy allow, so a job's credentials open only its own tables,
whatever else the role may use. Names are literal in it, but for the patterns of the input. Pure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from airflow_provider_raydatallm.contract.slice_paths import MARK, METADATA
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.exceptions import RayLLMInputError

#: Characters of a policy that STS accepts.
MAX_CHARACTERS = 2048
_S3 = re.compile(r"s3a?://([^/]+)/*(.*)", re.DOTALL)
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*|arn:[A-Za-z0-9:._/-]+")
#: What a policy reads as a pattern, or as a variable's begin. `${*}` is the character.
_SPECIAL = re.compile(r"[*?$]")
#: Parts of an input's pattern (`processor/input/pattern`). A policy's `*` and `?` match slashes, too.
_PATTERN = re.compile(r"(\*\*/|\*+)|(\?|\[!?\]?[^\]/]*\])")
_WRITE = ["s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload"]
_KMS = ["kms:Decrypt", "kms:GenerateDataKey"]


def session_policy(
    job: SliceJob, runtime_env: Mapping[str, Any] | None, *, partition: str, kms: bool
) -> str | None:
    """Returns the policy, as JSON; for whole buckets where paths would make it too long for STS. None when
    the slice has no files in buckets, or its buckets are access points, whose rights are their own.

    :param partition: of ARNs, such as "aws".
    :param kms: allow keys of KMS, which only AWS itself knows.
    :raises RayLLMInputError: for a bucket's name that a policy would take for a pattern.
    """
    paths = job.paths
    # A table's folder, not the slice's alone: the store is tried there, and earlier slices tell the speed.
    folders = [p.rpartition("/")[0] for p in (paths.table, paths.metadata, paths.staging, paths.quarantine)]
    packages = [(runtime_env or {}).get("working_dir"), *((runtime_env or {}).get("py_modules") or ())]
    folders.append(f"{folders[-1]}{METADATA}")  # says whose a quarantine elsewhere is
    written = _places([*folders, job.engine.cache_folder])
    adapters = [job.task.lora.path, *job.task.lora.paths.values()]
    judge = job.quality.judge
    models = [job.model_source, *([judge.model] if judge is not None else [])]
    read = _places([*models, *adapters, *packages])
    read |= _places([job.resolved_input_path, job.golden_path], has_patterns=True)
    read -= written
    buckets = sorted({bucket for bucket, _ in written | read})
    if not buckets or any(bucket.startswith("arn:") for bucket in buckets):
        return None
    # Other tables' documents: an output may lie in none of their folders.
    marks = {f"arn:{partition}:s3:::{bucket}/*/{MARK}" for bucket, _ in written}
    for is_whole in (False, True):
        statements = [
            _allow(["s3:ListBucket"], [f"arn:{partition}:s3:::{bucket}" for bucket in buckets]),
            *(
                _allow(actions, sorted(objects))
                for actions, objects in (
                    (_WRITE, _objects(partition, written, is_whole)),
                    (_WRITE[:1], _objects(partition, read, is_whole) | marks),
                )
                if objects
            ),
            *([_allow(_KMS, ["*"])] if kms else []),
        ]
        policy = json.dumps({"Version": "2012-10-17", "Statement": statements}, separators=(",", ":"))
        if len(policy) <= MAX_CHARACTERS:
            break
    return policy


def _places(addresses: Iterable[Any], *, has_patterns: bool = False) -> set[tuple[str, str]]:
    """Returns bucket and path of those addresses that are in buckets, as a policy writes the path."""
    places = set()
    for address in addresses:
        if isinstance(address, str) and (match := _S3.fullmatch(address)):
            bucket, path = match.groups()
            if not _BUCKET.fullmatch(bucket):
                raise RayLLMInputError(
                    f"{address!r:.200} has {bucket!r:.100} for the name of a bucket, which can have letters, "
                    "digits, '.', '_' and '-' only: a session's policy would take others for a pattern"
                )
            places.add((bucket, _of_pattern(path) if has_patterns else _literal(path)))
    return places


def _literal(text: str) -> str:
    return _SPECIAL.sub(lambda match: f"${{{match[0]}}}", text)


def _of_pattern(path: str) -> str:
    """The policy's pattern of all that an input's pattern matches."""
    parts, end = [], 0
    for match in _PATTERN.finditer(path):
        parts += [_literal(path[end : match.start()]), "*" if match[1] else "?"]
        end = match.end()
    return "".join(parts) + _literal(path[end:])


def _objects(partition: str, places: set[tuple[str, str]], is_whole: bool) -> set[str]:
    """Returns the ARNs of what is there: a file, and all in a folder."""
    arns: set[str] = set()
    for bucket, path in places:
        arn = f"arn:{partition}:s3:::{bucket}/{'' if is_whole else path}"
        arns |= {f"{arn}*"} if arn.endswith("/") else {arn, f"{arn}/*"}
    return arns


def _allow(actions: list[str], resources: list[str]) -> dict[str, Any]:
    return {"Effect": "Allow", "Action": actions, "Resource": resources}
