"""Writes the table of what each target expresses into the guide: python tests/write_hand_outs.py (seconds)."""

from pathlib import Path

import torch

from posenc import Encoding, Positions, Shape, build, hand_out
from posenc.hand_outs import TARGETS

GUIDE = Path(__file__).parent.parent / "docs/guides/hand-out.md"
COMMAND = "python tests/write_hand_outs.py"
BEGIN, END = "<!-- written -->\n", "<!-- end -->\n"

SHAPE = Shape(dim=48, heads=3, head_dim=16, max_len=16)
TOKENS = 24
LISTS = "short_factor=(1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7), long_factor=(1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0)"
SPECS = {
    "rotary": "rotary",
    "rotary(base=500_000)": "rotary(base=500_000)",
    "rotary(partial=0.25)": "rotary(partial=0.25)",
    "rotary(layout=interleaved)": "rotary(layout=interleaved)",
    "rotary, linear": "rotary(schedule=linear(factor=4))",
    "rotary, ntk": "rotary(schedule=ntk(factor=4))",
    "rotary, llama3": "rotary(schedule=llama3(factor=4))",
    "rotary, yarn": "rotary(schedule=yarn(factor=4))",
    "rotary(partial=0.5), yarn": "rotary(partial=0.5, schedule=yarn(factor=4))",
    "rotary, dynamic_ntk": "rotary(schedule=dynamic_ntk(factor=4))",
    "rotary, longrope": f"rotary(schedule=longrope(factor=4, {LISTS}))",
    "proportional_rotary": "proportional_rotary(partial=0.5)",
    "multimodal_rotary": "multimodal_rotary",
    "axial_rotary": "axial_rotary",
    "xpos": "xpos",
    "on(rotary, heads=0)": "on(rotary, heads=0)",
    "rotary + log_temperature": "rotary + log_temperature",
    "alibi": "alibi",
    "alibi(form=falcon)": "alibi(form=falcon)",
    "on(alibi, heads=0)": "on(alibi, heads=0)",
    "rotary + alibi": "rotary + alibi",
    "t5_bias": "t5_bias",
    "kerple": "kerple",
    "fire": "fire",
    "learned": "learned",
    "sinusoidal + rotary": "sinusoidal + rotary",
    "stick_breaking": "stick_breaking",
    "none": "none",
}
"""What the table calls an encoding -> its spec."""


def positions_of(name: str) -> Positions:
    """Where the tokens are: on as many axes as the encoding reads, with a horizon beyond the trained length."""
    if name == "axial_rotary":
        return Positions.grid(4, 6)
    if name == "multimodal_rotary":
        return Positions.of(torch.stack((torch.arange(24), torch.arange(24) // 4, torch.arange(24) % 5), -1)[None])
    return Positions.count(TOKENS).with_horizon(40)


def build_all(name: str) -> Encoding:
    """The encoding, with parameters as training might leave them."""
    torch.manual_seed(0)
    encoding = build(SPECS[name], SHAPE)
    with torch.no_grad():
        for parameter in encoding.parameters():
            # A table of zeros would agree with anything.
            parameter += torch.randn_like(parameter)
    return encoding


def reason(name: str, target: str) -> str:
    """Why a target refuses an encoding, or nothing."""
    try:
        hand_out(build_all(name), to=target, shape=SHAPE, positions=positions_of(name))
    except ValueError as error:
        return str(error).partition(": ")[2].partition("; ")[0]
    return ""


def table() -> str:
    """The table as the guide has it."""
    lines = ["| encoding | expressed by | refused by |", "|---|---|---|"]
    for name in SPECS:
        by_reason: dict[str, list[str]] = {}
        for target in TARGETS:
            by_reason.setdefault(reason(name, target), []).append(TARGETS[target].title)
        cells = describe_refusal(by_reason.pop("", []))
        reasons = "; ".join(f"{describe_refusal(titles)}: {why}" for why, titles in by_reason.items())
        lines.append(f"| `{name}` | {cells} | {reasons} |")
    return "\n".join(lines) + "\n"


def describe_refusal(titles: list[str]) -> str:
    return "all" if len(titles) == len(TARGETS) else ", ".join(titles) or "none"


if __name__ == "__main__":
    old_text, rest = GUIDE.read_text(encoding="utf-8").split(BEGIN)
    GUIDE.write_text(old_text + BEGIN + "\n" + table() + "\n" + END + rest.split(END)[1], encoding="utf-8")
