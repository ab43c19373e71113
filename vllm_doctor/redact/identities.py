"""Who and where: e-mails, users, host names and addresses, each with one mask in a whole report, so that the story still reads."""

from __future__ import annotations

import re

from .spans import Lazy, words

_MASKED = Lazy(r"(?:host|ip|mac|user|email)-\d+")
_EMAIL = Lazy(r"(?<![\w.+-])[\w.+-]{1,64}@(?:\w(?:[\w-]{0,62})\.){1,8}[^\W\d_]{2,24}(?![\w-])")
_SHELL = Lazy(r"(?<![\w.@/:-])([a-z_][\w.-]{0,31})@([A-Za-z0-9][\w.-]{0,100})(?=:[~/]|:\s?\S{0,100}[$#]|\s[~/]|\])")
_SSH = Lazy(r"\b((?:ssh|scp|rsync|sftp)\s(?:-\S{1,20}\s){0,4})([a-z_][\w.-]{0,31})@([A-Za-z0-9][\w.-]{0,100})")
_HOME = Lazy(
    r"((?:/home|/[Uu]sers|[A-Za-z]:\\{1,4}Users|[A-Za-z]:/Users)(?:/|\\{1,4}))([^/\\\s:\"'<>|;,)\]}]{1,64}(?: [^/\\\s:\"'<>|]{1,32}(?=\\))?)"
)
_USER = Lazy(
    r"(?:(?<![\w.-])((?:USER|LOGNAME|USERNAME|SUDO_USER|user|username|user_name|userName|login)=|(?:username|user_name|login)\s{0,3}:\s{0,3}"
    r"|(?:\\{0,3}[\"'])(?:user|username|user_name|login|owner)(?:\\{0,3}[\"']): ?(?=\\{0,3}[\"']))"
    r"|(\buid=\d{1,10}\())(\\{0,3}[\"']?)([A-Za-z_][\w.@-]{1,63})"
)
_USERISH = Lazy("(?i)user|login|logname|uid=|owner")
_URL = Lazy(r"([A-Za-z][A-Za-z0-9+.-]{0,20}://(?:\*\*\*@)?)(\[[0-9A-Fa-f:.%\w]{2,60}\]|[A-Za-z0-9_](?:[A-Za-z0-9._-]{0,251}[A-Za-z0-9])?)")
_HOST = r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,251}[A-Za-z0-9])?"
_TO = r"(?:\\{0,3}[\"'])?\s{0,10}[=:]\s{0,3}\\{0,3}[\"']?"
_STRONG = "com|org|edu|gov|cn|jp|kr|tw|hk|de|uk|fr|eu|ru|xyz|cloud|internal|lan|corp|intra|intranet|localdomain|arpa|example|invalid|onion"
_WEAK = "net|io|ai|dev|co|local|home|svc|consul|tech|in|us|ca|ch|nl|se|sg|au|br|pl|mil"
_NAME = Lazy(rf"(?<![\w.@/\\-])((?:[A-Za-z0-9](?:[A-Za-z0-9-]{{0,62}})\.){{1,9}}(?:({_STRONG}|{_STRONG.upper()})|{_WEAK}))(?![\w(-]|\.\w)")
_WWW = Lazy(r"(?<![\w.@-])www\.(?:[A-Za-z0-9-]{1,63}\.){1,6}[A-Za-z]{2,24}(?![\w-])")
_MODULES = words("torch vllm ray asyncio transformers numpy uvicorn starlette fastapi triton threading nn np self os sys")
_AWS = Lazy(r"(?<![\w.-])ip-\d{1,3}(?:-\d{1,3}){3}(?![\w-])")
_CERTAIN = (
    (
        ": ",
        Lazy(
            r"(?m)(?:^|(?<=\s))(?:[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d|(?:[A-Z][a-z]{2} )?\d{4}-\d\d-\d\d[T ][\d:.,]{8,18}"
            r"(?:Z|[+-]\d\d:?\d\d| [A-Z]{3,4})?"
            rf"|\d{{10}}\.\d{{6}}|\[ ?\d+\.\d+\]) ({_HOST}) [\w./@-]{{1,60}}(?:\[\d{{1,10}}\])?: "
        ),
    ),
    (">1 ", Lazy(rf"(?m)^<\d{{1,3}}>1 \S{{1,40}} ({_HOST}) ")),
    ("NCCL", Lazy(rf"(?m)^({_HOST}):\d{{1,8}}:\d{{1,8}} \[\d{{1,2}}\] NCCL")),
    ("  ", Lazy(rf"(?m)^({_HOST})\s{{2,20}}[A-Z][a-z]{{2}} [A-Z][a-z]{{2}}\s{{1,2}}\d{{1,2}} \d\d:")),
    ("\\\\", Lazy(rf"(?<![^\s\"'])\\\\({_HOST})(?=\\[\w$])")),
    ("JOB", Lazy(rf"\bJOB \d{{1,12}} ON ({_HOST})")),
    (": error: ", Lazy(rf"\b(?:srun|slurmstepd): error: ({_HOST}):")),
    ("", Lazy(rf"(?i)(?<![\w.])(?:host_?name|host|_HOSTNAME|nodename|node_?name|master[_-]?addr|head[_-]?node|fqdn|COMPUTERNAME){_TO}({_HOST})")),
    ("--", Lazy(rf"--(?:host|master-addr|data-parallel-address|node-ip-address|dist-init-addr|head-node-ip)[ =]{{1,3}}[\"']?({_HOST})")),
)
"""(what such a text contains, the pattern): the name in group 1 is a host's whatever it looks like."""
_LIKELY = (
    ("", Lazy(rf"(?i)(?<![\w.])(?:node|server|instance|peer|addr|address|remote|endpoint|machine|worker_ip|node_ip){_TO}({_HOST})")),
    (
        " ",
        Lazy(
            r"(?i)\b(?:connect(?:ed|ing|ion)?(?: to| from)(?: host| peer)?|reach(?:ing)?"
            r"|listen(?:ing)? on|on node|on host|from host|to host|node|host)\s[\[('\"]{0,2}"
            rf"({_HOST})"
        ),
    ),
    ("", Lazy(rf"[\[(]({_HOST})(?:\]:|, )\d{{2,5}}\b")),
)
"""The same where the name must also look like a host's: with a digit, and a hyphen, a dot or nothing but letters before it."""
_V4 = Lazy(r"(?<![\w.])(?<![A-Za-z]-)(\d{1,3})\.(\d{1,3})\.(\d{1,3})\.(\d{1,3})(?!\.?\d|[A-Za-z_]|-py|\.whl|\.tar)")
_VERSION = Lazy(r"(?:[=<>~!]=|version|\bver|cudnn|driver|cu\d\d|toolkit)[\W]{0,24}$", re.IGNORECASE)
_V6 = Lazy(r"(?<![\w:.])(?:[0-9A-Fa-f]{0,4}:){2,7}(?:[0-9A-Fa-f]{1,4}|(?:\d{1,3}\.){3}\d{1,3})?(?![\w:])")
_MAC = Lazy(r"(?<![\w:.-])[0-9A-Fa-f]{2}(?:[:-][0-9A-Fa-f]{2}){5}(?![\w:-])")
_WORD = Lazy(r"[A-Za-z0-9][\w.-]{0,253}")
_PATH_PART = Lazy(r"(?<=[/\\])[\w.-]{2,64}(?=[/\\]|$)", re.MULTILINE)

