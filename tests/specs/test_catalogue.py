"""Encodings are found by name, and specs are parsed and printed, never evaluated."""

import math
import shutil
import sys
from pathlib import Path

import pytest
import torch

import posenc
import posenc.encodings
from posenc import Compose, Encoding, Shape, build, catalogue, foreign, names
from posenc.catalogue import Node, parse
from posenc.encoding.base import spec_options
from posenc.encoding.chosen_heads import OnHeads
from posenc.encodings.added.learned import Learned
from posenc.encodings.added.sinusoidal import Sinusoidal
from posenc.encodings.distance_biases.t5_bias import T5Bias
from posenc.encodings.rotations.rotary import Rotary
from posenc.schedules import Linear, YaRN
from posenc.specs import syntax
from posenc.specs.words import CLASSES_BY_WORD

SHAPE = Shape.of(dim=48, heads=6, max_len=96)
CLASSES = {
    "alibi": "ALiBi",
    "learned": "Learned",
    "none": "NoPE",
    "rotary": "Rotary",
    "shaw": "Shaw",
    "sinusoidal": "Sinusoidal",
    "t5_bias": "T5Bias",
}


def test_the_names_are_those_of_the_files() -> None:
    files = (Path(posenc.__file__).parent / "encodings").rglob("*.py")
    assert list(names()) == sorted(file.stem for file in files if file.stem != "__init__")
    assert set(CLASSES) <= set(names())


def test_classes_are_found_by_name_and_by_class_name() -> None:
    assert CLASSES.items() <= {name: cls.__name__ for name, cls in catalogue.ENCODINGS.items()}.items()
    assert {cls: name for name, cls in CLASSES.items()}.items() <= catalogue.ENCODINGS.class_names.items()
    assert posenc.Rotary is Rotary is catalogue.find("rotary") and Rotary.spec_name == "rotary"
    assert set(CLASSES.values()) <= set(dir(posenc))


def test_a_class_that_does_not_exist_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'posenc' has no attribute 'Rotarry'"):
        _ = posenc.Rotarry


def test_everything_that_is_promised_to_the_public_is_there() -> None:
    assert all(hasattr(posenc, name) for name in posenc.__all__)


# Parsing


def test_a_spec_is_a_name_with_options() -> None:
    assert parse("rotary") == Node("rotary")
    assert parse(" rotary( base = 500_000, layout='interleaved', partial=.5 ) ") == Node(
        "rotary", (("base", 500_000), ("layout", "interleaved"), ("partial", 0.5))
    )


def test_a_bare_word_is_a_string_so_that_shells_need_no_quotes() -> None:
    assert parse("rotary(layout=interleaved)") == parse("rotary(layout='interleaved')")


def test_a_sum_is_flat() -> None:
    flat = Node("+", parts=(Node("rotary"), Node("alibi"), Node("none")))
    assert parse("rotary + alibi + none") == parse("rotary + (alibi + none)") == parse("(rotary+alibi)+none") == flat


def test_a_schedule_is_a_value() -> None:
    assert dict(parse("rotary(schedule=yarn(factor=4, truncate=False))").options) == {
        "schedule": YaRN(4, truncate=False)
    }


def test_chosen_heads_are_numbers() -> None:
    nodes = (Node("rotary"),)
    assert (
        parse("on(rotary, heads=(0, 2))") == parse("on(rotary, heads=[0, 2])") == Node("on", parts=nodes, heads=(0, 2))
    )
    assert parse("on(rotary, heads=3)").heads == (3,)
    assert parse("on(rotary + alibi, heads=(0,)) + t5_bias").parts[0].parts[0] == parse("rotary + alibi")


