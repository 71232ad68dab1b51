"""What long-lived processes (the embedded head, Ray Serve) may inherit of the one that starts them.

All that runs in them later, for anybody, inherits it again. An allow-list, because nobody can list the names
under which a machine keeps its secrets. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from airflow_provider_raydatallm.contract.log.secret_shapes import is_secret_name

_ALLOWED = re.compile(
    # the user, the locale, temporary files
    r"(?:PATH|HOME|USER|LOGNAME|SHELL|HOSTNAME|TERM|TZ|LANG|LANGUAGE|LC_\w+|TMPDIR|TMP|TEMP|XDG_\w+"
    # programs and libraries
    r"|PYTHON\w*|VIRTUAL_ENV|CONDA_\w+|LD_\w+|MALLOC_\w+"
    # the network: proxies and certificates
    r"|(?:http|https|no|all)_proxy|HTTP_PROXY|HTTPS_PROXY|NO_PROXY|ALL_PROXY"
    r"|SSL_CERT_FILE|SSL_CERT_DIR|CURL_CA_BUNDLE|REQUESTS_CA_BUNDLE"
    # devices and numerics
    r"|(?:CUDA|NVIDIA|NCCL|GLOO|UCX|HIP|HSA|ROCR|ROCM|OMP|GOMP|KMP|MKL|OPENBLAS|NUMEXPR|NVPL)_\w+"
    # models and engines; Ray's tuning is in small letters, unlike addresses, tokens and modes
    r"|(?:HF|TRANSFORMERS|TOKENIZERS|TORCH|TORCHINDUCTOR|PYTORCH|TRITON|FLASHINFER|VLLM)_\w+|RAY_[a-z]\w*"
    # where and as whom to use storage
    r"|AWS_\w+|GOOGLE_CLOUD_PROJECT)"
)


def inherited(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables that may be inherited: of known names, without secrets."""
    return {
        name: value
        for name, value in environment.items()
        if _ALLOWED.fullmatch(name) and not is_secret_name(name)
    }
