"""Names of other libraries, mapped to ours."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any

from ..ops.errors import InputError

_OPTIMIZER = "optimizer=mz.optimizer.{}"
TRAINER = {
    "clip_gradient": "clip_value=", "clip_grad": "clip_norm=", "clip_grad_norm": "clip_norm=",
    "max_grad_norm": "clip_norm=", "clipnorm": "clip_norm=", "gradient_clip_val": "clip_norm=",
    "clipvalue": "clip_value=", "clip_grad_value": "clip_value=", "max_norm": "clip_norm=",
    "accumulate_grad_batches": "gather=", "gradient_accumulation_steps": "gather=", "accumulation_steps": "gather=",
    "n_microbatches": "micro_batches=", "num_microbatches": "micro_batches=",
    "grad_req": "gather=", "update_interval": "gather=",
    "lr": _OPTIMIZER.format("SGD(rate=...)"), "learning_rate": _OPTIMIZER.format("SGD(rate=...)"),
    "wd": _OPTIMIZER.format("SGD(weight_decay=...)"), "weight_decay": _OPTIMIZER.format("SGD(weight_decay=...)"),
    "momentum": _OPTIMIZER.format("SGD(momentum=...)"), "betas": _OPTIMIZER.format("Adam(beta1=..., beta2=...)"),
    "optimizer_params": "the optimizer itself: optimizer=mz.optimizer.SGD(rate=...)",
    "lr_scheduler": "a schedule as the optimizer's rate: SGD(rate=mz.schedule.Cosine(...))",
    "scheduler": "a schedule as the optimizer's rate: SGD(rate=mz.schedule.Cosine(...))",
    "fp16": 'amp="fp16"', "bf16": 'amp="bf16"', "mixed_precision": "amp=", "dtype": "amp=",
    "ctx": "device=", "context": "device=", "accelerator": "device=",
    "loss_fn": "loss=", "criterion": "loss=", "losses": "loss=", "loss_weights": 'loss={"output": (weight, loss)}',
    "sample_weight": "sample_weights=True, and `sample_weight` in each batch",
    "ignore_index": "loss=mz.loss.cross_entropy(ignore_index=...)",
    "label_smoothing": "loss=mz.loss.cross_entropy(label_smoothing=...)",
    "class_weight": "loss=mz.loss.cross_entropy(class_weights=...)",
    "class_weights": "loss=mz.loss.cross_entropy(class_weights=...)",
    "eval_metric": "metrics=", "metric": "metrics=", "fixed_param_names": "freeze=", "frozen": "freeze=",
    "requires_grad": "train= or freeze=", "gradient_checkpointing": "recompute=True", "kv_store": "kvstore=",
    "random_state": "seed=", "num_threads": "threads=", "max_epochs": "epochs= of fit", "epochs": "epochs= of fit",
    "callbacks": "callbacks= of fit", "batch_size": "batches of that size, given to step or fit",
}  # fmt: skip
FIT = {
    "num_epoch": "epochs=", "num_epochs": "epochs=", "max_epochs": "epochs=", "nb_epoch": "epochs=",
    "eval_data": "validate=", "validation_data": "validate=", "val_data": "validate=", "val_dataloaders": "validate=",
    "batch_end_callback": "on_step=, or callbacks=", "epoch_end_callback": "on_epoch=, or callbacks=",
    "callback": "callbacks=", "train_data": "batches, the first operand", "eval_metric": "metrics= of the Trainer",
    "metrics": "metrics= of the Trainer", "optimizer": "optimizer= of the Trainer",
    "batch": "batches of that size", "batch_size": "batches of that size",
    "patience": "callbacks=[mz.callbacks.EarlyStopping(patience=...)]",
    "early_stopping": "callbacks=[mz.callbacks.EarlyStopping()]", "verbose": "callbacks=[mz.callbacks.Log()]",
}  # fmt: skip
METRIC = {
    "topk": "mz.metrics.TopK(k)", "top_k": "mz.metrics.TopK(k)", "num_classes": "classes=",
    "axis": "axis 1 of the outputs, always: transpose them before", "task": "classes=, of two where it is left out",
    "ignore_label": "ignore_index=", "squared": "mz.metrics.RMSE() for the root",
    **dict.fromkeys(("pred_index", "output_names", "label_names"), "metrics={output: [...]} of the Trainer"),
}  # fmt: skip

ATTRIBUTES = {
    "predict": "mz.Session(trainer.graph()).run(...)", "forward": "mz.Session(trainer.graph()).run(...)",
    "model": "trainer.graph()", "net": "trainer.graph()",
    "train": "trainer.fit(...)", "train_step": "trainer.step(...)",
    "score": "trainer.evaluate(...)", "test": "trainer.evaluate(...)", "validate": "trainer.evaluate(...)",
    "state_dict": "trainer.snapshot()", "load_state_dict": "trainer.restore(...)", "weights": "trainer.parameters",
    "get_params": "trainer.parameters", "params": "trainer.parameters", "load": "trainer.resume(folder)",
    "save_checkpoint": "trainer.save(folder)", "load_checkpoint": "trainer.resume(folder)",
    "save_states": "trainer.save(folder)", "lr": "trainer.rate",
    "learning_rate": "trainer.rate", "set_learning_rate": "trainer.rate = ...", "optimizer": "trainer.plan.optimizer",
    "save_model": "trainer.export(path)", "zero_grad": "nothing: each step has gradients of its own",
}  # fmt: skip


def absent(owner: object, name: str) -> AttributeError:
    """The error for an attribute that there is none of, with the name that ours has."""
    near = get_close_matches(name, [n for n in dir(type(owner)) if not n.startswith("_")], 1)
    meant = ATTRIBUTES.get(name.lower()) or (near[0] if near else "")
    kind = type(owner).__name__
    message = f"{kind} has no attribute {name!r}{f': it is {meant} here' if meant else ''}"
    return AttributeError(message, name=name, obj=owner)


def refuse(given: Iterable[str], where: str, others: Mapping[str, str], own: Iterable[str] = ()) -> None:
    """Raise InputError for options that there are none of, with the name that ours has.

    >>> refuse({"clip_gradient": 1.0}, "Trainer", TRAINER)
    Traceback (most recent call last):
        ...
    mezzo.ops.errors.InputError: Trainer: there is no 'clip_gradient'
      hint: it is clip_value= here
    """
    for name in given:
        near = get_close_matches(name, [*own], 1)
        meant: Any = others.get(name.lower()) or (f"{near[0]}=" if near else "")
        hint = f"it is {meant} here" if meant else "help() lists the options"
        raise InputError(f"there is no {name!r}", where=where, hint=hint)
