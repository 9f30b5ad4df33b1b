"""Models that come with the package, one folder each: the model, what it was tested on, and how it was made."""
