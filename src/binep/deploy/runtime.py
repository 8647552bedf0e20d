"""The runtime: relaxation and prediction with numpy alone, as the training network has them.

The order of arithmetic is the definition's: sums over synapses, then the scale, then the bias, then
up + down, then the state, each float32 operation rounded on its own. With binary activations the
sums are exact integers, so states agree bit for bit with `binep.relax`; with real activations the
order of the sums is BLAS's own, and states agree to rounding.
"""

from pathlib import Path
from typing import Any

import numpy as np

from binep.deploy import packed, rules
from binep.deploy.relaxing import Relaxer
from binep.deploy.stored import LEVELS, Array, Shape, StoredNetwork
from binep.deploy.sums import Sums, find_kernels
from binep.errors import BinepError
from binep.files import read_whole
from binep.sealed import format_of

SAVED = "binep-network"


def load(path: str | Path, *, kernels: bool | None = None) -> Any:
    """The network of a file: shipped, a `Runtime` without torch; or saved, a `binep.Network`.

    Args:
        path: a packed file that `binep export` wrote, ready to `predict` and `relax`; or a file
            that `binep.save` wrote.
        kernels: whether a `Runtime` sums by bit-packed Numba kernels; by default wherever Numba is
            installed and activations are binary. The results are the same.
    """
    content = read_whole(Path(path))
    saved = format_of(content) == SAVED
    if saved and kernels is not None:
        raise BinepError(f"{path} is a saved network: kernels={kernels} is for packed files")
    try:
        if not saved:
            return Runtime(packed.loads(content), kernels=kernels)
        try:
            from binep.core.saving import loads
        except ModuleNotFoundError:
            raise BinepError(
                "a saved network needs torch: pip install binep; allowed here is what binep export "
                "wrote"
            ) from None
        return loads(content)
    except BinepError as error:
        raise BinepError(f"{path}: {error}") from None


class Runtime(Relaxer):
    """A shipped network: `predict(images)` gives classes, `relax(images)` the states s1..sN.

    Images are uint8 pixels (0..255), (batch, *image shape), or floats as the training network
    receives them. Every operation is rounded to float32 on its own.
    """

    def __init__(self, network: StoredNetwork, *, kernels: bool | None = None) -> None:
        self.network = network
        self.kernels = find_kernels() if kernels is not False and network.binary else None
        if kernels and self.kernels is None:
            why = "numba is not installed" if network.binary else "activations are real"
            raise BinepError(f"kernels=True: {why}, allowed is kernels=False")
        self._sums = super().sums()

    def __repr__(self) -> str:
        layers = "-".join("x".join(map(str, shape)) for shape in self.network.shapes)
        return f"Runtime({layers}, {self.network.activations} activations)"

    def sums(self) -> list[Sums]:
        return self._sums

    def parameters(self, n: int) -> tuple[Array, Array, Array]:
        coupling = self.network.couplings[n]
        return self.network.gain_up(n), coupling.gain, coupling.offset

    def initial(self, shape: Shape) -> Array:
        return np.full(shape, self.network.initial_state, np.float32)

    def activity(self, s: Array) -> Array:
        """Bits, or `clamp(s, 0, 1)`."""
        network = self.network
        return rules.fires(s, network.threshold) if network.binary else rules.clamp(s)

    def up(self, n: int, sums: Array, below: Array) -> Array:
        """`scale * sums`, then `+ bias`."""
        coupling = self.network.couplings[n]
        levels = np.float32(LEVELS if below.dtype == np.uint8 else 1)
        shape = (-1, 1, 1) if coupling.kind == "conv" else (-1,)
        drive = np.asarray(coupling.gain / levels).reshape(shape) * sums
        return drive if coupling.bias is None else drive + coupling.bias.reshape(shape)

    def down(self, n: int, sums: Sums, above: Array, switches: Array | None) -> Array:
        """`scale * sums`; where scales stand inside a sum of bits, it is taken in float64."""
        coupling = sums.coupling
        if coupling.kind == "dense":
            return coupling.gain * sums.down(above)
        wide = np.float64 if above.dtype == bool else np.float32
        scale = np.broadcast_to(coupling.gain, (coupling.above,)).astype(wide)
        return sums.down_scaled(above, switches, scale).astype(np.float32)

    def advance(self, s: Array, drive: Array, nudge: Array | None = None) -> Array:
        network = self.network
        if network.dynamics == "prototypical":
            return rules.clamp(drive)
        if network.bits:
            return drive.copy()
        if network.binary:
            slope = rules.slope(s, network.threshold, network.sigma)
        else:
            slope = rules.slope_of_real(s)
        return rules.step(s, drive, slope, network.dt)
