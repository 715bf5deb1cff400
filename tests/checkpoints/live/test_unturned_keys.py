"""Encodings on unturned keys in live transformers models, against the models themselves and formulas in float64."""

import copy
import math

import pytest
import torch

transformers = pytest.importorskip("transformers")

from tiny_models import call_with_cache, model_cache  # noqa: E402

from posenc import masks  # noqa: E402
from posenc.catalogue import build  # noqa: E402
from posenc.checkpoints.live.cached_positions import PassPositions  # noqa: E402
from posenc.checkpoints.live.unturned_keys import MaskRule, attach_unturned, attend_in_transformers  # noqa: E402
from posenc.encoding.base import Encoding, Shape  # noqa: E402
from posenc.model.attention import Attention  # noqa: E402
from posenc.tokens.positions import Positions  # noqa: E402

SMALL = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "initializer_range": 0.2,
}
SHAPE = Shape(32, 4, 8, 64, True)
FAMILIES = {
    "llama": {},
    "qwen2": {},
    "mistral": {"sliding_window": 6},
    "phi3": {
        "rope_parameters": {
            "rope_type": "longrope",
            "rope_theta": 10_000.0,
            "short_factor": [1.0, 1.1, 1.3, 1.5],
            "long_factor": [1.0, 2.0, 3.0, 4.0],
            "factor": 4.0,
            "original_max_position_embeddings": 16,
        },
        "original_max_position_embeddings": 16,
        "sliding_window": None,
    },
    "gemma2": {"head_dim": 8, "query_pre_attn_scalar": 24, "sliding_window": 6, "attn_logit_softcapping": 0.5},
    # It passes no window to attention, only a mask.
    "qwen2_moe": {
        "sliding_window": 6,
        "use_sliding_window": True,
        "max_window_layers": 0,
        "num_experts": 2,
        "num_experts_per_tok": 1,
        "moe_intermediate_size": 16,
        "shared_expert_intermediate_size": 16,
    },
    "deepseek_v3": {
        "q_lora_rank": 16,
        "kv_lora_rank": 16,
        "qk_nope_head_dim": 8,
        "qk_rope_head_dim": 8,
        "v_head_dim": 12,
        "num_key_value_heads": 4,
        "first_k_dense_replace": 9,
    },
    # Its masks are chunks, made from the same functions as windows.
    "llama4_text": {
        "head_dim": 8,
        "no_rope_layers": [1, 0],
        "intermediate_size_mlp": 32,
        "num_local_experts": 2,
        "attention_chunk_size": 5,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0},
    },
    "nemotron": {},
    "gpt_oss": {"head_dim": 8, "sliding_window": 6, "num_local_experts": 2, "num_experts_per_tok": 1},
}
LONGROPE = (
    "rotary(schedule=longrope(factor=4, short_factor=(1.0, 1.1, 1.3, 1.5), long_factor=(1.0, 2.0, 3.0, 4.0), "
    "trained_length=16))"
)
INTERLEAVED_ROTARY = "rotary(layout='interleaved')"
SPECS = {"phi3": LONGROPE, "deepseek_v3": INTERLEAVED_ROTARY, "llama4_text": (INTERLEAVED_ROTARY, "none")}
DYNAMIC = "rotary(schedule=dynamic_ntk(factor=2, trained_length=8))"


def tiny(kind: str = "llama", **options):
    """A model of random weights, large enough that positions matter."""
    config = transformers.AutoConfig.for_model(kind, **(SMALL | FAMILIES[kind] | options))
    if kind == "gpt_oss":
        config.rope_parameters = {"rope_type": "default", "rope_theta": 10_000.0}
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    for name, parameter in model.named_parameters():
        if "bias" in name or "sinks" in name:
            torch.nn.init.normal_(parameter)
    model.generation_config.pad_token_id = 0
    model.generation_config.eos_token_id = None
    return model


def encodings(spec: str | tuple[str, ...], model) -> list[Encoding]:
    specs = (spec,) * model.config.num_hidden_layers if isinstance(spec, str) else spec
    by_spec = {layer_spec: build(layer_spec, SHAPE) for layer_spec in specs}
    return [by_spec[layer_spec] for layer_spec in specs]


