"""A policy in memory: loaded, scored by a plain forward pass, and proven before it is used."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from transformers import PreTrainedModel
from transformers.cache_utils import DynamicCache
from transformers.utils import logging

from lego.engine.adapter import bases, read_model
from lego.engine.base import FloatArray, IntArray, PolicyRef
from lego.engine.decoder import Decoder, Row
from lego.engine.digest import folder_digest
from lego.engine.sampling import log_probs
from lego.errors import EngineError

_SCORE_TOKENS = 1024
_PROBE_PROMPT = 24
_PROBE_REPLY = 8
PROBE_GAP = {torch.float32: 1e-4, torch.bfloat16: 0.3}
"""Largest |log p| difference allowed between decoding with a cache and a plain forward pass."""


def load_model(policy: PolicyRef, dtype: torch.dtype, device: torch.device) -> PreTrainedModel:
    """Read the folder's weights, an adapter merged into its base. Raises EngineError where the folder (or the base) is
    not what its recorded digest says, or where the weights leave a parameter unset (it would keep random values,
    silently)."""
    _check_digest(f"policy {policy.version}", policy.path, policy.digest)
    logging.disable_progress_bar()
    try:
        for base in bases(policy.path):
            _check_digest(f"the base of policy {policy.version}", base.path, base.digest)
        model, report = read_model(policy.path, dtype)
    except EngineError:
        raise
    except Exception as error:
        raise EngineError(f"cannot load policy {policy.version} from {policy.path}: {error}") from error
    for key in ("missing_keys", "mismatched_keys"):
        if wrong := sorted(str(name) for name in report.get(key, ())):
            raise EngineError(
                f"policy {policy.version} at {policy.path}: {key.replace('_', ' ')}: {', '.join(wrong[:4])}"
                f"{' …' if len(wrong) > 4 else ''}"
            )
    return model.to(device).eval()  # type: ignore[no-any-return]


def _check_digest(what: str, path: str, recorded: str) -> None:
    found = folder_digest(path)
    if recorded and found != recorded:
        raise EngineError(
            f"{what} at {path} has digest {found[:12]}, not the recorded {recorded[:12]}",
            hint="the folder was changed after it was recorded; restore it or start a new run",
        )


def teacher_forced(model: PreTrainedModel, ids: IntArray, start: int, temperature: float) -> FloatArray:
    """log p(ids[i] | ids[:i]) for i >= start, [n - start] float32, nats, of softmax(logits / T).

    Through the model's own attention and cache, in passes of bounded size.
    """
    tokens = torch.as_tensor(np.asarray(ids, np.int64), device=model.device)
    cache = DynamicCache(config=model.config)
    parts = []
    for begin in range(0, len(tokens) - 1, _SCORE_TOKENS):
        end = min(begin + _SCORE_TOKENS, len(tokens) - 1)
        keep = end - max(begin, start - 1)
        passed = tokens[None, begin:end]
        out = model(input_ids=passed, past_key_values=cache, use_cache=True, logits_to_keep=max(keep, 1))
        if keep > 0:
            heat = torch.full((keep,), temperature, device=model.device)
            logp = log_probs(out.logits[0, -keep:], heat)
            parts.append(logp.gather(1, tokens[end - keep + 1 : end + 1, None]).squeeze(1))
    result: FloatArray = torch.cat(parts).cpu().numpy().astype(np.float32)
    return result


def prove(model: PreTrainedModel, decoder: Decoder) -> float:
    """Decode a fixed text in two turns and compare with `teacher_forced`. Returns the largest |difference| (nats).

    Raises EngineError when it is over the bound or not finite: then what the engine samples from is not the policy.
    """
    vocabulary = model.config.get_text_config().vocab_size
    text = [(7919 * i + 13) % vocabulary for i in range(_PROBE_PROMPT + _PROBE_REPLY)]
    shorter = Row("probe-beside", text[: _PROBE_PROMPT // 2])
    got: list[float] = []
    for prompt in (_PROBE_PROMPT, _PROBE_PROMPT + _PROBE_REPLY // 2):
        row = Row("probe", text[:prompt])
        rows = [shorter, row] if prompt == _PROBE_PROMPT else [row]
        logits = decoder.prefill(rows)[-1]
        for i in range(prompt, prompt + _PROBE_REPLY // 2):
            heat = torch.ones(1, device=logits.device)
            got.append(float(log_probs(logits[None], heat)[0, text[i]]))
            for each in decoder.rows:
                each.ids.append(text[i])
            logits = decoder.decode()[decoder.rows.index(row)]
        for each in list(decoder.rows):
            decoder.release(each)
    decoder.reset()
    decoder.reused_tokens = 0
    want = teacher_forced(model, np.asarray(text, np.int32), _PROBE_PROMPT, 1.0)
    gap = float(np.max(np.abs(np.asarray(got) - want)))
    if not gap <= PROBE_GAP[model.dtype]:
        raise EngineError(
            f"decoding does not agree with a plain forward pass: log-probs differ by {gap:.2g}",
            hint=f"this model class ({type(model).__name__}) is not served faithfully in {model.dtype}",
        )
    return gap


def context_of(model: PreTrainedModel, path: str | Path) -> int:
    """The most tokens the model was made for."""
    limit = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if not isinstance(limit, int):
        raise EngineError(f"{path}/config.json does not say max_position_embeddings")
    return limit
