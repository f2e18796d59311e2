"""Whether the hub can be asked at all, found out before its client tries for half a minute."""

from __future__ import annotations

import os
import socket
from urllib.parse import urlsplit
from urllib.request import getproxies

_OFFLINE = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE")


def why_offline() -> str | None:
    """Say why the hub cannot be reached, as far as that can be told at once; ``None`` if it can."""
    for variable in _OFFLINE:
        if os.environ.get(variable, "").upper() in ("1", "ON", "YES", "TRUE"):
            return f"{variable} is set"
    host = urlsplit(os.environ.get("HF_ENDPOINT") or "https://huggingface.co").hostname
    if getproxies():
        return None
    try:
        socket.getaddrinfo(host, 443)
    except OSError:
        return f"no network: {host} is not found"
    return None


def short(error: BaseException) -> str:
    """The beginning of a client's message, on one line."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 160 else text[:160] + "..."
