"""Training: schedules, optimizers and losses as parts of a graph, the step that they make, and the Trainer."""
