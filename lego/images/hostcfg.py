"""The host's package-index configuration, lent to builds read-only.

Builds see copies of the host's pip and npm settings and of its CA bundle through mounts, so nothing of them, a token
in an index URL included, is in any layer.
"""

from __future__ import annotations

import configparser
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

BUILD_HOME = "/root"
"""Home of the user that steps of an image build run as, inside the build."""
INSIDE = "/run/hostcfg"
_CA_VARIABLES = ("PIP_CERT", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
_CA_FILES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem")
_PIP_KEYS = ("index-url", "extra-index-url", "find-links", "trusted-host", "constraint", "timeout", "no-index", "proxy")


def lend(folder: Path) -> list[str]:
    """Copy the configuration into `folder`, which must be this user's alone and go away after the build.

    Returns the `podman build` options that mount it.
    """
    ca = next((path for path in _ca_candidates() if os.path.isfile(path)), None)
    if ca:
        shutil.copyfile(ca, folder / "ca.pem")
    settings = pip_settings(os.environ, pip_files(os.environ))
    mounts = [(str(folder), INSIDE)]
    mounts += _pip(folder, settings, has_ca=ca is not None)
    mounts += _npm(folder, has_ca=ca is not None)
    return [f"--volume={source}:{target}:ro" for source, target in mounts]


def pip_files(env: Mapping[str, str]) -> list[Path]:
    """pip's configuration files, the later ones winning (pip's own order: global, user, PIP_CONFIG_FILE)."""
    home = Path(env.get("HOME", "/root"))
    xdg = [Path(folder) / "pip/pip.conf" for folder in env.get("XDG_CONFIG_DIRS", "/etc/xdg").split(":") if folder]
    user = [home / ".pip/pip.conf", Path(env.get("XDG_CONFIG_HOME") or home / ".config") / "pip/pip.conf"]
    named = [Path(env["PIP_CONFIG_FILE"])] if env.get("PIP_CONFIG_FILE") else []
    return [*reversed(xdg), Path("/etc/pip.conf"), *user, *named]


def pip_settings(env: Mapping[str, str], files: list[Path]) -> dict[str, str]:
    """Where pip gets packages from on this host: files first, PIP_* variables over them."""
    found: dict[str, str] = {}
    for path in files:
        parser = configparser.RawConfigParser()
        try:
            parser.read_string(path.read_text())
        except (OSError, configparser.Error, UnicodeDecodeError):
            continue
        for section in ("global", "install"):
            if parser.has_section(section):
                found |= {key.replace("_", "-"): value for key, value in parser.items(section)}
    for key in _PIP_KEYS:
        variable = "PIP_" + key.upper().replace("-", "_")
        if env.get(variable):
            found[key] = env[variable]
    return {key: found[key] for key in _PIP_KEYS if key in found}


def _ca_candidates() -> Iterator[str]:
    yield from (os.environ[name] for name in _CA_VARIABLES if os.environ.get(name))
    yield from _CA_FILES


def _pip(folder: Path, settings: dict[str, str], *, has_ca: bool) -> list[tuple[str, str]]:
    """Write pip.conf; local folders it names are mounted under their own names, constraint files are copied."""
    mounts: list[tuple[str, str]] = []
    lines = ["[global]", "disable-pip-version-check = true"]
    if has_ca:
        lines.append(f"cert = {INSIDE}/ca.pem")
    for key, value in settings.items():
        words = value.split() if key != "proxy" else [value]
        if key == "constraint":
            words = [_copied(folder, word, index) for index, word in enumerate(words)]
        elif key in ("index-url", "extra-index-url", "find-links"):
            words = [word for word in words if _lend(word, mounts)]
        if words:
            lines.append(f"{key} = " + "\n  ".join(words))
    (folder / "pip.conf").write_text("\n".join(lines) + "\n")
    return [*mounts, (str(folder / "pip.conf"), "/etc/pip.conf")]


def _copied(folder: Path, source: str, index: int) -> str:
    if "://" in source:
        return source
    shutil.copyfile(source, folder / f"constraints-{index}.txt")
    return f"{INSIDE}/constraints-{index}.txt"


def _lend(location: str, mounts: list[tuple[str, str]]) -> bool:
    """Whether builds can use this location; a folder of the host is mounted for them."""
    parts = urlsplit(location)
    if parts.scheme not in ("", "file"):
        return True
    path = url2pathname(parts.path) if parts.scheme else location
    if not os.path.exists(path):
        return False
    # A file index has its files beside its pages (../../files/…), so the whole index is lent.
    root = os.path.dirname(path.rstrip("/")) if os.path.basename(path.rstrip("/")) == "simple" else path
    if (root, root) not in mounts:
        mounts.append((root, root))
    return True


def _npm(folder: Path, *, has_ca: bool) -> list[tuple[str, str]]:
    lines: list[str] = []
    for path in (Path("/etc/npmrc"), Path.home() / ".npmrc"):
        try:
            text = path.read_text()
        except OSError:
            continue
        lines += [line for line in text.splitlines() if not re.match(r"\s*(cafile|prefix|cache|userconfig)\s*=", line)]
    if not lines:
        return []
    if has_ca:
        lines.append(f"cafile={INSIDE}/ca.pem")
    (folder / "npmrc").write_text("\n".join(lines) + "\n")
    return [(str(folder / "npmrc"), f"{BUILD_HOME}/.npmrc")]
