"""Thinking that travels through a harness and back: readable only as we wrote it, or not at all."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
import zlib

_KEY = secrets.token_bytes(32)
_TAG = 16


def seal(mark: str, text: str) -> str:
    """A reply's mark and thinking as URL-safe base64. It proves its origin (this process); it hides nothing."""
    data = f"{mark}\n{text}".encode(errors="surrogatepass")
    return base64.urlsafe_b64encode(_tag(data) + zlib.compress(data, 1)).decode()


def unseal(sealed: str) -> tuple[str, str] | None:
    """(mark, text) of what `seal` made; None for anything else."""
    try:
        raw = base64.urlsafe_b64decode(sealed)
        data = zlib.decompress(raw[_TAG:])
        mark, _, text = data.decode(errors="surrogatepass").partition("\n")
    except (ValueError, binascii.Error, zlib.error):
        return None
    return (mark, text) if hmac.compare_digest(raw[:_TAG], _tag(data)) else None


def _tag(data: bytes) -> bytes:
    return hashlib.blake2b(data, key=_KEY, digest_size=_TAG).digest()