NOT_SPECS = [
    ("", "'' is no spec .*write for example"),
    ("rotary +", r"'rotary \+' is no spec"),
    ("rotary(", "is no spec"),
    ("3", "'3' in '3' is not an encoding; write for example rotary"),
    ("rotary * 2", "is not an encoding"),
    ("rotary - alibi", "'rotary - alibi' in .* is not an encoding"),
    ("rotary.alibi", "is not an encoding"),
    ("[rotary]", "is not an encoding"),
    ("ropee", r"no encoding named 'ropee'; did you mean '.*'\? posenc list encodings has all"),
    ("rotery", "did you mean 'rotary'"),
    ("rotary + alibbi", "no encoding named 'alibbi'.*did you mean 'alibi'"),
    (
        "rotary(bass=500)",
        "rotary has no option 'bass'; it has: head_dim, base, layout, partial, schedule; did you mean 'base'",
    ),
    ("none(size=3)", "none has no option 'size'; it has: none"),
    ("learned(device=cpu)", "learned has no option 'device'"),
    ("rotary(500)", r"options in a spec have names, as in rotary\(base=500_000\); got '500' for rotary"),
    ("rotary(**options)", r"rotary has no option '\*\*'"),
    ("rotary(base=2, base=3)", "an option stands twice in 'rotary.base=2, base=3.'; give it once"),
    ("rotary(base=1 if x else 2)", "is not a plain value: use numbers, words or tuples"),
    ("rotary(base=__import__('os').getpid())", "is not a plain value"),
    ("rotary(base={1: 2})", "is not a plain value"),
    ("rotary(base={1, 2})", "is not a plain value"),
    ("rotary(schedule=spline(factor=2))", "no schedule named 'spline'; .*posenc list schedules has all"),
    ("rotary(schedule=yarm(factor=2))", "did you mean 'yarn'"),
    (
        "rotary(schedule=yarn(faktor=2))",
        "yarn has no option 'faktor'; it has: factor, trained_length, .*did you mean 'factor'",
    ),
    ("rotary(schedule=yarn(4))", r"yarn needs factor by name, as in yarn\(factor=4\); got 'yarn\(4\)'"),
    ("rotary(schedule=yarn())", r"yarn needs factor by name"),
    ("rotary(schedule=yarn(factor=2, factor=4))", "an option stands twice in 'yarn.factor=2, factor=4.'; give it once"),
    ("on(rotary)", r"on\(...\) takes one encoding and heads, as in on\(rotary, heads=\(0, 1\)\); got 'on\(rotary\)'"),
    ("on(rotary, (0, 1))", "takes one encoding and heads"),
    ("on(rotary, alibi, heads=0)", "takes one encoding and heads"),
    ("on(rotary, heads=0, of=2)", "takes one encoding and heads"),
    ("on(rotary, heads='all')", "heads are whole numbers, as in .* got 'all'"),
    ("on(rotary, heads=(0, 1.5))", r"heads are whole numbers, as in .* got \(0, 1.5\)"),
]


@pytest.mark.parametrize(("spec", "words"), NOT_SPECS)
def test_what_is_not_a_spec_is_refused_with_the_reason(spec: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse(spec)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("rotary(base=1" + "0" * 400 + ")", "a number of 401 digits; at most 40 are read"),
        ("rotary(schedule=yarn(factor=1" + "0" * 400 + "))", "a number of 401 digits"),
        ("rotary(base=" + "(1," * 1000 + ")" * 1000 + ")", "too many nested parentheses|nested too deep to be a spec"),
        ("rotary(base=" + "-" * 10_000 + "1)", "nested too deep to be a spec"),
        (" + ".join(["rotary"] * 1000), "nested too deep to be a spec"),
        ("a" * 30_000, "is longer than 20,000 letters, the most that a spec may have"),
        ("a" * 15_000, "no encoding named 'a"),
        ("a" * 15_000 + ".py:B", "no file 'a"),
        ("/".join(["a" * 300] * 40) + ".py:B", "no file 'a"),
        ("rotary(\ud800=1)", "is no spec"),
        ("\ud800.py:Mine", "no file "),
        ("rotary(layout='" + "x" * 15_000 + "')", "rotary: layout must be one of half, interleaved, swapped, got 'x"),
        ("on(rotary, heads=(" + "0," * 5_000 + "))", "heads must be different .* got a tuple of 5000"),
        ("learned(max_len=1000000000000)", "learned: .*allocate"),
        ("learned(max_len=" + "9" * 30 + ")", "learned: "),
        ("rotary(schedule=linear(factor=1" + "0" * 39 + "))", r"linear: factor must be between .*, got 10+; give one"),
        ("rotary(schedule=ntk(factor=1e200))", r"ntk: factor must be between .*, got 1e\+200"),
        ("step_temperature(interval=1" + "0" * 30 + ")", r"step_temperature: interval must be between .*, got 10+"),
    ],
)  # fmt: skip
def test_what_is_too_large_is_answered_with_a_short_sentence(spec: str, words: str) -> None:
    with pytest.raises(ValueError, match=words) as error:
        build(spec, SHAPE)
    assert len(str(error.value)) < 1_200 and foreign.visible(str(error.value)) == str(error.value)


@pytest.mark.parametrize("spec", [3, None, ["rotary"], b"rotary"])
def test_what_is_no_string_is_no_spec(spec: object) -> None:
    with pytest.raises(ValueError, match="expected a spec, such as 'rotary \\+ alibi', got "):
        build(spec, SHAPE)  # type: ignore[arg-type]


