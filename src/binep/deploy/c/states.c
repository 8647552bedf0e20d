/* States in time: each moves half of the way to its drive, all at once, and sends whether it is at
   least 1/2. */
#include <string.h>

#include "fixed.h"
#include "rules.h"

#define TOP (BINEP_LAYERS - 1)

binep_state binep_states[BINEP_NEURONS];

static int32_t drive[BINEP_NEURONS]; /* up + down, as a state takes it */

/* Of the initial state; but for the first layer the same for every image. */
static int32_t ready, first_switches[BINEP_NEURONS];
static uint32_t first_bits[BINEP_WORDS];
static struct binep_sums first;

static void add_drives(int32_t layer) {
    const struct binep_drives drives = binep_drives_of(layer);
    int32_t *to = drive + binep_layers[layer].first;
    for (int32_t j = 0; j < binep_layers[layer].count; j++)
        to[j] = rule_drive(binep_drive(&drives, j), 0);
}

static void update_drives(void) {
    int32_t stale[BINEP_LAYERS];
    binep_update_sums(stale);
    for (int32_t n = 0; n < BINEP_LAYERS; n++)
        if (stale[n])
            add_drives(n);
}

void binep_forget(void) {
    ready = 0;
}

void binep_resume(const uint32_t *bits, const binep_state *states) {
    memcpy(binep_bits, bits, sizeof binep_bits);
    memcpy(binep_states, states, sizeof binep_states);
    update_drives();
}

void binep_start(const uint8_t *image) {
    if (!ready) {
        binep_start_sums(rule_fires(BINEP_INITIAL_STATE));
        memcpy(first_bits, binep_bits, sizeof first_bits);
        memcpy(first_switches, binep_switches, sizeof first_switches);
        first = binep_sums;
        ready = 1;
    }
    binep_sums = first;
    memcpy(binep_switches, first_switches, sizeof binep_switches);
    memcpy(binep_bits, first_bits, sizeof binep_bits);
    memcpy(binep_before, first_bits, sizeof binep_before);
    for (int32_t j = 0; j < BINEP_NEURONS; j++)
        binep_states[j] = BINEP_INITIAL_STATE;
    binep_clamp(image);
    for (int32_t n = 0; n < BINEP_LAYERS; n++)
        add_drives(n);
}

/* One step of a layer; bits of neurons whose bit is not yet what their drive says. */
static uint32_t advance_layer(int32_t layer) {
    const struct binep_layer *l = &binep_layers[layer];
    int32_t *s = binep_states + l->first;
    const int32_t *force = drive + l->first;
    uint32_t pending = 0;
    for (int32_t w = 0; w < l->words; w++) {
        int32_t from = 32 * w, n = l->count - from < 32 ? l->count - from : 32;
        uint32_t on = 0, wanted = 0;
        for (int32_t b = 0; b < n; b++)
            s[from + b] = rule_step(s[from + b], force[from + b]);
        for (int32_t b = 0; b < n; b++) {
            on |= (uint32_t)rule_fires(s[from + b]) << b;
            wanted |= (uint32_t)rule_fires(force[from + b]) << b;
        }
        binep_bits[l->first_word + w] = on;
        pending |= on ^ wanted;
    }
    return pending;
}

/* sum s^2 / 2 - sum <a, drive from below>; the square in units of a drive. */
int64_t binep_energy(void) {
    int shift = BINEP_PARAMETER_BITS - 1 - 2 * BINEP_STATE_BITS;
    int64_t sum = 0;
    for (int32_t n = 0; n < BINEP_LAYERS; n++) {
        const struct binep_layer *l = &binep_layers[n];
        for (int32_t j = 0; j < l->count; j++) {
            int64_t square = (int64_t)binep_states[l->first + j] * binep_states[l->first + j];
            sum += shift < 0 ? square >> -shift : square << shift;
            if (binep_bit(binep_bits + l->first_word, j))
                sum -= binep_sums.up[l->first + j];
        }
    }
    return sum;
}

int32_t binep_step_nudged(const int64_t *nudge) {
    const struct binep_layer *l = &binep_layers[TOP];
    for (int32_t j = 0; j < l->count; j++)
        drive[l->first + j] = rule_drive(binep_sums.up[l->first + j], nudge[j]);
    binep_step();
    return 1;
}

void binep_step(void) {
    for (int32_t n = 0; n < BINEP_LAYERS; n++)
        advance_layer(n);
    update_drives();
}

/* Once every bit is what its neuron's drive says, none changes any more: a state moves towards
   its drive, and both are on the same side of the threshold. Then only the output is stepped. */
int32_t binep_predict(const uint8_t *image) {
    int32_t t = 0;
    binep_start(image);
    while (t < BINEP_STEPS) {
        uint32_t pending = 0;
        for (int32_t n = 0; n < BINEP_LAYERS; n++)
            pending |= advance_layer(n);
        t++;
        if (!pending && memcmp(binep_bits, binep_before, sizeof binep_before) == 0)
            break;
        update_drives();
    }
    for (; t < BINEP_STEPS; t++)
        advance_layer(TOP);
    return binep_read_out();
}

int32_t binep_read_out(void) {
    return binep_winner(binep_states + binep_layers[TOP].first);
}
