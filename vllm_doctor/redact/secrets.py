"""Secrets, known by the name that they are given to or by their own shape.

No detector library is used. detect-secrets was tried on the fixtures: 3 ms for a log line, 31,000 of its entropy findings in 3,454 harmless
lines, nothing for `--api-key X`, `'api_key': ['X']`, Hugging Face, NVIDIA or Feishu, and no end on a line of 1 MiB. What its vendors'
plugins know is the shapes below.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from ..model.secrecy import is_secret_name, parts_of
from .spans import MASK, Lazy, balanced_end, line_end, mask, opening_quote, quoted_end, words

_TRIGGER = re.compile(
    r"key|token|secret|passw|passphrase|pwd|credential|auth|cookie|webhook|dsn|connection|salt|signature|[?&;]sig|密|令牌|口令", re.IGNORECASE
)
_NAME = re.compile(
    r"(?:(?<![\w.-])(?!(?<=\\)(?:x00|u0000|0))|(?<=\\[nrt])|(?<=\\x00)|(?<=\\0)|(?<=\\u0000)|(?<=[\u4e00-\u9fff])(?=[密口令]))"
    r"(?P<dashes>--?)?(?P<name>(?:api|access|secret|API|Api|Access|Secret) [Kk]eys?"
    r"|[A-Za-z_][\w.-]{1,127}|密码|口令|密钥|令牌)"
    r"(?P<sep>(?:\\{0,15}[\"'])?\]?\s{0,3}(?:=>|:=|[:=：＝])\s{0,3}(?:b(?=[\"']))?"
    r"|\\{0,15}[\"'],\s{0,3}b?(?=\\{0,15}[\"'])|[ \t]{1,3}|\n[ \t]{0,40}- | ?[是为] ?|\x00|\\x00|\\0|\\u0000)"
)
_BARE = re.compile(r"(?:(?!&[\w.-]{1,40}=|\\[nrtu\"']|\\x?0)[^\s\x00\"'<>|])+")
_BLOCK = re.compile(r"[|>][-+\d]{0,2}[ \t]{0,3}\n([ \t]{1,40})(?=\S)")
"""A block of YAML: the value is what follows at this depth."""
_SCHEME = re.compile(r"(?:bearer|basic|token|digest|apikey|negotiate)\s{1,3}", re.IGNORECASE)
_HARMLESS = words(
    "none null nil true false yes no auto required invalid missing empty unset set not is the a an to for of in and or not_set optional "
    "default authentication bearer basic redacted hidden env tokens string str bytes secret secretstr ... * ** ****"
)
_MORE = Lazy(r"[ \t]{1,3}(?![-'\"])(?=[^\s/]{0,80}\d)([^\s/]{8,200})(?=\s|$)")
_KEY_HEAD = Lazy(r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY[A-Z ]{0,20}-----")
_KEY_FOOT = Lazy(r"-----END [A-Z0-9 ]{0,40}-----")
_LONGEST_KEY = 20_000
_Q = r"\\{0,15}[\"']?"
_POD_GAP = r"(?:\\{1,15}[nrt]|\s|#[^\n]{0,200}\n){0,60}"
_POD_VALUE = rf"{_Q}[Vv]alue{_Q}\s{{0,3}}[:=]\s{{0,3}}{_Q}"
_POD_NAME = rf"{_Q}\b[Nn]ame{_Q}\s{{0,3}}[:=]\s{{0,3}}{_Q}([\w.-]{{2,100}}){_Q}"
_POD_VARIABLE = Lazy(rf"({_POD_NAME}{_POD_GAP},?{_POD_GAP}{_POD_VALUE})([^\s\"'\\,}}\]]+)")
_POD_TURNED = Lazy(rf"({_POD_VALUE})([^\s\"'\\,}}\]]+)({_Q}{_POD_GAP},?{_POD_GAP}{_POD_NAME})")
"""A variable of a pod as YAML and JSON write it, in either order."""
_ORPHAN = re.compile(r"(?m)^([ \t]{0,40}(?:- |value: )?[\"']?)([A-Za-z0-9+/]{20,}={0,2})(?=[\"']?,?[ \t\r]{0,3}$)")
"""A line that holds nothing but a random value: of a list or a key whose other lines were not quoted."""
_HEADERS = re.compile(r"^(?:proxy[_-])?authorization$|^(?:set[_-])?cookie$", re.IGNORECASE)

_Shape = tuple[str, Lazy, "str | Callable[[re.Match[str]], str]"]
_CUT = r"(?=…|$)"  # what the report's limit on the length of lines left of a secret


def _shape(literal: str, pattern: str, kept: str | Callable[[re.Match[str]], str] = MASK) -> _Shape:
    return literal, Lazy(pattern), kept


_PROSE_KEY = (
    r"(?i)\b(?:(?:api|access|secret|auth|private|encryption|signing|master|session|license|bearer|routing)[ _-]?)(?:key|token)s?"
    r"(?:(?: (?:provided|supplied|given|used|received|sent|is|was|of|being))*(?: ?[:：=＝]\s{0,3}| (?=[\"'`“]|\S{0,200}\d))|(?= ?[(\[]))"
    r"[ \t]?[(\[\"'`“]{0,2}(?P<value>(?![|>])[^\s\"'`()\[\],;“”]{4,500})"
)
_PROSE_PASSWORD = (
    r"(?i)\b(?:password|passphrase|passwd|secret)(?: (?:is|was|of|provided|used|supplied))?(?:[ \t]?[:：=＝][ \t]{0,3}|(?<=using password)[ \t]"
    r"|(?<=with password)[ \t]|(?<=using passphrase)[ \t]|(?<=using passwd)[ \t])[\"'`“(]?(?P<value>(?![|>])[^\s\"'`()“”,;]{2,500})"
)
_SAID = words(
    "authentication auth file files from for instead which that has was are set not stored in via is and or field manager protection protected "
    "provided invalid required missing length rejected expired was hash hashing hashes prompt based login only support"
)


def _told(match: re.Match[str]) -> str:
    """A secret that a sentence names. Words of the language, and settings, are none."""
    value = match["value"].rstrip(".")
    start = match.start("value") - match.start()
    if value.lower() in _SAID or harmless(value.replace("*", "")) or value.startswith(("-", "/")) or is_secret_name(value):
        return match[0]
    quoted = match[0][start - 1] in "\"'`“"
    if value.isalpha() and value.islower() and not quoted and match[0][:start].rstrip("([ ").lower().endswith(("key", "token", "keys", "tokens")):
        return match[0]
    return match[0][:start] + MASK + match[0][start + len(value) :]


def _webhook(match: re.Match[str]) -> str:
    """The path of an address that is there to be called back; public pages about such addresses have words in it only."""
    return match[1] + MASK if re.search(r"\d", match[0][len(match[1]) :]) else match[0]


_SHAPES: tuple[_Shape, ...] = (
    _shape("://", r"([A-Za-z][A-Za-z0-9+.-]{0,30}://)[^\s/@?#\"'<>]{1,1000}@", r"\1" + MASK + "@"),
    _shape("bot", r"(/(?:file/)?bot)\d{5,12}:[\w-]{6,}", r"\1" + MASK),
    _shape(":AA", r"\b\d{8,10}:AA[\w-]{30,40}(?![\w-])"),
    _shape("key=", r"([?&]key=)[^&\s\"'<>*$]{4,}", r"\1" + MASK),
    _shape("/hooks/", r"(/hooks/(?:catch/|standard/)?)(?!catch/|standard/)[\w/+.-]*[\w/+-]", r"\1" + MASK),
    _shape("ifttt", r"(maker\.ifttt\.com/[\w/-]{0,100}/key/)[\w-]+", r"\1" + MASK),
    _shape("pagerduty", r"(pagerduty\.com/(?:integration|x-ere)/)[\w-]+", r"\1" + MASK),
    _shape(
        "hook",
        r"(://[\w.-]{0,100}?hooks?[\w-]{0,20}\.(?:[\w-]{1,60}\.){1,4}[a-z]{2,24}/)(?!services/\*|workflows/\*|hooks/)[\w/+.@-]*[\w/+-]",
        _webhook,
    ),
    _shape("/web", r"(/web-?hooks?\w{0,3}/(?:v\d/)?)(?=[\w/@.-]*\d)[\w/@.-]*[\w/-]", r"\1" + MASK),
    _shape("hooks.slack", r"(hooks\.slack\.com/(?:services|workflows)/)[\w/+-]+", r"\1" + MASK),
    _shape("/hook/", r"(/open-apis/bot/(?:v2/)?hook/)[\w-]+", r"\1" + MASK),
    _shape(
        "webhook",
        r"((?:discord(?:app)?\.com/api/(?:v\d{1,2}/)?webhooks|\.office\.com/webhook\w{0,3}|\.office365\.com/webhook)/)[\w/@.-]+",
        r"\1" + MASK,
    ),
    _shape("hf_", rf"\bhf_(?:(?=[a-z]*[A-Z0-9])[A-Za-z0-9]{{6,}}|[A-Za-z0-9]+{_CUT})", "hf_" + MASK),
    _shape("api_org_", r"\bapi_org_[A-Za-z0-9]{8,}", "api_org_" + MASK),
    _shape("sk-", rf"(?<![A-Za-z0-9])sk-(?:[A-Za-z0-9_-]{{8,}}|[A-Za-z0-9_-]+{_CUT})", "sk-" + MASK),
    _shape("k_", r"\b([sr]k_(?:live|test)_|gsk_|whsec_)[A-Za-z0-9]{8,}", r"\1" + MASK),
    _shape("A", r"\b(?:AKIA|ASIA|ABIA|ACCA|AROA|AIDA)[A-Z0-9]{12,20}\b"),
    _shape("LTAI", r"\bLTAI[A-Za-z0-9]{12,30}\b"),
    _shape("AKID", r"\bAKID[A-Za-z0-9]{13,40}\b"),
    _shape("AIza", r"\bAIza[\w-]{20,}"),
    _shape("ya29.", r"\bya29\.[\w.-]{10,}"),
    _shape("GOCSPX-", r"\bGOCSPX-[\w-]{10,}"),
    _shape("gh", r"\b(?:gh[pousr]_[A-Za-z0-9]{16,}|github_pat_\w{20,})"),
    _shape("gl", r"\bgl(?:pat|dt|rt|cbt|ptt|ft|imt|agent|soat)-[\w.-]{10,}"),
    _shape("xox", r"\bxox[a-z]-[\w-]{8,}"),
    _shape("xapp-", r"\bxapp-[\w-]{8,}"),
    _shape("nvapi-", r"\bnvapi-[\w-]{10,}"),
    _shape("npm_", r"\bnpm_[A-Za-z0-9]{20,}"),
    _shape("pypi-", r"\bpypi-[\w-]{30,}"),
    _shape("dckr_", r"\bdckr_(?:pat|oat)_[\w-]{10,}"),
    _shape("SG.", r"\bSG\.[\w-]{10,}\.[\w-]{10,}"),
    _shape("hvs.", r"\bhv[sb]\.[\w-]{20,}"),
    _shape("gl", r"\bgl(?:sa|c)_[\w+/=]{20,}"),
    _shape("dapi", r"\bdapi[a-f0-9]{32}(?:-\d)?\b"),
    _shape("r8_", r"\br8_[A-Za-z0-9]{30,}"),
    _shape("xai-", r"\bxai-[A-Za-z0-9]{30,}"),
    _shape("pplx-", r"\bpplx-[A-Za-z0-9]{30,}"),
    _shape("lsv2_", r"\blsv2_\w{2}_[A-Za-z0-9_]{20,}"),
    _shape("dop_v1_", r"\bdop_v1_[a-f0-9]{30,}"),
    _shape("eyJ", rf"\beyJ(?:[\w-]{{6,}}\.[\w-]{{4,}}(?:\.[\w-]*)?|[\w-]{{6,}}(?:\.[\w-]*)?{_CUT})"),
    _shape("earer", r"\b([Bb]earer\s{1,3})(?=[\w.~+/-]{0,200}[\d_.~+/=-])[\w.~+/=-]{8,}", r"\1" + MASK),
    _shape("-u", r"((?:^|\s)-u\s{0,2}[\"']?[\w.@-]{1,64}:)[^\s\"']+", r"\1" + MASK),
    _shape("sshpass", r"(\bsshpass\s{1,3}-p\s{0,3})\S+", r"\1" + MASK),
    _shape("mysql", r"(\bmysql\w{0,10}\b[^\n]{0,200}? -p)[^\s-]\S*", r"\1" + MASK),
    _shape("ssh-", r"(\bssh-(?:rsa|ed25519|dss) )[A-Za-z0-9+/=]{20,}(?: \S{1,100})?", r"\1" + MASK),
    _shape("--user", r"(--(?:proxy-)?user[ =][\"']?[\w.@-]{1,64}:)[^\s\"']+", r"\1" + MASK),
    _shape("Pass", r"((?:PGPASSWORD|Password|Pwd)=)[^\s;\"']+", r"\1" + MASK),
    _shape("", _PROSE_KEY, _told),
    _shape("", _PROSE_PASSWORD, _told),
    _shape("", r"(?:密码|口令|密钥|令牌)(?:[是为])?[ \t]{1,3}[\"'“‘「]?(?P<value>(?=[\w!@#$%^&*+/.=-]{0,80}[\d!@#$%^&*])[\x21-\x7e]{4,200})", _told),
    _shape("word", r"(\blogin[ \t\n]{1,20}\S{1,100}[ \t\n]{1,20}password[ \t]{1,3})\S+", r"\1" + MASK),
    _shape("password", r"(?m)(^[ \t]{0,20}password[ \t]{1,3})[^\s=:*]\S*(?=[ \t\r]{0,3}$)", r"\1" + MASK),
    _shape(
        ":",
        r"(?m)((?:^|(?<=[\s'\"]))(?!(?:[0-9A-Fa-f]{1,4}:){4})[\w.*-]{1,100}:(?:\d{4,5}|\*):(?:[A-Za-z_]\w{0,60}|\*):(?:[A-Za-z_][\w.@-]{0,60}|\*):)(?![/:])[^\s\"':]{2,}",
        r"\1" + MASK,
    ),
    _shape("", r"(?i)((?:wandb|netrc)[^\n]{0,200}?(?<![0-9a-z/]))[0-9a-f]{40}(?![0-9a-z])", r"\1" + MASK),
    _shape(
        "assword",
        r"((?:[Pp]assword|[Pp]assphrase)\s(?:is|was)\s{1,3}[\"']?)(?!(?:not|required|invalid|wrong|missing|incorrect|empty|set)\b)[^\s\"',]+",
        r"\1" + MASK,
    ),
)


def without_secrets(text: str) -> str:
    """`text` without keys, tokens and passwords. What they were called stays."""
    if "PRIVATE KEY" in text:
        text = _private_keys(text)
    for literal, pattern, kept in _SHAPES:
        if literal in text:
            text = pattern.re.sub(kept, text)
    if "alue" in text and "ame" in text:
        text = _POD_VARIABLE.re.sub(lambda m: m[1] + MASK if is_secret_name(m[2]) and not harmless(m[3], m[2]) else m[0], text)
        text = _POD_TURNED.re.sub(lambda m: m[1] + MASK + m[3] if is_secret_name(m[4]) and not harmless(m[2], m[4]) else m[0], text)
    text = _ORPHAN.sub(lambda m: m[1] + MASK if _mixed(m[2]) else m[0], text)
    return _named(text) if _TRIGGER.search(text) else text


def _private_keys(text: str) -> str:
    """Key blocks from their first line to their last, or as far as a key can reach where one of the two was not quoted."""
    out, at = [], 0
    while (start := text.find("-----BEGIN", at)) >= 0:
        head = _KEY_HEAD.re.match(text, start)
        if not head:
            out.append(text[at : start + 10])
            at = start + 10
            continue
        foot = _KEY_FOOT.re.search(text, head.end(), head.end() + _LONGEST_KEY)
        end = foot.end() if foot else min(len(text), head.end() + _LONGEST_KEY)
        out += [text[at:start], mask(text[start:end])]
        at = end
    return "".join([*out, text[at:]])


def _mixed(text: str) -> bool:
    return text != text.lower() and text != text.upper() and any(c.isdigit() for c in text)


def _named(text: str) -> str:
    out, done, at = [], 0, 0
    while match := _NAME.search(text, at):
        at = match.end()
        name, sep = match["name"], match["sep"]
        spaced = not sep.strip(" \t\n-\0") or sep in ("\\x00", "\\0", "\\u0000")
        if (spaced and match["dashes"] != "--") or not is_secret_name(name):
            at = match.end("name") if spaced else at
            continue
        start, end, at = _value(text, at, _HEADERS.match(name) is not None)
        value = text[start:end]
        if value.lower() in ("value", "valuefrom", "value_from") and text[end : end + 1] in ("'", '"', "\\"):
            continue  # {"name": "HF_TOKEN", "value": …}, which is dealt with
        if not harmless(value, name):
            out += [text[done:start], mask(value)]
            done = end
        if spaced and text[end : end + 1] in (" ", "\t"):  # a list of keys: --api-key K1 K2
            while (more := _MORE.re.match(text, at)) is not None:
                out += [text[done : more.start(1)], MASK]
                done = at = more.end(1)
    return "".join([*out, text[done:]]) if out else text


def _value(text: str, at: int, header: bool) -> tuple[int, int, int]:
    """(start, end, where to go on) of the value at `at`."""
    if (block := _BLOCK.match(text, at)) is not None:
        end = line_end(text, block.end())
        while text.startswith(block[1], end + 1) and text[end : end + 1]:
            end = line_end(text, end + 1)
        return block.end(), end, end
    inner = opening_quote(text, at)
    if inner is not None:
        end, after = quoted_end(text, inner)
        scheme = _SCHEME.match(text, inner, end)
        return (scheme.end() if scheme else inner), end, after
    if text[at : at + 1] in ("[", "{", "("):
        end = balanced_end(text, at)
        return at + 1, max(end - 1, at + 1), max(end, at + 1)
    scheme = _SCHEME.match(text, at)
    start = scheme.end() if scheme else at
    if header and not scheme:
        end = min(line_end(text, start), *(p for q in "\"'" if (p := text.find(q, start, start + 4096)) >= 0), start + 4096)
        return start, end, end
    bare = _BARE.match(text, start)
    end = bare.end() if bare else start
    while end > start and text[end - 1] in ",;)}]":
        end -= 1
    return start, end, max(end, at)


def harmless(value: str, name: str = "") -> bool:
    """`api_key=None` gives nothing away, nor does `$HF_TOKEN`, and `token: 5` is no secret; `api_key: 58213` is one."""
    inner = value.strip("[](){}\"'\\ \n")
    first = re.split(r"[,;)\]}\s]", inner, maxsplit=1)[0].strip("\"'").lower()
    if not inner or MASK in inner or first in _HARMLESS or inner.startswith(("$", "<", "{{", "%(", "os.environ")):
        return True
    words = name.lower()
    if inner.replace(".", "").replace("-", "").isdigit():
        owned = is_secret_name(name) and len(parts_of(name)) > 1
        return not (owned or "pass" in words or "secret" in words or "pwd" in words) or len(inner) < 4
    if words == "key":
        return re.fullmatch(r"(?=[^\d]*\d)(?=[^A-Za-z]*[A-Za-z])[A-Za-z0-9]{15,}", inner) is None
    if words.endswith("token") and words in ("token", "_token"):
        return len(inner) < 8 or not re.search(r"\d", inner)
    return False
