"""Networks over tables of vectors: a recurrent language model, and matrix factorisation."""

from __future__ import annotations

from typing import Any

from ... import nd
from ...gluon import nn, rnn
from ...gluon.hybrid import HybridBlock
from ...gluon.parameter import Parameter
from ...nd.array import Array


class LanguageModel(HybridBlock):
    """A language model of LSTM layers (Zaremba et al. 2014, arXiv 1409.2329): 19,780,400 parameters for the medium one,
    "20M", and 66,034,000 for the large one, "66M", both with PyTorch's two biases for each gate. Names are those of
    PyTorch's word_language_model.

    Token ids [batch, length] to scores of the next ones [batch, length, vocabulary]; with `states` of `no_states` also
    those behind.
    """

    def __init__(self, units: int = 650, layers: int = 2, *, vocabulary: int = 10000, drop: float = 0.5) -> None:
        super().__init__()
        self.drop, self.encoder = nn.Dropout(drop), nn.Embedding(vocabulary, units)
        self.rnn = rnn.LSTM(units, layers, layout="NTC", dropout=drop, input_size=units)
        self.decoder = nn.Dense(vocabulary, in_units=units, flatten=False)

    def no_states(self, batch: int = 1) -> list[Array]:
        """States before the first token: zeros [layers, batch, units], twice."""
        return self.rnn.begin_state(batch)

    def forward(self, ids: Array, states: Any = None) -> Any:
        x = self.drop(self.encoder(ids))
        y, ends = (self.rnn(x), None) if states is None else self.rnn(x, states)
        scores = self.decoder(self.drop(y))
        return scores if states is None else (scores, ends)


class Factorisation(HybridBlock):
    """Matrix factorisation with biases (Koren et al. 2009): users and items [batch] to ratings [batch]. Of the 943
    users and 1,682 films of MovieLens 100K with 64 factors it has (943 + 1682) * 65 + 1 = 170,626 parameters."""

    def __init__(self, users: int = 943, items: int = 1682, *, factors: int = 64, sparse_grad: bool = False) -> None:
        super().__init__()
        self.user, self.item = (
            nn.Embedding(users, factors, sparse_grad=sparse_grad),
            nn.Embedding(items, factors, sparse_grad=sparse_grad),
        )
        self.user_bias, self.item_bias = (
            nn.Embedding(users, 1, sparse_grad=sparse_grad),
            nn.Embedding(items, 1, sparse_grad=sparse_grad),
        )
        self.mean = Parameter("mean", shape=(1,), init="zeros")

    def forward(self, users: Array, items: Array) -> Array:
        biases = (self.user_bias(users) + self.item_bias(items))[:, 0] + self.mean.data()
        return nd.sum(self.user(users) * self.item(items), axis=1) + biases
