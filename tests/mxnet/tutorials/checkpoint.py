import os

import mxnet as mx
from common import ByShape, digits

images, labels = digits()
train = mx.io.NDArrayIter(images[:400], labels[:400], 40)
net = mx.sym.FullyConnected(data=mx.sym.Flatten(mx.sym.Variable("data")), num_hidden=4, name="fc")
net = mx.sym.SoftmaxOutput(data=net, name="softmax")
model = mx.mod.Module(net)
model.fit(train, num_epoch=2, initializer=ByShape(), epoch_end_callback=mx.callback.do_checkpoint("ckpt"),
          optimizer_params={"learning_rate": 0.3})
print("files", os.path.exists("ckpt-symbol.json"), os.path.exists("ckpt-0002.params"))
symbol, args, aux = mx.model.load_checkpoint("ckpt", 2)
print("arguments", len(symbol.list_arguments()), abs(args["fc_weight"].asnumpy()).mean())
resumed = mx.mod.Module(symbol)
resumed.fit(train, num_epoch=4, begin_epoch=2, arg_params=args, aux_params=aux, optimizer_params={"learning_rate": 0.3})
print("resumed", resumed.score(train, "ce")[0][1], resumed.score(train, "acc")[0][1])
loaded = mx.mod.Module.load("ckpt", 1)
loaded.bind(data_shapes=train.provide_data, label_shapes=train.provide_label, for_training=False)
loaded.init_params()
print("loaded", loaded.score(train, "ce")[0][1])
mx.nd.save("arrays", {"x": mx.nd.array([1, 2]), "y": mx.nd.ones((2, 2))})
print("dict", sorted(mx.nd.load("arrays")) == ["x", "y"], mx.nd.load("arrays")["x"].asnumpy().sum())
mx.nd.save("list", [mx.nd.array([3.5])])
print("list", mx.nd.load("list")[0].asscalar())
