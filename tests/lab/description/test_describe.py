"""The description of one encoding, and the overview of all."""

import gzip
import json
import math
import statistics
from pathlib import Path

import pytest
import torch
from fake_records import record

from posenc import catalogue
from posenc.catalogue import build
from posenc.coordinate_maps import COORDINATE_MAPS
from posenc.encoding.base import Encoding, Shape
from posenc.lab.description import describe, pictures
from posenc.lab.description.describe import GROUPS, board_words, build_overview, encoding_card, idea, order_table, show
from posenc.lab.description.listing import card_rows, listing_line, select
from posenc.lab.evaluation.order import order_tests
from posenc.lab.published import CLAIMS
from posenc.lab.runs.record import write
from posenc.lab.tasks import TASKS
from posenc.schedules import SCHEDULES
from posenc.specs.presets import PRESETS

ROWS = Path(__file__).parents[3] / "docs" / "board" / "rows.jsonl.gz"

PICTURES = {
    "none": set(),
    "sinusoidal": {"heatmap", "similarity", "fingerprint", "wavelengths", "clock", "shift"},
    "learned": {"rows"},
    "learned_grid": set(),
    "rotary": {"wavelengths", "clock", "rotation"},
    "axial_rotary": {"wavelengths", "rotation"},
    "mixed_rotary": set(),
    "log_temperature": {"temperature"},
    "alibi": {"bias"},
    "t5_bias": {"buckets"},
    "grid_bias": set(),
    "fire": set(),
    "shaw": {"buckets"},
    "deberta": {"buckets"},
    "kerple": {"bias"},
    "forgetting": set(),
    "stick_breaking": {"attention"},
    "rerope(rotary)": {"wavelengths", "clock", "mapped_distance"},
    "rerope(alibi)": {"bias", "mapped_distance"},
    "rerope(rotary) + kerple": {"wavelengths", "clock", "bias", "mapped_distance"},
    "dape(alibi)": {"bias"},
    "rotary + alibi": {"wavelengths", "clock", "rotation", "bias"},
    "rotary + log_temperature": {"wavelengths", "clock", "rotation", "temperature"},
    "on(rotary, heads=(0,))": {"wavelengths", "clock", "rotation"},
}


def lesson_of(spec: str, **changes) -> pictures.Gallery:
    return show(spec, **({"tokens": 16, "dim": 16, "heads": 2, "words": ("a", "b", "a"), "shift": 3} | changes))


@pytest.fixture(scope="module")
def listing() -> dict:
    return build_overview()


def entry(listing: dict, name: str) -> dict:
    return next(item for item in listing["encodings"] if item["name"] == name)


def test_the_overview_names_everything_that_ships_with_a_sentence_each(listing: dict) -> None:
    assert [item["name"] for item in listing["encodings"]] == list(catalogue.names())
    assert [item["name"] for item in listing["tasks"]] == list(TASKS)
    assert {item["name"] for item in listing["schedules"]} == set(SCHEDULES)
    assert {item["name"] for item in listing["coordinate_maps"]} == set(COORDINATE_MAPS)
    assert listing["kernels"]
    assert {item["name"] for item in listing["claims"]} == set(CLAIMS)
    kinds = ("schedules", "coordinate_maps", "tasks", "kernels", "claims")
    assert all(len(item["idea"]) > 15 for kind in kinds for item in listing[kind])


def test_what_is_no_encoding_says_its_options_and_how_it_works(listing: dict) -> None:
    yarn = next(item for item in listing["schedules"] if item["name"] == "yarn")
    assert yarn["options"]["factor"] == "needed" and yarn["options"]["beta_fast"] == "32.0"
    assert yarn["lesson"].startswith("turns_k = ") and "Source: Peng" in yarn["lesson"] and ">>>" not in yarn["lesson"]


def test_a_preset_says_its_layers_and_what_no_option_says(listing: dict) -> None:
    presets = {item["name"]: item for item in listing["presets"]}
    assert list(presets) == list(PRESETS)
    assert presets["exaone4"]["idea"] == "3 x rotary, none" and "scale" not in presets["exaone4"]["options"]
    assert presets["t5"]["options"]["scale"] == "1.0" and "Besides: the bias is not added" in presets["t5"]["lesson"]
    assert presets["bert"]["lesson"].startswith("For encoders") and presets["gpt2"]["lesson"].startswith("For decoders")


