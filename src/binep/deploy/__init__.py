"""Shipping a trained network: packed files, a numpy runtime, exports to C, memories and a page.

    stored      what is shipped: the architecture, the parameters, how it is run
    packed      one .safetensors file of it, weights one bit each, sealed by a SHA-256
    rules       what neurons send, how states move, when weights flip; the same in `c/rules.h`
    sums        sums over synapses: plain numpy, or bit-packed kernels where Numba is installed
    relaxing    a stored network and a mini-batch of it, in either of the following arithmetics
    runtime     relaxation and prediction in numpy, in the training network's order of arithmetic
    fixed       the same network in integers
    learning    learning in integers, an image at a time, as the plan of a training says
    layout      the order of neurons and synapses in hardware
    c_program, memory, folder       a folder of C, or of memory images, and its README
    web_page    a page that relaxes and learns, around the same C compiled to WebAssembly
    verilog_core, cycles            a core in SystemVerilog, and how long it takes for an image
    export      from a run to any of the formats
    predict, pretrained             pictures read by a run, a file, or a model of that name

Only `export` knows torch.
"""
