"""A test that names a rule of the checklist names one that exists."""

from __future__ import annotations

import re

from tests.architecture.source import ROOT, modules

# Group and number of its rules, as in the project's checklist of 391 rules and the operators' rules (AD).
COUNTS = (
    "Q 25 C 32 E 12 W 18 L 25 T 7 R 18 S 12 X 18 V 17 K 20 D 23 P 11 Y 8 N 12 B 4 H 9 EX 7 RP 14 O 12 G 7 U 6 TK 1 I 7 A 7 "
    "CL 9 CH 6 CI 6 CB 8 CP 5 CU 7 CE 12 CG 6 AD 23"
).split()
GROUPS = {group: int(count) for group, count in zip(COUNTS[::2], COUNTS[1::2], strict=True)}
NAMED = re.compile(r"\b([A-Z]{1,2})-(\d{2})\b")


def test_every_named_rule_exists() -> None:
    wrong = []
    for path in modules(ROOT / "tests"):
        for group, number in NAMED.findall(path.read_text(encoding="utf-8")):
            if not 1 <= int(number) <= GROUPS.get(group, 0):
                wrong.append(f"{path.relative_to(ROOT)}: {group}-{number}")
    assert not wrong


def test_the_groups_add_up() -> None:
    assert sum(count for group, count in GROUPS.items() if group != "AD") == 391
