"""Trees of tokens: every branch is what plain decoding gives there, and an accepted one goes on as if it were alone."""

import random

import pytest
import torch
from torch import Tensor

from posenc import Attention, Decoder, Positions, masks
from posenc.cache import GrowingCache
from posenc.positions import Counted
from posenc.seeding import seeded

SPECS = (
    "none",
    "rotary",
    "rotary + alibi",
    "rotary(schedule=yarn(factor=4))",
    "t5_bias",
    "shaw",
    "xpos",
    "learned",
    "sinusoidal",
    "kerple",
    "fire",
    "rerope(rotary, window=3)",
    "deberta",
    "inkling",
    "self_extend(rotary, group=2, window=4)",
    "rotary(schedule=dynamic_ntk())",
    "transformer_xl",
    "log_temperature + rotary",
    "on(rotary, heads=(0, 2))",
    ("rotary", "alibi"),
)
BETWEEN = ("forgetting", "contextual", "path", "selective_rotary", "stick_breaking", "rotary + forgetting")
HELD, TREES = 5, 10
"""Tokens in front of each tree, and trees for each encoding: 200 in all."""


def model_of(spec, seed: int = 0, **sizes) -> Decoder:
    with seeded(seed):
        model = Decoder(vocab=11, dim=24, heads=3, layers=2, max_len=32, encoding=spec, **sizes).double().eval()
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.4)
    return model


def random_tree(draws: random.Random) -> list[int]:
    return [-1, *(draws.randrange(token) for token in range(1, draws.randint(2, 10)))]


def branch(parents: list[int], token: int) -> list[int]:
    """The numbers of the tokens from the root to this one."""
    return ([] if parents[token] < 0 else branch(parents, parents[token])) + [token]


def fed(model: Decoder, cache, ids: Tensor, parents: list[int], start: int, cuts: list[int]) -> Tensor:
    """The logits of a tree of tokens that comes in passes of some sizes behind what a cache holds."""
    logits, begin = [], 0
    for size in cuts:
        known = parents[: begin + size]
        tree = Positions.tree(known, start).rows(slice(begin, None))
        mask = masks.tree(known, held=start, new=size)
        logits.append(model(ids[:, begin : begin + size], positions=tree, mask=mask, cache=cache))
        begin += size
    return torch.cat(logits, 1)


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_every_branch_of_a_random_tree_is_what_plain_decoding_gives(spec) -> None:
    model = model_of(spec)
    draws = random.Random(f"{spec}")
    for _ in range(TREES):
        parents = random_tree(draws)
        first = draws.randint(1, len(parents))
        cuts = [first, *[1] * (len(parents) - first)]
        ids, more = torch.randint(11, (2, HELD + len(parents))), torch.randint(11, (2, 3))
        with torch.no_grad():
            cache = model.cache()
            model(ids[:, :HELD], cache=cache)
            got = fed(model, cache, ids[:, HELD:], parents, HELD, cuts)
            for token in range(len(parents)):
                text = ids[:, [*range(HELD), *(HELD + one for one in branch(parents, token))]]
                torch.testing.assert_close(got[:, token], model(text)[:, -1], rtol=0, atol=1e-10)
            path = branch(parents, draws.randrange(len(parents)))
            cache.accept(path)
            assert type(cache.held) is Counted and cache.held.tokens == HELD + len(path)
            behind = torch.cat((model(more[:, :1], cache=cache), model(more[:, 1:], cache=cache)), 1)
            text = torch.cat((ids[:, [*range(HELD), *(HELD + one for one in path)]], more), 1)
            torch.testing.assert_close(behind, model(text)[:, -3:], rtol=0, atol=1e-10)


def test_rows_of_different_lengths_have_the_tree_behind_their_own_last_token_and_accept_branches_of_their_own() -> None:
    model, parents = model_of("rotary + t5_bias"), [-1, 0, 0, 2, 1, 3]
    ids, guesses, more = torch.randint(11, (2, 5)), torch.randint(11, (2, 6)), torch.randint(11, (2, 2))
    padding = torch.tensor([[0, 0, 1, 1, 1], [1] * 5])
    tree, mask = Positions.tree(parents, start=torch.tensor([3, 5])), masks.tree(parents, held=5)
    paths = [[0, 2, 3, 5], [0, 1]]
    with torch.no_grad():
        cache = model.cache()
        model(ids, padding=padding, cache=cache)
        got = model(guesses, positions=tree, mask=mask, cache=cache)
        cache.accept(paths)
        behind = model(more, cache=cache)
        for row, (begin, path) in enumerate(zip((2, 0), paths, strict=True)):
            text = torch.cat((ids[row, begin:], guesses[row, path], more[row]))[None]
            alone = model(text)[0]
            torch.testing.assert_close(got[row, path], alone[5 - begin : 5 - begin + len(path)], rtol=0, atol=1e-10)
            torch.testing.assert_close(behind[row], alone[-2:], rtol=0, atol=1e-10)


