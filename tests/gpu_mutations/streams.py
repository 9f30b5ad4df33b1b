"""Defects in the order of streams, in copies, captures and what a device owns."""

from __future__ import annotations

from .mutation import Mutation


def _device(what: str, file: str, old: str, new: str, missed: str = "", *more: str) -> Mutation:
    return Mutation(
        what, file, old, new, ("test_gpu_device", "test_stream_order", "test_gpu_devices", *more), "", missed
    )


STREAMS = (
    _device(
        "a run returns before its results are there",
        "instance.py",
        "        self._staging.fetch(wanted, self.stream)\n        self.stream.synchronize()\n",
        "        self._staging.fetch(wanted, self.stream)\n",
    ),
    _device(
        "an input of another stream is not waited for",
        "instance.py",
        "        self.stream.wait_event(self._came)\n",
        "",
    ),
    _device(
        "a step on the host begins before its operands have come down",
        "instance.py",
        "            if down:\n                stream.synchronize()\n",
        "",
    ),
    _device(
        "what the host has computed does not go up",
        "instance.py",
        "            for name, value in up:\n                staging.up(name, value, stream)\n",
        "",
    ),
    _device(
        "keys go to the device after the run",
        "instance.py",
        "                self._keys.send(self.around.key, self.stream)\n                with self.stream:\n"
        "                    self._replay(observe)\n",
        "                with self.stream:\n                    self._replay(observe)\n"
        "                self._keys.send(self.around.key, self.stream)\n",
        "",
        "test_gpu_random",
    ),
    _device(
        "the second run captures steps of the host",
        "instance.py",
        "if i not in self._fallbacks and self._capturable(i):",
        "if self._capturable(i):",
    ),
    _device(
        "graphs are captured again in each run",
        "instance.py",
        "self._parts = self._capture()",
        "self._capture()",
    ),
    _device(
        "an allocation is captured",
        "capture.py",
        "    with stream, cp.cuda.using_allocator(_forbid):\n",
        "    with stream:\n",
    ),
    _device(
        "calls behind a refused one are not captured",
        "capture.py",
        "    _capture(calls[at + 1 :], stream, recorded)\n",
        "    recorded.parts += calls[at + 1 :]\n",
    ),
    _device("captures disturb other threads", "capture.py", "streamCaptureModeThreadLocal", "streamCaptureModeGlobal"),
    _device(
        "uploads are not waited for",
        "uploads.py",
        "    def __exit__(self, *_: object) -> None:\n        self._stream.synchronize()\n",
        "    def __exit__(self, *_: object) -> None:\n        pass\n",
    ),
    _device(
        "pinned memory is written again before its copy has left",
        "uploads.py",
        "            if self._used[self._half]:\n                self._free[self._half].synchronize()\n",
        "",
    ),
    _device(
        "a state is read before its copy has ended",
        "memory.py",
        "        runtime.memcpyAsync(*ends, host.nbytes, kind, stream.ptr)\n        stream.synchronize()\n",
        "        runtime.memcpyAsync(*ends, host.nbytes, kind, stream.ptr)\n",
    ),
    _device(
        "kernels of one device are launched on another",
        "driver.py",
        "if (index, s.name) not in self._functions}",
        "if not any(s.name == name for _, name in self._functions)}",
    ),
    _device("an alias is copied onto itself", "driver.py", "if not launch.in_place(*places)]", "]"),
    Mutation(
        "gradients are handed over before they have come down",
        "exchange.py",
        "            if wait:\n                self._left[key].synchronize()\n",
        "            if wait:\n                pass\n",
        ("test_gpu_exchange",),
    ),
    Mutation(
        "the store's answer is used before its copy has ended",
        "exchange.py",
        "            self._stream.wait_event(self._ready)\n\n        return fetch",
        "\n        return fetch",
        ("test_gpu_exchange",),
    ),
    Mutation(
        "gradients leave before they are computed",
        "exchange.py",
        "        self._ready.record(self._stream)\n        self._copies.wait_event(self._ready)\n        runtime",
        "        runtime",
        ("test_gpu_exchange",),
    ),
)
