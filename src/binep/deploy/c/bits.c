/* Bits in time: layers move in turn, the odd ones and then the even ones, and a neuron is from then
   on what its drive says. Nothing else is kept of it; every move lowers an energy or leaves it, so
   that a network comes to rest. */
#include <string.h>

#include "fixed.h"
#include "rules.h"

binep_state binep_outputs[BINEP_OUTPUTS];

int32_t binep_sends(int32_t layer, int32_t neuron) {
    return binep_bit(binep_bits + binep_layers[layer].first_word, neuron);
}

void binep_forget(void) {
}

static void update_sums(void) {
    int32_t stale[BINEP_LAYERS];
    binep_update_sums(stale);
}

void binep_resume(const uint32_t *bits) {
    memcpy(binep_bits, bits, sizeof binep_bits);
    update_sums();
}

void binep_start(const uint8_t *image) {
    binep_start_sums(BINEP_INITIAL_BIT);
    binep_clamp(image);
}

/* Move a layer, perhaps nudged; whether any of its bits has changed. */
static int32_t move_layer(int32_t layer, const int64_t *nudge) {
    const struct binep_layer *l = &binep_layers[layer];
    const struct binep_drives drives = binep_drives_of(layer);
    uint32_t moved = 0;
    for (int32_t w = 0; w < l->words; w++) {
        int32_t from = 32 * w, n = l->count - from < 32 ? l->count - from : 32;
        uint32_t on = 0;
        for (int32_t b = 0; b < n; b++) {
            int64_t force = binep_drive(&drives, from + b);
            if (nudge)
                force += nudge[from + b];
            if (layer == BINEP_LAYERS - 1)
                binep_outputs[from + b] = force;
            on |= (uint32_t)rule_fires(force) << b;
        }
        moved |= on ^ binep_bits[l->first_word + w];
        binep_bits[l->first_word + w] = on;
    }
    return moved != 0;
}

/* sum a / 2 - sum <a, drive from below> */
int64_t binep_energy(void) {
    int64_t sum = 0;
    for (int32_t n = 0; n < BINEP_LAYERS; n++) {
        const struct binep_layer *l = &binep_layers[n];
        for (int32_t j = 0; j < l->count; j++)
            if (binep_bit(binep_bits + l->first_word, j))
                sum += BINEP_THRESHOLD - binep_sums.up[l->first + j];
    }
    return sum;
}

int32_t binep_step_nudged(const int64_t *nudge) {
    int32_t moved = 0;
    for (int32_t turn = 0; turn < BINEP_TURNS; turn++) {
        for (int32_t n = turn; n < BINEP_LAYERS; n += 2)
            moved |= move_layer(n, n == BINEP_LAYERS - 1 ? nudge : NULL);
        update_sums();
    }
    return moved;
}

void binep_step(void) {
    binep_step_nudged(NULL);
}

int32_t binep_predict(const uint8_t *image) {
    binep_start(image);
    for (int32_t t = 0; t < BINEP_STEPS && binep_step_nudged(NULL); t++) {
    }
    return binep_read_out();
}

int32_t binep_read_out(void) {
    return binep_winner(binep_outputs);
}
