"""The recipe language's reference: complete, true, and the same on the page and in the terminal."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from binep.errors import BinepError
from binep.training import keys
from binep.training import recipe as recipes
from binep.training.sections import LayerKeys

LAYER = "network.layers."
PAGE = Path(__file__).parents[2] / "docs" / "recipes.md"


def leaves(table: dict[str, Any], where: str = "") -> set[str]:
    found = set()
    for key, value in table.items():
        path = f"{where}{key}"
        found |= leaves(value, f"{path}.") if isinstance(value, dict) else {path}
    return found


def test_every_key_of_a_recipe_is_told_once():
    told = [key.path for key in keys.all_keys()]
    assert len(told) == len(set(told))
    known = leaves(asdict(recipes.load("digits-1fc-w")))
    everywhere = {
        path.replace(keys.RATE, rate)
        for path in told
        for rate in asdict(recipes.load("digits-1fc-w").schedule)
    }
    of_layers = {path for path in everywhere if path.startswith(LAYER)}
    assert everywhere - of_layers == known and len(of_layers) == 3


@pytest.mark.parametrize("key", keys.all_keys(), ids=lambda key: key.path)
def test_examples_are_allowed_and_defaults_are_those_that_are_taken(key: keys.Key):
    path = key.path.replace(keys.RATE, "gamma")
    example = f"{path}={key.example.partition(' = ')[2]}"
    if path.startswith(LAYER):
        example = f"network.layers=[{{ {key.example} }}]"
    try:
        recipes.load("digits-1fc-w", [example] if "." in path else [])
    except BinepError as error:
        # Other keys may have to go with it, or lists be longer; the value itself is right.
        assert f"allowed is {key.takes}" not in str(error), error
    assert key.meaning.endswith(".")
    if key.default not in (keys.NO_DEFAULT, keys.UNSET):
        value: Any = asdict(least())
        if path.startswith(LAYER):
            value = asdict(LayerKeys())
        for part in path.removeprefix(LAYER).split("."):
            value = value[part]
        assert json.loads(key.default) == value


def least() -> recipes.Recipe:
    """A recipe that says nothing which it need not."""
    rates = {"gamma": 1e-4, "tau": 1e-6, "lr_bias": 0.1}
    table = {
        "name": "least",
        "learning": {"free_steps": 2, "nudged_steps": 1},
        "optimizer": rates,
        "training": {"epochs": 1},
    }
    return recipes.from_table(table)


def test_the_page_in_docs_is_what_the_source_says():
    assert PAGE.read_text("utf-8") == keys.page(), "python -m binep.training.keys > docs/recipes.md"


def test_keys_are_found_by_a_word_of_their_name_or_meaning():
    assert keys.text(["flips where"]).startswith("optimizer.tau\n")
    assert keys.text(["learning.beta"]).splitlines()[0] == "learning.beta = 0.3"
    assert len(keys.text().splitlines()) == 3 * len(keys.all_keys())
    with pytest.raises(BinepError, match="no key has 'voltage'"):
        keys.text(["voltage"])
