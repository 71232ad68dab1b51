"""Session credentials for the job's storage, from an Airflow connection.

Without `storage_conn_id` a job has the identity of the cluster's nodes. With it, `session_credentials_env`
returns the environment variables in which every AWS client of the job finds its credentials. Ray shows a
job's environment to everyone who holds the cluster's token: the credentials are therefore those of a session
that expires, and a connection's own keys leave Airflow only with `allow_static`. All are masked in logs.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow_provider_raydatallm.exceptions import RayLLMInputError, RayLLMJobError
from airflow_provider_raydatallm.hooks import lookup
from airflow_provider_raydatallm.hooks.masking import mask

if TYPE_CHECKING:
    from airflow.sdk import Connection

#: Duration of a session of a user's keys (STS: 15 minutes to 36 hours), and of a role's unless the connection
#: sets it (STS: up to the role's own maximum, and at most an hour where one role assumes another).
SESSION_SECONDS = 12 * 3600
ROLE_SESSION_SECONDS = 3600

_NODE_IDENTITY = (
    "the cluster's nodes an identity of their own that may use the storage, and leave storage_conn_id out"
)
_USE_STATIC_KEYS = "if the store has no STS, allow_static_credentials=True sends the keys as they are"
_NAME_STS = "name its STS in service_config.sts.endpoint_url"

log = logging.getLogger(__name__)


class Credentials(NamedTuple):
    key: str
    secret: str
    token: str | None

    @classmethod
    def masked(cls, key: str, secret: str, token: str | None) -> Credentials:
        """Masks the values in all logs first."""
        for value in filter(None, (key, secret, token)):
            mask(value)
        return cls(key, secret, token)


class AwsSettings:
    """Settings of an AWS connection. `keys`: its own, or None for those that botocore finds on the Airflow
    worker (of `profile`, if set). `role_arguments`: further arguments of STS AssumeRole.

    :raises RayLLMInputError: when its credentials cannot be used, saying why and what to do.
    """

    def __init__(self, connection: Connection) -> None:
        self.label = label = f"connection {connection.conn_id!r}"
        if connection.conn_type not in ("aws", "s3"):
            raise RayLLMInputError(
                f"storage_conn_id: {label} is of type {connection.conn_type!r}, and only credentials of AWS "
                "connections ('aws', also for S3-compatible stores) can be used",
                advice=f"Give {_NODE_IDENTITY}",
            )
        extra = connection.extra_dejson
        if not isinstance(extra, dict):
            raise RayLLMInputError(f"storage_conn_id: {label}: its extra must be a JSON object")
        services = _get_object(label, extra, "service_config")
        s3, sts = (_get_object(label, services, name, "service_config.") for name in ("s3", "sts"))
        self.role_arn: str | None = extra.get("role_arn") or None
        method = extra.get("assume_role_method") or "assume_role"
        if self.role_arn and method != "assume_role":
            raise RayLLMInputError(
                f"storage_conn_id: {label} assumes its role by {method!r}, which is not supported",
                advice=f"Use the method 'assume_role', or give {_NODE_IDENTITY}",
            )
        self.role_arguments = _get_object(label, extra, "assume_role_kwargs")
        self.keys = _get_keys(label, connection, extra)
        self.profile: str | None = extra.get("profile_name") or None
        self.region: str | None = extra.get("region_name") or None
        self.verify: bool | str | None = extra.get("verify")
        self.s3_endpoint: str | None = s3.get("endpoint_url") or extra.get("endpoint_url") or None
        # The STS of an S3-compatible store, if any, is at the store's address; AWS must not see its keys.
        self.sts_endpoint: str | None = sts.get("endpoint_url") or extra.get("endpoint_url") or None


def session_credentials_env(
    conn_id: str,
    *,
    allow_static: bool,
    session_name: str = "airflow",
    policy_of: Callable[..., str | None] | None = None,
) -> dict[str, str]:
    """Returns the environment variables that give a job the storage credentials of a connection.

    :param allow_static: send keys without a session as they are, instead of asking STS for a session.
    :param session_name: name of a role's session in the store's own logs; adapted to STS' rules.
    :param policy_of: returns the policy of a role's session (`session_policy`); a user's session takes none.
    :raises RayLLMInputError: when the connection is not of AWS, holds no usable credentials, or STS refuses a
        session.
    :raises RayLLMJobError: when STS cannot be reached, or Airflow does not give the connection
        (`hooks.lookup`).
    """
    connection = lookup.get_connection(
        conn_id,
        advice="Add one of type 'aws', or leave storage_conn_id out to use the identity of the cluster's "
        "nodes",
    )
    settings = AwsSettings(connection)
    credentials = _get_credentials(settings, allow_static, session_name, policy_of)
    variables = {
        "AWS_ACCESS_KEY_ID": credentials.key,
        "AWS_SECRET_ACCESS_KEY": credentials.secret,
        # Empty, not left out: a node's own values must not be combined with these keys.
        "AWS_SESSION_TOKEN": credentials.token or "",
        "AWS_CREDENTIAL_EXPIRATION": "",
    }
    if settings.region:
        # Botocore reads the first, other SDKs the second.
        variables |= {"AWS_DEFAULT_REGION": settings.region, "AWS_REGION": settings.region}
    if settings.s3_endpoint:
        variables["AWS_ENDPOINT_URL"] = settings.s3_endpoint
    return variables


def _get_credentials(
    settings: AwsSettings, allow_static: bool, session_name: str, policy_of: Callable[..., str | None] | None
) -> Credentials:
    try:
        import botocore.session  # type: ignore[import-untyped]
        from botocore.exceptions import BotoCoreError  # type: ignore[import-untyped]
    except ImportError as e:
        raise RayLLMInputError(
            f"storage_conn_id: {settings.label} needs botocore on the Airflow workers ({e})",
            advice="Install airflow-provider-raydatallm[s3] there",
        ) from e
    try:
        session = botocore.session.Session(profile=settings.profile)
        keys = settings.keys or _find_worker_credentials(session)
    except BotoCoreError as e:
        sentence = f"storage_conn_id: {settings.label}: {e}"
        raise RayLLMInputError(sentence, advice="Fix its credentials") from e
    if keys is None:
        raise RayLLMInputError(
            f"storage_conn_id: {settings.label} holds no keys, and the Airflow worker has none of its own",
            advice="Put an access key into its login and the secret into its password, or "
            f"give {_NODE_IDENTITY}",
        )
    if settings.role_arn:
        arguments = {
            "RoleArn": settings.role_arn,
            "RoleSessionName": re.sub(r"[^A-Za-z0-9_+=,.@-]", "_", session_name)[:64],
            "DurationSeconds": ROLE_SESSION_SECONDS,
            **_get_policy(settings, policy_of),
            **settings.role_arguments,
        }
        return _call_sts(session, settings, keys, "assume_role", arguments)
    if keys.token:
        return keys
    if allow_static:
        log.warning(
            "allow_static_credentials: the keys of %s go to the job as they are; Ray shows them to everyone "
            "who holds the cluster's token, until they are replaced",
            settings.label,
        )
        return keys
    return _call_sts(session, settings, keys, "get_session_token", {"DurationSeconds": SESSION_SECONDS})


def _get_policy(settings: AwsSettings, policy_of: Callable[..., str | None] | None) -> dict[str, str]:
    """The argument with the session's policy; {} where the connection limits the session itself."""
    if policy_of is None or {"Policy", "PolicyArns"} & settings.role_arguments.keys():
        return {}
    # "aws-cn" and the like; of other stores' roles ("arn:minio:...") the buckets are of "aws".
    partition = re.match(r"arn:(aws[a-z-]*):", str(settings.role_arn))
    # Other stores refuse actions that they do not know.
    policy = policy_of(partition=partition[1] if partition else "aws", kms=settings.sts_endpoint is None)
    return {} if policy is None else {"Policy": policy}


