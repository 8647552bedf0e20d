"""The CUDA engine: mini-batches as CUDA graphs, with Triton kernels; imported only when used."""

from binep.engines.cuda.engine import CudaEngine
from binep.engines.cuda.through_time import ThroughTimeEngine

__all__ = ["CudaEngine", "ThroughTimeEngine"]