def test_encodings_of_any_number_of_axes_are_chosen_by_each(listing: dict) -> None:
    left = [item["name"] for item in select(listing["encodings"], axes=2, door="turn", used_by="")]
    assert {"axial_rotary", "multimodal_rotary"} <= set(left) and not {"rotary", "learned_grid"} & set(left)


@pytest.mark.parametrize("name", catalogue.names())
def test_every_encoding_is_described_whole(name: str, listing: dict) -> None:
    card = entry(listing, name)
    assert card["problem"] is None
    assert len(card["idea"]) > 15 and card["source"] and card["group"] in GROUPS
    assert "reference" in card["kernels"] and card["parameters"] >= 0
    _, line = listing_line(card)
    assert line.startswith(card["idea"].rstrip(".")) and "\n" not in line
    assert (f"; used by {card['used_by']}" in line) == bool(card["used_by"])


@pytest.mark.parametrize(
    ("name", "group"),
    [
        ("learned", "Added to embeddings"),
        ("learned_grid", "Added to embeddings"),
        ("rotary", "Turn queries and keys"),
        ("log_temperature", "Temperatures of the query"),
        ("alibi", "Bias the logits"),
        ("shaw", "Bias the logits"),
        ("forgetting", "Remember facts of every token"),
        ("stick_breaking", "Other attention rules"),
        ("dape", "Wrap another encoding"),
        ("none", "No position"),
    ],
)
def test_encodings_are_grouped_by_what_they_do(name: str, group: str, listing: dict) -> None:
    assert entry(listing, name)["group"] == group


@pytest.mark.parametrize(
    ("name", "parameters", "owner"),
    [
        ("learned", 2048 * 512, "model"),
        ("learned_grid", 32 * 32 * 512, "model"),
        ("t5_bias", 32 * 8, "model"),
        ("shaw", (2 * 16 + 1) * 2 * 64, "layer"),
        ("rotary", 0, "model"),
    ],
)
def test_parameters_are_counted(name: str, parameters: int, owner: str, listing: dict) -> None:
    card = entry(listing, name)
    assert (card["parameters"], card["per"]) == (parameters, owner)


@pytest.mark.parametrize(
    ("spec", "numbers", "again"),
    [
        ("rotary", 0, []),
        ("learned", 0, []),
        ("shaw", 0, []),
        # One gate for each head; a direction of a head's width and a strength for each head.
        ("forgetting", 8, []),
        ("path", 8 * 64 + 8, []),
        ("forgetting + rotary", 8, []),
        ("rerope(rotary)", 0, ["keys"]),
        ("rerope(alibi)", 0, []),
        ("rotary_values", 0, ["values"]),
        ("rotary(schedule=dynamic_ntk(factor=2))", 0, ["keys"]),
    ],
)
def test_what_a_cache_costs_is_found_by_attending(spec: str, numbers: int, again: list[str]) -> None:
    cost = encoding_card(spec)["cache"]
    assert (cost["numbers"], cost["turned_anew"]) == (numbers, again)
    assert (cost["words"] == "nothing more") == (not numbers and not again)


def test_a_rule_that_needs_weights_is_served_by_the_reference_alone(listing: dict) -> None:
    assert entry(listing, "stick_breaking")["kernels"] == ["reference"]
    assert entry(listing, "alibi")["kernels"] == ["blocked", "sdpa", "reference", "flex"]


def test_what_was_measured_is_what_the_rows_of_the_board_say() -> None:
    lines = [json.loads(line) for line in gzip.decompress(ROWS.read_bytes()).splitlines()]
    for name in ("alibi", "rotary", "none"):
        rows = [line for line in lines if line["experiment"]["spec"] == name and line["experiment"]["seed"] >= 100]
        tasks: dict[str, list[dict]] = {}
        for line in rows:
            tasks.setdefault(line["experiment"]["task"], []).append(line)
        exact_tasks = {task: runs for task, runs in tasks.items() if task != "text"}
        learned = [task for task, runs in exact_tasks.items() if 2 * sum(run["learned"] for run in runs) > len(runs)]
        growth = []
        for factor in (2, 4, 8):
            scores = [at for run in tasks["text"] for at in run["lengths"] if at["factor"] == factor]
            growth.append(f"{statistics.median(at['perplexity_ratio'] for at in scores):.2f} at {factor}x")
        sentence = board_words()[name]
        assert sentence.startswith(f"learns {len(learned)} of {len(exact_tasks)} tasks")
        assert sentence.endswith(f"text: perplexity times {', '.join(growth)}")
    assert "rotary(base=500)" not in board_words() and board_words()["rotary + alibi"]