# Building


def test_what_a_spec_leaves_open_is_taken_from_the_shape_of_the_model() -> None:
    sinusoidal, learned, rotary, t5 = (build(name, SHAPE) for name in ("sinusoidal", "learned", "rotary", "t5_bias"))
    assert isinstance(sinusoidal, Sinusoidal) and sinusoidal.dim == 48
    assert isinstance(learned, Learned) and learned.table.shape == (96, 48)
    assert isinstance(rotary, Rotary) and rotary.head_dim == 8
    assert isinstance(t5, T5Bias) and t5.heads == 6 and t5.causal
    both_ways = build("t5_bias", Shape.of(dim=48, heads=6, max_len=96, causal=False))
    assert isinstance(both_ways, T5Bias) and not both_ways.causal


def test_what_a_spec_says_wins_over_hints_and_hints_over_the_shape() -> None:
    hints = {"learned": {"max_len": 7, "std": 0.5}, "rotary": {"base": 50.0}}
    from_hints = build("learned", SHAPE, hints=hints)
    assert isinstance(from_hints, Learned) and from_hints.max_len == 7 and from_hints.std == 0.5
    from_spec = build("learned(max_len=9)", SHAPE, hints=hints)
    assert isinstance(from_spec, Learned) and from_spec.max_len == 9 and from_spec.std == 0.5
    inner = build("on(rotary, heads=(0, 1)) + alibi", SHAPE, hints=hints)
    assert isinstance(inner, Compose) and isinstance(inner.parts[0], OnHeads) and inner.parts[0].encoding.base == 50.0


def test_an_encoding_on_chosen_heads_is_built_for_that_many() -> None:
    encoding = build("on(alibi, heads=(1, 4))", SHAPE)
    assert isinstance(encoding, OnHeads) and encoding.encoding.heads == 2 and encoding.of == 6


