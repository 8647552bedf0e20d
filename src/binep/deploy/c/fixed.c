/* Drives in integers, for binary weights and activations. No floating point, no allocation.

   Sums are popcounts of AND; scale and bias make a drive of them, exact with BINEP_PARAMETER_BITS
   fractional bits. Only what changed is computed again. What drives do stands in `states.c`, or in
   `bits.c` where the state is the bit. */
#include <stddef.h>
#include <string.h>

#include "fixed.h"
#include "rules.h"

uint32_t binep_bits[BINEP_WORDS];
int32_t binep_switches[BINEP_NEURONS];

struct binep_sums binep_sums;
uint32_t binep_before[BINEP_WORDS];

static uint32_t patch[8][BINEP_ROW_WORDS];  /* a window of bits, or of the 8 planes of pixels */

static int64_t gain_of(const struct binep_coupling *c, const int64_t *gain, int32_t channel) {
    return gain[c->gains > 1 ? channel : 0];
}

static int32_t count(const uint32_t *row, const uint32_t *bits, int32_t words) {
    int32_t sum = 0;
    for (int32_t w = 0; w < words; w++)
        sum += binep_popcount(row[w] & bits[w]);
    return sum;
}

/* Copy bits from one row to another, to which nothing was written from there on. */
static void copy_bits(uint32_t *to, int32_t at, const uint32_t *from, int32_t first, int32_t n) {
    while (n > 0) {
        int32_t room = 32 - (at & 31), left = 32 - (first & 31), some = n;
        if (some > room)
            some = room;
        if (some > left)
            some = left;
        uint32_t mask = some == 32 ? 0xffffffffu : (1u << some) - 1u;
        to[at >> 5] |= (from[first >> 5] >> (first & 31) & mask) << (at & 31);
        at += some;
        first += some;
        n -= some;
    }
}

/* --- drives from below ---------------------------------------------------------------------- */

/* The window of a map's position: bits of the layer below, or planes of the pixels of an image. */
static void gather(const struct binep_coupling *c, const uint32_t *bits, const uint8_t *image,
                   int32_t y, int32_t x) {
    int32_t planes = image ? 8 : 1;
    for (int32_t k = 0; k < planes; k++)
        memset(patch[k], 0, (size_t)c->words * sizeof patch[k][0]);
    for (int32_t ky = 0; ky < c->kernel; ky++)
        for (int32_t kx = 0; kx < c->kernel; kx++) {
            int32_t row = y + ky - c->padding, col = x + kx - c->padding;
            int32_t at = (ky * c->kernel + kx) * c->below;
            if (row < 0 || row >= c->rows || col < 0 || col >= c->cols)
                continue;
            if (!image) {
                copy_bits(patch[0], at, bits, (row * c->cols + col) * c->below, c->below);
                continue;
            }
            for (int32_t k = 0; k < c->below; k++) {
                uint32_t pixel = image[(k * c->rows + row) * c->cols + col];
                for (int32_t p = 0; p < 8; p++)
                    patch[p][(at + k) >> 5] |= (pixel >> p & 1u) << ((at + k) & 31);
            }
        }
}

/* The sum of row i over what was gathered: 2 popcount(w & a) - popcount(a), plane by plane. */
static int32_t row_sum(const uint32_t *row, int32_t words, int32_t planes, int32_t total) {
    int32_t sum = 0;
    for (int32_t p = 0; p < planes; p++)
        sum += count(row, patch[p], words) << p;
    return 2 * sum - total;
}

static int32_t patch_total(int32_t words, int32_t planes) {
    int32_t total = 0;
    for (int32_t p = 0; p < planes; p++)
        total += count(patch[p], patch[p], words) << p;
    return total;
}

/* Drives through coupling n from the bits of the layer below it, or from an image. Of equal sums in
   a pool the first position, row by row, wins; a dense coupling has one position, without pools. */
static void update_up(int32_t n, const uint8_t *image) {
    const struct binep_coupling *c = &binep_couplings[n];
    const struct binep_layer *below = &binep_layers[n > 0 ? n - 1 : 0];
    const uint32_t *bits = binep_bits + below->first_word;
    int32_t planes = image ? 8 : 1, silent = !image && !count(bits, bits, below->words);
    for (int32_t place = 0; place < c->out_rows * c->out_cols; place++) {
        int64_t *sums = binep_sums.up + binep_layers[n].first + place * c->above;
        int32_t *chosen = binep_switches + binep_layers[n].first + place * c->above;
        for (int32_t k = 0; k < c->pool * c->pool; k++) {
            int32_t y = place / c->out_cols * c->pool + k / c->pool;
            int32_t x = place % c->out_cols * c->pool + k % c->pool;
            if (!silent)
                gather(c, bits, image, y, x);
            int32_t total = silent ? 0 : patch_total(c->words, planes);
            for (int32_t i = 0; i < c->above; i++) {
                const uint32_t *row = c->weights + (size_t)i * (size_t)c->words;
                int32_t sum = silent ? 0 : row_sum(row, c->words, planes, total);
                if (RULE_WINS(k == 0, sum, sums[i])) {
                    sums[i] = sum;
                    chosen[i] = y * c->map_cols + x;
                }
            }
        }
        for (int32_t i = 0; i < c->above; i++)
            sums[i] = gain_of(c, c->gain, i) * sums[i] + c->bias[i];
    }
}

/* --- drives from above ---------------------------------------------------------------------- */

