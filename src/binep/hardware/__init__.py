"""Networks as hardware: what they cost, and how they bear hardware that is not perfect.

imperfect   bit errors, stuck synapses, uneven thresholds, narrow or leaking momenta
costs       memory, operations and energy, counted
sweep       test error against each imperfection
"""
