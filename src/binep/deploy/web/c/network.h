/* Any network of states (BINEP_HOPFIELD=0) or of bits (1) that runs in integers: what an exported
   program has as constants is read at run time. */
#ifndef BINEP_NETWORK_H
#define BINEP_NETWORK_H

#include <stdint.h>

/* The head of a network's file, in the order of its words; see web_page.py. */
struct binep_sizes {
    int32_t layers, turns, classes, per_class, read, steps, initial, state_bits;
    int32_t momentum_bits, plus, minus, direction, random_sign, pixel_shift, margin;
};
extern struct binep_sizes binep_sizes;

#define BINEP_LAYERS binep_sizes.layers
#define BINEP_COUPLINGS binep_sizes.layers
#define BINEP_CLASSES binep_sizes.classes
#define BINEP_PER_CLASS binep_sizes.per_class
#define BINEP_READ binep_sizes.read
#define BINEP_STEPS binep_sizes.steps
#define BINEP_TURNS binep_sizes.turns
#define BINEP_STATE_BITS binep_sizes.state_bits
#define BINEP_ONE ((binep_state)1 << binep_sizes.state_bits)
#define BINEP_THRESHOLD (BINEP_ONE >> 1)
#define BINEP_INITIAL_STATE binep_sizes.initial
#define BINEP_INITIAL_BIT binep_sizes.initial

#define BINEP_MOMENTUM_BITS binep_sizes.momentum_bits
#define BINEP_PLUS binep_sizes.plus
#define BINEP_MINUS binep_sizes.minus
#define BINEP_DIRECTION binep_sizes.direction
#define BINEP_RANDOM_SIGN binep_sizes.random_sign
#define BINEP_PIXEL_SHIFT binep_sizes.pixel_shift
#define BINEP_MARGIN binep_sizes.margin

/* Room; web_page.py refuses what does not fit. */
#define BINEP_NEURONS @NEURONS@
#define BINEP_WORDS (BINEP_NEURONS / 32 + @LAYERS@)
#define BINEP_OUTPUTS BINEP_NEURONS
#define BINEP_LONGEST_ROW @LONGEST_ROW@
#define BINEP_ROW_WORDS (BINEP_LONGEST_ROW / 32 + 1)
#define BINEP_MOST_LAYERS @LAYERS@
#define BINEP_PHASES @PHASES@

#define BINEP_INTEGERS 1
#define BINEP_LEARNING 1
#define BINEP_SEED @SEED@u
#define BINEP_PARAMETER_BITS @PARAMETER_BITS@
#define BINEP_BETA_BITS @BETA_BITS@
/* Everything is read from a file, and everything may learn. */
#define BINEP_STORED
#define BINEP_TABLE

#if BINEP_HOPFIELD
typedef int64_t binep_state;
#else
typedef int32_t binep_state;
#endif
typedef int64_t binep_parameter;
typedef int32_t binep_momentum;

#endif
