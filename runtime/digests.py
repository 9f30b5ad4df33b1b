"""The hash function BLAKE2b (RFC 7693), imported without hashlib, which would load OpenSSL."""

from __future__ import annotations

try:
    from _blake2 import blake2b  # what hashlib hands out; hashlib itself loads OpenSSL, a tenth of `import mezzo`
except ImportError:  # an interpreter that keeps it elsewhere
    from hashlib import blake2b

__all__ = ["blake2b"]
