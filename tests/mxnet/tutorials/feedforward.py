import mxnet as mx
import numpy as np
from common import ByShape, digits

images, labels = digits()
flat = images.reshape(len(images), -1)
net = mx.sym.Variable("data")
net = mx.sym.FullyConnected(data=net, name="fc1", num_hidden=16)
net = mx.sym.Activation(data=net, name="relu1", act_type="relu")
net = mx.sym.FullyConnected(data=net, name="fc2", num_hidden=4)
net = mx.sym.SoftmaxOutput(data=net, name="softmax")
train = mx.io.NDArrayIter(flat[:400], labels[:400], 50)
model = mx.model.FeedForward(net, ctx=mx.cpu(), num_epoch=4, learning_rate=0.2, momentum=0.5, initializer=ByShape())
model.fit(X=train)
answers = model.predict(flat[400:])
print("answers", answers.shape[0], np.mean(answers.max(axis=1)))
print("accuracy", np.mean(answers.argmax(axis=1) == labels[400:]))
print("score", model.score(mx.io.NDArrayIter(flat[400:], labels[400:], 40)))
model.save("ff")
again = mx.model.FeedForward.load("ff", 4)
print("loaded", abs(again.predict(flat[400:]) - answers).max() < 1e-5)
