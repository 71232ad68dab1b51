"""Credentials for the job's storage, lent from an Airflow connection.

Without `storage_conn_id` a job has the identity of the cluster's nodes. With it, `session_env` makes the
environment variables by which every AWS client in the job finds its credentials. Ray shows a job's
environment to whoever holds the cluster's token, so they are a session's, which ends by itself; a
connection's own keys leave Airflow only when that was asked for. All are masked in logs before they are used.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowNotFoundException
from airflow.sdk.log import mask_secret

from airflow_provider_raydatallm.exceptions import RayLLMInputError, RayLLMJobError

if TYPE_CHECKING:
    from airflow.sdk import Connection

#: How long sessions of a user's keys last (STS: 15 minutes to 36 hours), and of a role unless the connection
#: says otherwise (STS: up to the role's own maximum, and at most an hour where one role takes another).
SESSION_SECONDS = 12 * 3600
ROLE_SESSION_SECONDS = 3600

_OWN_IDENTITY = (
    "give the cluster's nodes an identity of their own that may use the storage, and leave "
    "storage_conn_id out"
)
_STATIC = "if the store has no STS, allow_static_credentials=True sends the keys as they are"

log = logging.getLogger(__name__)


class Credentials(NamedTuple):
    key: str
    secret: str
    token: str | None

    def masked(self) -> Credentials:
        for value in filter(None, self):
            mask_secret(value)
        return self


@dataclass(frozen=True)
class AwsSettings:
    """What an AWS connection says. `keys`: its own, or None for those that the Airflow worker finds for
    itself (of `profile`, if that is named). `role_arguments`: of STS AssumeRole, beside the role."""

    where: str
    keys: Credentials | None = field(default=None, repr=False)
    profile: str | None = None
    role_arn: str | None = None
    role_arguments: Mapping[str, Any] = field(default_factory=dict, repr=False)
    region: str | None = None
    s3_endpoint: str | None = None
    sts_endpoint: str | None = None
    verify: bool | str | None = None

    @classmethod
    def of(cls, connection: Connection) -> AwsSettings:
        """:raises RayLLMInputError: when its credentials cannot be lent, saying why and what to do."""
        where = f"connection {connection.conn_id!r}"
        if connection.conn_type not in ("aws", "s3", "", None):
            raise RayLLMInputError(
                f"storage_conn_id: {where} is of type {connection.conn_type!r}, and only credentials of AWS "
                f"connections ('aws', also for S3-compatible stores) can be lent: {_OWN_IDENTITY}"
            )
        extra = connection.extra_dejson
        if not isinstance(extra, dict):
            raise RayLLMInputError(f"storage_conn_id: {where}: its extra must be a JSON object")
        services = _object(where, extra, "service_config")
        s3, sts = (_object(where, services, name, "service_config.") for name in ("s3", "sts"))
        method = extra.get("assume_role_method") or "assume_role"
        if extra.get("role_arn") and method != "assume_role":
            raise RayLLMInputError(
                f"storage_conn_id: {where} takes its role by {method!r}, which cannot be lent: use the "
                f"method 'assume_role', or {_OWN_IDENTITY}"
            )
        endpoint = extra.get("endpoint_url")
        return cls(
            where=where,
            keys=_keys(where, connection, extra),
            profile=extra.get("profile_name") or None,
            role_arn=extra.get("role_arn") or None,
            role_arguments=_object(where, extra, "assume_role_kwargs"),
            region=extra.get("region_name") or None,
            s3_endpoint=s3.get("endpoint_url") or endpoint or None,
            # An S3-compatible store has its STS, if any, at its own address; keys are not shown to AWS.
            sts_endpoint=sts.get("endpoint_url") or endpoint or None,
            verify=extra.get("verify"),
        )


def session_credentials_env(
    conn_id: str, *, allow_static: bool, session_name: str = "airflow"
) -> dict[str, str]:
    """The variables that give a job the storage credentials of a connection.

    :param allow_static: send keys that no session was made of as they are, instead of asking STS for one.
    :param session_name: what the store's own logs call the session of a role; made to fit STS' rules.
    :raises RayLLMInputError: when the connection is unknown or not of AWS, holds no credentials that can be
        lent, or STS gives none for it.
    """
    try:
        connection = BaseHook.get_connection(conn_id)
    except AirflowNotFoundException as e:
        raise RayLLMInputError(
            f"storage_conn_id: there is no connection {conn_id!r}: add one of type 'aws', or leave "
            "storage_conn_id out to use the identity of the cluster's nodes"
        ) from e
    settings = AwsSettings.of(connection)
    lent = _lent(settings, allow_static, session_name)
    variables = {
        "AWS_ACCESS_KEY_ID": lent.key,
        "AWS_SECRET_ACCESS_KEY": lent.secret,
        # Where there is none they are empty, not left out: a node's own must not be taken for these keys'.
        "AWS_SESSION_TOKEN": lent.token or "",
        "AWS_CREDENTIAL_EXPIRATION": "",
    }
    if settings.region:
        # Botocore reads the first, other SDKs the second.
        variables |= {"AWS_DEFAULT_REGION": settings.region, "AWS_REGION": settings.region}
    if settings.s3_endpoint:
        variables["AWS_ENDPOINT_URL"] = settings.s3_endpoint
    return variables


def _lent(settings: AwsSettings, allow_static: bool, session_name: str) -> Credentials:
    try:
        import botocore.session  # type: ignore[import-untyped]
        from botocore.exceptions import BotoCoreError  # type: ignore[import-untyped]
    except ImportError as e:
        raise RayLLMInputError(
            f"storage_conn_id: {settings.where} needs botocore on the Airflow workers ({e}): install "
            "airflow-provider-raydatallm[s3] there"
        ) from e
    try:
        session = botocore.session.Session(profile=settings.profile)
        keys = settings.keys or _found_by(session)
    except BotoCoreError as e:
        raise RayLLMInputError(f"storage_conn_id: {settings.where}: {e}. Mend its credentials") from e
    if keys is None:
        raise RayLLMInputError(
            f"storage_conn_id: {settings.where} holds no keys, and the Airflow worker finds none of its own: "
            f"put an access key into its login and the secret into its password, or {_OWN_IDENTITY}"
        )
    if settings.role_arn:
        arguments = {
            "RoleArn": settings.role_arn,
            "RoleSessionName": re.sub(r"[^A-Za-z0-9_+=,.@-]", "_", session_name)[:64],
            "DurationSeconds": ROLE_SESSION_SECONDS,
            **settings.role_arguments,
        }
        return _asked_of_sts(session, settings, keys, "assume_role", arguments)
    if keys.token:
        return keys
    if allow_static:
        log.warning(
            "allow_static_credentials: the keys of %s go to the job as they are; Ray shows them to whoever "
            "holds the cluster's token, until they are replaced",
            settings.where,
        )
        return keys
    return _asked_of_sts(session, settings, keys, "get_session_token", {"DurationSeconds": SESSION_SECONDS})


def _asked_of_sts(
    session: Any, settings: AwsSettings, keys: Credentials, operation: str, arguments: Mapping[str, Any]
) -> Credentials:
    from botocore import exceptions
    from botocore.config import Config  # type: ignore[import-untyped]
    from botocore.parsers import ResponseParserError  # type: ignore[import-untyped]

    address = settings.sts_endpoint or "AWS"
    hint = f"; {_STATIC}" if operation == "get_session_token" else ""
    try:
        client = session.create_client(
            "sts",
            region_name=settings.region or session.get_config_variable("region") or "us-east-1",
            endpoint_url=settings.sts_endpoint,
            verify=settings.verify,
            aws_access_key_id=keys.key,
            aws_secret_access_key=keys.secret,
            aws_session_token=keys.token,
            config=Config(
                connect_timeout=10, read_timeout=30, retries={"mode": "standard", "total_max_attempts": 3}
            ),
        )
        address = client.meta.endpoint_url
        with _unlogged_answers():
            given = getattr(client, operation)(**arguments)["Credentials"]
            return Credentials(given["AccessKeyId"], given["SecretAccessKey"], given["SessionToken"]).masked()
    except exceptions.ClientError as e:
        error = e.response.get("Error", {})
        if error.get("Code"):
            why = f"{error['Code']}: {error.get('Message')}"
            mend = "mend its keys or its role, and what they may do"
        else:  # an error of S3, which is written otherwise
            why = f"HTTP {e.response['ResponseMetadata']['HTTPStatusCode']}, and no error of STS"
            mend = "name its STS in service_config.sts.endpoint_url"
    except (exceptions.ConnectionError, exceptions.HTTPClientError) as e:
        raise RayLLMJobError(
            f"storage_conn_id: STS ({address}) cannot be reached for {settings.where}: {e}. Make it "
            "reachable from the Airflow workers, or name another in service_config.sts.endpoint_url"
            f"{hint}"
        ) from e
    except (ResponseParserError, KeyError) as e:
        # Something that is no STS answered; the lines after the first quote its answer.
        why = f"its answer has no {e}" if isinstance(e, KeyError) else str(e).partition("\n")[0]
        mend = "name its STS in service_config.sts.endpoint_url"
    except (exceptions.BotoCoreError, ValueError) as e:
        why, mend = str(e), "mend its extra"
    raise RayLLMInputError(
        f"storage_conn_id: STS ({address}) gives no session for {settings.where}: "
        f"{' '.join(why.split())[:500]}. To have one, {mend}{hint}"
    )


def _found_by(session: Any) -> Credentials | None:
    """What botocore finds on this machine: variables, profiles, the machine's role."""
    found = session.get_credentials()
    if found is None:
        return None
    now = found.get_frozen_credentials()
    return Credentials(now.access_key, now.secret_key, now.token).masked()


