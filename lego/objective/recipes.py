"""The objectives by name: which loss, over which advantages, with which weights and clip."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, cast

from lego.config.schema import ObjectiveSection
from lego.errors import ObjectiveError
from lego.objective.advantages import Baseline, Weighting
from lego.objective.losses import Clip, PolicyObjective, cispo, grpo, gspo, reinforce

AUTO = "auto"
Flat = Literal["count", "skip", "weigh"]


@dataclass(frozen=True)
class Recipe:
    """loss, advantage, weighting and flat as the objective's paper has them; clip as its authors use it.

    flat: whether trials of groups without spread count in the step's mean (train.objective.flat).
    """

    loss: PolicyObjective
    advantage: Baseline
    weighting: Weighting
    clip: Clip
    flat: Flat = "count"

    @property
    def has_ratio(self) -> bool:
        """Whether the loss has an importance ratio in it, which holds for samples of a policy that has moved since."""
        return self.loss is not reinforce


RECIPES: Mapping[str, Recipe] = {
    # Zheng et al. 2025, arXiv:2507.18071, section 5.1.
    "gspo": Recipe(gspo, "standardised", "trial", Clip(3e-4, 4e-4)),
    # Shao et al. 2024, arXiv:2402.03300.
    "grpo": Recipe(grpo, "standardised", "trial", Clip(0.2, 0.2)),
    # Liu et al. 2025, arXiv:2503.20783: neither the group's spread nor a trial's length scales its gradient.
    "dr_grpo": Recipe(grpo, "centred", "constant", Clip(0.2, 0.2)),
    # Yu et al. 2025, arXiv:2503.14476: clip-higher, token mean, and no group without spread in a batch (section 3.2).
    # What takes their place is rollout.refill; its overlong filtering is train.truncated.
    "dapo": Recipe(grpo, "standardised", "token", Clip(0.2, 0.28), "skip"),
    # MiniMax 2025, arXiv:2506.13585; no bound downwards, 5 upwards.
    "cispo": Recipe(cispo, "standardised", "token", Clip(1.0, 4.0)),
    # Ahmadian et al. 2024, arXiv:2402.14740: the sum over a trial's tokens, not their mean.
    "rloo": Recipe(reinforce, "leave_one_out", "constant", Clip(0.2, 0.2)),
    "reinforce": Recipe(reinforce, "centred", "trial", Clip(0.2, 0.2)),
}


def recipe(section: ObjectiveSection) -> Recipe:
    """The recipe that `section` names, with what it sets itself. Raises ObjectiveError for a name not known."""
    if section.name not in RECIPES:
        raise ObjectiveError(f"train.objective.name: {section.name} is not known", hint=f"one of {', '.join(RECIPES)}")
    chosen = RECIPES[section.name]
    if section.advantage != AUTO:
        chosen = replace(chosen, advantage=cast(Baseline, section.advantage))
    if section.weighting != AUTO:
        chosen = replace(chosen, weighting=cast(Weighting, section.weighting))
    if section.flat != AUTO:
        chosen = replace(chosen, flat=cast(Flat, section.flat))
    return replace(chosen, clip=Clip(section.clip_low or chosen.clip.low, section.clip_high or chosen.clip.high))
