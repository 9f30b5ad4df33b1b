"""Networks of benchmarks and tests as builders of graphs, and one trained model with its data (`digits`)."""
