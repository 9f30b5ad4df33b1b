"""`mx.callback`: functions that modules call after batches and epochs."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from .modules import save_checkpoint


class Speedometer:
    """Log samples per second, and the metric, every `frequent` batches."""

    def __init__(self, batch_size: int, frequent: int = 50, auto_reset: bool = True) -> None:
        self.batch_size, self.frequent, self.auto_reset = batch_size, frequent, auto_reset
        self._since, self._last = time.monotonic(), 0

    def __call__(self, param: Any) -> None:
        if self._last > param.nbatch:
            self._since = time.monotonic()
        self._last = param.nbatch
        if not param.nbatch or param.nbatch % self.frequent:
            return
        speed = self.frequent * self.batch_size / max(time.monotonic() - self._since, 1e-9)
        message = f"Epoch[{param.epoch}] Batch [{param.nbatch}]\tSpeed: {speed:.2f} samples/sec"
        if param.eval_metric is not None:
            message += "".join(f"\t{n}={v:f}" for n, v in param.eval_metric.get_name_value())
            if self.auto_reset:
                param.eval_metric.reset()
        logging.info(message)
        self._since = time.monotonic()


def do_checkpoint(prefix: str, period: int = 1) -> Callable[..., None]:
    """Save symbol and parameters after every `period` epochs."""

    def after(epoch: int, symbol: Any, arg_params: Any, aux_params: Any) -> None:
        if (epoch + 1) % max(1, period) == 0:
            save_checkpoint(prefix, epoch + 1, symbol, arg_params, aux_params)

    return after


def module_checkpoint(
    mod: Any, prefix: str, period: int = 1, save_optimizer_states: bool = False
) -> Callable[..., None]:
    def after(epoch: int, *_: Any) -> None:
        if (epoch + 1) % max(1, period) == 0:
            mod.save_checkpoint(prefix, epoch + 1, save_optimizer_states)

    return after


def log_train_metric(period: int, auto_reset: bool = False) -> Callable[[Any], None]:
    def after(param: Any) -> None:
        if param.nbatch % period == 0 and param.eval_metric is not None:
            for name, value in param.eval_metric.get_name_value():
                logging.info("Iter[%d] Batch[%d] Train-%s=%f", param.epoch, param.nbatch, name, value)
            if auto_reset:
                param.eval_metric.reset()

    return after


class LogValidationMetricsCallback:
    """Log the metrics of a validation."""

    def __call__(self, param: Any) -> None:
        for name, value in param.eval_metric.get_name_value() if param.eval_metric else ():
            logging.info("Epoch[%d] Validation-%s=%f", param.epoch, name, value)


class ProgressBar:
    """A bar of `length` letters on standard output."""

    def __init__(self, total: int, length: int = 80) -> None:
        self.total, self.bar_len = total, length

    def __call__(self, param: Any) -> None:
        filled = round(self.bar_len * param.nbatch / self.total)
        logging.info("[%s%s] %d%%\r", "=" * filled, "-" * (self.bar_len - filled), 100 * param.nbatch // self.total)
