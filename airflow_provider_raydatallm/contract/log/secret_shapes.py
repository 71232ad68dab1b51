"""Secrets that their form or the name before them gives away, in any text. Pure.

Whoever writes a log or an error may not know that it quotes one. Each pattern begins at a boundary and looks
ahead within bounds or once, so that time grows with the text only, whatever it holds.
"""

from __future__ import annotations

import re

MASK = "***"
#: Shorter values are words such as "false": to mask them would hide no secret, but make logs unreadable.
MIN_CHARACTERS = 6

_SECRET_NAME = re.compile(
    r"(?:^|_)(?:auth|access|api)?(?:token|credentials?|creds|authorization|passphrase|connection_string|jwt)$"
    r"|(?:password|passwd|_pwd|secret|api_?key|access_?key(?:_id)?)$"
    r"|(?:secret|private|account|storage|auth|encryption|signing|master|fernet|ssh|pgp|gpg|hmac)_?key$"
    r"|(?:^|_)(?:openai|anthropic|azure|aws|gcp|google|gemini|mistral|cohere|groq|together|fireworks|deepseek"
    r"|openrouter|perplexity|replicate|huggingface|hf|nvidia|wandb|pinecone|stripe|sendgrid|twilio|datadog"
    r"|slack|github|gitlab|jira|subscription|webhook|license|deploy|service)_key$"
    r"|(?:^|_)(?:db|database|user|smtp|imap|mail|ftp|sftp|ssh|admin|root|redis|mysql|pg|postgres|mongo|login"
    r"|proxy|ldap|broker|service|cert|key|ssl|tls|keystore)_pass$"
    r"|(?:^|_)(?:github|gitlab|azure_devops)_pat$|_sas(?:_url)?$"
    r"|(?:^|_)secrets?_(?!.*(?:name|path|file|dir|folder|arn|url|uri)$)"
)
#: Words of a model's vocabulary.
_MODEL_TOKEN = re.compile(r"(?:^|_)(?:bos|eos|pad|unk|sep|cls|mask|image|video|audio|stop|start|end)_token$")
#: Variables of an environment, for which people choose any name before these words.
_VARIABLE = re.compile(r"[A-Z][A-Z0-9_]*_(?:KEY|PASS)(?:_?[0-9]{1,2})?")
_NO_SECRET = re.compile(
    r"(?:.*_)?(?:(?:CACHE|PRIMARY|FOREIGN|PARTITION|SORT|SLICE|ROW|GROUP|JOIN|INDEX|PUBLIC|UNIQUE|SHARD|DEDUP"
    r"|HASH|ORDER|LOOKUP|ROUTING|JSON|DICT|COLUMN|FIELD|MESSAGE|S3|OBJECT|REGISTRY)_KEY"
    r"|(?:FORWARD|BACKWARD|FIRST|LAST|SECOND|PREFILL|DECODE|SINGLE|ONE|TWO|MAX|MIN|NUM|TEST)_PASS)"
)

#: Of the second of several, as `HF_TOKEN_2`.
_NUMBER = re.compile(r"_?[0-9]{1,2}$")

