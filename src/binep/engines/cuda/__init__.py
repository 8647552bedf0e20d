"""The engine on a GPU: mini-batches as CUDA graphs, with Triton kernels."""

from binep.core.neurons import Heaviside
from binep.engines.base import Capabilities

CUDA = Capabilities(dt=0.5, margin=frozenset({Heaviside}))