def _call_sts(
    session: Any, settings: AwsSettings, keys: Credentials, operation: str, arguments: Mapping[str, Any]
) -> Credentials:
    from botocore import exceptions
    from botocore.config import Config  # type: ignore[import-untyped]
    from botocore.parsers import ResponseParserError  # type: ignore[import-untyped]

    address = settings.sts_endpoint or "AWS"
    hint = f"; {_USE_STATIC_KEYS}" if operation == "get_session_token" else ""
    retries = {"mode": "standard", "total_max_attempts": 3}
    try:
        client = session.create_client(
            "sts",
            region_name=settings.region or session.get_config_variable("region") or "us-east-1",
            endpoint_url=settings.sts_endpoint,
            verify=settings.verify,
            aws_access_key_id=keys.key,
            aws_secret_access_key=keys.secret,
            aws_session_token=keys.token,
            config=Config(connect_timeout=10, read_timeout=30, retries=retries),
        )
        address = client.meta.endpoint_url
        with _response_log_muted():
            values = getattr(client, operation)(**arguments)["Credentials"]
            return Credentials.masked(
                values["AccessKeyId"], values["SecretAccessKey"], values["SessionToken"]
            )
    except exceptions.ClientError as e:
        error = e.response.get("Error", {})
        if error.get("Code"):
            reason = f"{error['Code']}: {error.get('Message')}"
            fix = "fix its keys or its role, and their permissions"
        else:  # an error in the format of S3, not of STS
            reason = f"HTTP {e.response['ResponseMetadata']['HTTPStatusCode']} without an STS error"
            fix = _NAME_STS
    except (exceptions.ConnectionError, exceptions.HTTPClientError) as e:
        raise RayLLMJobError(
            f"storage_conn_id: STS ({address}) cannot be reached for {settings.label}: {e}",
            advice="Make it reachable from the Airflow workers, or name another in "
            f"service_config.sts.endpoint_url{hint}",
        ) from e
    except (ResponseParserError, KeyError) as e:
        # The server is not an STS; the error quotes its response after the first line.
        reason = f"its response has no {e}" if isinstance(e, KeyError) else str(e).partition("\n")[0]
        fix = _NAME_STS
    except (exceptions.BotoCoreError, ValueError) as e:
        reason, fix = str(e), "fix its extra"
    raise RayLLMInputError(
        f"storage_conn_id: STS ({address}) gives no session for {settings.label}: "
        f"{' '.join(reason.split())[:500]}",
        advice=f"To get one, {fix}{hint}",
    )


