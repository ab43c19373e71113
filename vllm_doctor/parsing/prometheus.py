"""Prometheus and OpenMetrics text -> `Scrape`, in our names.

The text comes off a network, a ticket or an editor: cut short, with an HTML page behind it, with curl's chatter around it.
So families are read one at a time: a line that does not parse costs its own family and an Issue that names it.

OpenMetrics goes the same way. Its samples are spelled as in the older format once exemplars are cut off and timestamps are
taken as seconds; its strict parser would refuse a whole dump for one missing `# EOF`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from ..model.catalogue import COUNTERS, HISTOGRAMS, OBSERVATIONS
from ..model.figures import LARGEST
from ..model.observations import Histogram, Issue, Ref, Scrape
from ..ruleset.schema import Metric
from .histograms import delta_counter, delta_histogram, from_buckets, quantile, sum_histograms
from .scrape_time import scrape_time, seconds, split

__all__ = ["delta_counter", "delta_histogram", "parse", "quantile", "scrape_time", "split", "sum_histograms"]

REF_CHARACTERS = 400
"""A quoted line is cut here: the settings of one cache fill a kilobyte."""
LINE_CHARACTERS = 50_000
"""A longer line is no sample: the longest real one, a cache's settings, has some 2000."""
NOT_A_REQUEST = frozenset({"/metrics", "/health", "/load", "/ping", "/version"})
"""Routes of monitors. vLLM leaves them out itself; other builds of the instrumentation do not."""

_SAMPLE = re.compile(r"[A-Za-z_:][A-Za-z0-9_:]*[ \t]*(?:\{.*\})?[ \t]+[-+]?(?:\.?\d|[Ii]nf|[Nn]a[Nn])")
_NAME = re.compile(r"[A-Za-z_:][A-Za-z0-9_:]*")
_CHATTER = re.compile(r"[*<>] |[$#%>] ?curl |\S*[@:]\S*[$#] |.*\bcurl\b| *% Total| *Dload|[\d ]+ [-:\d]+ [-:\d]+")
"""curl -v, its progress meter and the prompt that called it: no fault of the scrape."""
_WHOLE_VALUE = re.compile(r"(?:\d*\.\d+(?:e[-+]?\d\d+)?|\d+e[-+]?\d\d+|[Ii]nf|[Nn]a[Nn])$")


class _Sample(NamedTuple):
    name: str
    labels: dict[str, str]
    value: float
    line: int
    text: str


class _Family(NamedTuple):
    """What one family says, by (our name, engine)."""

    metric: Metric
    numbers: dict[tuple[str, int], float]
    histograms: dict[tuple[str, int], Histogram]
    refs: dict[str, Ref]


