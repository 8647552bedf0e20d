/* Relaxation in integers, for binary weights and activations. No floating point, no allocation.

   Sums are popcounts of AND; scale and bias make a drive of them, exact with BINEP_PARAMETER_BITS
   fractional bits; a state has BINEP_STATE_BITS. Only what changed is computed again. */
#include <stddef.h>
#include <string.h>

#include "fixed.h"
#include "rules.h"

binep_state binep_states[BINEP_NEURONS];
uint32_t binep_bits[BINEP_WORDS];
int32_t binep_switches[BINEP_NEURONS];

static uint32_t before[BINEP_WORDS];        /* bits that the drives belong to */
static struct {
    int64_t up[BINEP_NEURONS];       /* drives from below, with bias */
    int64_t down[BINEP_NEURONS];     /* drives from a convolution above */
    int32_t held[32 * BINEP_WORDS];  /* positive synapses from active neurons above */
} parts, first; /* first: of the initial state, above the first layer the same for every image */
static int32_t drive[BINEP_NEURONS];        /* up + down, as a state takes it */
static uint32_t patch[8][BINEP_ROW_WORDS];  /* a window of bits, or of the 8 planes of pixels */
static const int32_t top = BINEP_LAYERS - 1;

static int32_t ready, first_switches[BINEP_NEURONS];
static uint32_t first_bits[BINEP_WORDS];

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
    const uint32_t *bits = binep_bits + binep_layers[n > 0 ? n - 1 : 0].first_word;
    int32_t planes = image ? 8 : 1;
    for (int32_t place = 0; place < c->out_rows * c->out_cols; place++) {
        int64_t *sums = parts.up + binep_layers[n].first + place * c->above;
        int32_t *chosen = binep_switches + binep_layers[n].first + place * c->above;
        for (int32_t k = 0; k < c->pool * c->pool; k++) {
            int32_t y = place / c->out_cols * c->pool + k / c->pool;
            int32_t x = place % c->out_cols * c->pool + k % c->pool;
            gather(c, bits, image, y, x);
            int32_t total = patch_total(c->words, planes);
            for (int32_t i = 0; i < c->above; i++) {
                const uint32_t *row = c->weights + (size_t)i * (size_t)c->words;
                int32_t sum = row_sum(row, c->words, planes, total);
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
    int32_t *counts_below = parts.held + 32 * below->first_word;
    for (int32_t w = 0; w < above->words; w++) {
        uint32_t now = binep_bits[above->first_word + w], was = before[above->first_word + w];
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
    int64_t *to = parts.down + below->first;
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

/* --- time ----------------------------------------------------------------------------------- */

/* The drives of a layer from its up and down. */
static void add_drives(int32_t layer) {
    const struct binep_layer *l = &binep_layers[layer];
    int32_t *to = drive + l->first;
    const int64_t *from_below = parts.up + l->first;
    if (layer == top) {
        for (int32_t j = 0; j < l->count; j++)
            to[j] = rule_drive(from_below[j], 0);
    } else if (binep_couplings[layer + 1].conv) {
        const int64_t *from_above = parts.down + l->first;
        for (int32_t j = 0; j < l->count; j++)
            to[j] = rule_drive(from_below[j] + from_above[j], 0);
    } else {
        const int32_t *positive = parts.held + 32 * l->first_word;
        const struct binep_layer *above = &binep_layers[layer + 1];
        const uint32_t *bits = binep_bits + above->first_word;
        int32_t active = count(bits, bits, above->words);
        int64_t gain = binep_couplings[layer + 1].gain_down[0];
        for (int32_t j = 0; j < l->count; j++)
            to[j] = rule_drive(from_below[j] + gain * (2 * positive[j] - active), 0);
    }
}

static int32_t changed(int32_t layer) {
    const struct binep_layer *l = &binep_layers[layer];
    return memcmp(binep_bits + l->first_word, before + l->first_word,
                  (size_t)l->words * sizeof before[0])
           != 0;
}

void binep_update_drives(void) {
    int32_t stale[BINEP_LAYERS] = {0};
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
    memcpy(before, binep_bits, sizeof before);
    for (int32_t layer = 0; layer < BINEP_LAYERS; layer++)
        if (stale[layer])
            add_drives(layer);
}

void binep_forget(void) {
    ready = 0;
}

/* The layers at t = 0, whatever the image. */
static void prepare(void) {
    memset(binep_bits, 0, sizeof binep_bits);
    memset(before, 0, sizeof before);
    memset(&parts, 0, sizeof parts);
    for (int32_t n = 0; n < BINEP_LAYERS; n++)
        for (int32_t j = 0; rule_fires(BINEP_INITIAL_STATE) && j < binep_layers[n].count; j++)
            binep_bits[binep_layers[n].first_word + (j >> 5)] |= 1u << (j & 31);
    for (int32_t n = 1; n < BINEP_LAYERS; n++) {
        update_up(n, NULL);
        if (binep_couplings[n].conv)
            conv_down(n);
        else
            dense_down(n);
    }
    memcpy(first_bits, binep_bits, sizeof first_bits);
    first = parts;
    memcpy(first_switches, binep_switches, sizeof first_switches);
    ready = 1;
}

void binep_start(const uint8_t *image) {
    if (!ready)
        prepare();
    parts = first;
    memcpy(binep_switches, first_switches, sizeof binep_switches);
    memcpy(binep_bits, first_bits, sizeof binep_bits);
    memcpy(before, first_bits, sizeof before);
    for (int32_t j = 0; j < BINEP_NEURONS; j++)
        binep_states[j] = BINEP_INITIAL_STATE;
    update_up(0, image);
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

void binep_step_nudged(const int64_t *nudge) {
    const struct binep_layer *l = &binep_layers[top];
    for (int32_t j = 0; j < l->count; j++)
        drive[l->first + j] = rule_drive(parts.up[l->first + j], nudge[j]);
    binep_step();
}

void binep_step(void) {
    for (int32_t n = 0; n < BINEP_LAYERS; n++)
        advance_layer(n);
    binep_update_drives();
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
        if (!pending && memcmp(binep_bits, before, sizeof before) == 0)
            break;
        binep_update_drives();
    }
    for (; t < BINEP_STEPS; t++)
        advance_layer(top);
    return binep_read_out();
}

int32_t binep_read_out(void) {
    const int32_t *s = binep_states + binep_layers[top].first;
    int32_t best = 0;
    int64_t most = 0;
    for (int32_t c = 0; c < BINEP_CLASSES; c++) {
        int64_t sum = 0;
        for (int32_t k = 0; k < BINEP_READ; k++)
            sum += s[c * BINEP_PER_CLASS + k];
        if (RULE_WINS(c == 0, sum, most)) {
            most = sum;
            best = c;
        }
    }
    return best;
}
