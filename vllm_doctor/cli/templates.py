"""What `rules new` writes: commented files that load once everything in <FILL IN: ...> is replaced."""

from __future__ import annotations

FORMAT = """\
# One entry per kind of line. Check with: vllm-doctor rules lint, then: vllm-doctor rules test
- id: @ID@
  # Text that every such line contains; it is looked for in raw bytes before the regex runs. At least 4 characters.
  literal: "<FILL IN: fixed text of the line>"
  # The file in the line's `[file.py:123]`; it documents where the line comes from and decides nothing.
  origin: ["<FILL IN: file.py>"]
  # First vLLM version that prints it (and `until:`, the last one), as far as you know.
  since: "0.8"
  # Named groups are what the line states. No repeat inside a repeat, at most 500 characters.
  regex: '<FILL IN: fixed text of the line> (?P<gib>[\\d.]+) GiB'
  # Catalogue name (vllm_doctor/model/catalogue.py) <- group, with the unit the line uses.
  gives:
    memory.weights: {field: gib, unit: GiB}
  # The tests: one per wording, the line as a log has it, and everything that must be read off it, in base units (bytes, s, ratio).
  samples:
    - version: "0.8.5"
      line: "INFO 04-16 14:35:27 [<FILL IN: file.py>:1341] <FILL IN: fixed text of the line> 1.5 GiB"
      want: {memory.weights: 1610612736}
"""

CAUSE = """\
# One cause per file. Check with: vllm-doctor rules lint, then: vllm-doctor rules test
# A new id goes into _CAUSE_IDS in vllm_doctor/model/catalogue.py first: ids are a contract and are never reused.
id: @ID@
# experimental: may change or go; testing: shipped, being watched; stable: measured on many cases.
maturity: experimental
# How bad it is if true (critical, high, medium, low, info); how sure we are follows from the evidence.
severity: medium
# Where the rule holds; leave it out if everywhere.
applies: {version: ">=0.8", engine_generation: V1}
# Texts in both languages; {signal.name} inserts a value with its unit, the same ones in each language.
title:
  en: "<FILL IN: what is wrong, in one line>"
  zh: "<FILL IN: 用一句话说明问题>"
summary:
  en: "<FILL IN: how it comes about>, with {requests.waiting.max} waiting requests."
  zh: "<FILL IN: 问题的由来>，最多有 {requests.waiting.max} 个请求排队。"
# A vLLM file and version, a URL, or a fixture of this repository.
sources: ["<FILL IN: file.py, version>"]
# Limits by name. basis: mechanism or measured (both need a source), or heuristic. What nobody measured is heuristic.
thresholds:
  waiting: {value: 10 %, basis: heuristic, reason: "<FILL IN: why this figure and not half or twice of it>"}
# Evidence. when: `signal OP value unit` or `signal OP $threshold`; a list means all, {any: [...]} means one of.
# weight: decisive proves it, strong or two moderate make it likely, weak only hints.
for:
  - when: requests.waiting.share_above_zero > $waiting
    weight: moderate
    why: {en: "requests waited in {requests.waiting.share_above_zero} of the samples", zh: "{requests.waiting.share_above_zero} 的采样中有请求排队"}
against:
  - when: requests.waiting.max == 0 count
    weight: decisive
    why: {en: "nobody waited", zh: "没有请求排队"}
# Ids of causes that are only symptoms if this one holds, and of remedies under rules/remedies/, best first.
explains: []
remedies: []
# What looks like this and is not.
false_positives: []
# At least one test from input text that expects confirmed or likely, and one near miss: lines, or `case: fixtures/NAME`.
tests:
  - name: a busy server with a queue
    expect: likely
    log: |
      INFO 04-16 14:35:27 [loggers.py:87] <FILL IN: lines of a log that shows it>
  - name: "<FILL IN: near miss taken from another cause>"
    expect: not_checked
    log: |
      INFO 04-16 14:35:27 [loggers.py:87] <FILL IN: lines of another log>
"""

TEMPLATES = {"format": ("formats", FORMAT), "cause": ("causes", CAUSE)}
"""Kind of rule -> its folder and its template."""