_BEGIN = r"(?<![A-Za-z0-9_-])"
#: As services make them.
_TOKEN = re.compile(
    _BEGIN + r"(?:(?:AKIA|ASIA)[A-Z0-9]{16}(?![A-Za-z0-9])"
    r"|sk-(?:[a-z0-9]{1,10}-){0,3}(?:(?=[a-z_]*[A-Z0-9])[A-Za-z0-9_]{12,}|[A-Za-z0-9_]{20,})[A-Za-z0-9_-]*"
    r"|hf_(?:(?=[a-z]*[A-Z0-9])[A-Za-z0-9]{16,}|[A-Za-z0-9]{30,})"
    r"|gh[opusr]_[A-Za-z0-9]{16,}|github_pat_[A-Za-z0-9_]{20,}|glpat-[A-Za-z0-9_-]{16,}"
    r"|gsk_[A-Za-z0-9]{20,}|nvapi-[A-Za-z0-9_-]{20,}|AIza[A-Za-z0-9_-]{35}"
    r"|ya29\.[A-Za-z0-9_-]{20,}|xai-[A-Za-z0-9]{20,}|[rs]k_(?:live|test)_[A-Za-z0-9]{16,}|r8_[A-Za-z0-9]{30,}"
    r"|SG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}|npm_[A-Za-z0-9]{30,}|hvs\.[A-Za-z0-9_-]{20,}"
    r"|xox[abeprs]-[A-Za-z0-9-]{10,}|dapi[0-9a-f]{32}"
    r"|eyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]+)"
)
#: Password of an address, and the user of a web address without one, which is a token then.
_IN_ADDRESS = re.compile(r"(://[^/\s:@\"'<>]*:)[^/\s\"'<>]+(?=@)|(https?://)[^/\s:@\"'<>]{6,}(?=@)")
#: `NAME=VALUE`, as in shells, signed addresses and calls.
_ASSIGNED = re.compile(r"(?<!\w)([A-Za-z][\w-]{0,63})=(?=\S)")
#: Of a secret's name, which may hold a comma; in quotes, whatever stands between them.
_ASSIGNED_VALUE = re.compile(
    r"([\"'])((?:\\.|(?!\1)[^\\\n]){6,})(?=\1)"
    r"|([\"']?)([^\s&\"'<>\\)}\]]{5,}[^\s&\"'<>\\)}\],;])"
)
#: `"NAME": "VALUE"`, whatever stands between the quotes.
_QUOTED = re.compile(
    r"(?<![\w\\])(([\"'])([A-Za-z][\w.-]{0,63})\2\s{0,8}:\s{0,8}([\"']))((?:\\.|(?!\4)[^\\\n]){6,})(?=\4)"
)
#: `"NAME": "VALUE"`, as in JSON and Python, perhaps within a text of JSON.
_PAIR = re.compile(
    r"(\\{0,3}[\"'])([A-Za-z][\w.-]{0,63})(\\{0,3}[\"']\s{0,2}:\s{0,2}\\{0,3}[\"'])([^\"'\n]{5,}?[^\"'\n\\])"
    r"(?=\\{0,3}[\"'])"
)
_HEADER = re.compile(
    r"(?i)(?<![\w-])((?:proxy-)?authorization\\{0,3}[\"']?\s{0,3}[:=]\s{0,3}\\{0,3}[\"']?"
    r"(?:(?:bearer|basic|token|apikey|digest|negotiate)\s{1,3})?|(?:x-)?api-key\s{0,3}:\s{0,3}|bearer\s{1,3})"
    r"((?=[A-Za-z._~+/-]*[0-9=])[A-Za-z0-9._~+/=-]{6,}|[A-Za-z0-9._~+/=-]{20,})"
)
#: Names of parameters in signed addresses.
_SIGNATURES = frozenset({
    "sig", "signature", "x-amz-signature", "x-amz-credential", "x-goog-signature", "x-goog-credential",
    "x-oss-signature", "awsaccesskeyid", "googleaccessid",
})  # fmt: skip
_KEY_BEGIN = re.compile(r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
_KEY_END = re.compile(r"-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
#: What a private key consists of, also within a text of JSON.
_KEY_BODY = re.compile(r"[A-Za-z0-9+/=:,\s\\-]*")
_KEY_LINE = re.compile(
    r"(?:\([^()\n]{0,200}\)\s)?\s*(?:[A-Za-z0-9+/]{16,}={0,2}|[A-Za-z-]{1,20}:[^:]{0,100})?\s*"
)


def is_secret_name(name: str) -> bool:
    """Whether the value of a variable, argument or key with this name is a secret, such as `HF_TOKEN`,
    `apiKey`, `OPENAI_KEY` or `client_secret`, but not `RAY_AUTH_TOKEN_PATH` or `eos_token`."""
    if _VARIABLE.fullmatch(name) and not _NO_SECRET.fullmatch(name):
        return True
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().replace("-", "_")
    words = _NUMBER.sub("", words)
    return _SECRET_NAME.search(words) is not None and _MODEL_TOKEN.search(words) is None


def holds_secret(text: str) -> bool:
    """Whether a text has something of a secret's form, or a signature in an address."""
    signed = any(match[1].lower() in _SIGNATURES for match in _ASSIGNED.finditer(text))
    return signed or _TOKEN.search(text) is not None or _KEY_BEGIN.search(text) is not None


def without_secrets(text: str) -> str:
    """Returns the text with `***` in place of what its form or its name gives away."""
    text = _without_keys(text)
    text = _TOKEN.sub(MASK, text)
    text = _IN_ADDRESS.sub(lambda match: f"{match[1] or match[2]}{MASK}", text)
    text = _HEADER.sub(lambda match: f"{match[1]}{MASK}", text)
    text = _QUOTED.sub(lambda match: f"{match[1]}{_value(match[3], match[5])}", text)
    text = _PAIR.sub(lambda match: f"{match[1]}{match[2]}{match[3]}{_value(match[2], match[4])}", text)
    return _without_assigned(text)


def _value(name: str, value: str) -> str:
    is_secret = is_secret_name(name) or name.lower() in _SIGNATURES
    return MASK if is_secret else value


def _without_assigned(text: str) -> str:
    parts, at = [], 0
    for name in _ASSIGNED.finditer(text):
        if name.start() < at or _value(name[1], "") != MASK:
            continue
        if (value := _ASSIGNED_VALUE.match(text, name.end())) is not None:
            parts += [text[at : name.end()], value[1] or value[3] or "", MASK]
            at = value.end()
    return "".join(parts) + text[at:]


def _without_keys(text: str) -> str:
    """Masks private keys, also one that is cut."""
    parts, at, has_end = [], 0, True
    while (begin := _KEY_BEGIN.search(text, at)) is not None:
        end = _KEY_END.search(text, begin.end()) if has_end else None
        has_end = end is not None  # searched for once only, where there is none
        parts += [text[at : begin.start()], MASK]
        at = end.end() if end is not None else _KEY_BODY.match(text, begin.end()).end()  # type: ignore[union-attr]
    return "".join(parts) + text[at:]


class KeyLines:
    """Tells the lines of a private key that is printed line by line, which have no form of their own."""

    def __init__(self) -> None:
        self._is_within = False

    def is_of_key(self, line: str) -> bool:
        """Whether a line is one after a key's first. What is no line of a key ends it."""
        was_within = self._is_within and (_KEY_END.search(line) or _KEY_LINE.fullmatch(line)) is not None
        begin = _KEY_BEGIN.search(line)
        self._is_within = was_within if begin is None else True
        if _KEY_END.search(line, begin.end() if begin else 0):
            self._is_within = False
        return was_within and begin is None
