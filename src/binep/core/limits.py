"""How large a network and a training may be: what recipes and packed files allow."""

MOST_STEPS = 100_000  # of a phase
MOST_EPOCHS = 1_000_000
MOST_NEURONS = 2**24  # of a network, its input among them, and of a convolution before pooling
MOST_SYNAPSES = 2**23  # of one neuron: sums over 8-bit pixels then fit into 32 bits
MOST_COUPLINGS = 100
MOST_CHANNELS = 2**16
MOST_WIDTH = 4096  # of kernels, borders and pools
# Of one sample: numbers in the windows of a convolution, and products of a free phase.
MOST_NUMBERS = 2**27
MOST_PRODUCTS = 2**44
# Parameters and states: with sums of so many synapses none of them leaves float32.
LARGEST = 2.0**64
SMALLEST = 2.0**-64  # of what is divided by
