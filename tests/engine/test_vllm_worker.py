"""What runs in vLLM's processes, as far as it needs no vLLM."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from lego.engine.vllm_worker import TakeOver


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> TakeOver:
    monkeypatch.setattr(torch, "Generator", torch.Generator)  # put back afterwards
    worker = TakeOver()
    worker.rank = 0
    worker.model_runner = SimpleNamespace(requests={}, execute_model=lambda scheduled: scheduled)
    return worker


def draw(generator: torch.Generator) -> float:
    return float(torch.empty(1).exponential_(generator=generator))


def test_a_draw_that_is_thrown_away_costs_a_seeded_request_nothing(worker: TakeOver) -> None:
    """vLLM takes a draw back by the four numbers that it took on a GPU."""
    plain = torch.Generator().manual_seed(5)
    wanted = [draw(plain) for _ in range(3)]
    worker.take_draws_back()
    generator = torch.Generator(device="cpu")
    generator.manual_seed(5)
    worker.model_runner.requests["a"] = SimpleNamespace(generator=generator)
    worker.model_runner.requests["b"] = SimpleNamespace(generator=None)
    assert draw(generator) == wanted[0]  # before any step has seen it
    generator.set_offset(generator.get_offset() - 4)
    drawn = []
    for thrown_away in (False, True, True, False, False):
        assert worker.model_runner.execute_model("a step") == "a step"
        drawn.append(draw(generator))
        if thrown_away:
            generator.set_offset(generator.get_offset() - 4)
    assert drawn == [wanted[0], wanted[1], wanted[1], wanted[1], wanted[2]]


def test_only_the_first_worker_tells_experts(worker: TakeOver) -> None:
    worker.rank = 1
    run = worker.model_runner.execute_model
    worker.record_routing()
    assert worker.model_runner.execute_model is run
    assert worker.take_routing("0", 4) is None
