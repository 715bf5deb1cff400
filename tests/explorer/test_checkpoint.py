"""A checkpoint on the page: its words, its spectrum, its learned tables and its biases, whatever its names are."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from posenc.checkpoints import inspect
from posenc.checkpoints.inspection import portrait
from posenc.checkpoints.vocabulary.reading import CannotRead, Layer, Part, Reading
from posenc.encoding import Shape
from posenc.explorer import checkpoint
from posenc.explorer.page import explore

HOSTILE = "<img src=x onerror=alert(1)>"


def folder(path: Path, tensors: dict[str, torch.Tensor], **config: Any) -> Path:
    path.mkdir(exist_ok=True)
    config = {"dim": 64, "n_layers": 2, "n_heads": 4, "rope_theta": 500000.0, "max_seq_len": 2048} | config
    (path / "params.json").write_text(json.dumps(config))
    save_file(tensors, path / "model.safetensors")
    return path


def circle(rows: int) -> torch.Tensor:
    """Vectors on a circle, one turn in 16 rows, and nothing in the third channel."""
    angle = 2 * math.pi * torch.arange(rows) / 16
    return torch.stack((angle.cos(), angle.sin(), 0 * angle), 1)


def part(*specs: str, causal: bool = True) -> Part:
    shape = Shape(64, 4, 16, 512, causal=causal)
    return Part("", shape, tuple(Layer(spec, 16) for spec in specs), 4, 512)


def test_without_a_checkpoint_the_page_says_how_to_name_one(opened):
    page = opened("rotary", address="#checkpoint")
    assert "Name one: posenc explore --checkpoint PATH" in page.locator("#checkpoint .missing").inner_text()


def test_what_is_no_checkpoint_is_refused(tmp_path):
    with pytest.raises(CannotRead, match="there is no file or folder"):
        explore(["rotary"], checkpoint=str(tmp_path / "nothing"))


def test_the_page_says_what_inspect_says_and_names_stay_text(opened, tmp_path):
    rows = {"layers.0.attention.wq.weight": torch.zeros(48, 64), f"{HOSTILE}.wpe.weight": circle(32)}
    path = folder(tmp_path / HOSTILE.replace("/", ""), rows, rope_magic=HOSTILE)
    page = opened("rotary", checkpoint=str(path), address="#checkpoint?pair=3")
    section = page.locator("#checkpoint")
    shown = " ".join(section.locator(".inside").inner_text().split())
    for line in portrait.words(inspect(path)).splitlines()[1:]:
        assert " ".join(line.split()) in shown.replace("Contradictory", "Contradictory:").replace(
            "Not understood", "Not understood:"
        )
    assert "has 48 rows" in shown and HOSTILE in shown
    assert page.locator("img").count() == 0
    wave = 2 * math.pi * 500_000 ** (6 / 16)
    assert f"pair 3 of 8 has a wavelength of {wave:.4g} positions" in section.locator(".said").inner_text()
    section.get_by_label("drawing").select_option(index=1)
    assert f"{HOSTILE}.wpe.weight has 32 by 3 numbers" in section.locator(".said").inner_text()


def test_a_learned_table_is_pointed_at(opened, tmp_path):
    path = folder(tmp_path / "a", {"wpe.weight": circle(32)})
    page = opened(
        "rotary", checkpoint=str(path), address="#checkpoint?checkpoint.drawing=1&position=4&other=2", width=360
    )
    section = page.locator("#checkpoint")
    # An eighth of a turn lies between them.
    assert "Positions 2 and 4: cosine 0.71. 2 of 3 components" in section.locator(".said").inner_text()
    section.get_by_label("Cosine between the vectors").focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    assert "Positions 4 and 4: cosine 1." in section.locator(".said").inner_text()
    assert page.evaluate("() => document.documentElement.scrollWidth") == 360


def test_components_are_those_of_the_table():
    one = checkpoint.table(circle(32), 1)
    assert one["shares"] == pytest.approx([0.5, 0.5, 0], abs=1e-6)
    assert [len(row) for row in one["similarity"]] == list(range(1, 33))
    assert one["similarity"][16][:9] == [round(100 * math.cos(math.pi * n / 8)) for n in range(9)]
    places = torch.tensor(one["components"])[:2]
    assert places.norm(dim=0).tolist() == pytest.approx([1.0] * 32, abs=1e-6)
    assert (places.max(1).values >= -places.min(1).values - 1e-6).all()
    lopsided = torch.tensor([[9.0, 0], [0, 0], [0, 0], [0, 0]])
    assert checkpoint.table(lopsided, 1)["components"][0] == pytest.approx([6.75, -2.25, -2.25, -2.25])
    assert checkpoint.table(-lopsided, 1)["components"][0][0] == pytest.approx(6.75)
    flat = checkpoint.table(torch.ones(4, 2), 1)
    assert (flat["shares"], flat["similarity"][3]) == ([0.0, 0.0], [100] * 4)


def test_a_long_table_is_shown_from_its_start_and_as_a_whole(tmp_path):
    broken = circle(8)
    broken[3] = math.nan
    tensors = {"wpe.weight": circle(600), "h.pos_embed": circle(9)[None], "broken.wpe.weight": broken}
    drawn = checkpoint.of(str(folder(tmp_path / "a", tensors)))["tables"]
    shown = {(one["name"], one["step"]): len(one["similarity"]) for one in drawn}
    assert shown == {("wpe.weight", 1): 256, ("wpe.weight", 3): 200, ("h.pos_embed", 1): 9}


def test_a_page_stays_small(tmp_path):
    tensors = {f"h.{n}.wpe.weight": torch.randn(3000, 8) for n in range(4)}
    path = str(folder(tmp_path / "a", tensors, **{f"rope_{n}": "x" * 900 for n in range(400)}))
    found = checkpoint.of(path)
    assert (len(found["tables"]), found["left_out"]) == (4, ["4 more tables"])
    said = [line for doubt in found["doubts"] for line in doubt["said"]]
    assert "... 200 more lines" in said
    assert checkpoint.lines(["x" * 1000]) == ["x" * 400 + "..."]
    assert len(explore(checkpoint=path)) < 3_000_000


def test_biases_are_by_distance_and_head(opened, tmp_path, monkeypatch):
    reading = Reading("transformers", "toy", (part("alibi", "t5_bias(buckets=8, max_distance=32)"),))
    monkeypatch.setattr(checkpoint, "inspect", lambda path: reading)
    table = torch.arange(32.0).view(8, 4)
    path = folder(tmp_path / "a", {"relative_attention_bias.weight": table})
    page = opened("rotary", checkpoint=str(path), address="#checkpoint?head=1&position=12&other=2")
    section = page.locator("#checkpoint")
    assert section.locator(".said").inner_text() == "alibi: head 1 of 4 adds \u22120.625 at distance 10."
    section.get_by_label("drawing").select_option(index=1)
    # Of 8 buckets, the first 4 hold one distance each, and 10 lies in that of 8 to 13.
    bucket = 4 + int(math.log(10 / 4) / math.log(32 / 4) * 4)
    assert f"head 1 of 4 adds {table[bucket, 1]:g} at distance 10." in section.locator(".said").inner_text()


def test_many_heads_and_distances_are_sampled():
    found = checkpoint.bias("b", torch.arange(-600, 600), torch.arange(40.0)[:, None].expand(40, 1200))
    assert (len(found["distance"]), found["distance"][1], found["every_head"]) == (400, -597, 2)
    assert [values[0] for values in found["heads"]] == list(range(0, 40, 2))


def test_a_model_that_was_stretched_has_two_lengths():
    schedule = "rotary(base=500000, schedule=llama3(factor=8, trained_length=128))"
    (one,) = checkpoint.spectra(part(schedule))
    assert (one["trained_length"], one["before"], one["name"]) == (512, 128, schedule)
    assert one["wavelengths"][-1] == pytest.approx(8 * one["plain"][-1])
    (waves,) = checkpoint.spectra(part("xpos"))
    assert waves["plain"] == waves["wavelengths"] and waves["before"] is None
