"""The schema of a run: one dataclass a section, every field tagged with how it may change.

`identity` fields are frozen when the run database is first used; `tunable` ones may change between stages and
each change is logged; `machine` ones describe this computer and are free. Durations and sizes are strings as
people write them ("60s", "512m"); `lego.units` reads them.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any, Literal

Tag = Literal["identity", "tunable", "machine"]


def _tagged(tag: Tag, default: Any, doc: str) -> Any:
    metadata = {"tag": tag, "doc": doc}
    if isinstance(default, list | dict) or hasattr(default, "__dataclass_fields__"):
        return field(default_factory=lambda: copy.deepcopy(default), metadata=metadata)
    return field(default=default, metadata=metadata)


def identity(default: Any, doc: str) -> Any:
    return _tagged("identity", default, doc)


def tunable(default: Any, doc: str) -> Any:
    return _tagged("tunable", default, doc)


def machine(default: Any, doc: str) -> Any:
    return _tagged("machine", default, doc)


@dataclass
class RunSection:
    name: str = identity("???", "name of the run; its database is <dir>/<name>/run.db")
    seed: int = identity(0, "seed of every random choice the run makes")
    dir: str = machine("runs", "folder that holds the runs")


@dataclass
class PolicySection:
    model: str = identity("???", "a Hugging Face folder or name, or `tiny` for the demo policy made on the spot")
    renderer: str = identity("auto", "message format: auto, default, a family, or vllm:PARSERS (docs/rendering.md)")
    context: int = identity(4096, "context window in tokens, prompt and completion together")
    name: str = tunable("policy", "the model name that harnesses see")


@dataclass
class EngineSection:
    kind: str = tunable("transformers", "transformers | vllm | scripted")
    dtype: str = tunable("float32", "float32 | bfloat16")
    device: str = machine("auto", "auto | cpu | cuda")
    max_concurrent: int = machine(16, "sequences decoded together")
    threads: int = machine(0, "torch threads; 0 leaves torch's default")
    routing: bool = tunable(False, "mixtures of experts: record which experts each token went to, for train.moe.replay")
    cache: str = machine(
        "1g", "memory for the prefixes of conversations between their turns; vllm: its whole KV cache, on each GPU"
    )
    tensor_parallel: int = machine(1, "vllm: GPUs that divide the policy among them (CPU build: processes)")


@dataclass
class TaskSource:
    source: str = identity("???", "harbor (task folders) | swebench (rows of that shape) | family (generated tasks)")
    path: str = identity("", "harbor: folder of one task or of many; swebench: file of rows")
    name: str = identity("", "family: which generator")
    count: int = identity(0, "family: how many; others: the first so many (0 = all)")
    seed: int = identity(0, "family: seed of the generator")
    options: dict[str, Any] = identity({}, "each source's own: docs/tasks.md, docs/swebench.md")
    only: str = identity("", "file of task ids, one a line: the others are left out (lego tasks filter writes it)")
    harness: str = identity("", "the harness these tasks run in; empty = drawn by the weights under harness")


@dataclass
class TasksSection:
    train: list[TaskSource] = identity([], "where training tasks come from")
    eval: list[TaskSource] = identity([], "held-out tasks")


@dataclass
class SandboxSection:
    memory: str = identity("512m", "memory limit of a container")
    pids: int = identity(128, "process limit of a container")
    cpus: float = identity(1.0, "CPU limit of a container")
    disk: str = identity("256m", "largest growth of a container's files; also the largest single file")
    timeout: str = identity("120s", "wall clock of one trial, standing still while the engine generates")
    network: str = identity("sealed", "sealed: nothing but the proxy answers")
    runtime: str = machine("auto", "OCI runtime: auto | crun | runc | a path")
    store: str = machine("", "podman's private store; empty = the user's data folder")
    accept_unenforced_limits: bool = machine(False, "run although this host cannot enforce the limits")
    disk_reserve: str = machine("1g", "free disk below which nothing new is started")


@dataclass
class ImagesSection:
    base: str = identity("debian:bookworm", "debian:SUITE (built from packages) | registry:NAME | rootfs:TAR")
    packages: list[str] = identity(
        ["python3", "python3-venv", "python3-pytest", "git", "ca-certificates"],
        "Debian packages in the base image, where it is built from packages",
    )
    base_map: dict[str, str] = identity({}, "FROM line -> base image to use in its place")
    parallel: int = machine(2, "images built at once")
    quota: str = machine("", "most that the store's image layers may take; empty = the disk, less its reserve")
    registry: str = machine("", "where `lego images push` and `pull` share images: HOST/FOLDER, or dir:FOLDER")


@dataclass
class RolloutSection:
    tasks_per_round: int = tunable(8, "tasks in a round (0 = all)")
    samples_per_task: int = tunable(8, "trials of one task in a round: the group")
    temperature: float = tunable(1.0, "sampling temperature")
    max_turns: int = tunable(20, "model calls a trial may make")
    max_output_tokens: int = tunable(1024, "tokens one call may sample")
    max_total_tokens: int = tunable(0, "tokens a trial may sample in all (0 = no cap)")
    history: str = tunable("raw", "raw keeps every sampled token in context; template renders as a stock server would")
    refill: int = tunable(0, "tasks that may join a training round until tasks_per_round of its groups have spread")
    max_attempts: int = tunable(3, "attempts of one trial after infrastructure faults")
    concurrency: int = machine(4, "trials run at once")
    lease: str = machine("60s", "how long a worker may be silent before its work is taken over")
    retry_pause: str = machine(
        "5s", "pause before what infrastructure broke is tried again, five times as long each time (5 minutes at most)"
    )


@dataclass
class VerifySection:
    timeout: str = tunable("", "wall clock of a verification; empty = what the task says")
    tamper: str = tunable("penalise", "trials with tamper findings: penalise | exclude | flag")
    concurrency: int = machine(4, "verifications run at once")


@dataclass
class ObjectiveSection:
    name: str = tunable("gspo", "gspo | grpo | dr_grpo | dapo | cispo | rloo | reinforce")
    advantage: str = tunable("auto", "auto (as the objective's paper) | standardised | centred | leave_one_out")
    weighting: str = tunable("auto", "what weighs the same: auto (as the paper) | trial | token | constant")
    ratio: str = tunable("segment", "gspo's importance ratio is one a segment | trial")
    clip_low: float = tunable(0.0, "lower clip range of the importance ratio (0 = as the paper)")
    clip_high: float = tunable(0.0, "upper clip range of the importance ratio (0 = as the paper)")
    kl: float = tunable(0.0, "weight of the KL to the reference policy in the loss (0 = no reference is loaded)")
    entropy: float = tunable(0.0, "weight of the policy's entropy, which the loss rewards (0 = off)")
    segment_weight: str = tunable("tokens", "a trial's weight goes to its segments by their tokens | equal")
    flat: str = tunable("auto", "groups without spread in the step's mean: auto (as the paper) | count | skip | weigh")
    flat_weight: float = tunable(0.5, "what such a trial counts for with `weigh`, where others count for 1")


@dataclass
class CorrectionSection:
    old: str = tunable("recompute", "recompute pi_old in the trainer | bypass: take the engine's log-probs")
    token_tis: float = tunable(2.0, "truncated importance sampling: upper bound of pi_old/mu a token (0 = off)")
    sequence_tis: float = tunable(0.0, "the same of a segment's product, in place of token_tis (0 = off; 2 to 10)")
    icepop: list[float] = tunable([], "bounds outside which a token is left out, in place of token_tis ([0.5, 5])")
    sequence_mask: float = tunable(0.0, "leave out segments whose product is above this (0 = off; 3)")
    geometric: list[float] = tunable(
        [], "bounds of a segment's geometric mean outside which it is left out ([.99, 1.01])"
    )
    veto: float = tunable(0.0, "leave out segments with a token whose pi_old/mu is below this (0 = off; 1e-4)")


@dataclass
class OptimizerSection:
    lr: float = tunable(1e-6, "learning rate")
    warmup: int = tunable(0, "steps of linear warm-up")
    betas: list[float] = tunable([0.9, 0.999], "AdamW betas")
    weight_decay: float = tunable(0.0, "AdamW weight decay")
    max_grad_norm: float = tunable(1.0, "gradient clipping (0 = off)")
    schedule: str = tunable("constant", "after the warm-up: constant | linear | cosine, down to `floor` at `horizon`")
    horizon: int = tunable(0, "optimizer steps after which the learning rate stays at its floor; said, never guessed")
    floor: float = tunable(0.1, "what is left of the learning rate at the horizon, as a share")


@dataclass
class DeepSpeedSection:
    zero: int = machine(2, "ZeRO stage: 0 nothing is divided | 1 moments | 2 gradients too | 3 weights too")
    offload: str = machine("none", "none | optimizer (moments in the host's memory) | all (weights too; ZeRO 3)")
    processes: int = machine(0, "training processes on this machine (0 = one a GPU, or one)")
    hostfile: str = machine("", "many machines: DeepSpeed's file of host names and slots")


@dataclass
class MoeSection:
    replay: bool = tunable(True, "send each token to the experts that the engine chose, where it recorded them")
    balance: float = tunable(0.0, "weight of the load-balancing loss (0 = off)")


@dataclass
class LoraSection:
    rank: int = tunable(0, "train an adapter of this rank on weights that stay as they are (0 = train all weights)")
    alpha: float = tunable(32.0, "what the adapter adds is scaled by alpha / rank")
    targets: list[str] = tunable([], "names of the linear layers with an adapter; empty = all but the output layer")
    export: str = tunable(
        "merged", "policies are written merged (whole weights) | adapter (beside a reference to the base)"
    )


@dataclass
class GateSection:
    mean_logp_gap: float = tunable(
        0.0, "refuse a step when mean |log p_train - log p_engine| exceeds this (0 = 1e-3, in bfloat16 0.05)"
    )
    k3: float = tunable(1e-2, "refuse a step when the k3 estimate of KL exceeds this")
    min_correlation: float = tunable(0.99, "refuse a step when the probabilities correlate less than this")


@dataclass
class TrainSection:
    objective: ObjectiveSection = field(default_factory=ObjectiveSection)
    correction: CorrectionSection = field(default_factory=CorrectionSection)
    optimizer: OptimizerSection = field(default_factory=OptimizerSection)
    gate: GateSection = field(default_factory=GateSection)
    backend: str = machine("torch", "torch: in this process | deepspeed: in processes of its own (docs/scale.md)")
    deepspeed: DeepSpeedSection = field(default_factory=DeepSpeedSection)
    moe: MoeSection = field(default_factory=MoeSection)
    lora: LoraSection = field(default_factory=LoraSection)
    micro_batch_tokens: int = machine(8192, "tokens in one forward and backward pass")
    attention: str = machine("auto", "auto (packed, prefixes shared) | sdpa | flash_attention_2 | flash_attention_3")
    share_prefixes: bool = machine(True, "compute once what segments of a micro-batch begin with in common")
    checkpoint_layers: bool = machine(False, "compute activations again in the backward pass: less memory, more time")
    minibatches: int = tunable(1, "optimizer steps over one round's samples")
    truncated: str = tunable("train", "trials cut by turns, time or length: train | mask | penalise")
    shuffle_rewards: bool = tunable(False, "a control: exchange a round's rewards among its trials by the seed")


@dataclass
class SftSection:
    tasks: int = tunable(64, "training tasks to demonstrate (0 = all)")
    epochs: int = tunable(3, "passes over the demonstrations")
    source: str = tunable("script", "script: the demonstrations | oracle: the solutions | solved: trials with reward 1")
    optimizer: OptimizerSection = field(default_factory=lambda: OptimizerSection(lr=1e-3, warmup=10))
    batch_trials: int = tunable(16, "demonstrations in one optimizer step")
    held_out: float = tunable(0.1, "share of the demonstrations not taught but measured; the best epoch is kept")
    final_lr: float = tunable(1.0, "what is left of the learning rate at the end, as a share; it falls in a line")
    patience: int = tunable(0, "epochs without a lower held-out loss that end the teaching (0 = teach all epochs)")


@dataclass
class EvalSection:
    tasks: int = tunable(0, "held-out tasks to use (0 = all)")
    samples: int = tunable(1, "trials a task")
    temperature: float = tunable(1.0, "sampling temperature; 0 is greedy")
    every: int = tunable(0, "in a loop: evaluate every so many rounds (0 = only first and last)")
    history: str = tunable("template", "raw | template")


@dataclass
class LoopSection:
    rounds: int = tunable(1, "rounds to run in all")


@dataclass
class RetentionSection:
    tokens: str = tunable("keep", "token data of trained rounds: keep | drop")
    policies: int = tunable(0, "checkpoints to keep beside the first and the newest (0 = all)")


@dataclass
class Config:
    run: RunSection = field(default_factory=RunSection)
    policy: PolicySection = field(default_factory=PolicySection)
    engine: EngineSection = field(default_factory=EngineSection)
    tasks: TasksSection = field(default_factory=TasksSection)
    harness: dict[str, float] = identity({"tiny-agent": 1.0}, "harness -> weight; a group never mixes harnesses")
    sandbox: SandboxSection = field(default_factory=SandboxSection)
    images: ImagesSection = field(default_factory=ImagesSection)
    rollout: RolloutSection = field(default_factory=RolloutSection)
    verify: VerifySection = field(default_factory=VerifySection)
    train: TrainSection = field(default_factory=TrainSection)
    sft: SftSection = field(default_factory=SftSection)
    eval: EvalSection = field(default_factory=EvalSection)
    loop: LoopSection = field(default_factory=LoopSection)
    retention: RetentionSection = field(default_factory=RetentionSection)
