import mxnet as mx
import numpy as np
from common import ByShape

rng = np.random.RandomState(5)
sentences = [rng.randint(1, 12, n) for n in rng.choice([4, 6], 240)]
targets = np.array([float(s.sum() % 24 > 11) for s in sentences])


class Buckets(mx.io.DataIter):
    def __init__(self, size):
        super(Buckets, self).__init__(size)
        self.batches = []
        for key in (4, 6):
            rows = [i for i, s in enumerate(sentences) if len(s) == key]
            for at in range(0, len(rows) - size + 1, size):
                self.batches.append((key, rows[at : at + size]))
        self.default_bucket_key = 6
        self.provide_data = [("data", (size, 6))]
        self.provide_label = [("softmax_label", (size,))]
        self.reset()

    def reset(self):
        self.at = 0

    def next(self):
        if self.at == len(self.batches):
            raise StopIteration
        key, rows = self.batches[self.at]
        self.at += 1
        data = mx.nd.array(np.stack([sentences[i] for i in rows]))
        label = mx.nd.array(targets[rows])
        return mx.io.DataBatch([data], [label], pad=0, bucket_key=key, provide_data=[("data", (self.batch_size, key))],
                               provide_label=[("softmax_label", (self.batch_size,))])


def sym_gen(key):
    data = mx.sym.Variable("data")
    embed = mx.sym.Embedding(data=data, input_dim=12, output_dim=6, name="embed")
    hidden = mx.sym.Activation(data=mx.sym.sum(embed, axis=1), act_type="tanh")
    out = mx.sym.FullyConnected(data=hidden, num_hidden=2, name="out")
    return mx.sym.SoftmaxOutput(data=out, name="softmax"), ("data",), ("softmax_label",)


train = Buckets(20)
model = mx.mod.BucketingModule(sym_gen, default_bucket_key=train.default_bucket_key)
model.fit(train, eval_metric=mx.metric.Perplexity(None), num_epoch=4, initializer=ByShape(), optimizer="sgd",
          optimizer_params={"learning_rate": 0.3, "momentum": 0.8})
print("perplexity", model.score(train, mx.metric.Perplexity(None))[0][1])
args, _ = model.get_params()
print("weights", abs(args["embed_weight"].asnumpy()).mean(), args["out_bias"].asnumpy()[1])
