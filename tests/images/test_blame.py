from __future__ import annotations

import pytest

from lego.images.blame import damaged, machine_fault

STEP = 'Error: building at STEP "RUN x": while running runtime: exit status 1'


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("E: Failed to fetch http://d/x.deb  Connection timed out [IP: 10.0.0.1 80]", True),
        ("pip._vendor.urllib3.exceptions.ReadTimeoutError: HTTPSConnectionPool: Read timed out.", True),
        ("npm error code EAI_AGAIN", True),
        ("fatal: unable to access 'https://x/': Could not resolve host: x", True),
        ("fatal: unable to access 'https://x/': Could not resolve proxy: p", True),
        ("ProxyError('Cannot connect to proxy.', OSError('Tunnel connection failed: 407 Proxy Authentication'))", True),
        ("ERROR: HTTP error 503 while getting https://x/y.whl", True),
        ("ERROR: No matching distribution found for nonesuch==1.0", False),
        ("E: Unable to locate package nonesuch", False),
        ("AssertionError: 503 != 502", False),
        ("npm error 404 Not Found", False),
    ],
)
def test_the_words_of_a_network_that_fails(line: str, expected: bool) -> None:
    said = f"{line}\n{STEP}\n".encode()
    assert machine_fault(said, 1) == ("the network failed" if expected else "")


@pytest.mark.parametrize(
    ("said", "code", "expected"),
    [
        ("STEP 1/2: FROM x\n", -9, "podman was killed (signal 9)"),
        (f"dd: error writing '/big': No space left on device\n{STEP}\n", 1, "the disk is full"),
        ("Error: committing container: copying layers: write /s/x: disk quota exceeded\n", 125, "the disk is full"),
        ('Error: creating build container: creating container: creating read-write layer with ID "ab": Stat /s/ab/diff:'
         " no such file or directory\n", 125, "the image store is damaged"),
        ('time="2026" level=error msg="Image x exists in local storage but may be corrupted (remove the image): EOF"\n'
         "Error: creating build container: x: image not known\n", 125, "the image store is damaged"),
        ("Error: checking platform: locating item for image (consider removing the image to resolve the issue)\n", 125,
         "the image store is damaged"),
        ("mysql: image not known, layer not known\n" + STEP, 1, ""),
        ("tests: may be corrupted\n" + STEP, 2, ""),
        (STEP, 137, ""),
        ("STEP 2/3: RUN echo ECONNRESET\n" + STEP.replace("x", "echo 'image not known', ECONNRESET", 1), 1, ""),
        ('Error: building at STEP "COPY a /": copier: stat: "/a": no such file or directory', 125, ""),
        ("Error: creating build container: reading manifest 9 in example.org/x: manifest unknown\n", 125, ""),
        ("", None, ""),
    ],
)  # fmt: skip
def test_what_broke_a_build(said: str, code: int | None, expected: str) -> None:
    assert machine_fault(said.encode(), code) == expected
    assert damaged(said.encode()) == (expected == "the image store is damaged")
