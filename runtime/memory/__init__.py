"""Memory: liveness of values, offsets in the arena, pools, statistics."""
