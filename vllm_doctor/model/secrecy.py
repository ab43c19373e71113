"""Which settings hold secrets, told by their names. One answer for reading, rewriting and redaction."""

from __future__ import annotations

import re
from functools import lru_cache


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


OWNED_KEYS = _words(
    "api access secret private account signing encryption master auth storage subscription service license client shared hmac admin "
    "session ssh app deploy data root user webhook bot server vllm openai hf routing integration ingest write"
)
OWNED_TOKENS = OWNED_KEYS | _words(
    "bearer refresh id security github gitlab slack huggingface hub read personal vault csrf wandb npm pypi ngc discord telegram x sas"
)
_ALWAYS = _words(
    "password passwd passphrase passwort secret secrets apikey apikeys credential credentials authorization cookie webhook dsn "
    "privatekey accesskey secretkey accountkey authtoken accesstoken sharedaccesskey salt 密码 口令 密钥 令牌"
)
_NOT_THE_SECRET = _words(
    "file files path dir name names header headers ref refs env len length count counts ids limit budget type types endpoint enabled "
    "required policy size bytes throughput usage arn rotation version"
)
_OF_TEXT = _words("max min num new per pad eos bos unk sep cls mask image audio video stop")
"""Words before `token` that make it one of a text."""
_ENDS = re.compile(r".*(?:key|token|secret|password|passwd|credentials)$", re.IGNORECASE)
"""Ends of names that are masked to be safe where the value is neither a number nor a plain word. `tokens` is always a count."""
_VARIABLE = re.compile(r"\$\{?[A-Za-z_]\w*\}?$")
_PLAIN = _words("true false none null auto yes no on off default")


@lru_cache(maxsize=4096)
def is_secret_name(name: str) -> bool:
    """Is a setting, option, header or variable of this name a secret? `HF_TOKEN`, `api_key`, `x-api-key` are, `max_tokens` is not."""
    if name in ("PWD", "OLDPWD"):
        return False
    parts = parts_of(name)
    if parts[-1] in _NOT_THE_SECRET or (parts[-1] == "id" and parts[-3:] not in (["access", "key", "id"], ["private", "key", "id"])):
        return False
    if any(p in _ALWAYS for p in parts) or parts[-1] in ("auth", "pwd", "dsn") or parts[-2:] == ["connection", "string"]:
        return True
    for i, part in enumerate(parts):
        before = parts[i - 1] if i else ""
        if part in ("key", "keys") and before in OWNED_KEYS and "publishable" not in parts:
            return True
        if len(parts) == 1 and part == "key":
            return True  # if its value looks like one
        if part == "token" and (before in OWNED_TOKENS or (name.isupper() and before not in _OF_TEXT) or len(parts) == 1):
            return True
    return parts[-1] in ("signature", "sig") and parts[0] in ("x", "sig", "signature")


def parts_of(name: str) -> list[str]:
    """The words of a name, in small letters, whatever joins them."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).replace("-", "_").replace(".", "_").replace(" ", "_").lower().strip("_").split("_")


def is_secret(name: str, value: object) -> bool:
    """Is this value of a launch option or variable a secret? A switch, an empty value and a reference to a variable never are; a number or a
    plain word only under a name that says that it is a secret."""
    text = str(value).strip()
    if isinstance(value, bool) or value is None or not text or _VARIABLE.match(text) or text.lower() in ("true", "false", "none"):
        return False
    if is_secret_name(name):
        return True
    return _ENDS.match(name) is not None and text.lower() not in _PLAIN and re.fullmatch(r"-?\d+(?:\.\d+)?[kKmMgGtT]?i?", text) is None
