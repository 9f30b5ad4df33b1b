"""Models that come with the package, one folder each: the model, its test data, and the script that made it."""
