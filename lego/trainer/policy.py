"""The policy as the trainer holds it: loaded from a Hugging Face folder, scored without keeping its logits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from lego.config.schema import LoraSection
from lego.engine.adapter import read_model
from lego.errors import ConfigError, TrainerError
from lego.trainer.attention import NAME, Trees, register
from lego.trainer.batch import Batch, Layout
from lego.trainer.forest import GRAIN, grow
from lego.trainer.head import LOGIT_BUDGET, head_logprobs
from lego.trainer.lora import Adapter
from lego.trainer.ranks import Alone
from lego.trainer.routing import Routers

NO_CUDA = "engine.device: cuda, and torch finds none on this machine"
NO_CUDA_HINT = "engine.device=auto takes what there is"


@dataclass(frozen=True)
class Scored:
    """logp: [segments, width] float32, nats, 0 where the batch's mask is False.  entropy: the same shape, of the whole
    distribution each id was drawn from, nats; None unless asked for.  balance: scalar, the load-balancing loss of a
    mixture of experts (lego.trainer.routing); None unless asked for."""

    logp: Tensor
    entropy: Tensor | None = None
    balance: Tensor | None = None


class Policy:
    """A causal language model whose weights stay float32; `dtype` is what its forward pass computes in.

    bfloat16 weights would swallow a learning rate of 1e-6 whole, so only the arithmetic is in bfloat16 (autocast).
    checkpoint_layers: keep no activations within a layer, but compute them again in the backward pass.
    attention: auto has every sequence packed with others where the model's attention allows it; any other names an
    implementation of transformers', by which each stands in a row of its own.
    lora: with a rank, an adapter is trained and nothing else (lego.trainer.lora). seed: of a new adapter.
    """

    def __init__(
        self,
        folder: Path,
        *,
        dtype: str = "float32",
        device: str = "auto",
        checkpoint_layers: bool = False,
        attention: str = "auto",
        lora: LoraSection | None = None,
        seed: int = 0,
    ) -> None:
        if dtype not in ("float32", "bfloat16"):
            raise ConfigError(f"engine.dtype: {dtype} is not known", hint="use float32 or bfloat16")
        if not (folder / "config.json").is_file():
            raise TrainerError(
                f"{folder} is not a Hugging Face folder (no config.json)",
                hint="policy.model must be a folder with config.json and weights",
                fault="user",
            )
        if device == "cuda" and not torch.cuda.is_available():
            raise ConfigError(NO_CUDA, hint=NO_CUDA_HINT)
        self.device = torch.device(("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device)
        self._dtype = torch.bfloat16 if dtype == "bfloat16" else torch.float32
        self.ranks = Alone()
        self.adapter = Adapter(folder, lora, seed) if lora and lora.rank else None
        model = _load(self.adapter.source if self.adapter else folder)
        if self.adapter:
            self.adapter.enter(model)
        self.model = self._place(model)
        # Dropout would make pi_old and pi two distributions.
        self.model.eval()
        self.routers = Routers(self.model, self.device)
        self._head = self._trusted_head()
        self.packs = self._trusted_forest() if attention == "auto" else self._keep_to_rows(attention)
        """Whether this model's attention can be told who sees whom: else every segment needs a row of its own."""
        if checkpoint_layers:
            _checkpoint_layers(self.model)

    def _place(self, model: Any) -> Any:
        return model.to(self.device)

    @property
    def vocabulary(self) -> int:
        return int(self.model.get_input_embeddings().weight.shape[0])

    def backward(self, loss: Tensor, counts: bool = True) -> None:
        """Add the gradient of `loss`; where it does not count (lego.trainer.ranks), nothing."""
        loss.backward()  # type: ignore[no-untyped-call]

    def save(self, folder: Path | None) -> None:
        """Write config and weights. folder: None in a process that writes none, but has its part in it."""
        if folder is not None:
            self._write(folder, self.model.state_dict())

    def _write(self, folder: Path, state: dict[str, Tensor]) -> None:
        """state: whole tensors, by the model's names."""
        if self.adapter:
            self.adapter.write(folder, self.model, state)
        else:
            self.model.save_pretrained(folder, state_dict=state)

    def layout(self, share: bool) -> Layout:
        """How batches for this model are laid out; share: whether equal beginnings may be computed once."""
        return ("forest" if share else "packed") if self.packs else "rows"

    def score(self, batch: Batch, temperature: float, entropy: bool = False, balance: bool = False) -> Scored:
        """Score the batch's wanted ids under softmax(logits / temperature). Keeps the gradient if torch does.

        batch: on this policy's device, in a layout of `layout`.
        """
        self.routers.follow(batch.routing, balance, batch.real)
        with self._autocast():
            states = self._states(batch)[batch.states]
            spread_evenly = self.routers.balance() if balance else None
            if isinstance(self._head, nn.Linear):
                # A trusted head is a plain matrix; its log-probs need no logits to be kept.
                logp, spread = head_logprobs(
                    states, self._head.weight, self._head.bias, batch.wanted, temperature, self._dtype, entropy
                )
            else:
                logp, spread = self._pick(states, batch.wanted, self._head or _same, temperature, entropy)
        return Scored(_grid(batch.mask, logp), None if spread is None else _grid(batch.mask, spread), spread_evenly)

    def _states(self, batch: Batch) -> Tensor:
        """[rows x n, width]: last hidden states, or the logits of a model whose head is not trusted."""
        more: dict[str, Any] = {"position_ids": batch.positions} if batch.positions is not None else {}
        if batch.runs:
            more["trees"] = Trees(batch.runs, self.device)
        # No attention mask: attention is causal and all padding stands to the right, so nothing real can see it.
        if self._head is None:
            whole = self.model(input_ids=batch.ids, use_cache=False, **more).logits
        else:
            whole = self.model.base_model(input_ids=batch.ids, use_cache=False, **more).last_hidden_state
        flat: Tensor = whole.flatten(0, 1)
        return flat

    def _pick(
        self, states: Tensor, wanted: Tensor, head: Callable[[Tensor], Tensor], temperature: float, entropy: bool
    ) -> tuple[Tensor, Tensor | None]:
        """[m] float32 each: the head is applied, and differentiated, a chunk of rows at a time."""

        def chunk_scores(rows: Tensor, ids: Tensor) -> Tensor:
            spread = torch.log_softmax(head(rows).float() / temperature, dim=1)
            scores = [spread.gather(1, ids[:, None]).squeeze(1)]
            return torch.stack([*scores, -(spread.exp() * spread).sum(1)] if entropy else scores)

        chunk = max(1, LOGIT_BUDGET // self.vocabulary)
        parts = [
            checkpoint(chunk_scores, rows, ids, use_reentrant=False)
            for rows, ids in zip(states.split(chunk), wanted.split(chunk), strict=True)
        ]
        scores = torch.cat(parts, dim=1)
        return scores[0], scores[1] if entropy else None

    def _autocast(self) -> AbstractContextManager[Any]:
        if self._dtype == torch.float32:
            return nullcontext()
        return torch.autocast(self.device.type, dtype=self._dtype)

    @torch.no_grad()
    def _trusted_head(self) -> Callable[[Tensor], Tensor] | None:
        """The output layer, if it alone turns the last hidden state into the logits.

        Some families scale or cap their logits afterwards (Cohere, Granite, Gemma 2); there the whole forward is used.
        """
        head = self.model.get_output_embeddings()
        probe = torch.arange(8, device=self.device)[None] % self.vocabulary
        whole = self.model(input_ids=probe, use_cache=False).logits
        try:
            apart = head(self.model.base_model(input_ids=probe, use_cache=False).last_hidden_state)
        except (AttributeError, TypeError):
            return None
        return head if apart.shape == whole.shape and torch.allclose(apart, whole, rtol=1e-4, atol=1e-5) else None

    @torch.no_grad()
    def _trusted_forest(self) -> bool:
        """Have the model attend over forests, if that gives what each sequence by itself does.

        State that is carried along the row, as linear attention has it, would leak from one sequence into the next;
        windows and chunks are masks that a forest does not have. Such a model keeps its own attention.
        """
        config = self.model.config.get_text_config()
        kinds = getattr(config, "layer_types", None) or ["full_attention"]
        if set(kinds) != {"full_attention"} or getattr(config, "attention_chunk_size", None):
            return False
        first = torch.arange(GRAIN + 5).numpy() * 7 % self.vocabulary
        second = first.copy()
        second[GRAIN:] = (second[GRAIN:] + 1) % self.vocabulary
        forest = grow([first, second, first[3:9]], [0, GRAIN, 0])
        ids, depth = (torch.from_numpy(row).long()[None].to(self.device) for row in (forest.ids, forest.depth))
        apart = [self._hidden(ids[:, torch.from_numpy(path).long()]) for path in forest.paths]
        before, trees = self.model.config._attn_implementation, Trees(forest.runs, self.device)
        register()
        try:
            self.model.set_attn_implementation(NAME)
            together = self._hidden(ids, position_ids=depth, trees=trees)
        except (NotImplementedError, RuntimeError, TypeError, ValueError):
            equal = False
        else:
            equal = trees.calls == config.num_hidden_layers and all(
                torch.allclose(together[torch.from_numpy(path).long()], alone, rtol=1e-3, atol=1e-4)
                for path, alone in zip(forest.paths, apart, strict=True)
            )
        if not equal:
            self.model.set_attn_implementation(before)
        return equal

    def _keep_to_rows(self, attention: str) -> bool:
        """Raises ConfigError where the model cannot be given that attention here."""
        if attention.startswith("flash") and self.device.type != "cuda":
            raise ConfigError(
                f"train.attention: {attention} runs on CUDA devices, and this policy is on {self.device.type}",
                hint="train.attention=auto runs everywhere",
            )
        try:
            self.model.set_attn_implementation(attention)
        except (ImportError, ValueError) as error:
            raise ConfigError(
                f"train.attention: {attention} cannot be had here: {str(error).splitlines()[0]}",
                hint="install its package, or set train.attention=auto",
            ) from error
        return False

    def _hidden(self, ids: Tensor, **more: Any) -> Tensor:
        """[n, width] of a batch of one row."""
        hidden: Tensor = self.model.base_model(input_ids=ids, use_cache=False, **more).last_hidden_state[0]
        return hidden


@contextmanager
def memory_advice() -> Iterator[None]:
    """Turn an accelerator that ran out of memory into advice."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise TrainerError(
            f"the device ran out of memory: {str(error).partition('. ')[0]}",
            hint="lower train.micro_batch_tokens, set train.checkpoint_layers, or give the engine less memory",
        ) from error


def _grid(mask: Tensor, values: Tensor) -> Tensor:
    return torch.zeros(mask.shape, dtype=torch.float32, device=values.device).masked_scatter(mask, values)


def _checkpoint_layers(model: Any) -> None:
    from transformers.modeling_layers import GradientCheckpointingLayer

    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    for module in model.modules():
        if isinstance(module, GradientCheckpointingLayer):
            # Only a layer in training is checkpointed; what is inside of it stays as it is evaluated, without dropout.
            module.training = True


def _same(logits: Tensor) -> Tensor:
    return logits


def _load(folder: Path) -> Any:
    from transformers.utils import logging

    logging.disable_progress_bar()
    try:
        model, notes = read_model(folder, torch.float32)
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        raise TrainerError(f"{folder} does not load: {error}", hint="is the checkpoint complete?") from error
    # transformers fills what a checkpoint lacks with random numbers and only warns.
    lacking = sorted(notes["missing_keys"])
    if lacking:
        raise TrainerError(f"{folder} lacks weights: {', '.join(lacking[:5])} ({len(lacking)} in all)")
    return model
