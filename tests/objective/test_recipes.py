import pytest

from lego.config.rules import CHOICES
from lego.config.schema import ObjectiveSection
from lego.errors import ObjectiveError
from lego.objective.losses import Clip, cispo, grpo, gspo, reinforce
from lego.objective.recipes import RECIPES, recipe


def test_the_config_knows_the_same_names():
    assert set(CHOICES["train.objective.name"]) == set(RECIPES)


@pytest.mark.parametrize(
    ("name", "loss", "advantage", "weighting"),
    [
        ("gspo", gspo, "standardised", "trial"),
        ("grpo", grpo, "standardised", "trial"),
        ("dr_grpo", grpo, "centred", "constant"),
        ("dapo", grpo, "standardised", "token"),
        ("cispo", cispo, "standardised", "token"),
        ("rloo", reinforce, "leave_one_out", "constant"),
        ("reinforce", reinforce, "centred", "trial"),
    ],
)
def test_a_name_alone_is_the_papers_objective(name, loss, advantage, weighting):
    chosen = recipe(ObjectiveSection(name))
    assert (chosen.loss, chosen.advantage, chosen.weighting) == (loss, advantage, weighting)
    assert chosen.clip == RECIPES[name].clip


def test_what_the_config_sets_itself_rules():
    section = ObjectiveSection("dapo", advantage="centred", weighting="trial", clip_high=0.5, flat="count")
    chosen = recipe(section)
    assert (recipe(ObjectiveSection("dapo")).flat, chosen.flat) == ("skip", "count")
    assert (chosen.advantage, chosen.weighting, chosen.clip) == ("centred", "trial", Clip(0.2, 0.5))


def test_an_unknown_name_is_refused():
    with pytest.raises(ObjectiveError, match="ppo"):
        recipe(ObjectiveSection("ppo"))
