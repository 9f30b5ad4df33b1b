"""ONNX Runtime and ONNX's reference evaluator in a process of their own: some models abort it, others never end.

What takes too long is told by the processor's time, so that a busy machine changes no answer.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import warnings
from dataclasses import dataclass, field
from importlib import import_module
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

TOOK_TOO_LONG = 8.0  # seconds of the processor's time that an answer may take, after which the process is ended
PATIENCE = 300.0  # seconds after which a process is taken to hang


@dataclass
class Referee:
    """Asks one process after another: where a question ends one, the next question starts another."""

    _process: subprocess.Popen[bytes] | None = None
    _pipe: Any = None
    crashes: list[str] = field(default_factory=list[str])

    def ask(self, who: str, model: bytes, feeds: dict[str, Any]) -> tuple[list[Any] | None, str]:
        """The results of `who`, "runtime" or "reference"; or None, and why it refuses."""
        if self._process is None:
            self._start()
        try:
            self._pipe.send((who, model, feeds))
            if self._pipe.poll(PATIENCE):
                answer: tuple[list[Any] | None, str] = self._pipe.recv()
                return answer
            reason = "it hangs"
        except (EOFError, OSError):
            reason = "it ended the process, or took too long"
        self.close()
        self.crashes.append(f"{who}: {reason}")
        return None, reason

    def _start(self) -> None:
        self._pipe, theirs = Pipe()
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stderr=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        theirs.close()

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._pipe.close()
            self._process = None


def serve(pipe: Connection) -> None:
    """Answer until nobody asks any more."""
    answers = {"runtime": by_runtime, "reference": by_reference}
    for name in ("onnxruntime", "onnx.reference"):
        import_module(name)  # in no answer's time
    while True:
        try:
            who, model, feeds = pipe.recv()
        except EOFError:
            return
        signal.setitimer(signal.ITIMER_PROF, TOOK_TOO_LONG)
        try:
            pipe.send((answers[who](model, feeds), ""))
        except Exception as error:  # whatever a referee raises, it refuses
            pipe.send((None, f"{type(error).__name__}: {error}"[:500]))


def by_runtime(model: bytes, feeds: dict[str, Any]) -> list[Any]:
    """As plain as it comes: without rewriting, on one thread."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    found: list[Any] = session.run(None, feeds)
    return found


def by_reference(model: bytes, feeds: dict[str, Any]) -> list[Any]:
    """onnx.reference, which checks little by itself."""
    import onnx
    from onnx.reference import ReferenceEvaluator

    return list(ReferenceEvaluator(onnx.load_from_string(model)).run(None, feeds))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    serve(Connection(int(sys.argv[1])))
