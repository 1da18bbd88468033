from __future__ import annotations

import subprocess
import sys

import pytest

from lego.config.schema import EngineSection
from lego.engine.open import open_engine
from lego.engine.scripted import ScriptedEngine
from lego.errors import ConfigError


async def test_each_kind_opens() -> None:
    assert isinstance(open_engine(EngineSection(kind="scripted")), ScriptedEngine)
    engine = open_engine(EngineSection(threads=1))
    assert engine.sampler == "policy"
    assert engine.policy_version == -1  # nothing is loaded yet
    await engine.close()


@pytest.mark.parametrize(
    "section",
    [
        EngineSection(kind="vlm"),
        EngineSection(dtype="float16"),
        EngineSection(device="tpu"),
        EngineSection(max_concurrent=0),
        EngineSection(kind="vllm", device="tpu"),
    ],
)
def test_what_does_not_exist_is_refused_by_its_key(section: EngineSection) -> None:
    with pytest.raises(ConfigError, match=r"^config: engine\.\w+: "):
        open_engine(section)


def test_a_script_needs_no_torch() -> None:
    program = (
        "import sys; from lego.config.schema import EngineSection; from lego.engine.open import open_engine;"
        "open_engine(EngineSection(kind='scripted')); print([m for m in ('torch', 'transformers') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_vllm_where_it_is_not_installed_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lego.engine.open.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"^config: engine\.kind: vllm, but vLLM is not installed") as refused:
        open_engine(EngineSection(kind="vllm"))
    assert "tools/vllm.sh" in refused.value.hint
