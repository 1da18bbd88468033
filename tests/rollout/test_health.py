from __future__ import annotations

import pytest

from lego.rollout.health import likely_cause


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        ("sandbox: podman refused post /containers/create: no space left on device", "the disk is full"),
        ("sandbox: only 0.2 GiB free under /var/lib/lego", "the disk is full"),
        ("allocating lock for new container: allocation failed; exceeded num_locks (2048)", "no lock left"),
        ("sandbox: image localhost/x is not in the store /s", "an image is gone"),
        ("fork/exec /usr/bin/conmon: cannot allocate memory", "out of memory"),
        ("engine: 2 replies were lost: CUDA error", "the engine fails"),
        ("the socket of the proxy vanished while the harness ran: /run/x", "removes the sockets"),
        ("the container vanished while the harness ran", "removes containers"),
        ("harness: no call reached the model: exit code 3", "the harness does not start"),
        ("the podman service does not answer (post /x)", "podman itself fails"),
        ("unexpected OSError: no space left on device (traceback in x/errors.log)", "the disk is full"),
        ("unexpected KeyError: 'x' (traceback in x/errors.log)", "a bug of lego's own"),
    ],
)
def test_a_known_reason_names_its_cause(reason: str, said: str) -> None:
    assert said in likely_cause([reason] * 3)


def test_most_of_the_reasons_decide_and_unknown_ones_get_general_advice() -> None:
    assert "the engine fails" in likely_cause(["replies were lost", "no space left on device", "replies were lost"])
    assert likely_cause(["something else"]).startswith("lego try TASK")


def test_a_room_is_no_lack_of_memory() -> None:
    assert "out of memory" in likely_cause(["the host ran into OOM"])
    assert "out of memory" not in likely_cause(["no room for another container"])
