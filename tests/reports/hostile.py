"""What strangers may write into a log to reach a reader's browser, terminal or issue, put into every field of a report that can hold it."""

from __future__ import annotations

from typing import Any

import msgspec

from tests.reports import samples
from vllm_doctor.model.report import Report

SCRIPT = "window.pwned=1"
PAYLOADS = (
    f"<script>{SCRIPT}</script>",
    f"</script><script>{SCRIPT}</script>",
    f"</ScRiPt ><script >{SCRIPT}</script >",
    f"<!--<script>{SCRIPT}//",
    f"--><script>{SCRIPT}</script>",
    f"]]><script>{SCRIPT}</script>",
    f"</style><script>{SCRIPT}</script>",
    f"</title></textarea></pre></svg><script>{SCRIPT}</script>",
    f'"><img src=x onerror="{SCRIPT}">',
    f"'><img src=x onerror='{SCRIPT}'>",
    f'" onmouseover="{SCRIPT}" onfocus="{SCRIPT}" autofocus tabindex=0 x="',
    f"' onclick='{SCRIPT}' x='",
    f"<svg onload={SCRIPT}><animate onbegin={SCRIPT} attributeName=x dur=1s>",
    f"<svg><script>{SCRIPT}</script></svg><math><mtext><style><img src=x onerror={SCRIPT}></style></mtext></math>",
    f"<details open ontoggle={SCRIPT}><summary>x</summary></details>",
    f"<iframe srcdoc='<script>parent.pwned=1</script>'></iframe><iframe src='javascript:parent.{SCRIPT}'></iframe>",
    f"<a href=javascript:{SCRIPT}>x</a><form action=javascript:{SCRIPT}><button>x</button></form>",
    f"javascript:{SCRIPT}",
    "<link rel=stylesheet href=http://evil.invalid/x.css><img src=http://evil.invalid/x.png>",
    "<meta http-equiv=refresh content='0;url=http://evil.invalid/'><base href=http://evil.invalid/>",
    "<style>@import 'http://evil.invalid/x.css';body{display:none}</style>",
    "http://evil.invalid/?q=1 https://evil.invalid/a<b>\"'",
    "[click](javascript:window.pwned=1) ![x](http://evil.invalid/x.png) <http://evil.invalid> [a]: http://evil.invalid",
    "``` \n</pre>\n```\n# heading\n- item\n> quote\n| a | b |\n|--|--|\n*em* __strong__ ~~s~~ `code` @everyone #1 a/b#2 GH-3 :smile: $x$",
    "{{ 7*7 }}{% for x in y %}{# c #}${7*7}#{7*7}<%= 7*7 %>{0}%s%n",
    "\x1b[31mred\x1b[0m\x1b]0;title\x07\x1b]8;;http://evil.invalid\x1b\\link\x1b]8;;\x1b\\\x9b2J\x1b]52;c;cm0gLXJm\x07",
    "user\u202egnp.exe\u2066\u2069\u200b\u200e\ufeff\U000e0041\u2028\u2029\ud800\x00\x08\x7f",
    "&lt;script&gt; &#60;img src=x onerror=window.pwned=1&#62; &amp;nbsp; \\u003cscript\\u003e \\x3cscript\\x3e",
    "+ADw-script+AD4-window.pwned=1+ADw-/script+AD4-",
    "é漢字😀 ｆｕｌｌ　ｗｉｄｔｈ " + "x" * 400,
)

CLOSED = {
    "schema_version", "verdict", "language", "severity", "status", "role", "direction", "weight", "basis", "action", "end", "engine_generation",
}  # fmt: skip
TIMES = {"time", "first_time", "last_time", "started", "ended"}


def poisoned(payload: str, *, times: bool = False) -> Report:
    """The fullest sample with `payload` at the end of every free text, key and name in it; with `times` also in the times."""

    def walk(value: Any, key: str, path: tuple[str, ...]) -> Any:
        if isinstance(value, str):
            closed = key in CLOSED or (key == "kind" and "remedies" in path) or (key in TIMES and not times) or ("points" in path and not times)
            return value if closed else f"{value} {payload}"
        if isinstance(value, list | tuple):
            return [walk(v, "", path) for v in value]
        if isinstance(value, dict):
            free = key in ("flags", "refs")
            return {f"{k} {payload}" if free else k: walk(v, k, (*path, k)) for k, v in value.items()}
        return value

    report = msgspec.convert(walk(msgspec.to_builtins(samples.kv_exhaustion()), "", ()), Report)
    memory = msgspec.structs.replace(samples.healthy().memory[0], run=report.runs[0].id)
    return msgspec.structs.replace(report, memory=(*report.memory, memory))