def test_a_card_says_everything_and_works_for_any_spec() -> None:
    rows = dict(card_rows(encoding_card("rotary")))
    assert rows["also called"].startswith("rope") and "base=10000.0" in rows["options"]
    assert "text: perplexity times " in rows["measured here"] and "docs/board)" in rows["measured here"]
    assert "Llama" in rows["used by"]
    card = dict(card_rows(encoding_card("rotary(base=500) + on(alibi, heads=(0, 1))")))
    assert card["class"] == "Rotary + ALiBi" and card["measured here"] == "not yet"
    with pytest.raises(ValueError, match="did you mean 'rotary'"):
        encoding_card("rotery")


def test_an_encoding_that_cannot_be_built_says_why_and_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self, *_) -> None:
        raise ArithmeticError("no such\nthing")

    monkeypatch.setattr(catalogue.find("alibi"), "__init__", fail)
    listing = build_overview()
    bad, good = entry(listing, "alibi"), entry(listing, "rotary")
    assert listing_line(bad)[1] == "alibi fails: ArithmeticError: no such thing" and good["problem"] is None


def test_a_reason_that_is_a_sentence_of_ours_stands_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(self, *_) -> None:
        raise ValueError("heads must be even, got 3")

    monkeypatch.setattr(catalogue.find("alibi"), "__init__", refuses)
    assert listing_line(entry(build_overview(), "alibi"))[1] == "alibi: heads must be even, got 3"


def test_a_card_tells_the_axes_that_an_encoding_reads_and_cells_where_there_are_several() -> None:
    axes = {spec: dict(card_rows(encoding_card(spec))) for spec in ("rotary", "grid_bias", "multimodal_rotary")}
    assert [axes[spec]["axes"] for spec in axes] == ["1", "2", "any"]
    assert [" cells on each axis" in axes[spec]["parameters"] for spec in axes] == [False, True, False]


def test_what_has_no_docstring_has_no_idea() -> None:
    assert idea(lambda: 0) == "" and idea(show) == "The lesson of an encoding at a given size."


@pytest.mark.parametrize("spec", PICTURES)
def test_an_encoding_is_shown_with_the_pictures_it_has_and_no_other(spec: str) -> None:
    gallery = lesson_of(spec)
    assert set(gallery.figures) == PICTURES[spec]
    assert gallery.text.startswith(str(gallery.facts["encoding"]))
    json.dumps(gallery.facts, allow_nan=False)


@pytest.mark.parametrize("spec", catalogue.names())
def test_every_encoding_has_a_lesson_and_a_picture_or_a_reason(spec: str) -> None:
    gallery = lesson_of(spec)
    assert "Source: " in gallery.text and ">>>" not in gallery.text
    assert gallery.figures or any(note.startswith("No picture") for note in gallery.facts["notes"])
    assert not [note for note in gallery.facts["notes"] if note.startswith("No picture of its")]
    assert all(note in gallery.text for note in gallery.facts["notes"])
    json.dumps(gallery.facts, allow_nan=False)


def test_pairs_that_complete_no_turn_are_counted_before_and_after_a_schedule() -> None:
    plain = show("rotary", tokens=4096, dim=256, heads=2, words=("a",), shift=1)
    # 10000^(k/64) 2 pi > 4096 from k = 46 on.
    assert plain.facts["notes"] == ["18 of 64 pairs do not complete a turn in 4,096 positions."]
    assert plain.facts["pairs_without_a_turn"] == 18 and plain.facts["wavelengths_before"] is None
    gallery = show("rotary(schedule=linear(factor=4))", tokens=4096, dim=256, heads=2, words=("a",), shift=1)
    note_before, note_after, note_farther = gallery.facts["notes"]
    assert note_before == "Before linear(factor=4): 18 of 64 pairs do not complete a turn in 4,096 positions."
    assert note_after.startswith("After: ") and gallery.facts["pairs_without_a_turn"] == 28
    assert note_farther == "After, farther out: 18 of 64 pairs do not complete a turn in 16,384 positions."
    waves, plain_waves = gallery.facts["wavelengths"], gallery.facts["wavelengths_before"]
    assert waves == pytest.approx([4 * wave for wave in plain_waves])
    assert plain_waves == pytest.approx([2 * math.pi * 10_000 ** (k / 64) for k in range(64)])