def test_an_encoding_given_as_one_is_taken_as_it_is() -> None:
    encoding = Rotary(8)
    assert build(encoding, SHAPE) is encoding


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("rotary(base=0.5)", "rotary: base must be above 1, got 0.5"),
        ("rotary(layout=split)", "rotary: layout must be one of half, interleaved, swapped, got 'split'"),
        ("learned(overrun=wrap)", "learned: overrun must be one of error, clamp, interpolate, got 'wrap'"),
        ("learned(max_len=many)", "learned: max_len must be a whole number, got 'many'"),
        ("rotary(base=big)", "rotary: base must be a number, got 'big'"),
        ("shaw(values=false)", "shaw: values must be True or False, got 'false'"),
        (
            "rotary(schedule=linear)",
            r"rotary: linear needs factor by name, as in yarn\(factor=4\)",
        ),
        ("on(alibi, heads=(0, 9))", r"heads must be different numbers from 0 to 5, got \(0, 9\)"),
        ("on(sinusoidal, heads=(0, 1))", "sinusoidal opens the door 'embed', which knows no heads"),
    ],
)
def test_what_the_constructor_refuses_is_said_with_the_name(spec: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        build(spec, SHAPE)


@pytest.mark.parametrize(
    "spec",
    [
        *CLASSES,
        "rotary(base=500000)",
        "rotary(layout=interleaved, partial=0.5)",
        "rotary(schedule=yarn(factor=4)) + alibi",
        "on(rotary, heads=(0,))",
        "on(rotary + t5_bias(buckets=8), heads=(0, 3)) + learned(overrun=clamp)",
        "sinusoidal(endpoint=True) + shaw(max_distance=3)",
        "rotary(schedule=llama3(factor=8, low=1.5))",
    ],
)
def test_a_printed_spec_builds_the_same_again(spec: str) -> None:
    encoding = build(spec, SHAPE)
    again = build(repr(encoding), SHAPE)
    assert repr(again) == repr(encoding) and type(again) is type(encoding)
    assert [repr(module) for module in again.modules()] == [repr(module) for module in encoding.modules()]
    # This also holds for another model size, because the spec contains the options chosen here.
    assert repr(build(repr(encoding), Shape.of(dim=48, heads=6, max_len=500, causal=False))) == repr(encoding)


def test_a_spec_prints_only_what_was_changed() -> None:
    assert str(build("rotary(base=10000.0, layout=interleaved)", SHAPE)) == "rotary(layout='interleaved')"
    assert str(build("rotary(schedule=linear(factor=2))", SHAPE)) == "rotary(schedule=linear(factor=2))"
    assert spec_options(Rotary(8, schedule=Linear(2)))["schedule"] == Linear(2)


def test_options_and_parameters_of_an_encoding_can_be_listed() -> None:
    assert list(catalogue.options_of("learned")) == ["dim", "max_len", "overrun", "std"]
    assert catalogue.parameters_of(build("learned", SHAPE)) == 96 * 48
    assert catalogue.parameters_of(build("rotary", SHAPE)) == 0


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda: Shape.of(dim=48, heads=5, max_len=9),
            r"heads must divide dim=48, got heads=5; the divisors are \[1, 2, 3, 4, 6, 8, 12, 16, 24, 48\]",
        ),
        (lambda: Shape.of(dim=48, heads=6, max_len=0), "max_len must be 1 or more, got 0"),
        (lambda: Shape(0, 1, 1, 1), "dim must be 1 or more, got 0"),
    ],
)
def test_impossible_shapes_are_refused(make, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()


def test_one_head_is_a_shape_and_tokens_see_the_past_alone_unless_it_says_otherwise() -> None:
    assert Shape.of(dim=8, heads=1, max_len=4) == Shape(8, 1, 8, 4, causal=True)


def test_an_encoding_is_built_for_a_shape_alone() -> None:
    with pytest.raises(ValueError, match=r"built for a Shape, got 64; write Shape\.of\(dim=64, heads=4, max_len=512\)"):
        build("none", 64)  # ty: ignore[invalid-argument-type]


def test_words_in_quotes_are_options_or_files_of_ones_own_but_no_encodings() -> None:
    assert syntax.code_files("rotary(layout='half') + path/mine.py:Mine") == ["path/mine.py"]
    with pytest.raises(ValueError, match="\"'half'\" in \"'half' \\+ rotary\" is not an encoding"):
        parse("'half' + rotary")


def test_a_list_is_cut_at_the_commas_that_stand_outside_of_parentheses() -> None:
    assert syntax.split("rotary(base=5, layout='half'), alibi") == ["rotary(base=5, layout='half')", "alibi"]


def test_a_spec_has_at_most_so_many_letters() -> None:
    with pytest.raises(foreign.CannotRead, match=r"\(20001 letters\) is longer than 20,000 letters"):
        parse("a" * 20_001)


# User modules


USER_MODULE = '''
"""Counts tokens in the first channel."""

import torch

from posenc import Encoding


class {name}(Encoding):
    """Adds `step` times the position to every channel."""

    def __init__(self, dim: int, step: float = 1.0) -> None:
        super().__init__()
        self.dim, self.step = dim, step

    def embed(self, x, at):
        return x + self.step * at.axis("counter").to(x.dtype)[..., None]
'''


@pytest.fixture
def user_file(tmp_path: Path) -> str:
    file = tmp_path / "some folder-1".replace(" ", "_") / "mine.py"
    file.parent.mkdir()
    file.write_text(USER_MODULE.format(name="Counter"), encoding="utf-8")
    return str(file)


def test_ones_own_module_is_named_by_path_and_class(user_file: str) -> None:
    encoding = build(f"{user_file}:Counter(step=3) + rotary", SHAPE)
    assert isinstance(encoding, Compose)
    assert encoding.parts[0].dim == 48 and encoding.parts[0].step == 3
    assert encoding(torch.zeros(1, 2, 48))[0, :, 0].tolist() == [0.0, 3.0]
    assert repr(encoding) == f"{user_file}:Counter(step=3) + rotary"
    assert repr(build(repr(encoding), SHAPE)) == repr(encoding)
    assert repr(build(f"{user_file}:Counter", SHAPE)) == f"{user_file}:Counter"


def test_ones_own_module_goes_into_a_model_like_any_other(user_file: str) -> None:
    model = posenc.Decoder(vocab=5, dim=48, heads=6, layers=2, encoding=f"{user_file}:Counter(step=0.5)")
    assert [str(encoding) for encoding in model.stack.input_encodings] == [f"{user_file}:Counter(step=0.5)"]


def test_a_relative_path_will_do(user_file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(user_file).parent)
    assert repr(build("mine.py:Counter", SHAPE)) == "mine.py:Counter"


def test_what_is_wrong_with_ones_own_module_is_said(user_file: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"mine.py' has no encoding named 'Conter'; it has: Counter"):
        build(f"{user_file}:Conter", SHAPE)
    with pytest.raises(
        ValueError,
        match=r"no file '.*gone.py' to take 'Counter' from; a spec of your own module is path/to/file.py:Class",
    ):
        build(f"{tmp_path}/gone.py:Counter", SHAPE)
    with pytest.raises(
        ValueError, match=r"mine.py:Counter has no option 'stop'; it has: dim, step; did you mean 'step'"
    ):
        build(f"{user_file}:Counter(stop=2)", SHAPE)
    broken_file = tmp_path / "broken.py"
    broken_file.write_text("import nothing_of_this_name\n")
    with pytest.raises(
        ValueError,
        match=r"broken.py' could not be imported: ModuleNotFoundError: No module named 'nothing_of_this_name'",
    ):
        build(f"{broken_file}:Counter", SHAPE)
    plain = tmp_path / "plain.py"
    plain.write_text("class Counter: ...\n")
    with pytest.raises(
        ValueError, match=r"plain.py' has no encoding named 'Counter'; it has: no subclass of posenc.Encoding"
    ):
        build(f"{plain}:Counter", SHAPE)


def test_a_file_must_hold_exactly_one_encoding() -> None:
    module = type(sys)("posenc.encodings.several")
    for name in ("One", "Two"):
        setattr(module, name, type(name, (Encoding,), {"__module__": module.__name__}))
    with pytest.raises(
        ValueError, match=r"encodings/several.py must hold exactly one encoding, .*; found \['One', 'Two'\]"
    ):
        catalogue.ENCODINGS.class_of_module(module)


def test_a_new_file_among_the_encodings_is_found_with_no_other_edit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "encodings"
    shutil.copytree(Path(*posenc.encodings.__path__), home)
    (home / "counter.py").write_text(USER_MODULE.format(name="Tally"), encoding="utf-8")
    monkeypatch.setattr(posenc.encodings, "__path__", [str(home)])
    try:
        assert "counter" in names() and "Tally" in dir(posenc)
        encoding = build("counter(step=2) + rotary", SHAPE)
        assert str(encoding) == "counter(step=2) + rotary" and str(posenc.Tally(8)) == "counter"
        model = posenc.Decoder(vocab=5, dim=48, heads=6, layers=2, encoding=("counter", "counter + alibi"))
        assert [str(adding) for adding in model.stack.input_encodings] == ["counter"]
    finally:
        sys.modules.pop("posenc.encodings.counter", None)


@pytest.mark.parametrize("word", CLASSES_BY_WORD)
def test_a_class_of_others_in_place_of_a_spec_is_answered_with_what_it_is_here(word: str) -> None:
    name = catalogue.ENCODINGS.class_names.get(CLASSES_BY_WORD[word][0], f"posenc.{CLASSES_BY_WORD[word][0]}")
    with pytest.raises(
        ValueError, match=rf"^no encoding named '{word}'; did you mean '{name}'\? posenc list encodings"
    ):
        build(word, SHAPE)


def test_an_encoding_that_is_given_goes_where_its_layer_is_made() -> None:
    layer = posenc.Attention(12, 2, encoding=T5Bias(2), dtype=torch.float64)
    assert {p.dtype for p in layer.parameters()} == {torch.float64}
    assert posenc.Attention(12, 2, encoding=T5Bias(2), device="meta").encoding.table.is_meta


def test_wavelengths_are_exact_and_the_shortest_comes_first() -> None:
    waves = {name: w for name in names() if (w := build(name, SHAPE).wavelengths) is not None}
    assert {"rotary", "rotary_values", "fourier_rotary", "sandwich", "sinusoidal"} <= waves.keys()
    for name, lengths in waves.items():
        finite = lengths[lengths.isfinite()]
        assert lengths.dtype == torch.float64 and bool((finite.diff() >= 0).all()), name
        # In most encodings the fastest pair rotates by one radian per position.
        if name not in ("continuous_time", "image_rotary"):
            assert finite[0].item() == pytest.approx(2 * math.pi, rel=1e-15), name


def test_what_each_layer_learns_for_itself_and_what_all_layers_share_is_as_published() -> None:
    # Layers share one table in T5, in TUPE, and in encodings added to the embeddings.
    shared_by_layers = {"learned", "learned_factorised", "learned_grid", "continuous_time", "t5_bias", "tupe"}
    learning = [encoding for encoding in (build(name, SHAPE) for name in names()) if list(encoding.parameters())]
    assert {encoding.spec_name for encoding in learning if not encoding.per_layer} == shared_by_layers


def test_a_schedule_named_by_a_bare_word_gets_the_trained_length_too() -> None:
    shape = Shape.of(64, 4, 128)
    assert str(build("rotary(schedule=dynamic_ntk)", shape)) == str(build("rotary(schedule=dynamic_ntk())", shape))
