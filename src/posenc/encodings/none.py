"""No positional encoding."""

from posenc.encoding.base import Encoding


class NoPE(Encoding):
    """Nothing is added, turned or biased: order enters only through the causal mask.

    logit(i, j) = scale * q_i . k_j

    A bidirectional transformer without position is equivariant: permuted tokens give permuted outputs. A causal one is
    blind to the order of what it has read in its first layer, and only there: a second layer sees prefixes that differ.
    It counts only from an anchor (a beginning-of-sequence token): on a constant sequence every layer's output is
    constant.

    Limits: slow to train at small sizes; it does not extrapolate to any length (a 1.3B model trained at 1,024 tokens
    breaks at about 1.6 times that).
    Source: Haviv et al. 2022, arXiv:2203.16634; Kazemnejad et al. 2023, arXiv:2305.19466, section 3 and appendix F.

    >>> NoPE().doors
    frozenset()
    """

    equation = r"\operatorname{logit}(i, j) = \text{scale}\, q_i \cdot k_j"
    source = "Haviv et al. 2022, arXiv:2203.16634; Kazemnejad et al. 2023, arXiv:2305.19466"
    also_called = ("nope", "no_position")
    extrapolates = (
        "claimed best on small tasks; a 1.3B model holds to about 1.4 times the trained length and breaks at 1.6 times"
    )
    used_by = (
        "attention layers of Kimi Linear and GLM-5.3-Flash; every 4th layer of SmolLM3, Llama 4, Mistral Large 4 and "
        "Muse Spark; global layers of Cohere2 and EXAONE 4"
    )
