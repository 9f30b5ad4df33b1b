import mxnet as mx
import numpy as np
from common import ByShape
from mxnet import autograd, gluon, nd
from mxnet.gluon import nn, rnn

text = "the quick brown fox jumps over the lazy dog and the quick dog sleeps " * 4
letters = sorted(set(text))
indices = np.array([letters.index(c) for c in text], np.float32)
length, batch = 10, 8
count = (len(indices) - 1) // (length * batch) * batch
x = indices[: count * length].reshape(batch, -1)
y = indices[1 : count * length + 1].reshape(batch, -1)


class Model(gluon.Block):
    def __init__(self, **kwargs):
        super(Model, self).__init__(**kwargs)
        with self.name_scope():
            self.embed = nn.Embedding(len(letters), 6, weight_initializer=ByShape())
            self.lstm = rnn.LSTM(12, input_size=6)
            self.decoder = nn.Dense(len(letters), in_units=12)

    def forward(self, inputs, state):
        output, state = self.lstm(self.embed(inputs), state)
        return self.decoder(output.reshape((-1, 12))), state


model = Model()
model.initialize(ByShape())
trainer = gluon.Trainer(model.collect_params(), "sgd", {"learning_rate": 1.0, "clip_gradient": 0.5})
loss_of = gluon.loss.SoftmaxCrossEntropyLoss()
for epoch in range(4):
    total, steps = 0.0, 0
    state = model.lstm.begin_state(batch_size=batch)
    for at in range(0, x.shape[1] - length + 1, length):
        data, label = nd.array(x[:, at : at + length].T), nd.array(y[:, at : at + length].T.reshape(-1))
        state = [s.detach() for s in state]
        with autograd.record():
            output, state = model(data, state)
            loss = loss_of(output, label)
        loss.backward()
        trainer.step(length * batch)
        total += loss.mean().asscalar()
        steps += 1
    print("epoch", epoch, total / steps)
print("perplexity", mx.nd.exp(mx.nd.array([total / steps])).asscalar())
