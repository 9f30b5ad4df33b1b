"""BLAKE2 (RFC 7693) for digests of files and arrays."""

from __future__ import annotations

try:
    from _blake2 import blake2b  # what hashlib hands out; hashlib itself loads OpenSSL, a tenth of `import mezzo`
except ImportError:  # an interpreter that keeps it elsewhere
    from hashlib import blake2b

__all__ = ["blake2b"]