def parse(
    data: bytes, source: str, first_line: int, metrics: list[Metric], order: int = 0, time: float | None = None
) -> tuple[Scrape | None, list[Issue]]:
    """One scrape, and what was wrong with it. Never raises.

    `first_line` is the line of `data`'s start in `source`, `time` a Unix time known from elsewhere (timestamps in the text serve
    where it is None), `metrics` the table of `rules/knowledge/metrics.yaml`. None where nothing readable is in it.
    Several models or replicas of one engine index are added up (shares of something: the largest) and named in `info["model_name"]`.
    `families` counts the vLLM families seen, used or not; 0 means that vLLM's statistics are switched off.
    """
    lines = data.decode("utf-8", "replace").removeprefix("\ufeff").split("\n")
    start, issues = _after_header(lines, source, first_line)
    wanted = _by_sample_name(metrics)
    grouped: dict[str, list[tuple[int, str]]] = {}
    typed: dict[str, int] = {}
    broken: dict[str, Issue] = {}
    bad: list[tuple[int, str]] = []
    seen: set[str] = set()
    content = False
    for index in range(start, len(lines)):
        line = lines[index].strip()
        if not line:
            continue
        content = True
        if line[0] == "#":
            if line.startswith("# TYPE "):
                typed.setdefault(line[7:].partition(" ")[0], index)
            continue
        matched = _NAME.match(line)
        name = matched[0] if matched else ""
        cut = index == len(lines) - 1 and _looks_cut(line)
        metric = wanted.get(name) if len(line) <= LINE_CHARACTERS else None
        if metric is not None:
            if cut:
                broken[metric.name] = _issue("metrics.truncated", "the scrape ends in the middle of {family}", source, first_line + index, line, name)
            else:
                grouped.setdefault(metric.name, []).append((index, line))
        elif len(line) > LINE_CHARACTERS or not _SAMPLE.match(line):
            if cut and matched:
                issues.append(_issue("metrics.truncated", "the scrape ends in the middle of {family}", source, first_line + index, line, name))
            elif not _CHATTER.match(line):
                bad.append((index, line))
        if matched and name not in seen:
            seen.add(name)
    if not content:
        return None, [*issues, _issue("metrics.empty", "empty metrics body", source, first_line, lines[0])]

    families: list[_Family] = []
    models: set[str] = set()
    info: dict[str, str] = {}
    info_refs: dict[str, Ref] = {}
    stamps: list[float] = []
    for metric in metrics:
        rows = grouped.get(metric.name, [])
        if metric.name in broken:
            issues.append(broken[metric.name])
            continue
        samples, found_stamps, issue = _samples(metric, rows, source, first_line)
        if issue is not None:
            issues.append(issue)
            continue
        if not samples and not _countable(metric, typed):
            continue
        stamps += found_stamps
        models.update(s.labels["model_name"] for s in samples if s.labels.get("model_name"))
        if metric.signal == "info":
            chosen = min(samples, key=lambda s: (_engine(s.labels), -s.value))
            info |= {k: v for k, v in chosen.labels.items() if k not in ("engine", "model_name")}
            info_refs[metric.name] = _ref(source, chosen.line, chosen.text)
            continue
        samples, issue = _distinct(samples, source)
        if issue is not None:
            issues.append(issue)
        family, issue = _family(metric, samples, source)
        if issue is not None:
            issues.append(issue)
        if family is not None:
            if metric.type == "counter" and "{" in metric.signal:
                _fill_zeros(family, source, first_line, typed, lines)
            families.append(family)
    if bad:
        issues.append(_bad_lines(bad, source, first_line))
    if models:
        info["model_name"] = ", ".join(sorted(models))
    if len(models) > 1:
        message = "{count} model names in one scrape: their counters and histograms are added up"
        issues.append(Issue("metrics.several_models", message, {"count": len(models)}))
    count = len(_vllm_families({*typed, *(seen - _parts(typed))}))
    if not families and not info and not count:
        if not seen & set(wanted):
            issues.append(_issue("metrics.none", "no metrics of a vLLM server", source, first_line + start, lines[start]))
        return None, issues
    if not count:
        message = "no vllm:* metrics: the statistics are switched off (--disable-log-stats), or another program answered"
        issues.append(_issue("metrics.stats_off", message, source, first_line + start, lines[start]))
    scrape = _joined(families)
    when = time if time is not None else max(stamps, default=None)
    result = Scrape(source, when, order, scrape[0], scrape[1], scrape[2], info, {**scrape[3], **info_refs}, count)
    return result, issues


# --- lines -----------------------------------------------------------------------------------------------------------------------


def _after_header(lines: list[str], source: str, first_line: int) -> tuple[int, list[Issue]]:
    """Where the body starts, behind an HTTP header block, and an Issue where its status says that this is no answer."""
    start = next((i for i, line in enumerate(lines) if line.strip()), 0)
    found = re.match(r"(?:< )?HTTP/[\d.]+ (\d{3})", lines[start]) if lines else None
    if not found:
        return start, []
    end = next((i for i in range(start, len(lines)) if lines[i].strip() in ("", "<")), len(lines))
    if found[1] == "200":
        return end, []
    message = "the endpoint answered with HTTP status {status}"
    return end, [Issue("metrics.http_status", message, {"status": int(found[1])}, _ref(source, first_line + start, lines[start]))]


def _looks_cut(line: str) -> bool:
    """Whether a last line without line feed breaks off: vLLM's exporter writes every value with a point or an exponent."""
    value = line.rpartition("}")[2].split()
    return not (_SAMPLE.match(line) and value and _WHOLE_VALUE.search(value[-1]))


def _by_sample_name(metrics: Iterable[Metric]) -> dict[str, Metric]:
    """Sample name -> family, of those that have a signal. Some collectors turn the colon into an underscore."""
    result: dict[str, Metric] = {}
    for metric in metrics:
        if not metric.signal or metric.type == "summary":
            continue
        parts = ("_bucket", "_sum", "_count") if metric.type == "histogram" else ("",)
        for part in parts:
            result[metric.name + part] = metric
            if metric.name.startswith("vllm:"):
                result["vllm_" + metric.name[5:] + part] = metric
    return result


