"""A network in one file: its description and all that it has learnt; see `binep.sealed`.

Any network can be saved, wherever it was trained and whatever its couplings and neurons are, as
long as they are registered (`binep.registry`): who loads it has to register the same.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from binep import registry
from binep.core.described import make
from binep.core.network import Network
from binep.errors import BinepError, choose
from binep.files import read_whole, write_whole
from binep.sealed import DTYPES, Format

FORMAT = Format("binep-network", 1, "saved network", tuple(DTYPES))
KINDS = {torch.uint8: "U8", torch.float32: "F32", torch.float64: "F64", torch.int64: "I64"}
PRECISIONS = {"float32": torch.float32, "float64": torch.float64}


def save(network: Network, path: str | Path) -> None:
    """Write a network into one file, which `binep.load` reads, whole or not at all.

    >>> import tempfile
    >>> from binep import Dense, load
    >>> net = Network((4,), [Dense(4, 3)], classes=3)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(net, f"{folder}/net.safetensors")
    ...     same = load(f"{folder}/net.safetensors")
    >>> torch.equal(net.couplings[0].signs, same.couplings[0].signs)
    True
    """
    write_whole(Path(path), dumps(network))


def dumps(network: Network) -> bytes:
    """The content of a saved network's file."""
    precision = str(network.couplings[0].synapses.kernel.dtype).removeprefix("torch.")
    choose(precision, PRECISIONS, "precision of a network that is saved")
    facts = {**network.describe(), "free_steps": network.free_steps, "precision": precision}
    tensors = {name: tensor.cpu() for name, tensor in network.stored().items()}
    try:
        check_tensors(_made(facts, "meta").stored(), tensors)
        for name, tensor in tensors.items():
            if tensor.dtype not in KINDS:
                raise BinepError(f"{name} is {tensor.dtype}: allowed are {', '.join(PRECISIONS)}")
        # Wide numbers first, so that all align.
        rows = sorted(tensors.items(), key=lambda item: -item[1].itemsize)
        return FORMAT.dumps(facts, [(n, KINDS[t.dtype], t.numpy()) for n, t in rows])
    except TypeError as error:  # of JSON
        raise BinepError(f"a network that cannot be saved: {error}") from None
    except BinepError as error:
        raise BinepError(f"a network that cannot be saved: {error}") from None


def load_network(path: str | Path) -> Network:
    """The network of a file that `save` wrote, on the CPU."""
    try:
        return loads(read_whole(Path(path)))
    except BinepError as error:
        raise BinepError(f"{path}: {error}") from None


def loads(content: bytes) -> Network:
    """The network of a file's content; one line that says why, if there is none."""
    opened = FORMAT.open(content)
    try:
        facts, arrays = opened.facts(), opened.arrays()
        tensors = {name: torch.from_numpy(array.copy()) for name, array in arrays.items()}
        # Shapes first: what does not fit takes no memory.
        like = _made(facts, "meta").stored()
        check_tensors(like, tensors)
        if unknown := sorted(set(tensors) - set(like)):
            raise BinepError(f"{unknown[0]} does not belong to this network")
        network = _made(facts, "cpu")
        network.restore(tensors)
    except (TypeError, ValueError, KeyError, RuntimeError, OverflowError) as error:
        # What a file may say, and what pieces of somebody else's make of it, is not ours to list.
        reason = str(error).partition("\n")[0]
        raise BinepError(f"not a valid saved network: {reason}") from None
    return network


def _made(facts: Mapping[str, Any], device: str) -> Network:
    """A network as described, with fresh weights; on the meta device without any."""
    facts = dict(facts)
    precision = PRECISIONS[choose(facts.pop("precision"), PRECISIONS, "precision")]
    free_steps, neuron = facts.pop("free_steps"), facts.pop("neuron")
    if not isinstance(free_steps, int) or free_steps < 1:
        raise BinepError(f"free_steps={free_steps!r}: allowed is at least 1")
    with torch.device(device):
        facts["couplings"] = [make(registry.couplings, each) for each in facts["couplings"]]
        neurons = neuron if isinstance(neuron, list) else [neuron]
        made = [make(registry.neurons, each) for each in neurons]
        network = Network(**facts, neuron=made if isinstance(neuron, list) else made[0])
    network.free_steps = free_steps
    return network.to(precision)


def check_tensors(like: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> None:
    """See that tensors of given names have the shapes and types of others, and finite numbers."""
    for name, wanted in like.items():
        found = tensors.get(name)
        if found is None:
            raise BinepError(f"{name} is missing")
        if found.shape != wanted.shape or found.dtype != wanted.dtype:
            raise BinepError(
                f"{name} is {found.dtype} of shape {tuple(found.shape)}: allowed is "
                f"{wanted.dtype} of shape {tuple(wanted.shape)}"
            )
        if found.is_floating_point() and not bool(found.isfinite().all()):
            raise BinepError(f"{name} holds NaN or infinite numbers")