def test_a_window_counts_along_the_branch() -> None:
    model, parents = model_of("alibi", window=3), [-1, 0, 0, 1, 3]
    ids = torch.randint(11, (1, 9))
    with torch.no_grad():
        cache = model.cache()
        model(ids[:, :4], cache=cache)
        got = fed(model, cache, ids[:, 4:], parents, 4, [5])
        torch.testing.assert_close(got[:, 4], model(ids[:, [0, 1, 2, 3, 4, 5, 7, 8]])[:, -1], rtol=0, atol=1e-10)


def test_a_tree_needs_no_cache() -> None:
    layer, x = Attention(12, 3, encoding="rotary").double(), torch.randn(1, 3, 12, dtype=torch.float64)
    parents = torch.tensor([-1, 0, 0])
    got = layer(x, positions=Positions.tree(parents), mask=masks.tree(parents, held=0))
    expected = layer(x[:, [0, 2]], mask=masks.causal())
    torch.testing.assert_close(got[:, [0, 2]], expected, rtol=0, atol=1e-13)


def test_of_a_tree_nothing_is_left_where_nothing_was_accepted_or_it_was_cropped() -> None:
    model, ids = model_of("rotary"), torch.randint(11, (1, 6))
    with torch.no_grad():
        for forget in (lambda cache: cache.accept([]), lambda cache: cache.crop(3)):
            cache = model.cache()
            model(ids[:, :3], cache=cache)
            fed(model, cache, ids[:, 3:], [-1, 0, 0], 3, [3])
            forget(cache)
            assert type(cache.held) is Counted
            torch.testing.assert_close(model(ids[:, 3:], cache=cache), model(ids)[:, 3:], rtol=0, atol=1e-10)


def test_rows_and_copies_of_a_cache_keep_its_tree() -> None:
    model, ids = model_of("rotary"), torch.randint(11, (1, 6))
    with torch.no_grad():
        cache = model.cache()
        model(ids[:, :3], cache=cache)
        fed(model, cache, ids[:, 3:], [-1, 0, 0], 3, [3])
        cache.rows(torch.tensor([0, 0]))
        (twin,) = cache.fork(1)
        twin.accept([[0, 2], [0]])
        more = ids[:, :1].expand(2, 1)
        got = model(more, cache=twin)
        torch.testing.assert_close(got[0], model(ids[:, [0, 1, 2, 3, 5, 0]])[0, -1:], rtol=0, atol=1e-10)
        torch.testing.assert_close(got[1], model(ids[:, [0, 1, 2, 3, 0]])[0, -1:], rtol=0, atol=1e-10)
        assert cache.held.parents == (-1, 0, 0)


@pytest.mark.parametrize("spec", BETWEEN)
def test_encodings_that_read_the_tokens_between_refuse_a_tree(spec: str) -> None:
    model = model_of(("rotary", spec))
    cache = model.cache()
    with torch.no_grad(), pytest.raises(ValueError, match=r"reads the tokens between .* cache\.rows\(\[0\] \* branch"):
        fed(model, cache, torch.tensor([[1, 2, 3]]), [-1, 0, 0], 0, [3])
    assert cache.held is None


def held_tree():
    """A model, and a cache that holds three tokens and a tree of three behind them."""
    model = model_of("rotary")
    cache = model.cache()
    with torch.no_grad():
        model(torch.tensor([[1, 2, 3]]), cache=cache)
        fed(model, cache, torch.tensor([[4, 5, 6]]), [-1, 0, 0], 3, [3])
    return model, cache


def feed_next(parents: list[int], start: int = 3, new: int = 1):
    model, cache = held_tree()
    tree, mask = Positions.tree(parents, start).rows(slice(-new, None)), masks.tree(parents, held=3, new=new)
    with torch.no_grad():
        model(torch.ones(1, new, dtype=torch.long), positions=tree, mask=mask, cache=cache)


def feed_plain():
    model, cache = held_tree()
    with torch.no_grad():
        model(torch.tensor([[1]]), cache=cache)


def first_pass(tree: Positions, mask, **of_cache):
    model = model_of("rotary")
    with torch.no_grad():
        model(torch.ones(1, tree.tokens, dtype=torch.long), positions=tree, mask=mask, cache=model.cache(**of_cache))


