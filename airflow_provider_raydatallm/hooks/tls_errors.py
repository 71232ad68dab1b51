"""Which failures of TLS stay until somebody changes the connection or the server, and what to change."""

from __future__ import annotations

import os
import ssl
from pathlib import Path
from typing import NamedTuple

from airflow_provider_raydatallm.contract.result.failure import joined

#: By OpenSSL's `X509_V_ERR_*`.
_FIXES = {
    9: "It may be the clock of this machine",  # NOT_YET_VALID
    10: "Renew it",  # HAS_EXPIRED
    62: "Write the name that it is for into the connection's host",  # HOSTNAME_MISMATCH
    64: "Write the name that it is for into the connection's host",  # IP_ADDRESS_MISMATCH
}
_SET_CA = (
    "Set the connection's extra ca_file to the PEM file of the authority that signed it (one that is set "
    "there is of another authority)"
)
#: Of OpenSSL, before 3.2 and since, about an answer in plain HTTP.
_NO_TLS = ("wrong version number", "record layer failure")


class Fault(NamedTuple):
    """What is wrong, and what to do about it: as in a `Failure`."""

    sentence: str
    advice: tuple[str, ...] = ()

    def __str__(self) -> str:
        return joined([self.sentence, *self.advice])


def explain_tls_error(error: BaseException | None) -> Fault | None:
    """Returns None for errors that may pass, such as a lost connection.

    :param error: of httpx, whose causes tell.
    """
    while error is not None:
        if isinstance(error, ssl.SSLCertVerificationError):
            fix = _FIXES.get(error.verify_code, _SET_CA)
            return Fault(
                f"the certificate is not valid ({error.verify_message})",
                (fix, "The extra verify=false accepts any certificate"),
            )
        if isinstance(error, ssl.SSLError) and any(t in _words(error) for t in _NO_TLS):
            return Fault(f"the server does not speak TLS ({error})", ("Write http:// instead of https://",))
        error = error.__cause__ or error.__context__
    return None


def _words(error: ssl.SSLError) -> str:
    return str(error).lower().replace("_", " ")


def pem_fault(path: str, holds: str) -> Fault | None:
    """Returns what is wrong with a file that OpenSSL refuses; None where only OpenSSL knows.

    :param holds: "CERTIFICATE" or "PRIVATE KEY".
    """
    try:
        content = Path(path).read_bytes()
    except FileNotFoundError:
        return Fault(
            "there is no such file on this machine", ("Every Airflow worker and triggerer needs it",)
        )
    except IsADirectoryError:
        return Fault("it is a folder", ("Write the path of the PEM file in it",))
    except PermissionError:
        return Fault(f"the user of this process (id {os.geteuid()}) may not read it", ("Let them read it",))
    except OSError as e:
        return Fault(f"it cannot be read: {e.strerror}")
    if f"{holds}-----".encode() not in content:
        return Fault(f"it has no line -----BEGIN {holds}-----", ("Write it as PEM (`openssl` converts DER)",))
    return None
