import mxnet as mx
import numpy as np

a, b = mx.sym.Variable("a"), mx.sym.Variable("b")
c = a * b + 2 * a
executor = c.bind(mx.cpu(), {"a": mx.nd.ones((2, 3)) * 3, "b": mx.nd.ones((2, 3)) * 4})
print("bind", executor.forward()[0].asnumpy().sum())
net = mx.sym.Variable("data")
net = mx.sym.FullyConnected(data=net, num_hidden=6, name="fc1")
net = mx.sym.Activation(data=net, act_type="relu", name="relu1")
net = mx.sym.FullyConnected(data=net, num_hidden=3, name="fc2")
out = mx.sym.SoftmaxOutput(data=net, name="softmax")
print("names", len(out.list_arguments()), out.list_outputs() == ["softmax_output"])
arguments, outputs, _ = out.infer_shape(data=(4, 5))
print("shapes", arguments[1][0], arguments[1][1], outputs[0][1])
inner = out.get_internals()["fc1_output"]
print("internals", inner.infer_shape(data=(4, 5))[1][0][1])
executor = out.simple_bind(ctx=mx.cpu(), data=(4, 5), softmax_label=(4,))
rng = np.random.RandomState(3)
for name, array in executor.arg_dict.items():
    if name.endswith("weight"):
        array[:] = rng.normal(0, 0.5, array.shape)
data = mx.nd.array(rng.normal(size=(4, 5)))
label = mx.nd.array([0, 1, 2, 1])
losses = []
for _ in range(30):
    executor.forward(is_train=True, data=data, softmax_label=label)
    executor.backward()
    p = executor.outputs[0].asnumpy()
    losses.append(-np.log(p[np.arange(4), label.asnumpy().astype(int)]).mean())
    for name in ("fc1_weight", "fc1_bias", "fc2_weight", "fc2_bias"):
        executor.arg_dict[name][:] -= 0.1 * executor.grad_dict[name]
print("losses", losses[0], losses[9], losses[29])
group = mx.sym.Group([out, mx.sym.BlockGrad(inner)])
print("group", len(group.list_outputs()))
again = mx.sym.load_json(out.tojson())
print("json", len(again.list_arguments()))
