"""A tiny policy for tests: random weights, a tokenizer trained on a few lines of the demo's kind of text.

Use it with `from tests._tiny import tiny_policy` (a fixture: the folder) or `make_policy(path, seed)`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from lego.trainer.tiny import make_tiny

CORPUS = [
    "<|im_start|>user\nThe function in w.py is wrong. Fix it.<|im_end|>\n",
    "<|im_start|>assistant\n<tool_call>bash\ncat w.py</tool_call><|im_end|>\n",
    "<|im_start|>tool\ndef total(items, n):\n    s = 0\n    i = 0\n    while i <= n:\n        s += items[i]\n"
    "        i += 1\n    return s\n<|im_end|>\n",
    "<|im_start|>assistant\n<tool_call>bash\nsed -i 's/i <= n/i < n/' w.py</tool_call><|im_end|>\n",
    "<|im_start|>assistant\n<tool_call>submit\ndone</tool_call><|im_end|>\n",
    "    for k in range(1, len(rows) - 1):\n        if rows[k] >= limit:\n            count += 1\n",
] * 20


def make_policy(path: Path, seed: int = 0) -> Path:
    """Write a tiny random policy at `path` and return it."""
    make_tiny(path, seed, CORPUS)
    return path


@pytest.fixture(scope="session")
def tiny_policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny random policy; read-only by agreement."""
    return make_policy(tmp_path_factory.mktemp("tiny") / "policy")
