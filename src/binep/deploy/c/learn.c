/* Learning on the chip: an image at a time, in integers.

   The phases of a table, of which two are contrasted. The gradient of a synapse between two bits is
   ternary, two ANDs and a subtraction; Bop adds it to an integer momentum of BINEP_MOMENTUM_BITS
   and flips the weight once that exceeds a threshold and agrees with it in sign. */
#include <string.h>

#include "fixed.h"
#include "rules.h"

#define PLUS (&ends[BINEP_PLUS])
#define MINUS (&ends[BINEP_MINUS])
#define MOST (((int32_t)1 << (BINEP_MOMENTUM_BITS - 1)) - 1)

/* Where a phase ended: what the next ones begin with, and what the gradient is taken of. */
struct ending {
#if !BINEP_HOPFIELD
    binep_state states[BINEP_NEURONS];
#endif
    uint32_t bits[BINEP_WORDS];
    int32_t switches[BINEP_NEURONS];
};

static struct ending ends[BINEP_PHASES];
static int64_t nudge[BINEP_OUTPUTS];
static int32_t contrast[BINEP_LONGEST_ROW];
static uint32_t randomness = BINEP_SEED;
static uint32_t images;
static int32_t flips;

/* xorshift32; bit 16 decides between +1 and -1. */
static int32_t random_sign(void) {
    randomness ^= randomness << 13;
    randomness ^= randomness >> 17;
    randomness ^= randomness << 5;
    return (randomness >> 16 & 1u) ? 1 : -1;
}

static void keep(struct ending *to) {
#if !BINEP_HOPFIELD
    memcpy(to->states, binep_states, sizeof to->states);
#endif
    memcpy(to->bits, binep_bits, sizeof to->bits);
    memcpy(to->switches, binep_switches, sizeof to->switches);
}

static void resume(const struct ending *from) {
#if BINEP_HOPFIELD
    binep_resume(from->bits);
#else
    binep_resume(from->bits, from->states);
#endif
}

/* beta (y - s), of which y is 1 for the neurons of the label, of bits alone beta (y - 1/2); and the
   handicap that the right class has to win against, in all phases. */
void binep_pull(int32_t label, int64_t beta) {
    for (int32_t j = 0; j < binep_layers[BINEP_LAYERS - 1].count; j++) {
#if BINEP_HOPFIELD
        binep_state s = BINEP_THRESHOLD;
#else
        binep_state s = binep_states[binep_layers[BINEP_LAYERS - 1].first + j];
#endif
        binep_state target = j / BINEP_PER_CLASS == label ? BINEP_ONE : 0;
        nudge[j] = rule_nudge(beta, target, s) + rule_handicap(BINEP_MARGIN, target);
    }
}

int32_t binep_step_pulled(void) {
    return binep_step_nudged(nudge);
}

/* Run all phases: a table that was made of the plan of a training. A free one has a beta of 0. */
static void run_phases(const uint8_t *image, int32_t label, int32_t sign) {
    for (int32_t p = 0; p < BINEP_PHASES; p++) {
        const struct binep_phase *phase = &binep_phases[p];
        if (phase->start < 0)
            binep_start(image);
        else
            resume(&ends[phase->start]);
        for (int32_t t = 0; t < phase->steps; t++) {
            if (t == 0 || !phase->constant)
                binep_pull(label, sign * phase->beta);
            if (!binep_step_pulled())
                break;
        }
        keep(&ends[p]);
    }
}

/* --- Bop ------------------------------------------------------------------------------------ */

/* Add a gradient to the momentum of synapse j of row i; flip the weight if it is time. */
static void learn_synapse(int32_t n, int32_t i, int32_t j, int32_t gradient) {
    const struct binep_coupling *c = &binep_couplings[n];
    binep_momentum *m = &binep_rates[n].momenta[i * c->synapses + j];
    int32_t next = rule_momentum(*m, gradient, MOST);
    *m = (binep_momentum)next;
    uint32_t *word = c->weights + (size_t)i * (size_t)c->words + (size_t)(j >> 5);
    int32_t positive = (int32_t)(*word >> (j & 31) & 1u);
    if (rule_flip(next, positive, binep_rates[n].flip_above)) {
        *word ^= 1u << (j & 31);
        flips++;
    }
}

