import logging

import mxnet as mx
from common import ByShape, digits

logging.getLogger().setLevel(logging.WARNING)
images, labels = digits()
train = mx.io.NDArrayIter(images[:400], labels[:400], 40)
val = mx.io.NDArrayIter(images[400:], labels[400:], 40)
data = mx.sym.flatten(data=mx.sym.var("data"))
fc1 = mx.sym.FullyConnected(data=data, num_hidden=16)
act1 = mx.sym.Activation(data=fc1, act_type="relu")
fc2 = mx.sym.FullyConnected(data=act1, num_hidden=4)
mlp = mx.sym.SoftmaxOutput(data=fc2, name="softmax")
model = mx.mod.Module(symbol=mlp, context=mx.cpu())
model.fit(train, eval_data=val, optimizer="sgd", optimizer_params={"learning_rate": 0.2, "wd": 0.001}, eval_metric="acc",
          initializer=ByShape(), batch_end_callback=mx.callback.Speedometer(40, 5), num_epoch=3)
prob = model.predict(val)
print("prob", prob.shape[0], prob.asnumpy().max(axis=1).mean())
acc = mx.metric.Accuracy()
model.score(val, acc)
print("accuracy", acc.get()[1])
print("cross-entropy", model.score(val, "ce")[0][1])
print("weights", abs(model.get_params()[0][fc2.name + "_weight"].asnumpy()).mean())