/* Count a row of synapses in, or out, for every neuron below a dense coupling. */
static void add_row(int32_t *counts_below, const uint32_t *row, int32_t words, int32_t amount) {
    for (int32_t w = 0; w < words; w++) {
        uint32_t word = row[w];
        int32_t *to = counts_below + 32 * w;
        for (int32_t b = 0; b < 32; b++)
            to[b] += (int32_t)(word >> b & 1u) * amount;
    }
}

static void dense_down(int32_t n) {
    const struct binep_coupling *c = &binep_couplings[n];
    const struct binep_layer *below = &binep_layers[n - 1], *above = &binep_layers[n];
    int32_t *counts_below = binep_sums.held + 32 * below->first_word;
    for (int32_t w = 0; w < above->words; w++) {
        uint32_t now = binep_bits[above->first_word + w], was = binep_before[above->first_word + w];
        for (uint32_t rest = now ^ was; rest; rest &= rest - 1u) {
            int32_t b = binep_lowest(rest);
            const uint32_t *row = c->weights + (size_t)(32 * w + b) * (size_t)c->words;
            add_row(counts_below, row, c->words, (now >> b & 1u) ? 1 : -1);
        }
    }
}

/* Each active neuron above acts from where its switch points. */
static void conv_down(int32_t n) {
    const struct binep_coupling *c = &binep_couplings[n];
    const struct binep_layer *below = &binep_layers[n - 1], *above = &binep_layers[n];
    int64_t *to = binep_sums.down + below->first;
    memset(to, 0, (size_t)below->count * sizeof to[0]);
    for (int32_t i = 0; i < above->count; i++) {
        if (!binep_bit(binep_bits + above->first_word, i))
            continue;
        int32_t channel = i % c->above, place = binep_switches[above->first + i];
        const uint32_t *row = c->weights + (size_t)channel * (size_t)c->words;
        int64_t gain = gain_of(c, c->gain_down, channel);
        for (int32_t ky = 0; ky < c->kernel; ky++)
            for (int32_t kx = 0; kx < c->kernel; kx++) {
                int32_t y = place / c->map_cols + ky - c->padding;
                int32_t x = place % c->map_cols + kx - c->padding;
                if (y < 0 || y >= c->rows || x < 0 || x >= c->cols)
                    continue;
                int64_t *cell = to + (y * c->cols + x) * c->below;
                int32_t tap = (ky * c->kernel + kx) * c->below;
                for (int32_t k = 0; k < c->below; k++)
                    cell[k] += binep_bit(row, tap + k) ? gain : -gain;
            }
    }
}

/* --- both ------------------------------------------------------------------------------------ */

static int32_t changed(int32_t layer) {
    const struct binep_layer *l = &binep_layers[layer];
    return memcmp(binep_bits + l->first_word, binep_before + l->first_word,
                  (size_t)l->words * sizeof binep_before[0])
           != 0;
}

void binep_update_sums(int32_t stale[BINEP_LAYERS]) {
    memset(stale, 0, BINEP_LAYERS * sizeof stale[0]);
    for (int32_t n = 1; n < BINEP_LAYERS; n++) {
        int32_t from_below = changed(n - 1), from_above = changed(n);
        if (from_below)
            update_up(n, NULL);
        if (binep_couplings[n].conv && (from_below || from_above))
            conv_down(n);
        else if (!binep_couplings[n].conv && from_above)
            dense_down(n);
        stale[n] |= from_below;
        stale[n - 1] |= from_above || (binep_couplings[n].conv && from_below);
    }
    memcpy(binep_before, binep_bits, sizeof binep_before);
}

void binep_start_sums(int32_t on) {
    memset(binep_bits, 0, sizeof binep_bits);
    memset(binep_before, 0, sizeof binep_before);
    memset(&binep_sums, 0, sizeof binep_sums);
    for (int32_t n = 0; on && n < BINEP_LAYERS; n++)
        for (int32_t j = 0; j < binep_layers[n].count; j++)
            binep_bits[binep_layers[n].first_word + (j >> 5)] |= 1u << (j & 31);
    for (int32_t n = 1; n < BINEP_LAYERS; n++) {
        update_up(n, NULL);
        if (binep_couplings[n].conv)
            conv_down(n);
        else
            dense_down(n);
    }
    memcpy(binep_before, binep_bits, sizeof binep_before);
}

void binep_clamp(const uint8_t *image) {
    update_up(0, image);
}

struct binep_drives binep_drives_of(int32_t layer) {
    const struct binep_layer *l = &binep_layers[layer];
    struct binep_drives found = {binep_sums.up + l->first, NULL, NULL, 0, 0};
    if (layer == BINEP_LAYERS - 1)
        return found;
    const struct binep_coupling *c = &binep_couplings[layer + 1];
    if (c->conv) {
        found.down = binep_sums.down + l->first;
        return found;
    }
    const struct binep_layer *above = &binep_layers[layer + 1];
    const uint32_t *bits = binep_bits + above->first_word;
    found.positive = binep_sums.held + 32 * l->first_word;
    found.active = count(bits, bits, above->words);
    found.gain = c->gain_down[0];
    return found;
}

int32_t binep_winner(const binep_state *outputs) {
    int32_t best = 0;
    int64_t most = 0;
    for (int32_t c = 0; c < BINEP_CLASSES; c++) {
        int64_t sum = 0;
        for (int32_t k = 0; k < BINEP_READ; k++)
            sum += outputs[c * BINEP_PER_CLASS + k];
        if (RULE_WINS(c == 0, sum, most)) {
            most = sum;
            best = c;
        }
    }
    return best;
}
