"""Shipping a trained network: its packed file, a numpy runtime, and exports to C and to memories.

    stored      what is shipped: the architecture, the parameters, how it is run
    packed      one .safetensors file of it, weights one bit each, sealed by a SHA-256
    sums        sums over synapses: plain numpy, or bit-packed kernels where Numba is installed
    runtime     relaxation and prediction in numpy, in the training network's order of arithmetic
    fixed       the same network in integers, and learning in integers
    export      from a run to any of the formats

Only `export` knows torch.
"""