/* Between two layers of bits: (a_i & a_j) of plus - (a_i & a_j) of minus, 32 synapses at a time. */
static void learn_dense(int32_t n, int32_t direction) {
    const struct binep_coupling *c = &binep_couplings[n];
    const struct binep_layer *below = &binep_layers[n - 1], *above = &binep_layers[n];
    for (int32_t i = 0; i < c->above; i++) {
        uint32_t with = 0u - (uint32_t)binep_bit(PLUS->bits + above->first_word, i);
        uint32_t without = 0u - (uint32_t)binep_bit(MINUS->bits + above->first_word, i);
        for (int32_t w = 0; w < below->words; w++) {
            uint32_t more = with & PLUS->bits[below->first_word + w];
            uint32_t less = without & MINUS->bits[below->first_word + w];
            for (uint32_t rest = more ^ less; rest; rest &= rest - 1u) {
                int32_t b = binep_lowest(rest);
                int32_t gradient = (int32_t)(more >> b & 1u) - (int32_t)(less >> b & 1u);
                learn_synapse(n, i, 32 * w + b, direction * gradient);
            }
        }
    }
}

/* From the pixels, of which the highest 8 - BINEP_PIXEL_SHIFT bits are taken. */
static void learn_pixels(const uint8_t *image, int32_t direction) {
    const struct binep_coupling *c = &binep_couplings[0];
    for (int32_t i = 0; i < c->above; i++) {
        int32_t change = binep_bit(PLUS->bits, i) - binep_bit(MINUS->bits, i);
        for (int32_t j = 0; change && j < c->synapses; j++) {
            int32_t pixel = image[j] >> BINEP_PIXEL_SHIFT;
            if (pixel)
                learn_synapse(0, i, j, direction * change * pixel);
        }
    }
}

/* Add what the window of a neuron above holds, in one phase, to the contrast of its channel. */
static void correlate(int32_t n, const struct ending *end, const uint8_t *image, int32_t i,
                      int32_t amount) {
    const struct binep_coupling *c = &binep_couplings[n];
    int32_t place = end->switches[binep_layers[n].first + i];
    for (int32_t tap = 0; tap < c->kernel * c->kernel; tap++) {
        int32_t y = place / c->map_cols + tap / c->kernel - c->padding;
        int32_t x = place % c->map_cols + tap % c->kernel - c->padding;
        if (y < 0 || y >= c->rows || x < 0 || x >= c->cols)
            continue;
        for (int32_t k = 0; k < c->below; k++) {
            int32_t value = n == 0 ? image[(k * c->rows + y) * c->cols + x] >> BINEP_PIXEL_SHIFT
                                   : binep_bit(end->bits + binep_layers[n - 1].first_word,
                                               (y * c->cols + x) * c->below + k);
            contrast[tap * c->below + k] += amount * value;
        }
    }
}

static void learn_conv(int32_t n, const uint8_t *image, int32_t direction) {
    const struct binep_coupling *c = &binep_couplings[n];
    int32_t first = binep_layers[n].first_word;
    for (int32_t channel = 0; channel < c->above; channel++) {
        memset(contrast, 0, (size_t)c->synapses * sizeof contrast[0]);
        for (int32_t place = 0; place < c->out_rows * c->out_cols; place++) {
            int32_t i = place * c->above + channel;
            if (binep_bit(PLUS->bits + first, i))
                correlate(n, PLUS, image, i, 1);
            if (binep_bit(MINUS->bits + first, i))
                correlate(n, MINUS, image, i, -1);
        }
        for (int32_t j = 0; j < c->synapses; j++)
            if (contrast[j])
                learn_synapse(n, channel, j, direction * contrast[j]);
    }
}

/* Biases follow the change of activity, channel by channel. */
static void learn_bias(int32_t n, int32_t direction) {
    const struct binep_coupling *c = &binep_couplings[n];
    const struct binep_layer *l = &binep_layers[n];
    for (int32_t i = 0; i < l->count; i++) {
        int32_t change
            = binep_bit(PLUS->bits + l->first_word, i) - binep_bit(MINUS->bits + l->first_word, i);
        c->bias[i % c->above] -= direction * change * binep_rates[n].bias_step;
    }
}

/* Every so many images all momenta are halved: a leak. */
static void leak(void) {
    for (int32_t n = 0; n < BINEP_COUPLINGS; n++) {
        int32_t count = binep_couplings[n].above * binep_couplings[n].synapses;
        if (images % binep_rates[n].half_life)
            continue;
        for (int32_t j = 0; j < count; j++) {
            binep_momentum *m = &binep_rates[n].momenta[j];
            *m = (binep_momentum)(*m / 2);
        }
    }
}

void binep_learn(const uint8_t *image, int32_t label) {
    int32_t sign = BINEP_RANDOM_SIGN ? random_sign() : 1;
    int32_t direction = -sign * BINEP_DIRECTION;
    run_phases(image, label, sign);
    for (int32_t n = 0; n < BINEP_COUPLINGS; n++) {
        if (binep_couplings[n].conv)
            learn_conv(n, image, direction);
        else if (n == 0)
            learn_pixels(image, direction);
        else
            learn_dense(n, direction);
        learn_bias(n, direction);
    }
    images++;
    leak();
    binep_forget();
}

int32_t binep_flips(void) {
    return flips;
}