def _find_worker_credentials(session: Any) -> Credentials | None:
    """Credentials that botocore finds on this machine: variables, profiles, the machine's role."""
    credentials = session.get_credentials()
    if credentials is None:
        return None
    frozen = credentials.get_frozen_credentials()
    return Credentials.masked(frozen.access_key, frozen.secret_key, frozen.token)


def _get_keys(label: str, connection: Connection, extra: Mapping[str, Any]) -> Credentials | None:
    token = extra.get("aws_session_token") or None
    key, secret = connection.login or None, connection.password or None
    if key is None and secret is None:
        key, secret = (extra.get(name) or None for name in ("aws_access_key_id", "aws_secret_access_key"))
    if key is None and secret is None and token is None:
        return None
    if key is None or secret is None:
        missing = "access key (login)" if key is None else "secret key (password)"
        raise RayLLMInputError(
            f"storage_conn_id: {label} has no {missing}", advice="Set both keys, or neither"
        )
    return Credentials.masked(key, secret, token)


def _get_object(label: str, extra: Mapping[str, Any], name: str, prefix: str = "") -> dict[str, Any]:
    value = extra.get(name) or {}
    if not isinstance(value, dict):
        raise RayLLMInputError(f"storage_conn_id: {label}: {prefix}{name} must be a JSON object")
    return value


@contextlib.contextmanager
def _response_log_muted() -> Iterator[None]:
    """At level DEBUG botocore logs STS' response, before the secrets in it can be masked."""
    parsers = logging.getLogger("botocore.parsers")
    parsers.addFilter(drop := lambda record: False)
    try:
        yield
    finally:
        parsers.removeFilter(drop)
