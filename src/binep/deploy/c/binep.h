/* A trained network: relaxation, prediction and, if exported with it, learning. See README.md. */
#ifndef BINEP_H
#define BINEP_H

#include <stdint.h>

#include "network.h"

/* The neurons of a layer that relaxes: where they and their bits begin. */
struct binep_layer {
    int32_t first, count;
    int32_t first_word, words;
};

/* The synapses between a layer and the one above it. Row i holds the bits of neuron (dense) or
   channel (conv) i above, 1 for +1 and 0 for -1, lowest bit first. */
struct binep_coupling {
    int32_t conv;
    int32_t below, above, rows, cols; /* channels below and above, rows and columns below */
    int32_t kernel, padding, pool;
    int32_t map_cols, out_rows, out_cols; /* of the convolution, and of its pools */
    int32_t synapses, words;              /* of a row */
    int32_t gains;                        /* 1, or one for each channel above */
    BINEP_STORED uint32_t *weights;       /* (above, words); NULL where weights are real */
    const float *real;                    /* (above, synapses); NULL where they are binary */
    const binep_parameter *gain;          /* up: of the first coupling divided by 255 */
    const binep_parameter *gain_down;
    BINEP_STORED binep_parameter *bias; /* (above) */
};

extern BINEP_TABLE struct binep_layer binep_layers[];
extern BINEP_TABLE struct binep_coupling binep_couplings[];

/* The class of an image of 8-bit pixels, (channels, rows, columns). */
int32_t binep_predict(const uint8_t *image);

/* Clamp an image and go to t = 0; then step. binep_states are those of all neurons, by layers. */
void binep_start(const uint8_t *image);
void binep_step(void);
int32_t binep_read_out(void);
#if BINEP_INTEGERS && BINEP_HOPFIELD
/* All that a neuron keeps is its bit; of the outputs also the drive that it was decided by. */
int32_t binep_sends(int32_t layer, int32_t neuron);
extern binep_state binep_outputs[BINEP_OUTPUTS];
#else
extern binep_state binep_states[BINEP_NEURONS];
#endif
#if BINEP_INTEGERS
int64_t binep_energy(void); /* at present, without a nudge, in units of 2^-BINEP_PARAMETER_BITS */
#endif

#if BINEP_LEARNING
/* A phase: it begins where phase `start` ended, or with -1 at t = 0. Free where beta is 0. */
struct binep_phase {
    int32_t steps, start, constant;
    int64_t beta;
};

/* How the synapses of a coupling learn: their momenta, (above, synapses), and its rates. */
struct binep_rates {
    binep_momentum *momenta;
    int32_t flip_above;
    uint32_t half_life;
    int64_t bias_step;
};

extern BINEP_TABLE struct binep_phase binep_phases[];
extern BINEP_TABLE struct binep_rates binep_rates[];

/* One image with its label: both phases, the gradient, and Bop. */
void binep_learn(const uint8_t *image, int32_t label);
/* A phase of learning by hand: the nudge of the present states towards a label, and a step under
   it, which says whether another one can differ. */
void binep_pull(int32_t label, int64_t beta);
int32_t binep_step_pulled(void);
int32_t binep_flips(void);
#endif

#endif