def test_a_schedule_that_follows_the_length_is_shown_beyond_it() -> None:
    gallery = lesson_of("rotary(schedule=dynamic_ntk(factor=1))", tokens=64)
    assert gallery.facts["wavelengths"] != gallery.facts["wavelengths_before"]
    assert "at a declared horizon of 256 positions" in gallery.text


def test_pairs_that_never_turn_are_none_in_json() -> None:
    gallery = lesson_of("proportional_rotary(partial=0.5)")
    assert gallery.facts["wavelengths"][-1] is None and gallery.facts["wavelengths"][0] is not None
    assert ", and 2 never turn." in gallery.text


def test_rotation_is_the_mean_cosine_by_distance() -> None:
    rotation = lesson_of("rotary", dim=32, heads=2).facts["rotation"]
    assert rotation["distance"] == list(range(32)) and len(rotation["heads"]) == 1
    frequencies = [10_000 ** (-k / 8) for k in range(8)]
    expected = [sum(math.cos(d * f) for f in frequencies) / 8 for d in range(32)]
    assert rotation["heads"][0] == pytest.approx(expected, abs=1e-4)


def test_a_bias_is_drawn_on_both_sides() -> None:
    bias = lesson_of("alibi").facts["bias"]
    assert bias["distance"] == list(range(-15, 32))
    assert bias["heads"][0][:18:17] == [-15 * 0.0625, -2 * 0.0625]


def test_a_bias_that_reads_positions_alone_is_told_from_one_that_reads_content() -> None:
    assert not lesson_of("kerple").facts["notes"]
    encoding = build("shaw(max_distance=3)", Shape.of(16, 2, max_len=16))
    gallery, sight = pictures.Gallery(), pictures.Sight(encoding, Shape.of(16, 2, max_len=16), 16, encoding)
    with torch.no_grad():
        pictures.add_bias(gallery, sight)
    assert any("depends on what tokens say" in note for note in gallery.notes)
    bias = gallery.facts["bias"]
    assert bias["distance"] == list(range(16))
    assert all(len({*head[3:]}) == 1 and len({*head[:4]}) == 4 for head in bias["heads"])


def test_a_grid_is_seen_from_its_middle_cell() -> None:
    facts = lesson_of("axial_rotary", tokens=400).facts
    assert facts["rotation"]["from"] == [16, 16] and facts["context"] == 33
    (cells,) = facts["rotation"]["heads"]
    assert len(cells) == len(cells[0]) == 33 and cells[16][16] == 1
    assert cells[16][20] == pytest.approx(cells[12][16])
    centre = lesson_of("sinusoidal(axes=2)", tokens=17).facts["centre"]["heads"][0]
    assert centre[8][8] == 1 and abs(centre[0][3]) < 0.99


def test_coordinates_from_minus_one_to_one_are_taken_where_cells_would_be_too_coarse() -> None:
    gallery = lesson_of("image_rotary", dim=32)
    assert gallery.facts["context"] == 2 and "coordinates from -1 to 1" in gallery.text


def test_a_temperature_is_drawn_far_out() -> None:
    temperature = lesson_of("log_temperature").facts["temperature"]
    assert temperature["position"][0] == 0 and temperature["position"][-1] == 999_999
    (tau,) = temperature["heads"]
    assert tau[temperature["position"].index(15)] == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize("spec", ["rotary", "alibi"])
def test_a_map_of_distances_is_drawn_from_where_it_maps(spec: str) -> None:
    facts = lesson_of(f"rerope({spec}, window=10)").facts
    distances = facts["mapped_distance"]
    assert distances["query"] == 60
    assert "From position 60 no key is shown farther away than 10." in facts["notes"]
    assert distances["mapped"] == [min(distance, 10) for distance in distances["distance"]]


def test_an_attention_map_is_of_a_seeded_layer_with_and_without() -> None:
    maps = lesson_of("stick_breaking").facts["attention"]
    assert maps["with"][0][0][0] == 0 and maps["without"][0][0][0] == 1
    assert maps == lesson_of("stick_breaking").facts["attention"]


