"""Errors as Kubernetes answers them: a `Status` object with a code, a reason and a message."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

#: By code: the reason, and what the API server says where nobody says more.
DEFAULTS = {
    400: ("BadRequest", "the server rejected our request for an unknown reason"),
    401: ("Unauthorized", "Unauthorized"),
    403: ("Forbidden", "forbidden"),
    404: ("NotFound", "the server could not find the requested resource"),
    405: ("MethodNotAllowed", "the server does not allow this method on the requested resource"),
    409: ("Conflict", "the server reported a conflict"),
    410: ("Expired", "The resourceVersion for the provided watch is too old."),
    415: ("UnsupportedMediaType", "the server does not support the media type of the request"),
    422: ("Invalid", "the server rejected our request due to an error in our request"),
    429: ("TooManyRequests", "too many requests, please try again later"),
    500: ("InternalError", "Internal error occurred"),
    503: ("ServiceUnavailable", "the server is currently unable to handle the request"),
    504: ("Timeout", "the server was unable to return a response in the time allotted"),
}


class ApiError(Exception):
    def __init__(
        self, code: int, message: str = "", reason: str = "", details: dict[str, Any] | None = None
    ) -> None:
        default_reason, default_message = DEFAULTS.get(code, ("", ""))
        self.code = code
        self.reason = reason or default_reason
        self.message = message or default_message
        self.details = details or {}
        if code == 429:
            self.details.setdefault("retryAfterSeconds", 1)
        super().__init__(self.message)

    def status(self) -> dict[str, Any]:
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "details": self.details,
            "code": self.code,
        }


def not_found(resource: str, name: str) -> ApiError:
    return ApiError(404, f'{resource} "{name}" not found', details={"name": name, "kind": resource})


def already_exists(resource: str, name: str, being_deleted: bool) -> ApiError:
    prefix = "object is being deleted: " if being_deleted else ""
    return ApiError(409, f'{prefix}{resource} "{name}" already exists', "AlreadyExists", {"name": name})


def conflict(resource: str, name: str, why: str) -> ApiError:
    sentence = f'Operation cannot be fulfilled on {resource} "{name}": {why}'
    return ApiError(409, sentence, details={"name": name, "kind": resource})


def invalid(kind: str, name: str, causes: Sequence[tuple[str, str, str]]) -> ApiError:
    """:param causes: a field, the cause's reason and its sentence"""
    listed = [f"{field}: {sentence}" for field, _, sentence in causes]
    text = listed[0] if len(listed) == 1 else f"[{', '.join(listed)}]"
    details = {
        "name": name,
        "kind": kind,
        "causes": [
            {"field": field, "reason": reason, "message": sentence} for field, reason, sentence in causes
        ],
    }
    return ApiError(422, f'{kind} "{name}" is invalid: {text}', details=details)
