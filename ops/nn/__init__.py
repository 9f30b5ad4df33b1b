"""Layers of networks: convolution, pooling, normalization, attention, losses, resizing of images."""