def test_drawing_leaves_the_random_state_of_the_caller_alone() -> None:
    encoding = catalogue.build("shaw", Shape.of(16, 2, 8))
    state = torch.random.get_rng_state()
    pictures.draw(encoding, Shape.of(16, 2, 8), 8)
    assert torch.random.get_rng_state().equal(state)


def test_what_cannot_be_drawn_says_why() -> None:
    # Four channels are too few for the pairs of two axes.
    gallery = lesson_of("learned_grid(grid=(2, 2))")
    assert not gallery.figures and "No picture of its vectors: position " in gallery.text


def test_the_shift_of_sinusoidal_is_exact_and_says_how_exact() -> None:
    gallery = lesson_of("sinusoidal", tokens=200)
    assert gallery.facts["shift"]["k"] == 3 and gallery.facts["shift"]["largest_error"] < 1e-10
    assert any(title.startswith("Shift by 3") for title, _, _ in gallery.tables)


def test_a_shift_is_told_with_how_far_and_over_how_many_positions() -> None:
    lesson = show("sinusoidal", tokens=16, dim=16, heads=2, words=("a",), shift=5)
    assert lesson.facts["shift"]["k"] == 5 and "shift" in lesson.figures
    title = next(title for title, *_ in lesson.tables if title.startswith("Shift by 5: "))
    assert "largest |PE(p + 5) - M_5 PE(p)| over 16 positions is" in title


def test_an_odd_width_has_no_shift_and_is_still_shown() -> None:
    gallery = lesson_of("sinusoidal", dim=15, heads=3)
    assert "shift" not in gallery.figures and "heatmap" in gallery.figures


def test_what_adds_to_embeddings_has_a_worked_example_of_the_given_words() -> None:
    rows = next(rows for title, _, rows in lesson_of("learned").tables if title.startswith("Worked example"))
    assert [row[1] for row in rows] == ["a", "b", "a"]
    assert not any(title.startswith("Worked example") for title, _, _ in lesson_of("rotary").tables)


def test_a_worked_example_takes_ids_and_vectors() -> None:
    example = lesson_of("sinusoidal", words=("a", "b", "a"), ids=(1, 0, 1), vectors=(1, 0, -1, 0.5))
    title, _, rows = next(table for table in example.tables if table[0].startswith("Worked example"))
    assert title == "Worked example: sinusoidal at 2 channels" and [row[2] for row in rows] == ["1", "0", "1"]
    assert [row[3] for row in rows] == ["-1.000 +0.500", "+1.000 +0.000", "-1.000 +0.500"]


