"""Pieces are found by name, wherever they come from; what is wrong with one is told by name."""

from dataclasses import dataclass

import pytest

from binep import BinepError, Dense, HardSigmoid, Heaviside, registry


@pytest.fixture
def mine():
    """A registry that a test can fill."""
    return registry.Registry("neuron", "binep.neurons")


def test_what_is_built_in_is_found_by_its_name():
    assert registry.neurons["heaviside"] is Heaviside
    assert registry.couplings["dense"] is Dense
    assert registry.neurons.name_of(HardSigmoid()) == "hard-sigmoid"
    for name, coupling in registry.couplings.items():
        assert coupling.name == name


def test_a_script_registers_by_decorator(mine: registry.Registry):
    @mine.register
    @dataclass(frozen=True)
    class Ramp(HardSigmoid):
        name = "ramp"

    @mine.register("steep")
    def steep():
        return HardSigmoid()

    assert mine["ramp"] is Ramp and mine["steep"] is steep
    assert {"heaviside", "ramp", "steep"} <= set(mine) and mine.name_of(Ramp()) == "ramp"
    assert "ramp" not in registry.neurons


def test_a_cell_that_runs_again_registers_again(mine: registry.Registry):
    def cell():
        class Ramp:
            name = "ramp"

        return mine.register(Ramp)

    first, second = cell(), cell()
    assert mine["ramp"] is second is not first


def test_a_name_is_registered_once(mine: registry.Registry):
    with pytest.raises(BinepError, match="neuron 'heaviside' is registered already"):
        mine.register("heaviside")(HardSigmoid)
    mine.register("ramp")(lambda: HardSigmoid())
    with pytest.raises(BinepError, match="neuron 'ramp' is registered already"):
        mine.register("ramp")(Heaviside)


def test_what_is_registered_has_a_name_and_only_one(mine: registry.Registry):
    class Nameless:
        pass

    with pytest.raises(BinepError, match="registered without a name"):
        mine.register(Nameless)
    with pytest.raises(BinepError, match="neuron 'other' calls itself 'heaviside'"):
        mine.register("other")(Heaviside)


def test_an_unknown_name_gets_the_nearest():
    with pytest.raises(BinepError, match="unknown coupling 'dens': did you mean 'dense'"):
        registry.couplings["dens"]


def test_a_subclass_is_not_its_parent():
    class Wider(Dense):
        pass

    with pytest.raises(BinepError, match="Wider is not registered"):
        registry.couplings.name_of(Wider(3, 4))
