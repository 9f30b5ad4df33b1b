"""Execution of programs: sessions, instances with their buffers, the pool of arenas."""
