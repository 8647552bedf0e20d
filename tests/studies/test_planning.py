"""Planning: bytes and seconds by the formats and links that there are."""

import pytest

from binep import BinepError
from binep.studies.planning import Contrasts, Link, memory, network_of, speedup
from binep.training import recipe as recipes


def test_contrasts_are_counted_without_making_the_network():
    found = Contrasts.of(network_of(recipes.load("mnist-1fc-wa")))
    assert found.weights == 784 * 8192 + 8192 * 100
    assert found.biases == 8192 + 100
    assert found.exact
    assert not Contrasts.of(network_of(recipes.load("mnist-1fc-w"))).exact


def test_bytes_are_those_of_the_smallest_format():
    found = Contrasts(weights=10_000, biases=100, exact=True)
    assert found.received(2) == 4 * 10_100
    assert found.received(2, largest=1) == 2_500
    assert found.received(2, largest=50) == 10_000
    assert found.received(2, largest=50, filled=0.01) == 400
    assert Contrasts(10_000, 100, exact=False).received(2, largest=1) == 4 * 10_100


def test_talking_takes_the_steps_of_a_ring_and_its_bytes():
    link = Link("somehow", latency=1e-3, bandwidth=1e6)
    assert link.seconds(2, 5e5) == pytest.approx(4 * 2 * 1e-3 + 0.5)
    assert speedup(1.0, 0.0, link.seconds(2, 5e5), 2) < 1


def test_memory_grows_with_synapses_and_with_processes():
    assert memory(2_000_000, "packed") == 2 * memory(1_000_000, "packed")
    assert memory(10, "packed", processes=2) == memory(10, "packed") + 80
    with pytest.raises(BinepError, match="unknown engine whose memory was measured"):
        memory(10, "cuda")
