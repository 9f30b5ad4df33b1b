"""Models that come with the package. Each is a folder: the model, the data it was tested on, the script that made it."""
