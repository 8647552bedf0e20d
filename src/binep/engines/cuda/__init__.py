"""The CUDA engine: mini-batches as CUDA graphs, with Triton kernels; imported only when used."""

from binep.engines.cuda.engine import CudaEngine

__all__ = ["CudaEngine"]
