"""Training: schedules, optimizers and losses as parts of a graph, the training step, and the Trainer."""
