"""Podman through a private store and a service process of our own.

The user's default store is never touched. What this host can do is probed once per boot and podman version, and
kept beside the store; nothing is assumed from a version number.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

from lego.errors import SandboxError
from lego.processes import boot_id
from lego.sandbox import hostconf, probe
from lego.sandbox.hostconf import HostConf
from lego.sandbox.paths import StorePaths, store_paths

if TYPE_CHECKING:
    from podman import PodmanClient

T = TypeVar("T")
_IDLE = 300
_GIB = 1 << 30


class ServiceLost(SandboxError):
    """The line to podman's service broke before it had answered."""


class Refused(SandboxError):
    """Podman's service answered that it will not, or cannot."""


@dataclass(frozen=True)
class PodmanSettings:
    """`store` None means the default store. `runtime` is auto, a name or a path. `disk_reserve`: free bytes below
    which no container is started."""

    store: Path | None = None
    runtime: str = "auto"
    accept_unenforced_limits: bool = False
    disk_reserve: int = _GIB


@dataclass(frozen=True)
class Capabilities:
    """What a probe container showed this host can do.

    `limits`: memory and process limits are enforced. `user_namespace`: root in a container is nobody outside.
    `image_mount`: an image can be mounted by the engine itself (otherwise it is mounted on the host and bound).
    """

    version: str
    rootless: bool
    runtime: str
    cgroup_version: str
    cgroup_manager: str
    mount_program: str
    nofile: int
    nproc: int
    limits: bool
    user_namespace: bool
    image_mount: bool
    init: bool
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class ImageInfo:
    """What an image says of itself. `workdir` is "/" where it says nothing; `user` empty means root."""

    id: str
    workdir: str
    user: str
    env: Mapping[str, str]
    entrypoint: tuple[str, ...] = ()


