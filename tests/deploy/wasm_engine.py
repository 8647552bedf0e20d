"""The compiled engine of a page, called from Python as the page calls it from JavaScript."""

from typing import Any

import numpy as np
import wasmtime

from binep.deploy import layout, web_page
from binep.deploy.fixed import FixedNetwork
from binep.deploy.learning import FixedRule


class Engine:
    """A network's file, opened in the engine that ships, or in another one."""

    def __init__(self, whole: FixedNetwork, learning: FixedRule, wasm: bytes | None = None) -> None:
        self.whole = whole
        self._store = wasmtime.Store()
        module = wasmtime.Module(self._store.engine, wasm or web_page.engine(whole.network))
        assert not module.imports
        self._exports = wasmtime.Instance(self._store, module, []).exports(self._store)
        self._memory: Any = self._exports["memory"]
        heap: Any = self._exports["__heap_base"]
        content = web_page.network_file(whole, learning)
        self._file = -(-heap.value(self._store) // 16) * 16
        synapses = sum(c.above * c.fan_in for c in whole.network.couplings)
        pixels = int(np.prod(whole.network.image_shape))
        needed = self._file + len(content) + 4 * synapses + pixels
        self._memory.grow(self._store, max(0, -(-needed // 65536) - self._memory.size(self._store)))
        self._memory.write(self._store, content, self._file)
        self._image = self.call("open", self._file, len(content))

    def call(self, name: str, *numbers: int) -> Any:
        function: Any = self._exports[f"web_{name}"]
        return function(self._store, *numbers)

    def read(self, at: int, count: int, dtype: str) -> np.ndarray:
        size = np.dtype(dtype).itemsize
        return np.frombuffer(self._memory.read(self._store, at, at + count * size), dtype)

    def image(self, image: np.ndarray) -> int:
        self._memory.write(
            self._store, np.ascontiguousarray(image, np.uint8).tobytes(), self._image
        )
        return self._image

    @property
    def states(self) -> np.ndarray:
        count = sum(int(np.prod(shape)) for shape in self.whole.network.layer_shapes)
        return self.read(self.call("states"), count, "<f8")

    def weights(self, n: int) -> np.ndarray:
        coupling = self.whole.network.couplings[n]
        count = coupling.above * layout.words(coupling.fan_in)
        return self.read(self.call("weights", n), count, "<u4").reshape(coupling.above, -1)

    def biases(self, n: int) -> np.ndarray:
        return self.read(self.call("bias", n), self.whole.network.couplings[n].above, "<i8")

    def momenta(self, n: int) -> np.ndarray:
        coupling = self.whole.network.couplings[n]
        count = coupling.above * coupling.fan_in
        return self.read(self.call("momenta", n), count, "<i4").reshape(coupling.above, -1)