def ids(rows: int = 2, tokens: int = 12) -> torch.Tensor:
    return torch.randint(1, 61, (rows, tokens), generator=torch.Generator().manual_seed(1))


def assert_near(actual: torch.Tensor, expected: torch.Tensor, tolerance: float = 1e-5) -> None:
    assert float((actual - expected).abs().max()) <= tolerance


def left_padded(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    mask = torch.ones_like(rows)
    mask[0, :5] = 0
    return mask, (mask.cumsum(1) - 1).clamp(min=0)


def in_chunks(model, x: torch.Tensor, sizes, cache=None, **kwargs) -> torch.Tensor:
    cache = transformers.DynamicCache(config=model.config) if cache is None else cache
    outs = [call_with_cache(model, cache, part, **kwargs).logits for part in x.split(sizes, 1)]
    return torch.cat(outs, 1)


@pytest.mark.parametrize("kind", [kind for kind in FAMILIES if kind != "nemotron"])
@torch.inference_mode()
def test_the_models_own_rotation_on_unturned_keys_gives_its_own_logits(kind):
    model, x = tiny(kind), ids()
    mask, at = left_padded(x)
    document_ids = torch.tensor([[0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 5, 6]])

    def runs() -> dict[str, torch.Tensor]:
        plain = model(x).logits
        visible = mask.bool()
        cache = transformers.DynamicCache(config=model.config)
        first = call_with_cache(model, cache, x[:, :7], attention_mask=mask[:, :7], position_ids=at[:, :7]).logits
        second = call_with_cache(model, cache, x[:, 7:], attention_mask=mask, position_ids=at[:, 7:]).logits
        four = torch.full((2, 1, 12, 12), torch.finfo(torch.float32).min).triu(1)
        four[0, :, 7:, 3] = -0.5
        return {
            "plain": plain,
            "chunks": in_chunks(model, x, [5, 1, 6]),
            "padded": torch.cat((first, second), 1)[visible],
            "packed": model(x[:1], position_ids=document_ids, use_cache=False).logits,
            "a mask of four axes": model(x, attention_mask=four).logits,
            "far away": model(x, position_ids=torch.arange(3, 15)[None]).logits,
        }

    expected = runs()
    undo = attach_unturned(model, encodings(SPECS.get(kind, "rotary"), model), horizon=16)
    for name, actual in runs().items():
        assert float((actual - expected[name]).abs().max()) <= 1e-5, name
    undo()
    assert all(actual.equal(expected[name]) for name, actual in runs().items())


@pytest.mark.parametrize("kind", ["llama", "mistral"])
@torch.inference_mode()
def test_generation_of_every_sort_goes_on_as_before(kind):
    model, x = tiny(kind), ids()
    mask, _ = left_padded(x)
    options = {"attention_mask": mask, "max_new_tokens": 6, "do_sample": False}

    def runs() -> dict[str, torch.Tensor]:
        return {
            "greedy": model.generate(x, **options),
            "beams": model.generate(x, num_beams=3, **options),
            "static": model.generate(x, cache_implementation="static", **options),
            "looked up": model.generate(x[1:], prompt_lookup_num_tokens=3, max_new_tokens=6, do_sample=False),
            "without a cache": model.generate(x, use_cache=False, **options),
        }

    expected = runs()
    attach_unturned(model, encodings("rotary", model))
    for name, actual in runs().items():
        assert actual.equal(expected[name]), name


@torch.inference_mode()
def test_padding_without_ids_stands_where_its_tokens_are():
    model, x = tiny(), ids()
    mask, _ = left_padded(x)
    attach_unturned(model, encodings("rotary", model))
    assert_near(model(x, attention_mask=mask).logits[0, 5:], model(x[:1, 5:]).logits[0])


@pytest.mark.parametrize("spec", [DYNAMIC, LONGROPE])
@torch.inference_mode()
def test_a_horizon_that_moves_is_that_of_a_pass_over_all_tokens(spec):
    # One layer: deeper ones keep states of earlier horizons.
    model, x = tiny(num_hidden_layers=1), ids(tokens=24)
    bare = tiny(num_hidden_layers=1)
    bare.load_state_dict(model.state_dict())
    attach_unturned(model, encodings(spec, model))
    cache = transformers.DynamicCache(config=model.config)
    for end in range(1, 25):
        step = call_with_cache(model, cache, x[:, end - 1 : end]).logits
        assert_near(step[:, 0], model(x[:, :end], use_cache=False).logits[:, -1])


@pytest.mark.parametrize("spec", [DYNAMIC, LONGROPE])
@torch.inference_mode()
def test_a_declared_horizon_serves_chunks_and_layers_alike(spec):
    model, x = tiny(), ids(tokens=24)
    attach_unturned(model, encodings(spec, model), horizon=24)
    assert_near(in_chunks(model, x, [7, 1, 16]), model(x, use_cache=False).logits)


@torch.inference_mode()
def test_dynamic_ntk_is_transformers_own_where_that_is_right():
    model, x = tiny(), ids(tokens=24)
    rope = {"rope_type": "dynamic", "rope_theta": 10_000.0, "factor": 2.0, "original_max_position_embeddings": 8}
    reference = tiny(rope_parameters=rope, max_position_embeddings=8)
    reference.load_state_dict(model.state_dict())
    attach_unturned(model, encodings(DYNAMIC, model))
    assert_near(model(x).logits, reference(x).logits)


@torch.inference_mode()
def test_a_short_row_beside_a_long_one_has_its_own_horizon():
    model, x = tiny(), ids(tokens=20)
    mask = torch.ones_like(x)
    mask[0, :14] = 0
    attach_unturned(model, encodings(DYNAMIC, model))
    together = model(x, attention_mask=mask).logits
    assert_near(together[0, 14:], model(x[:1, 14:]).logits[0])
    assert_near(together[1], model(x[1:]).logits[0])


class Recorder(torch.nn.Module):
    """Record the inputs of a module."""

    def __init__(self, linear: torch.nn.Module) -> None:
        super().__init__()
        self.linear = linear
        self.inputs: list[torch.Tensor] = []

    def forward(self, x):
        self.inputs.append(x)
        return self.linear(x)


@pytest.mark.parametrize(
    "spec",
    [
        "self_extend(rotary, window=4, group=2)",
        "rerope(rotary, window=5)",
        "dual_chunk(rotary, chunk=6)",
        "rotary + log_temperature",
        "alibi",
        "fire",
        "rotary(partial=0.5) + kerple",
    ],
)
@torch.inference_mode()
def test_it_is_the_attention_that_posenc_computes(spec):
    model, x = tiny(num_hidden_layers=1), ids()
    encoding = build(spec, SHAPE)
    attach_unturned(model, [encoding])
    attention = Attention(32, heads=4, kv_heads=2, encoding=encoding, bias=False, kernel="reference")
    llama_attention = model.model.layers[0].self_attn
    for name in ("query", "key", "value", "output"):
        getattr(attention, f"{name[0]}_proj").weight = getattr(llama_attention, f"{name[0]}_proj").weight
    recorded_states: list[torch.Tensor] = []
    llama_attention.register_forward_hook(
        lambda _, args, kwargs, out: recorded_states.extend((kwargs["hidden_states"], out[0])), with_kwargs=True
    )
    model(x)
    assert_near(recorded_states[1], attention(recorded_states[0], mask=masks.causal()))
    assert_near(in_chunks(model, x, [5, 1, 6]), model(x).logits)


@torch.inference_mode()
def test_alibi_in_a_llama_is_the_published_formula():
    model, x = tiny(num_hidden_layers=1), ids(rows=1)
    attach_unturned(model, encodings("alibi", model))
    layer = model.model.layers[0]
    states = layer.input_layernorm(model.model.embed_tokens(x)).double()[0]
    q, k, v = (
        (states @ getattr(layer.self_attn, f"{name}_proj").weight.double().T).unflatten(-1, (-1, 8)) for name in "qkv"
    )
    heads = []
    for head in range(4):
        logits = q[:, head] @ k[:, head // 2].T / math.sqrt(8)
        slope = 2.0 ** (-8 * (head + 1) / 4)
        distance = torch.arange(12)[:, None] - torch.arange(12)
        logits = (logits - slope * distance).masked_fill(distance < 0, -math.inf)
        heads.append(logits.softmax(-1) @ v[:, head // 2])
    expected = torch.cat(heads, -1) @ layer.self_attn.o_proj.weight.double().T
    outputs = []
    layer.self_attn.register_forward_hook(lambda _, args, out: outputs.append(out[0]))
    model(x)
    assert_near(outputs[0][0].double(), expected)


@torch.inference_mode()
def test_a_cache_takes_along_where_its_rows_stand():
    model, x = tiny(), ids()
    at = torch.stack((torch.arange(12), 2 * torch.arange(12)))
    attach_unturned(model, encodings("rotary", model))
    want = model(x, position_ids=at, attention_mask=torch.ones_like(x)).logits
    cache = transformers.DynamicCache(config=model.config)
    call_with_cache(model, cache, x[:, :9], position_ids=at[:, :9])

    def next_of(cache, rows: list[int], start: int = 9) -> torch.Tensor:
        return call_with_cache(model, cache, x[rows, start:], position_ids=at[rows, start:]).logits

    reordered_cache, selected_cache, repeated_cache, cropped_cache = (copy.deepcopy(cache) for _ in range(4))
    reordered_cache.reorder_cache(torch.tensor([1, 0]))
    assert_near(next_of(reordered_cache, [1, 0]), want[[1, 0], 9:])
    selected_cache.batch_select_indices(torch.tensor([1]))
    assert_near(next_of(selected_cache, [1]), want[[1], 9:])
    repeated_cache.batch_repeat_interleave(2)
    assert_near(next_of(repeated_cache, [0, 0, 1, 1]), want[[0, 0, 1, 1], 9:])
    cropped_cache.crop(-4)
    assert_near(next_of(cropped_cache, [0, 1], 5), want[:, 5:])
    assert_near(next_of(cache, [0, 1]), want[:, 9:])
    cache.reset()
    assert_near(call_with_cache(model, cache, x).logits, model(x).logits)
    assert isinstance(cache, transformers.DynamicCache) and type(cache).__name__ == "DynamicCache"


@torch.inference_mode()
def test_a_cache_that_the_model_made_itself_can_be_gone_on_with():
    model, x = tiny(), ids()
    attach_unturned(model, encodings("self_extend(rotary, window=4, group=2)", model))
    want = model(x).logits
    assert_near(call_with_cache(model, model_cache(model, x[:, :5]), x[:, 5:]).logits, want[:, 5:])
    first = model.model(x[:, :5], return_dict=False)
    assert_near(call_with_cache(model, first[1], x[:, 5:]).logits, want[:, 5:])


@pytest.mark.parametrize("spec", [DYNAMIC, "self_extend(rotary, window=4, group=2)"])
def test_training_has_the_same_gradients_with_checkpointed_layers(spec):
    model, x = tiny(), ids()
    attach_unturned(model, encodings(spec, model))

    def gradients() -> list[torch.Tensor]:
        model.zero_grad()
        model(x, labels=x).loss.backward()
        return [parameter.grad for parameter in model.parameters()]

    want = gradients()
    model.train()
    model.activation_checkpointing_enable()
    for actual, gradient in zip(gradients(), want, strict=True):
        assert_near(actual, gradient)


@torch.inference_mode()
def test_dropout_is_drawn_in_training():
    model, x = tiny(attention_dropout=0.9), ids()
    attach_unturned(model, encodings("rotary", model))
    assert_near(model(x).logits, model(x).logits, 0)
    model.train()
    assert float((model(x).logits - model(x).logits).abs().max()) > 0.1


def test_an_encodings_own_parameters_are_the_models_while_it_is_attached():
    model, x = tiny(), ids()
    old_names = set(model.state_dict())
    undo = attach_unturned(model, encodings("fire", model))
    model(x, labels=x).loss.backward()
    parameters = {name: p for name, p in model.named_parameters() if name not in old_names}
    assert parameters and all(parameter.grad is not None for parameter in parameters.values())
    undo()
    assert set(model.state_dict()) == old_names


@torch.inference_mode()
def test_nothing_is_left_of_it():
    model, x = tiny(), ids()
    config = model.config.to_json_string()
    undo = attach_unturned(model, encodings("rotary", model))
    assert model.config.to_json_string() == config
    undo()
    assert not model.model._forward_pre_hooks and not model.model._forward_hooks
    assert type(model_cache(model, x)) is transformers.DynamicCache


@torch.inference_mode()
def test_half_precision_stays_near_to_single():
    model, x = tiny(), ids()
    attach_unturned(model, encodings(DYNAMIC, model))
    want = model(x).logits
    assert_near(model.bfloat16()(x).logits.float(), want, 0.1 * float(want.abs().max()))


@torch.inference_mode()
def test_attention_weights_are_given_when_they_are_asked_for():
    model, x = tiny(), ids()
    attach_unturned(model, encodings("rerope(rotary, window=5)", model))
    weights = model(x, output_attentions=True).attentions
    assert len(weights) == 2
    assert_near(weights[0].sum(-1), torch.ones(2, 4, 12))
    assert float(weights[0].triu(1).abs().max()) == 0


def test_what_cannot_be_attached_is_refused():
    model = tiny()
    rotary = encodings("rotary", model)
    with pytest.raises(TypeError, match="expected a model of transformers, got Linear"):
        attach_unturned(torch.nn.Linear(2, 2), rotary)
    with pytest.raises(ValueError, match="LlamaModel has 2 layers and needs an encoding for each, got 1"):
        attach_unturned(model, rotary[:1])
    with pytest.raises(ValueError, match=r"learned.* opens embed, which reads or changes the states"):
        attach_unturned(model, encodings("learned", model))
    with pytest.raises(ValueError, match="reads 2 axes, and the tokens of LlamaModel have one"):
        attach_unturned(model, encodings("axial_rotary", model))
    attach_unturned(model, rotary)
    with pytest.raises(ValueError, match="LlamaModel is attached already; detach it first"):
        attach_unturned(model, rotary)
    t5 = transformers.T5Model(
        transformers.T5Config(vocab_size=61, d_model=32, d_kv=8, d_ff=32, num_layers=1, num_heads=4)
    )
    with pytest.raises(ValueError, match="T5Stack attends to an encoder too"):
        attach_unturned(t5, rotary[:1])
    falcon = transformers.FalconModel(
        transformers.FalconConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=4, vocab_size=61)
    )
    with pytest.raises(ValueError, match="FalconModel attends by code of its own"):
        attach_unturned(falcon, rotary[:1])
    gpt2 = transformers.GPT2Model(transformers.GPT2Config(n_embd=32, n_layer=1, n_head=4, vocab_size=61))
    with pytest.raises(ValueError, match="GPT2Model has no rotary module"):
        attach_unturned(gpt2, rotary[:1])


@torch.inference_mode()
def test_latent_attention_may_be_shown_other_distances():
    model, x = tiny("deepseek_v3"), ids()
    want = model(x).logits
    undo = attach_unturned(model, encodings("rerope(rotary(layout='interleaved'), window=12)", model))
    assert_near(model(x).logits, want)
    undo()
    attach_unturned(model, encodings("rerope(rotary(layout='interleaved'), window=5)", model))
    actual = model(x).logits
    assert_near(actual[:, :5], want[:, :5])
    assert float((actual - want)[:, 6:].abs().amax(-1).min()) > 1e-3
    assert_near(in_chunks(model, x, [5, 1, 6]), actual)


@torch.inference_mode()
def test_a_cache_of_slots_holds_what_a_growing_one_does():
    for kind in ("llama", "mistral"):
        model, x = tiny(kind), ids()
        attach_unturned(model, encodings("self_extend(rotary, window=4, group=2)", model))
        cache = transformers.StaticCache(config=model.config, max_cache_len=16)
        assert_near(in_chunks(model, x, [3, 1, 5, 1, 2], cache), model(x).logits)


def test_a_model_that_works_on_its_masks_fails_where_they_are_rules():
    rule = MaskRule.from_mask(masks.causal())
    assert rule.shape == (1, 1, 1, 1) and rule.contiguous().to("cpu").mask.causal
    with pytest.raises(RuntimeError, match=r"the model works on its attention mask by itself \('mul'\)"):
        rule * 2


def test_without_any_mask_it_is_what_the_module_says():
    q, at = torch.randn(1, 4, 5, 8), Positions.count(5)
    module = torch.nn.Module()
    module.layer_idx, module.is_causal = 0, True
    step = PassPositions((build("none", SHAPE),), at, at, [(5, 0)])
    for is_causal, causal in ((None, True), (False, False)):
        want = torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=causal)
        assert_near(
            attend_in_transformers(module, q, q, q, None, is_causal=is_causal, posenc=step)[0].transpose(1, 2), want
        )


@torch.inference_mode()
def test_a_model_that_keeps_its_keywords_to_itself_fails():
    model = tiny("nemotron")
    attach_unturned(model, encodings("rotary(partial=0.5)", model))
    with pytest.raises(RuntimeError, match="NemotronAttention was not told where its tokens stand"):
        model(ids())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Dynamo detected a call to a `functools.lru_cache`")
@torch.inference_mode()
def test_compiled_it_is_the_same_or_refused():
    model, x = tiny(), ids()
    attach_unturned(model, encodings(DYNAMIC, model))
    assert_near(torch.compile(model, backend="eager")(x).logits, model(x).logits)
    torch._dynamo.reset()
    with pytest.raises(Exception, match="Observed exception"):
        torch.compile(model, backend="eager", fullgraph=True)(x)


@torch.inference_mode()
def test_what_a_pass_cannot_say_is_refused():
    model, x = tiny(), ids()
    foreign_cache = model_cache(model, x[:, :4])
    undo = attach_unturned(model, encodings(DYNAMIC, model))
    with pytest.raises(ValueError, match="the cache holds 4 tokens, of which 4 were put in by a model that was not"):
        call_with_cache(model, foreign_cache, x[:, 4:])
    with pytest.raises(ValueError, match="several documents in a row have one horizon only when it is declared"):
        model(x, position_ids=torch.tensor([[0, 1, 2, 0, 1, 2, 3, 4, 5, 6, 7, 8]]), use_cache=False)
    with pytest.raises(ValueError, match=r"position_ids have one axis here, .* got \[3, 2, 12\]"):
        model(x, position_ids=torch.arange(12).expand(3, 2, -1))
    cache = model_cache(model, x[:, :4])
    with pytest.raises(ValueError, match="attention_mask must cover the 4 tokens in the cache and the 8 new ones"):
        call_with_cache(model, cache, x[:, 4:], attention_mask=torch.ones_like(x[:, 4:]))
    undo()
    attach_unturned(model, encodings(DYNAMIC, model), horizon=8)
    with pytest.raises(ValueError, match="a token stands at position 11, beyond the declared horizon of 8 tokens"):
        model(x)
    gemma2 = tiny("gemma2")
    attach_unturned(gemma2, encodings("self_extend(rotary, window=4, group=2)", gemma2))
    with pytest.raises(ValueError, match=r"self_extend.* and a model with capped logits both replace"):
        gemma2(x)


@torch.inference_mode()
def test_a_distance_map_stands_beside_the_sinks_of_a_model():
    model, x = tiny("gpt_oss"), ids()
    expected = model(x).logits
    for window, is_equal in ((99, True), (2, False)):
        undo = attach_unturned(model, encodings(f"self_extend(rotary, window={window}, group=2)", model))
        assert bool(((model(x).logits - expected).abs().max() <= 1e-5).item()) == is_equal
        undo()
