"""What may stand in `allowed_hosts`: host names, `*.` before one, addresses and ranges; no URLs, ports or paths."""

from __future__ import annotations

import re
from collections.abc import Iterable
from ipaddress import IPv6Address, ip_address, ip_network

_LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")


def check_hosts(hosts: Iterable[str]) -> None:
    """Raises ValueError naming the first that is none."""
    for written in hosts:
        host = written.strip().lower().rstrip(".")
        if not (_range(host) if "/" in host else _address_v6(host) if ":" in host else _name(host)):
            raise ValueError(f"allowed_hosts: {written!r} is not a host name, an address or a range of addresses")


def _range(host: str) -> bool:
    try:
        ip_network(host)
    except ValueError:
        return False
    return "%" not in host


def _address_v6(host: str) -> bool:
    try:
        return isinstance(ip_address(host), IPv6Address) and "%" not in host
    except ValueError:
        return False


def _name(host: str) -> bool:
    name = host.removeprefix("*.")
    if name != host:
        try:
            ip_address(name)
        except ValueError:
            pass
        else:
            return False
    return all(_LABEL.fullmatch(label) for label in name.split("."))
