/* What a page calls: a network's file is opened, then shown, relaxed and taught step by step.

   The file is a row of 32-bit words, laid out by web_page.py; its tables name their arrays by the
   distance from its beginning. Momenta come behind it, zeros. */
#include <stddef.h>

#include "fixed.h"

#define CALLED(name) __attribute__((export_name(#name))) name

struct binep_sizes binep_sizes;
struct binep_layer binep_layers[BINEP_MOST_LAYERS];
struct binep_coupling binep_couplings[BINEP_MOST_LAYERS];
struct binep_phase binep_phases[BINEP_PHASES];
struct binep_rates binep_rates[BINEP_MOST_LAYERS];

static const int32_t *next;

static int32_t word(void) {
    return *next++;
}

static void open_coupling(struct binep_coupling *c, uint8_t *file) {
    c->conv = word(), c->below = word(), c->above = word(), c->rows = word(), c->cols = word();
    c->kernel = word(), c->padding = word(), c->pool = word();
    c->map_cols = word(), c->out_rows = word(), c->out_cols = word();
    c->synapses = word(), c->words = word(), c->gains = word();
    c->weights = (uint32_t *)(file + word());
    c->real = NULL;
    c->gain = (binep_parameter *)(file + word());
    c->gain_down = (binep_parameter *)(file + word());
    c->bias = (binep_parameter *)(file + word());
}

/* Open the file that stands here; the address behind the momenta. */
uint8_t *CALLED(web_open)(uint8_t *file, int32_t length) {
    struct binep_sizes *s = &binep_sizes;
    binep_momentum *momenta = (binep_momentum *)(file + length);
    next = (const int32_t *)file;
    s->layers = word(), s->turns = word(), s->classes = word(), s->per_class = word();
    s->read = word(), s->steps = word(), s->initial = word(), s->state_bits = word();
    s->momentum_bits = word(), s->plus = word(), s->minus = word(), s->direction = word();
    s->random_sign = word(), s->pixel_shift = word(), s->margin = word();
    for (int32_t p = 0; p < BINEP_PHASES; p++) {
        struct binep_phase *phase = &binep_phases[p];
        phase->steps = word(), phase->start = word(), phase->constant = word();
        phase->beta = word();
    }
    int32_t first = 0, first_word = 0;
    for (int32_t n = 0; n < s->layers; n++) {
        struct binep_layer *l = &binep_layers[n];
        l->count = word(), l->first = first;
        l->words = (l->count + 31) / 32, l->first_word = first_word;
        first += l->count, first_word += l->words;
    }
    for (int32_t n = 0; n < s->layers; n++) {
        struct binep_coupling *c = &binep_couplings[n];
        struct binep_rates *r = &binep_rates[n];
        open_coupling(c, file);
        r->momenta = momenta;
        r->flip_above = word(), r->half_life = (uint32_t)word();
        r->bias_step = *(int64_t *)(file + word());
        momenta += c->above * c->synapses;
    }
    binep_forget();
    return (uint8_t *)momenta;
}

/* --- relaxing ------------------------------------------------------------------------------- */

/* 1 where another step can differ. */
int32_t CALLED(web_step)(void) {
#if BINEP_HOPFIELD
    return binep_step_nudged(NULL);
#else
    binep_step();
    return 1;
#endif
}

void CALLED(web_start)(const uint8_t *image) {
    binep_start(image);
#if BINEP_HOPFIELD
    for (int32_t j = 0; j < BINEP_NEURONS; j++)
        binep_outputs[j] = BINEP_INITIAL_BIT ? BINEP_ONE : 0;
#endif
}

/* Compute the nudge towards a label, once under a constant nudge; then step under it. With a beta of
   0 it is the margin alone, under which learning's free phase steps. */
void CALLED(web_pull)(int32_t label, int32_t beta) {
    binep_pull(label, beta);
}

int32_t CALLED(web_step_pulled)(void) {
    return binep_step_pulled();
}

int32_t CALLED(web_predict)(const uint8_t *image) {
    return binep_predict(image);
}

int32_t CALLED(web_read_out)(void) {
    return binep_read_out();
}

double CALLED(web_energy)(void) {
    return (double)binep_energy() / (double)((int64_t)1 << BINEP_PARAMETER_BITS);
}

/* Of all neurons, by layers: states; or bits and, of the outputs, the drives that they are read by.
   All of them are exact. */
double *CALLED(web_states)(void) {
    static double states[BINEP_NEURONS];
    for (int32_t n = 0; n < BINEP_LAYERS; n++) {
        const struct binep_layer *l = &binep_layers[n];
        for (int32_t j = 0; j < l->count; j++) {
#if BINEP_HOPFIELD
            double one = (double)BINEP_ONE;
            states[l->first + j] = n == BINEP_LAYERS - 1 ? (double)binep_outputs[j] / one
                                                         : (double)binep_sends(n, j);
#else
            states[l->first + j] = (double)binep_states[l->first + j] / (double)BINEP_ONE;
#endif
        }
    }
    return states;
}

/* --- learning ------------------------------------------------------------------------------- */

void CALLED(web_learn)(const uint8_t *image, int32_t label) {
    binep_learn(image, label);
}

int32_t CALLED(web_flips)(void) {
    return binep_flips();
}

void CALLED(web_set_beta)(int32_t phase, int32_t beta) {
    binep_phases[phase].beta = beta;
}

void CALLED(web_set_flip_above)(int32_t n, int32_t momentum) {
    binep_rates[n].flip_above = momentum;
}

/* Weights were changed from outside. */
void CALLED(web_forget)(void) {
    binep_forget();
}

/* --- where things stand --------------------------------------------------------------------- */

uint32_t *CALLED(web_weights)(int32_t n) {
    return binep_couplings[n].weights;
}

binep_parameter *CALLED(web_bias)(int32_t n) {
    return binep_couplings[n].bias;
}

binep_momentum *CALLED(web_momenta)(int32_t n) {
    return binep_rates[n].momenta;
}