WRONG = {
    "parent comes in front of its child, and token 1 has the parent 2": lambda: Positions.tree([-1, 2, 0]),
    "token 1 has the parent 1": lambda: masks.tree([-1, 1], held=0),
    "has one root, token 0, and token 1 has the parent -1; give the tokens one root": lambda: Positions.tree([-1, -1]),
    "the first token of a tree is its root, whose parent is -1, got 0": lambda: Positions.tree([0, 0]),
    r"a tree is said by the index of each token's parent, .* got \[\]": lambda: Positions.tree([]),
    r"a tree is said by .* got \[-1, 0.5\]": lambda: Positions.tree([-1, 0.5]),
    r"a tree is said by .* got a tensor of shape \[1, 2\]": lambda: Positions.tree(torch.tensor([[-1, 0]])),
    r"a tree is said by .* got 'x'": lambda: masks.tree("x", held=0),
    "positions start at 0 or later, got start=-1": lambda: Positions.tree([-1], start=-1),
    r"start is where the root of the tree stands, or \[B\], got a tensor": lambda: Positions.tree(
        [-1], start=torch.tensor([[1]])
    ),
    "the tree has 2 tokens, and 1 to 2 of them may be new, got new=3": lambda: masks.tree([-1, 0], held=1, new=3),
    "got new=0": lambda: masks.tree([-1, 0], held=1, new=0),
    "a cache holds 0 tokens or more, got held=-1": lambda: masks.tree([-1], held=-1),
    "held must be a whole number, got 1.5": lambda: masks.tree([-1], held=1.5),
    r"a mask broadcasts to \[.*2, 2\], got shape \[1, 1, 2, 3\]": lambda: first_pass(
        Positions.tree([-1, 0]), masks.tree([-1, 0], held=1)
    ),
    "siblings in a tree of tokens share an order, .* give mask=masks.tree": lambda: first_pass(
        Positions.tree([-1, 0, 0]), None
    ),
    r"a slot holds the one token of its order, .* use a cache that grows": lambda: first_pass(
        Positions.tree([-1, 0, 0]), masks.tree([-1, 0, 0], held=0), slots=8
    ),
    r"holds 0 tokens of a tree, and those that came, with the parents \[0\]": lambda: first_pass(
        Positions.tree([-1, 0]).rows(slice(1, None)), masks.tree([-1, 0], held=0, new=1)
    ),
    r"the cache holds a tree of 3 tokens, .* accept\(branch\), or give the next tokens of the tree": feed_plain,
    r"holds 3 tokens of a tree, .* with the parents \[-1\], are not its next ones": lambda: feed_next([-1]),
    r"stands one behind its parent, and the root that is held has order 3": lambda: feed_next([-1, 0, 0, 2], start=4),
    r"the cache holds no tree of tokens; feed one": lambda: model_of("rotary").cache().accept([0]),
    r"a branch goes from the root .* got \[1\] where the parents are \[-1, 0, 0\]": lambda: held_tree()[1].accept([1]),
    r"a branch goes from the root .* got \[0, 1, 2\]": lambda: held_tree()[1].accept([0, 1, 2]),
    r"a branch goes from the root .* got \[0, 3\]": lambda: held_tree()[1].accept([0, 3]),
    r"accept takes .* for each of the 1 rows, got \[\[0\], \[0\]\]": lambda: held_tree()[1].accept([[0], [0]]),
    r"accept takes .* got 0": lambda: held_tree()[1].accept(0),
    r"a tree of 3 tokens is held whole or not at all, and order 4 is inside": lambda: held_tree()[1].crop(4),
    r"the last 3 tokens are of a tree, .* accept\(branch\)": lambda: held_tree()[1].evict([0]),
    "tokens are of a tree, where an order does not": lambda: held_tree()[1].move(by=1),
    "are of a tree, where an order does not name": lambda: held_tree()[1].splice(held_tree()[1], 0),
}


@pytest.mark.parametrize("words", WRONG)
def test_what_is_no_tree_is_refused(words: str) -> None:
    with pytest.raises(ValueError, match=words):
        WRONG[words]()


def test_a_refused_branch_changes_nothing() -> None:
    _, cache = held_tree()
    before = [layer.keys for layer in cache.layers]
    with pytest.raises(ValueError, match="a branch goes"):
        cache.accept([0, 0])
    assert all(layer.keys is keys for layer, keys in zip(cache.layers, before, strict=True))


def test_the_facts_of_a_tree_are_read_off_its_parents() -> None:
    tree = Positions.tree([-1, 0, 0, 2], start=5)
    assert tree.order.tolist() == [[5, 6, 6, 7]] and tree.coords[..., 0].tolist() == tree.order.tolist()
    assert tree.unit_step and tree.extent == 8 and not (tree.contiguous or tree.loose)
    assert tree.rows(slice(-2, None)).parents == (0, 2) == tree.rows(torch.tensor([2, 3])).parents
    assert GrowingCache().held is None and tree.next().parents == ()
