"""Which failures of TLS stay until somebody changes the connection or the server, and what to change."""

from __future__ import annotations

import os
import ssl
from pathlib import Path

#: By OpenSSL's `X509_V_ERR_*`.
_FIXES = {
    9: "it may be the clock of this machine",  # NOT_YET_VALID
    10: "renew it",  # HAS_EXPIRED
    62: "write the name that it is for into the connection's host",  # HOSTNAME_MISMATCH
    64: "write the name that it is for into the connection's host",  # IP_ADDRESS_MISMATCH
}
_SET_CA = (
    "set the connection's extra ca_file to the PEM file of the authority that signed it (one that is set "
    "there is of another authority)"
)
#: Of OpenSSL, before 3.2 and since, about an answer in plain HTTP.
_NO_TLS = ("wrong version number", "record layer failure")


def explain_tls_error(error: BaseException | None) -> str | None:
    """Returns what is wrong and what to do; None for errors that may pass, such as a lost connection.

    :param error: of httpx, whose causes tell.
    """
    while error is not None:
        if isinstance(error, ssl.SSLCertVerificationError):
            fix = _FIXES.get(error.verify_code, _SET_CA)
            return (
                f"the certificate is not valid ({error.verify_message}): {fix}. The extra verify=false "
                "accepts any certificate"
            )
        if isinstance(error, ssl.SSLError) and any(t in _words(error) for t in _NO_TLS):
            return f"the server does not speak TLS: write http:// instead of https:// ({error})"
        error = error.__cause__ or error.__context__
    return None


def _words(error: ssl.SSLError) -> str:
    return str(error).lower().replace("_", " ")


def pem_fault(path: str, holds: str) -> str | None:
    """Returns what is wrong with a file that OpenSSL refuses, and what to do; None where only OpenSSL knows.

    :param holds: "CERTIFICATE" or "PRIVATE KEY".
    """
    try:
        content = Path(path).read_bytes()
    except FileNotFoundError:
        return "there is no such file on this machine; every Airflow worker and triggerer needs it"
    except IsADirectoryError:
        return "it is a folder: write the path of the PEM file in it"
    except PermissionError:
        return f"the user of this process (id {os.geteuid()}) may not read it: make it readable for them"
    except OSError as e:
        return f"it cannot be read: {e.strerror}"
    if f"{holds}-----".encode() not in content:
        return f"it has no line -----BEGIN {holds}-----: write it as PEM (`openssl` converts DER)"
    return None
