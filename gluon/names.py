"""Names of arguments in other libraries, mapped to those of blocks, losses and their trainer here."""

from __future__ import annotations

_MEAN = "each example's loss is returned: take its mean() or sum()"
OURS = {
    "in_features": "in_units=", "out_features": "units, the first argument", "num_hidden": "units",
    "bias": "use_bias=", "no_bias": "use_bias=", "stride": "strides=", "pad": "padding=", "dilate": "dilation=",
    "kernel": "kernel_size=", "num_filter": "channels", "filters": "channels", "out_channels": "channels",
    "num_group": "groups=", "kernel_initializer": "weight_initializer=", "padding_mode": "nn.ReflectionPad2D before it",
    "num_features": "in_channels=", "num_channels": "in_channels=", "normalized_shape": "in_channels=",
    "eps": "epsilon=", "affine": "center= and scale=", "fix_gamma": "scale=",
    "track_running_stats": "use_global_stats=", "p": "rate=", "num_embeddings": "input_dim",
    "embedding_dim": "output_dim", "sparse": "sparse_grad=", "batch_first": 'layout="NTC"',
    "return_sequences": "all steps are returned: take the last", "embed_dim": "units", "d_model": "units",
    "nhead": "num_heads=", "dim_feedforward": "hidden_size=", "dim": "axis=", "reduction": _MEAN, "size_average": _MEAN,
    "from_softmax": "from_logits=", "sparse_labels": "sparse_label=", "delta": "rho=", "beta": "rho=",
    "scale_factor": "scale=", "upscale_factor": "factor",
}  # fmt: skip
_PARAMS = "optimizer_params={{{}: ...}}"
TRAINER = {
    **{n: _PARAMS.format(f'"{n}"') for n in ("learning_rate", "rate", "weight_decay", "momentum", "beta1", "beta2")},
    "lr": _PARAMS.format('"learning_rate"'), "wd": _PARAMS.format('"weight_decay"'), "eps": _PARAMS.format('"epsilon"'),
    "betas": _PARAMS.format('"beta1": ..., "beta2"'), "rescale_grad": "step(batch_size) divides by the batch",
    "lr_scheduler": "a schedule of mz.schedule, as the optimizer's rate", "clip_gradient": "clip_value=",
    "compression_params": "set_compression of the store, before it is given", "parameters": "params, the first one",
    "max_norm": "clip_norm=", "clip_grad_norm": "clip_norm=", "max_grad_norm": "clip_norm=", "grad_scaler": "scaling=",
    "loss_scale": "scaling=", "accumulate_grad_batches": "gather=", "accumulation_steps": "gather=",
    "gradient_accumulation_steps": "gather=", "update_interval": "gather=", "grad_req": "gather=",
    "micro_batches": "gather=", "kv": "kvstore=", "store": "kvstore=",
}  # fmt: skip