def _samples(metric: Metric, rows: list[tuple[int, str]], source: str, first_line: int) -> tuple[list[_Sample], list[float], Issue | None]:
    """A family's samples through prometheus_client, with their lines; or the Issue of the first line that it refuses."""
    from prometheus_client.parser import text_string_to_metric_families

    if not rows:
        return [], [], None

    def read(lines: list[str]) -> list[Any]:
        kind = "gauge" if metric.type == "info" else metric.type
        text = f"# TYPE {metric.name} {kind}\n" + "\n".join(map(_plain, lines))
        samples = [s for family in text_string_to_metric_families(text) for s in family.samples]
        if len(samples) != len(lines):
            raise ValueError("not one sample for each line")
        return samples

    try:
        parsed = read([line for _, line in rows])
    except Exception:  # another project's parser on hostile text: whatever it raises means that it cannot read it
        for index, line in rows:
            try:
                read([line])
            except Exception:
                message = "a line of {family} cannot be read; the family is left out"
                return [], [], _issue("metrics.bad_line", message, source, first_line + index, line, metric.name)
        return [], [], _issue("metrics.bad_line", "{family} cannot be read", source, first_line + rows[0][0], rows[0][1], metric.name)
    result = [_Sample(s.name, s.labels, float(s.value), first_line + i, line) for s, (i, line) in zip(parsed, rows, strict=True)]
    return result, [seconds(float(s.timestamp) * 1000) for s in parsed if s.timestamp is not None], None


def _plain(line: str) -> str:
    """Without an exemplar. A label may hold the same characters, so the quotes before it must be even."""
    cut = line.rfind(" # {")
    return line[:cut] if cut > 0 and line.count('"', 0, cut) % 2 == 0 else line


# --- families --------------------------------------------------------------------------------------------------------------------


def _family(metric: Metric, samples: list[_Sample], source: str) -> tuple[_Family | None, Issue | None]:
    result = _Family(metric, {}, {}, {})
    if metric.type == "histogram":
        return _histogram_family(metric, samples, source, result)
    for sample in samples:
        name = _signal_of(metric, sample.labels)
        usable = 0 <= sample.value < LARGEST  # NaN and the -1 of a feature that is off are unknown, not 0
        if name is None or not usable:
            continue
        key = (name, _engine(sample.labels))
        old = result.numbers.get(key)
        if old is None:
            result.numbers[key] = sample.value
        elif metric.type == "counter" or OBSERVATIONS[name].unit in ("count", "bytes", "tokens/s"):
            result.numbers[key] = old + sample.value
        else:
            result.numbers[key] = max(old, sample.value)
        result.refs.setdefault(name, _ref(source, sample.line, sample.text))
    return result, None


def _histogram_family(metric: Metric, samples: list[_Sample], source: str, result: _Family) -> tuple[_Family | None, Issue | None]:
    scale = 1e-3 if metric.unit == "ms" else 1.0
    groups: dict[frozenset[tuple[str, str]], list[_Sample]] = {}
    for sample in samples:
        groups.setdefault(frozenset(item for item in sample.labels.items() if item[0] != "le"), []).append(sample)
    collected: dict[tuple[str, int], list[Histogram]] = {}
    for group in groups.values():
        buckets, total, count = [], None, None
        for sample in group:
            if sample.name.endswith("_bucket"):
                buckets.append((_bound(sample.labels.get("le", "")) * scale, sample.value))
            elif sample.name.endswith("_sum"):
                total = sample.value * scale
            else:
                count = sample.value
                result.refs.setdefault(metric.signal, _ref(source, sample.line, sample.text))
        histogram = from_buckets(buckets, total, count)
        if histogram is None:
            message = "{family} is incomplete; it is left out"
            return None, _issue("metrics.incomplete", message, source, group[-1].line, group[-1].text, metric.name)
        collected.setdefault((metric.signal, _engine(group[0].labels)), []).append(histogram)
    if metric.signal not in HISTOGRAMS:
        return None, None
    for key, parts in collected.items():
        result.histograms[key] = sum_histograms(parts)
    if samples:
        result.refs.setdefault(metric.signal, _ref(source, samples[0].line, samples[0].text))
    return result, None


