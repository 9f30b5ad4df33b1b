from common import ByShape, digits
from mxnet import autograd, gluon, nd
from mxnet.gluon import nn


class Net(gluon.HybridBlock):
    def __init__(self, **kwargs):
        super(Net, self).__init__(**kwargs)
        with self.name_scope():
            self.conv = nn.Conv2D(channels=4, kernel_size=3, activation="relu")
            self.pool = nn.MaxPool2D(pool_size=2, strides=2)
            self.hidden = nn.Dense(8)
            self.out = nn.Dense(4)

    def hybrid_forward(self, F, x):
        x = self.pool(self.conv(x))
        x = F.relu(self.hidden(x))
        return self.out(x)


images, labels = digits(count=200)
net = Net()
net.initialize(ByShape())
net.hybridize()
loss_of = gluon.loss.SoftmaxCrossEntropyLoss()
trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.01})
x, y = nd.array(images), nd.array(labels)
for step in range(20):
    with autograd.record():
        loss = loss_of(net(x), y)
    loss.backward()
    trainer.step(len(images))
    if step % 5 == 4:
        print("step", step, loss.mean().asscalar())
