"""Thinking that travels through a harness and back: readable only as we wrote it, or not at all."""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
import zlib

_KEY = secrets.token_bytes(32)
_TAG = 16


def seal(mark: str, text: str) -> str:
    """A reply's mark and thinking as URL-safe base64. It proves its origin (this process); it hides nothing."""
    data = zlib.compress(f"{mark}\n{text}".encode(errors="surrogatepass"), 1)
    return base64.urlsafe_b64encode(_tag(data) + data).decode()


def unseal(sealed: str) -> tuple[str, str] | None:
    """(mark, text) of what `seal` made; None for anything else."""
    try:
        raw = base64.urlsafe_b64decode(sealed)
    except ValueError:
        return None
    tag, data = raw[:_TAG], raw[_TAG:]
    if not hmac.compare_digest(tag, _tag(data)):
        return None
    mark, _, text = zlib.decompress(data).decode(errors="surrogatepass").partition("\n")
    return mark, text


def _tag(data: bytes) -> bytes:
    return hashlib.blake2b(data, key=_KEY, digest_size=_TAG).digest()
