"""Token embedding + positions + dropout.

Source: Vaswani et al. 2017, arXiv:1706.03762, sections 3.4 and 5.4.
Where it goes wrong: the smaller of tokens and positions drowns in the other. See the comment at `token`.
"""

import torch
from torch import Tensor, nn

from posenc.standalone.forms.learned import STD
from posenc.standalone.forms.learned import LearnedPositionalEncoding as PositionalEncoding

TABLE = True


class TokenPositionEmbedding(nn.Module):
    """x = TokenPositionEmbedding(vocab_size, d_model)(input_ids), [batch, seq_len] -> [batch, seq_len, d_model]."""

    def __init__(self, vocab_size: int, d_model: int, max_seq_len: int = 5000, dropout: float = 0.1) -> None:
        super().__init__()
        if TABLE:
            self.token = nn.Embedding(vocab_size, d_model)
            nn.init.normal_(self.token.weight, std=STD)  # as in GPT-2; positions drown in PyTorch's tokens of std 1
        else:
            # Of std 1, beside waves of 0.7. Tokens of std d_model^-0.5, as in the paper, need its factor sqrt(d_model).
            self.token = nn.Embedding(vocab_size, d_model)
        self.position = PositionalEncoding(d_model, max_seq_len)
        self.dropout = nn.Dropout(dropout)

    def forward(self, input_ids: Tensor, position_ids: Tensor | None = None, offset: int = 0) -> Tensor:
        return self.dropout(self.position(self.token(input_ids), position_ids, offset))


if __name__ == "__main__":
    embedding = TokenPositionEmbedding(100, 16, max_seq_len=64).eval()
    input_ids = torch.tensor([[5, 7, 5]])
    torch.testing.assert_close(embedding(input_ids)[:, 2:], embedding(input_ids[:, 2:], offset=2))
