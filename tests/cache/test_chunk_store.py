"""Chunks that are computed once: exact in front and where all is computed anew, the same as a splice in between."""

import pytest
import torch

from posenc import Decoder
from posenc.chunk_store import ChunkStore

PROMPT, FIRST, SECOND = (torch.randint(11, (1, n), generator=torch.Generator().manual_seed(n)) for n in (4, 7, 5))
NEW = torch.tensor([[1, 2, 3]])


def model_of(encoding: str = "rotary + alibi") -> Decoder:
    torch.manual_seed(0)
    return Decoder(11, 24, 3, 2, encoding=encoding, max_len=64).double().eval()


def whole(model: Decoder) -> torch.Tensor:
    return model(torch.cat((PROMPT, FIRST, SECOND, NEW), 1))[:, -3:]


@torch.no_grad()
def test_where_all_tokens_are_computed_anew_it_is_plain_decoding() -> None:
    model = model_of()
    store = ChunkStore(model)
    cache = store.behind_one_another(PROMPT, FIRST, SECOND, recompute=7)
    torch.testing.assert_close(model(NEW, cache=cache), whole(model), rtol=0, atol=1e-12)


@torch.no_grad()
def test_a_chunk_that_reads_nothing_in_front_of_it_is_exact() -> None:
    """With one layer, keys are of their own tokens alone."""
    torch.manual_seed(0)
    model = Decoder(11, 24, 3, 1, encoding="rotary").double().eval()
    for recompute in (0, 2, 6):
        cache = ChunkStore(model).behind_one_another(PROMPT, FIRST, SECOND, recompute=recompute)
        torch.testing.assert_close(model(NEW, cache=cache), whole(model), rtol=0, atol=1e-12)


@torch.no_grad()
def test_what_is_computed_anew_brings_it_nearer() -> None:
    model = model_of()
    off = []
    for recompute in (0, 3, 6, 7):
        cache = ChunkStore(model).behind_one_another(PROMPT, FIRST, SECOND, recompute=recompute)
        off.append(float((model(NEW, cache=cache) - whole(model)).norm()))
    assert off[0] > off[2] > off[3] and off[3] < 1e-10


@torch.no_grad()
def test_a_chunk_is_computed_once_and_stays_as_it_was() -> None:
    model = model_of()
    store = ChunkStore(model)
    first = store.behind_one_another(PROMPT, FIRST)
    assert store.computed == 11
    model(NEW, cache=first)
    again = store.behind_one_another(SECOND, FIRST)
    assert store.computed == 16
    alone = ChunkStore(model).behind_one_another(SECOND, FIRST)
    torch.testing.assert_close(model(NEW, cache=again), model(NEW, cache=alone), rtol=0, atol=0)


def test_the_oldest_chunks_go_where_there_is_no_room() -> None:
    model = model_of()
    one = ChunkStore(model)
    one.alone(FIRST)
    store = ChunkStore(model, limit=one.bytes)
    store.alone(PROMPT), store.alone(FIRST)
    assert [len(key) for key in store.chunks] == [7] and store.bytes <= store.limit
    store.alone(PROMPT)
    assert store.computed == 4 + 7 + 4


def test_what_no_store_can_do_is_refused() -> None:
    with pytest.raises(ValueError, match=r"give at least one chunk of token ids, \[1, tokens\]"):
        ChunkStore(model_of()).behind_one_another()
    with pytest.raises(ValueError, match=r"a chunk is token ids of shape \[1, tokens\], got \[2, 4\]"):
        ChunkStore(model_of()).behind_one_another(PROMPT.expand(2, -1))
    with pytest.raises(ValueError, match="limit must be a whole number of 1 or more, got 0"):
        ChunkStore(model_of(), limit=0)
    with pytest.raises(ValueError, match="tokens would stand elsewhere, and their keys were made of embeddings"):
        ChunkStore(model_of("learned")).behind_one_another(PROMPT, FIRST)
