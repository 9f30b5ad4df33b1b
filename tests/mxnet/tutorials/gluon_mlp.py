import mxnet as mx
from common import ByShape, digits
from mxnet import autograd, gluon, nd
from mxnet.gluon import nn

images, labels = digits()
train = gluon.data.DataLoader(gluon.data.ArrayDataset(nd.array(images[:400]), nd.array(labels[:400])), batch_size=40)
net = nn.Sequential()
with net.name_scope():
    net.add(nn.Flatten())
    net.add(nn.Dense(16, activation="relu"))
    net.add(nn.Dense(4))
net.initialize(ByShape(), ctx=mx.cpu())
loss_of = gluon.loss.SoftmaxCrossEntropyLoss()
trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.2, "momentum": 0.5})
metric = mx.metric.Accuracy()
for epoch in range(3):
    total = 0.0
    metric.reset()
    for data, label in train:
        with autograd.record():
            output = net(data)
            loss = loss_of(output, label)
        loss.backward()
        trainer.step(data.shape[0])
        total += nd.mean(loss).asscalar()
        metric.update([label], [output])
    print("epoch", epoch, total / 10, metric.get()[1])
held = net(nd.array(images[400:]))
print("held out", loss_of(held, nd.array(labels[400:])).mean().asscalar())
net.save_parameters("mlp.params")
again = nn.Sequential()
again.add(nn.Flatten(), nn.Dense(16, activation="relu"), nn.Dense(4))
again.load_parameters("mlp.params")
print("loaded", float(abs(again(nd.array(images[400:])) - held).max().asscalar()) < 1e-5)
