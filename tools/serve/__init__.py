"""Models over HTTP: the Open Inference Protocol on any ASGI server, batches of what waits, reloads, metrics."""