@pytest.mark.parametrize(
    ("spec", "options", "words"),
    [
        ("rotary", {"ids": (0, 1, 0)}, "rotary has no worked example: it adds nothing to embeddings; leave out ids"),
        ("sinusoidal", {"vectors": (1, 2, 3)}, "vectors must be 2 of one width, one for each id up to 1; 3 numbers"),
        ("sinusoidal", {"ids": (1,)}, "each word has one id; there are 3 words and 1 ids"),
    ],
)
def test_ids_and_vectors_that_do_not_fit_are_refused(spec: str, options: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        lesson_of(spec, **options)


def test_heads_that_are_alike_are_drawn_once_and_others_all() -> None:
    alike = torch.ones(3, 5)
    assert pictures.merge_equal_heads(alike).shape == (1, 5)
    assert pictures.merge_equal_heads(alike * torch.arange(1, 4)[:, None]).shape == (3, 5)


def test_pictures_are_saved_as_png_files(tmp_path: Path) -> None:
    paths = lesson_of("alibi").save(tmp_path / "new" / "folder")
    assert [path.name for path in paths] == ["bias.png"]
    assert paths[0].read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("spec", "options", "words"),
    [
        ("rotary", {"tokens": 1}, "pictures need at least 2 positions, got 1"),
        ("rotary", {"heads": 3}, r"heads must divide dim=16, got heads=3; the divisors are \[1, 2, 4, 8, 16\]"),
    ],
)
def test_what_cannot_be_shown_is_refused(spec: str, options: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        lesson_of(spec, **options)


def test_the_reading_of_the_order_test_says_who_is_blind() -> None:
    headers, rows, title = order_table({spec: order_tests(spec) for spec in ("sinusoidal", "none", "alibi")})
    readings = {(row[0], row[1], row[2]): row[5] for row in rows}
    assert len(headers) == len(rows[0]) == 6 and title
    assert readings["(no position)", "bidirectional", "2"] == "order-blind (reordered tokens give reordered outputs)"
    assert readings["(no position)", "causal", "1"] == "order-blind"
    assert readings["(no position)", "causal", "2"] == "tells the order apart"
    assert readings["none", "bidirectional", "1"].startswith("order-blind")
    for spec in ("sinusoidal", "alibi"):
        for attention in ("bidirectional", "causal"):
            assert readings[spec, attention, "1"] == "tells the order apart"
    at_the_mark = {"position": True, "attention": "causal", "layers": 1, "difference": 1e-9, "equivariance": 1e-9}
    assert order_table({"mine": [at_the_mark]})[1][0][-1] == "tells the order apart"
    # What has no position is said once, first.
    assert [row[0] for row in rows].count("(no position)") == 4 and rows[0][0] == "(no position)"


# They begin at random numbers of which each means something alone: a slope, a frequency.
SINGLE_NUMBERS = {"kerple", "dape", "continuous_time", "fourier_features", "polar"}


@pytest.mark.parametrize("spec", sorted({*catalogue.names()} - SINGLE_NUMBERS))
def test_no_number_that_is_drawn_before_training_comes_from_a_random_table(
    spec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def with_another_seed(spec: str, shape: Shape) -> Encoding:
        torch.manual_seed(7)
        return build(spec, shape)

    facts = lesson_of(spec).facts
    monkeypatch.setattr(describe, "build", with_another_seed)
    assert lesson_of(spec).facts == facts


def test_what_is_known_of_a_table_before_training_is_drawn() -> None:
    stairs = lesson_of("t5_bias(buckets=8, max_distance=32)").facts["buckets"]
    at = dict(zip(stairs["distance"], stairs["bucket"], strict=True))
    # Half the buckets are exact; then each is twice as wide as a power of 32/4 to the quarter says.
    assert [at[d] for d in (-9, 0, 3, 4, 6, 7, 12, 20, 31, 64)] == [0, 0, 3, 4, 4, 5, 6, 7, 7, 7]
    gallery = lesson_of("shaw(max_distance=3)")
    at = dict(zip(gallery.facts["buckets"]["distance"], gallery.facts["buckets"]["bucket"], strict=True))
    assert [at[d] for d in (-5, -3, 0, 2, 3, 30)] == [6, 6, 3, 1, 0, 0]
    assert "From a distance of 3 on, all keys share one trained entry: order is lost there." in gallery.text
    learned = lesson_of("learned")
    assert (
        learned.facts["rows"]["row"] == list(range(16))
        and "Each position reads a row of its own, of 16:" in learned.text
    )
    assert "No picture of what is added before training: it starts at random" in learned.text
    assert "No picture of the bias before training: it starts at zero" in lesson_of("t5_bias").text


def test_what_runs_have_learned_is_drawn_from_their_records(tmp_path: Path) -> None:
    for run in (record("t5_bias", seed=1), record("t5_bias", seed=0, learned=False), record("rotary", "copy")):
        write(run, tmp_path / "records")
    gallery = lesson_of("t5_bias", runs_folder=tmp_path)
    assert {"buckets", "bias-repeat", "attention-repeat"} == set(gallery.figures)
    (trained_facts,) = gallery.facts["trained"]
    # The run that has learned.
    assert (
        trained_facts["key"] == record("t5_bias", seed=1)["key"]
        and trained_facts["bias"] == record("t5_bias", seed=1)["pictures"]["bias"]
    )
    (weights,) = [table for table in gallery.tables if "attention" in table[0]]
    assert weights[0] == "Mean attention weights, trained on repeat, seed 1"
    assert [row[0] for row in weights[2]] == ["with position", "position removed"] and len(weights[1]) == 4
    with pytest.raises(
        ValueError, match=r"no run of 'alibi' in .*; it has rotary, t5_bias; train it with posenc compare"
    ):
        lesson_of("alibi", runs_folder=tmp_path)


def test_sums_and_chosen_heads_are_shown_too() -> None:
    of_sum = show("sinusoidal + alibi", tokens=16, dim=16, heads=2, words=("a", "b"), shift=1)
    assert {"heatmap", "bias"} <= of_sum.figures.keys() and "Worked example" in of_sum.tables[-2][0]
    of_heads = show("on(rotary, heads=(0,))", tokens=16, dim=16, heads=2, words=("a",), shift=1)
    assert "wavelengths" in of_heads.figures
