import mxnet as mx
import numpy as np
from common import ByShape, digits

images, labels = digits()
train = mx.io.NDArrayIter(images[:400], labels[:400], 40)
net = mx.sym.Flatten(data=mx.sym.Variable("data"))
net = mx.sym.FullyConnected(data=net, num_hidden=4, name="fc")
net = mx.sym.SoftmaxOutput(data=net, name="softmax")


def spread(label, pred):
    return np.abs(pred[np.arange(len(label)), label.astype(int)] - pred.mean(axis=1)).mean()


class Entropy(mx.metric.EvalMetric):
    def __init__(self):
        super(Entropy, self).__init__("entropy")

    def update(self, labels, preds):
        p = preds[0].asnumpy()
        self.sum_metric += -(p * np.log(p + 1e-9)).sum()
        self.num_inst += len(p)


seen = []


def note(param):
    seen.append(param.nbatch)


def after(epoch, symbol, arg_params, aux_params):
    print("epoch", epoch, abs(arg_params["fc_weight"].asnumpy()).mean())


metrics = mx.metric.CompositeEvalMetric()
metrics.add(mx.metric.np(spread))
metrics.add(Entropy())
metrics.add("acc")
model = mx.mod.Module(net)
schedule = mx.lr_scheduler.FactorScheduler(step=8, factor=0.5, base_lr=0.5)
model.fit(train, num_epoch=3, eval_metric=metrics, initializer=ByShape(), batch_end_callback=[note],
          epoch_end_callback=after, optimizer=mx.optimizer.create("sgd", lr_scheduler=schedule,
                                                                  rescale_grad=1 / 40))
print("batches", len(seen))
for name, value in metrics.get_name_value():
    print("metric", value)
print("top 2", model.score(train, mx.metric.TopKAccuracy(top_k=2))[0][1])