def _bound(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _signal_of(metric: Metric, labels: dict[str, str]) -> str | None:
    """Our name for a sample, or None where the catalogue has none."""
    name = metric.signal
    if "{" in name:
        if labels.get("handler") in NOT_A_REQUEST:
            return None
        filled = {k: re.sub(r"^([1-5])\d\d$", r"\1xx", v) for k, v in labels.items()} if metric.name.startswith("http") else labels
        name = re.sub(r"\{(\w+)\}", lambda found: filled.get(found[1], ""), name)
    declared = name in COUNTERS if metric.type == "counter" else name in OBSERVATIONS and OBSERVATIONS[name].kind == "sample"
    return name if declared else None


def _countable(metric: Metric, typed: dict[str, int]) -> bool:
    """Whether a counter without samples is known to stand at 0: its children appear with their first event."""
    return metric.type == "counter" and "{" in metric.signal and (metric.name in typed or metric.name.removesuffix("_total") in typed)


def _fill_zeros(family: _Family, source: str, first_line: int, typed: dict[str, int], lines: list[str]) -> None:
    """A class of answers that never came has no line; the counter being there says that it is 0."""
    prefix = family.metric.signal.partition("{")[0]
    index = typed.get(family.metric.name, typed.get(family.metric.name.removesuffix("_total")))
    for name in COUNTERS:
        if name.startswith(prefix) and (name, 0) not in family.numbers:
            family.numbers[name, 0] = 0.0
            if index is not None:
                family.refs[name] = _ref(source, first_line + index, lines[index])


def _distinct(samples: list[_Sample], source: str) -> tuple[list[_Sample], Issue | None]:
    """The last statement of each series: two readings pasted behind each other must not add up."""
    unique: dict[tuple[str, frozenset[tuple[str, str]]], _Sample] = {}
    twice: _Sample | None = None
    for sample in samples:
        key = (sample.name, frozenset(sample.labels.items()))
        if key in unique and twice is None:
            twice = sample
        unique[key] = sample
    if twice is None:
        return samples, None
    message = "{family} occurs more than once in one scrape; the last value counts"
    return list(unique.values()), _issue("metrics.duplicate", message, source, twice.line, twice.text, twice.name)


Joined = tuple[dict[tuple[str, int], float], dict[tuple[str, int], float], dict[tuple[str, int], Histogram], dict[str, Ref]]


def _joined(families: list[_Family]) -> Joined:
    """Gauges, counters, histograms and Refs; of old and new families of one name only the newer."""
    gauges: dict[tuple[str, int], float] = {}
    counters: dict[tuple[str, int], float] = {}
    histograms: dict[tuple[str, int], Histogram] = {}
    refs: dict[str, Ref] = {}
    taken: set[str] = set()
    for family in sorted(families, key=lambda f: _age(f.metric), reverse=True):
        names = {name for name, _ in [*family.numbers, *family.histograms]} - taken
        target = counters if family.metric.type == "counter" else gauges
        target.update({k: v for k, v in family.numbers.items() if k[0] in names})
        histograms.update({k: v for k, v in family.histograms.items() if k[0] in names})
        refs.update({k: v for k, v in family.refs.items() if k in names})
        taken |= names
    return gauges, counters, histograms, refs


def _age(metric: Metric) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """What sorts the newer of two names last: how long vLLM keeps it, then when it came."""
    return _version(metric.last_version), _version(metric.first_version)


@lru_cache(maxsize=512)
def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text))


def _engine(labels: dict[str, str]) -> int:
    text = labels.get("engine", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 6 else 0


_SUFFIX = re.compile(r"_(?:bucket|sum|count|created)$")


def _parts(typed: Iterable[str]) -> set[str]:
    return {name + part for name in typed for part in ("", "_bucket", "_sum", "_count", "_total", "_created")}


def _vllm_families(names: Iterable[str]) -> set[str]:
    bare = {_SUFFIX.sub("", name) for name in names if name.startswith(("vllm:", "vllm_")) and not name.endswith("_created")}
    return {name.removesuffix("_total") for name in bare}


# --- issues ----------------------------------------------------------------------------------------------------------------------


def _ref(source: str, line: int, text: str) -> Ref:
    return Ref(source, line, text.strip()[:REF_CHARACTERS])


def _issue(code: str, message: str, source: str, line: int, text: str, family: str = "") -> Issue:
    return Issue(code, message, {"family": family} if family else {}, _ref(source, line, text))


def _bad_lines(bad: Sequence[tuple[int, str]], source: str, first_line: int) -> Issue:
    index, line = bad[0]
    ref = _ref(source, first_line + index, line)
    if re.match(r"<(!doctype|html|head|body)", line, re.IGNORECASE):
        return Issue("metrics.html", "an HTML page instead of metrics, {count} lines", {"count": len(bad)}, ref)
    return Issue("metrics.bad_line", "{count} lines are no metrics", {"count": len(bad)}, ref)