class Podman:
    """One private store, its service and its capabilities. Blocking calls; `call` runs them in threads."""

    def __init__(self, settings: PodmanSettings, paths: StorePaths, capabilities: Capabilities) -> None:
        self.settings = settings
        self.paths = paths
        self.capabilities = capabilities
        self.env = hostconf.environment(paths, paths.conf)
        self.socket = paths.run / f"api-{os.getpid()}-{time.monotonic_ns() % 10**6:06d}.sock"
        self._service: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._mount_lock = threading.Lock()
        self._threads = ThreadPoolExecutor(max_workers=32, thread_name_prefix="podman")
        self._background: list[Future[object]] = []
        self._local = threading.local()
        self._mounted: dict[str, Path] = {}
        self._images: dict[str, ImageInfo] = {}

    @classmethod
    def open(cls, settings: PodmanSettings | None = None) -> Podman:
        """Open the store, probing this host if it has not been probed since boot.

        Raises SandboxError with the reason podman itself gave when no container can be started here.
        """
        settings = settings or PodmanSettings()
        binary = shutil.which("podman")
        if binary is None:
            raise SandboxError("podman is not installed", hint="apt install podman runc (or your system's packages)")
        paths = store_paths(settings.store)
        with _locked(paths.store / "probe.lock"):
            capabilities = _probed(settings, paths)
        if not capabilities.limits and not settings.accept_unenforced_limits:
            raise SandboxError(
                "this host cannot enforce memory and process limits on containers"
                + (" (rootless on cgroup v1)" if capabilities.rootless and capabilities.cgroup_version == "v1" else ""),
                hint="run as root, boot with cgroup v2, or set sandbox.accept_unenforced_limits=true",
            )
        return cls(settings, paths, capabilities)

    def __enter__(self) -> Podman:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def argv(self, *args: str) -> list[str]:
        """The command line of a podman command on this store; run it with `env`."""
        return ["podman", *args]

    def cli(
        self,
        *args: str,
        input: bytes | None = None,
        timeout: float | None = None,
        check: bool = True,
        allow: Sequence[int] = (),
    ) -> subprocess.CompletedProcess[bytes]:
        """Run a podman command on this store.

        Raises SandboxError with podman's last line of complaint when it fails (and `check`, and not with one of the
        exit codes that `allow` leaves to the caller) or exceeds `timeout` seconds.
        """
        return run_podman(self.env, args, input=input, timeout=timeout, check=check, allow=allow)

    @property
    def client(self) -> PodmanClient:
        """podman-py's client on our service, one a thread; the service is started if it is not running."""
        self._ensure_service()
        client = getattr(self._local, "client", None)
        if client is None:
            from podman import PodmanClient

            client = self._local.client = PodmanClient(base_url=f"http+unix://{self.socket}", timeout=120)
        return client

    def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        data: Any = None,
        allow: Sequence[int] = (),
        timeout: float = 120.0,
        tries: int = 3,
    ) -> Any:
        """One libpod REST request; the service is restarted if it died. Returns the response.

        `allow` lists statuses of 400 and above that are the caller's to judge. Raises ServiceLost where the line breaks
        `tries` times (what was asked for may have been done), Refused where the service says no, and SandboxError
        otherwise.
        """
        import requests

        for attempt in range(tries):
            try:
                response = getattr(self.client.api, method)(path, params=params, data=data, timeout=timeout)
            except (requests.RequestException, ConnectionError) as error:
                # podman-py says the same of a broken line and of a time-out; what is behind it tells them apart.
                cause = error.__cause__ or error
                if isinstance(cause, requests.Timeout):
                    raise SandboxError(f"podman did not answer {method} {path} in {timeout:.0f} s: {cause}") from error
                self._local.client = None
                if attempt == tries - 1:
                    raise ServiceLost(f"the podman service does not answer ({method} {path}): {cause}") from error
                continue
            if response.status_code >= 400 and response.status_code not in allow:
                raise Refused(f"podman refused {method} {path}: {_complaint(response)}")
            return response
        raise AssertionError("unreachable")

    async def call(self, function: Callable[..., T], *args: Any) -> T:
        """Run a blocking function in a thread of this store's own pool."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *args)

    def submit(self, function: Callable[..., object], *args: Any) -> None:
        """Run a blocking function in the background; `drain` and `close` wait for it."""
        self._background = [job for job in self._background if not job.done()]
        self._background.append(self._threads.submit(function, *args))

    async def drain(self) -> None:
        """Wait for what `submit` has in hand."""
        await asyncio.gather(*map(asyncio.wrap_future, self._background), return_exceptions=True)

    def image(self, name: str) -> ImageInfo:
        """What the image of this name or id says of itself. Raises SandboxError when the store has none."""
        kept = self._images.get(name)
        if kept is not None:
            return kept
        response = self.request("get", f"/images/{quote(name, safe='')}/json", allow=(404,))
        if response.status_code == 404:
            raise SandboxError(f"image {name} is not in the store {self.paths.store}", hint="run lego build-images")
        body = response.json()
        config = body.get("Config") or {}
        env = dict(pair.partition("=")[::2] for pair in config.get("Env") or ())
        user = config.get("User") or body.get("User") or ""
        entrypoint = tuple(config.get("Entrypoint") or ())
        info = ImageInfo(body["Id"], config.get("WorkingDir") or "/", user, env, entrypoint)
        self._images[name] = info
        return info

    def mount_image(self, image: str) -> Path:
        """A read-only path on this host with the image's files; it stays mounted while this store is in use."""
        with self._mount_lock:
            path = self._mounted.get(image)
            if path is None:
                path = Path(self.cli("image", "mount", image).stdout.decode().strip())
                self._mounted[image] = path
            return path

    def check_disk(self) -> None:
        """Raises SandboxError when the store's file system has less free space than the reserve."""
        free = shutil.disk_usage(self.paths.graph).free
        if free < self.settings.disk_reserve:
            raise SandboxError(
                f"only {free / _GIB:.1f} GiB free under {self.paths.store}",
                hint="free some space (lego gc), or lower sandbox.disk_reserve",
            )

    def close(self) -> None:
        """Stop the service. Containers that are still there are left to the reaper."""
        self._threads.shutdown(wait=True)
        for image in self._mounted:
            self.cli("image", "unmount", image, check=False)
        self._mounted.clear()
        with self._lock:
            service, self._service = self._service, None
        if service is not None:
            service.send_signal(signal.SIGTERM)
            try:
                service.wait(timeout=5)
            except subprocess.TimeoutExpired:
                service.kill()
                service.wait()
        self.socket.unlink(missing_ok=True)

    def _ensure_service(self) -> None:
        with self._lock:
            if self._service is not None and self._service.poll() is None and self.socket.exists():
                return
            if self._service is not None:
                with contextlib.suppress(ProcessLookupError):
                    self._service.kill()
                self._service.wait()
            self.socket.unlink(missing_ok=True)
            # The service leaves by itself when idle, so a killed owner leaves nothing behind for long; its own
            # session keeps Ctrl-C from reaching it before the trials in flight are closed. Its folder is not the
            # user's, because conmon leaves a file named "oom" in it when a container runs out of memory.
            self._service = subprocess.Popen(
                self.argv("system", "service", "--time", str(_IDLE), f"unix://{self.socket}"),
                env=self.env,
                cwd=self.paths.run,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
            deadline = time.monotonic() + 20
            while not self.socket.exists():
                if self._service.poll() is not None:
                    assert self._service.stderr is not None
                    reason = _last_line(self._service.stderr.read())
                    raise SandboxError(f"the podman service does not start: {reason}")
                if time.monotonic() > deadline:
                    raise SandboxError("the podman service did not start within 20 s")
                time.sleep(0.005)
            stderr = self._service.stderr
            assert stderr is not None
            threading.Thread(target=_drain, args=(stderr,), daemon=True).start()


def run_podman(
    env: Mapping[str, str],
    args: Sequence[str],
    *,
    input: bytes | None = None,
    timeout: float | None = None,
    check: bool = True,
    allow: Sequence[int] = (),
) -> subprocess.CompletedProcess[bytes]:
    """Run podman in `env`; see Podman.cli."""
    try:
        done = subprocess.run(
            ["podman", *args],
            env=dict(env),
            input=input,
            capture_output=True,
            timeout=timeout,
            stdin=subprocess.DEVNULL if input is None else None,
        )
    except subprocess.TimeoutExpired as error:
        raise SandboxError(f"podman {args[0]} did not finish in {timeout:.0f} s") from error
    except OSError as error:
        raise SandboxError(f"podman cannot be run: {error}", hint="apt install podman runc") from error
    if check and done.returncode not in (0, *allow):
        raise SandboxError(f"podman {args[0]} failed: {_last_line(done.stderr) or f'exit code {done.returncode}'}")
    return done


def _probed(settings: PodmanSettings, paths: StorePaths) -> Capabilities:
    version = run_podman(os.environ, ["--version"]).stdout.decode().split()[-1]
    ways = hostconf.candidates(settings.runtime)
    key = json.dumps(
        [
            probe.VERSION,
            version,
            boot_id(),
            os.geteuid(),
            settings.runtime,
            [asdict(way) for way in ways],
            hostconf.init_available(),
        ]
    )
    cache = paths.store / "capabilities.json"
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        kept = json.loads(cache.read_text())
        if kept["key"] == key:
            capabilities = Capabilities(**{**kept["capabilities"], "notes": tuple(kept["capabilities"]["notes"])})
            hostconf.write(paths, _conf_of(capabilities), paths.conf)
            return capabilities
    if not ways:
        raise SandboxError(
            f"no OCI runtime found for sandbox.runtime={settings.runtime}", hint="apt install crun or runc"
        )
    found = probe.first_working(paths, ways)
    capabilities = Capabilities(version=version, init=hostconf.init_available(), **found)
    hostconf.write(paths, _conf_of(capabilities), paths.conf)
    fresh = cache.with_suffix(f".{os.getpid()}")
    fresh.write_text(json.dumps({"key": key, "capabilities": asdict(capabilities)}, indent=1))
    fresh.replace(cache)
    return capabilities


def _conf_of(capabilities: Capabilities) -> HostConf:
    return HostConf(
        capabilities.runtime,
        capabilities.cgroup_manager,
        capabilities.mount_program,
        capabilities.nofile,
        capabilities.nproc,
    )


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _drain(stream: Any) -> None:
    with contextlib.suppress(ValueError, OSError):
        while stream.read(65536):
            pass


def _last_line(data: bytes) -> str:
    lines = [line for line in data.decode(errors="replace").splitlines() if line.strip()]
    return lines[-1].strip()[:500] if lines else ""


def _complaint(response: Any) -> str:
    try:
        body = response.json()
    except ValueError:
        return f"HTTP {response.status_code}"
    return str(body.get("message") or body.get("cause") or body)[:500]
