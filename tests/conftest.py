"""Parts that a machine may lack, and what becomes of the tests that need them.

A test that needs a missing part skips with that part's own error. `LEGO_REQUIRE=podman,…` turns such skips into
failures, so that a machine that must have the part cannot pass without it.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import hypothesis
import pytest

from lego.errors import LegoError

if TYPE_CHECKING:
    from lego.sandbox.podman import Podman

# Read when torch loads: threads that spin while they wait starve everything else on a small machine.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("KMP_BLOCKTIME", "0")
# torch makes the folder of its compiler's cache where it is imported; not in a temporary folder that a test looks into.
os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", os.path.join(tempfile.gettempdir(), "torchinductor"))

# How long an example may take is the machine's business.
hypothesis.settings.register_profile("lego", deadline=None)
hypothesis.settings.load_profile("lego")

SHARED = Path(__file__).resolve().parents[2] / "shared"
CONFIGS = Path(__file__).resolve().parents[1] / "configs"


def missing(part: str, why: str) -> NoReturn:
    """Skip, or fail if LEGO_REQUIRE names the part."""
    if part in os.environ.get("LEGO_REQUIRE", "").split(","):
        pytest.fail(f"{part} is required here (LEGO_REQUIRE) but: {why}", pytrace=False)
    pytest.skip(f"{part}: {why}")


def smollm() -> Path:
    """The folder of SmolLM2's weights, as `make smollm` makes it."""
    folder = Path(__file__).resolve().parents[1] / "models" / "smollm2"
    if not (folder / "config.json").is_file():
        missing("smollm", f"{folder} is not there; make smollm makes it")
    return folder


@pytest.fixture(scope="session")
def podman() -> Iterator[Podman]:
    """The private podman, as the project itself opens it where it accepts what the host cannot enforce."""
    from lego.sandbox.podman import Podman, PodmanSettings

    try:
        opened = Podman.open(PodmanSettings(accept_unenforced_limits=True))
    except LegoError as error:
        missing("podman", f"{error} {error.hint}".strip())
    yield opened
    opened.close()


@pytest.fixture
def limits(podman: Podman) -> None:
    """For tests of what a container may use at most: rootless podman on cgroup v1 enforces none of it."""
    if not podman.capabilities.limits:
        missing("limits", "this host cannot enforce memory and process limits on containers")


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real benchmark rows and logs beside the checkout; not part of the project."""
    if not SHARED.is_dir():
        pytest.skip("the folder of shared data is not beside this checkout")
    return SHARED / "data"