_PUBLIC = words(
    "localhost localhost.localdomain huggingface.co hf.co hf-mirror.com github.com raw.githubusercontent.com githubusercontent.com "
    "vllm.ai pytorch.org nvidia.com pypi.org python.org pythonhosted.org docker.io docker.com quay.io ghcr.io nvcr.io modelscope.cn "
    "modelscope.com kubernetes.io prometheus.io grafana.com ray.io readthedocs.io stackoverflow.com pydantic.dev openai.com "
    "anthropic.com w3.org json-schema.org apache.org fastapi.tiangolo.com uvicorn.org www.uvicorn.org amd.com intel.com hooks.slack.com "
    "slack.com open.feishu.cn feishu.cn oapi.dingtalk.com discord.com wandb.ai flashinfer.ai mozilla.org rocm.docs.amd.com"
)
_PREFIXES = ("www.", "docs.", "developer.", "download.", "discuss.", "errors.", "api.", "cdn-lfs.", "files.", "data.", "blog.")
_WORDS = words(
    "localhost host hosts none null true false unknown default auto any all name port node server local master worker not is the a an "
    "of to and for in on at with ip address addr cpu cuda gpu http https tcp ipc unix stdout stderr kernel your-host example vllm ray"
)


class Masks:
    """The masks of one report: the first host met is `host-1`, and stays so wherever it is named."""

    def __init__(self) -> None:
        self.hosts: dict[str, str] = {}
        self.users: dict[str, str] = {}
        self.others: dict[str, str] = {}

    def apply(self, text: str) -> str:
        """`text` with the identities that can be told where they stand. Remembers them for `known`."""
        if "@" in text:
            text = _EMAIL.re.sub(lambda m: self._other("email", m[0]), text)
            text = _SHELL.re.sub(lambda m: f"{self.user(m[1])}@{self.host(m[2])}", text)
            text = _SSH.re.sub(lambda m: f"{m[1]}{self.user(m[2])}@{self.host(m[3])}", text)
        if "://" in text:
            text = _URL.re.sub(lambda m: m[1] + (m[2] if m[2].startswith("[") else self.host(m[2])), text)
        if "." in text:
            text = _V4.re.sub(self._v4, text)
            text = _NAME.re.sub(self._dotted, text)
            if "www." in text:
                text = _WWW.re.sub(lambda m: self.host(m[0]), text)
        if ":" in text or "-" in text:
            text = _MAC.re.sub(lambda m: self._other("mac", m[0].lower()), text)
        if text.count(":") > 1:
            text = _V6.re.sub(self._v6, text)
        if "ip-" in text:
            text = _AWS.re.sub(lambda m: self.host(m[0]), text)
        for patterns, sure in ((_CERTAIN, True), (_LIKELY, False)):
            for literal, pattern in patterns:
                if literal in text:
                    text = pattern.re.sub(lambda m: self._within(m, sure), text)  # noqa: B023  (called at once)
        if "/" in text or "\\" in text:
            text = _HOME.re.sub(lambda m: m[1] + self.user(m[2].rstrip(".")) + "." * (len(m[2]) - len(m[2].rstrip("."))), text)
        if not _USERISH.re.search(text):
            return text
        return _USER.re.sub(lambda m: f"{m[1] or m[2]}{m[3]}{self.user(m[4])}", text)

    def known(self, text: str) -> str:
        """`text` with what other texts of the report gave away: a host named in passing, a user's own folder elsewhere."""
        if self.hosts:
            text = _WORD.re.sub(self._known_host, text)
        return _PATH_PART.re.sub(lambda m: self.users.get(m[0], m[0]), text) if self.users else text

    def host(self, name: str) -> str:
        """The mask of a host's name or address; public sites, this machine and placeholders keep theirs."""
        low = name.lower()
        if _MASKED.re.fullmatch(low) or low in _WORDS or low.isdigit() or (name.isupper() and name.isalpha()):
            return name
        if (address := _V4.re.fullmatch(name)) is not None:
            return self._v4(address)
        if (
            low in _PUBLIC
            or low.endswith((".readthedocs.io", ".github.io"))
            or any(low.startswith(p) and low.removeprefix(p) in _PUBLIC for p in _PREFIXES)
        ):
            return name
        if low not in self.hosts:
            short = low.partition(".")[0]
            telling = short != low and len(short) > 3 and re.search(r"[\d-]", short)
            self.hosts[low] = self.hosts.get(short) if telling and short in self.hosts else f"host-{len(set(self.hosts.values())) + 1}"  # type: ignore[assignment]
            if telling:
                self.hosts.setdefault(short, self.hosts[low])
        return self.hosts[low]

    def user(self, name: str) -> str:
        """The mask of a user's name."""
        if _MASKED.re.fullmatch(name) or name.lower() in ("none", "null", "true", "false") or name.startswith(("$", "*", "<", "{", "…")):
            return name
        return self.users.setdefault(name, f"user-{len(self.users) + 1}")

    def _other(self, kind: str, value: str) -> str:
        count = sum(1 for mask in self.others.values() if mask.startswith(kind))
        return self.others.setdefault(value, f"{kind}-{count + 1}")

    def _v4(self, match: re.Match[str]) -> str:
        octets = [int(part) for part in match.groups()]
        text = match[0]
        if max(octets) > 255 or octets[0] == 127 or text in ("0.0.0.0", "255.255.255.255"):
            return text
        if _VERSION.re.search(match.string, max(match.start() - 40, 0), match.start()):
            return text
        return self._other("ip", text)

    def _v6(self, match: re.Match[str]) -> str:
        import ipaddress

        try:
            address = ipaddress.IPv6Address(match[0])
        except ValueError:
            return match[0]
        return match[0] if address.is_loopback or address.is_unspecified else self._other("ip", address.compressed)

    def _dotted(self, match: re.Match[str]) -> str:
        name = match[1]
        if re.match(r"v?\d+\.\d", name) or name.partition(".")[0] in _MODULES:
            return name
        return self.host(name) if match[2] or name.count(".") > 1 or re.search(r"[\d-]", name) else name

    def _within(self, match: re.Match[str], sure: bool) -> str:
        name = match[1]
        whole = match[0]
        telling = re.search(r"[A-Za-z]", name) and not re.match(r"0x|v?\d+\.\d", name) and not name.endswith((".py", ".so", ".log", ".cpp", ".cu"))
        if not telling or not (sure or (re.search(r"\d", name) and re.search(r"[-.]|^[a-z]+\d+$", name))):
            return whole
        start, end = match.start(1) - match.start(), match.end(1) - match.start()
        return whole[:start] + self.host(name) + whole[end:]

    def _known_host(self, match: re.Match[str]) -> str:
        word = match[0]
        bare = word.rstrip(".-_")
        if len(bare) < 4 or not re.search(r"[\d.-]", bare):
            return word
        low = bare.lower()
        if low not in self.hosts and low.endswith((".log", ".txt", ".out")):
            bare, low = bare[:-4], low[:-4]  # a file that is called after its host
        mask = self.hosts.get(low)
        return mask + word[len(bare) :] if mask else word
