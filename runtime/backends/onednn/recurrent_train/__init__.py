"""Recurrent networks in training, in their usual forms: forward with kept results, and back through time.

They run step by step over oneDNN's products. Weights are laid out once per run. Per step only the products with the
state run, whose post-ops are the activations, and a few calls of NumPy on [batch, hidden]; the products with inputs,
and those that give the gradients of weights and inputs, run once over all steps. Between products everything is in
float32. Where the operator is in bfloat16, operands of products are rounded to it, and so is what is kept.
"""