def _keys(where: str, connection: Connection, extra: Mapping[str, Any]) -> Credentials | None:
    token = extra.get("aws_session_token") or None
    key, secret = connection.login or None, connection.password or None
    if key is None and secret is None:
        key, secret = (extra.get(name) or None for name in ("aws_access_key_id", "aws_secret_access_key"))
    if key is None and secret is None and token is None:
        return None
    if key is None or secret is None:
        missing = "access key (login)" if key is None else "secret key (password)"
        raise RayLLMInputError(f"storage_conn_id: {where} has no {missing}: give both keys, or neither")
    return Credentials(key, secret, token).masked()


def _object(where: str, extra: Mapping[str, Any], name: str, under: str = "") -> dict[str, Any]:
    value = extra.get(name) or {}
    if not isinstance(value, dict):
        raise RayLLMInputError(f"storage_conn_id: {where}: {under}{name} must be a JSON object")
    return value


@contextlib.contextmanager
def _unlogged_answers() -> Iterator[None]:
    """At level DEBUG botocore logs what STS answers, before the secrets in it can be masked."""

    def refuse(record: logging.LogRecord) -> bool:
        return False

    parsers = logging.getLogger("botocore.parsers")
    parsers.addFilter(refuse)
    try:
        yield
    finally:
        parsers.removeFilter(refuse)
