"""Names of optimizers' settings in MXNet and PyTorch, mapped to ours."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ...ops.errors import InputError

# The same setting under another name.
RENAMED = {
    "learning_rate": "rate", "lr": "rate", "lr_scheduler": "rate", "wd": "weight_decay", "gamma1": "alpha",
    "gamma2": "momentum", "eps": "epsilon", "schedule_decay": "momentum_decay", "history_size": "history",
}  # fmt: skip
# What is a setting of an optimizer there, and none here.
ELSEWHERE = {
    "clip_gradient": "Trainer(..., clip_value=) bounds each element of the gradients",
    "rescale_grad": "step(batch_size) divides by the batch",
    "betas": "give beta1= and beta2=",
    "multi_precision": "parameters stay in float32 under mz.amp",
    "begin_num_update": "load_states goes on from the update that was reached",
    "params": "parameters are the Trainer's: mz.Trainer(model, optimizer=...)",
}


def check_names(kind: str, given: Iterable[str], known: Sequence[str], where: str) -> None:
    """Refuse settings that an optimizer has not. Raises InputError with the name that they have here."""
    for name in given:
        if name not in known:
            ours = RENAMED.get(name)
            hint = f"it is {ours}= here" if ours in known else ELSEWHERE.get(name, f"there are {', '.join(known)}")
            raise InputError(f"{kind} has no setting {name!r}", where=where, hint=hint)
