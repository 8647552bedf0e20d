/* Relaxation in float32, for networks that do not run in integers. No allocation.

   The order of arithmetic is the training network's: sums over synapses, then the scale, then the
   bias, then up + down, each rounded on its own. Compile without fused multiply-add. */
#include <stddef.h>
#include <string.h>

#include "binep.h"
#include "rules.h"

binep_state binep_states[BINEP_NEURONS];

static float input[BINEP_INPUTS];
static float sent[BINEP_NEURONS];   /* activity */
static float first[BINEP_NEURONS];  /* what the image drives */
static float up[BINEP_NEURONS];
static float down[BINEP_NEURONS];
static float logits[BINEP_OUTPUTS];
static int32_t unused[BINEP_OUTPUTS];
static binep_wide sums[BINEP_NEURONS];
static int32_t switches[BINEP_NEURONS];

static float weight(const struct binep_coupling *c, int32_t row, int32_t n) {
    if (c->real)
        return c->real[(size_t)row * (size_t)c->synapses + (size_t)n];
    return (c->weights[(size_t)row * (size_t)c->words + (size_t)(n >> 5)] >> (n & 31) & 1u) ? 1.0f
                                                                                          : -1.0f;
}

static float gain_of(const struct binep_coupling *c, const float *gain, int32_t channel) {
    return gain[c->gains > 1 ? channel : 0];
}

static float window_sum(const struct binep_coupling *c, const float *below, int32_t row, int32_t y,
                        int32_t x) {
    float sum = 0.0f;
    for (int32_t ky = 0; ky < c->kernel; ky++)
        for (int32_t kx = 0; kx < c->kernel; kx++) {
            int32_t py = y + ky - c->padding, px = x + kx - c->padding;
            if (py < 0 || py >= c->rows || px < 0 || px >= c->cols)
                continue;
            const float *cell = below + (py * c->cols + px) * c->below;
            int32_t tap = (ky * c->kernel + kx) * c->below;
            for (int32_t k = 0; k < c->below; k++)
                sum += weight(c, row, tap + k) * cell[k];
        }
    return sum;
}

/* Drives through coupling n; a dense one is a window with a single position, without pools. */
static void drive_up(int32_t n, const float *below, float *to, int32_t *chosen) {
    const struct binep_coupling *c = &binep_couplings[n];
    for (int32_t place = 0; place < c->out_rows * c->out_cols; place++)
        for (int32_t i = 0; i < c->above; i++) {
            float best = 0.0f;
            int32_t at = place * c->above + i;
            for (int32_t k = 0; k < c->pool * c->pool; k++) {
                int32_t y = place / c->out_cols * c->pool + k / c->pool;
                int32_t x = place % c->out_cols * c->pool + k % c->pool;
                float sum = window_sum(c, below, i, y, x);
                if (RULE_WINS(k == 0, sum, best)) {
                    best = sum;
                    chosen[at] = y * c->map_cols + x;
                }
            }
            float drive = gain_of(c, c->gain, i) * best;
            to[at] = drive + c->bias[i];
        }
}

static void dense_down(const struct binep_coupling *c, const float *above, float *to) {
    for (int32_t j = 0; j < c->synapses; j++)
        to[j] = 0.0f;
    for (int32_t i = 0; i < c->above; i++)
        for (int32_t j = 0; above[i] != 0.0f && j < c->synapses; j++)
            to[j] += weight(c, i, j) * above[i];
    for (int32_t j = 0; j < c->synapses; j++)
        to[j] = c->gain_down[0] * to[j];
}

/* Each neuron above acts from where its switch points; scales stand inside the sum. */
static void conv_down(const struct binep_coupling *c, const float *above, const int32_t *chosen,
                      float *to) {
    int32_t cells = c->rows * c->cols * c->below;
    for (int32_t j = 0; j < cells; j++)
        sums[j] = 0;
    for (int32_t i = 0; i < c->out_rows * c->out_cols * c->above; i++) {
        int32_t channel = i % c->above;
        binep_wide scaled = (binep_wide)gain_of(c, c->gain_down, channel) * above[i];
        for (int32_t tap = 0; above[i] != 0.0f && tap < c->kernel * c->kernel; tap++) {
            int32_t y = chosen[i] / c->map_cols + tap / c->kernel - c->padding;
            int32_t x = chosen[i] % c->map_cols + tap % c->kernel - c->padding;
            if (y < 0 || y >= c->rows || x < 0 || x >= c->cols)
                continue;
            for (int32_t k = 0; k < c->below; k++)
                sums[(y * c->cols + x) * c->below + k]
                    += weight(c, channel, tap * c->below + k) * scaled;
        }
    }
    for (int32_t j = 0; j < cells; j++)
        to[j] = (float)sums[j];
}

void binep_start(const uint8_t *image) {
    const struct binep_coupling *c = &binep_couplings[0];
    int32_t places = BINEP_INPUTS / BINEP_CHANNELS;
    for (int32_t k = 0; k < BINEP_CHANNELS; k++)
        for (int32_t p = 0; p < places; p++) {
            float pixel = (float)image[k * places + p];
#if BINEP_NORMALISED
            float share = pixel / 255.0f;
            float centred = share - binep_mean[k];
            pixel = centred / binep_std[k];
#endif
            input[c->conv ? p * BINEP_CHANNELS + k : k * places + p] = pixel;
        }
    drive_up(0, input, first, switches);
    for (int32_t j = 0; j < BINEP_NEURONS; j++)
        binep_states[j] = BINEP_INITIAL_STATE;
}

/* Whether a layer moves in a turn: all in the only one, or every other layer in each of two. */
static int32_t moves(int32_t layer, int32_t turn) {
    return layer % BINEP_TURNS == turn;
}

static void move(int32_t turn) {
    for (int32_t j = 0; j < BINEP_NEURONS; j++)
        sent[j] = rule_activity(binep_states[j]);
    memcpy(up, first, (size_t)binep_layers[0].count * sizeof up[0]);
    for (int32_t n = 1; n < BINEP_LAYERS; n++) {
        const struct binep_layer *below = &binep_layers[n - 1], *above = &binep_layers[n];
        const struct binep_coupling *c = &binep_couplings[n];
        /* A convolution's way down takes the switches of its way up. */
        if (moves(n, turn) || (c->conv && moves(n - 1, turn)))
            drive_up(n, sent + below->first, up + above->first, switches + above->first);
        if (!moves(n - 1, turn))
            continue;
        if (c->conv)
            conv_down(c, sent + above->first, switches + above->first, down + below->first);
        else
            dense_down(c, sent + above->first, down + below->first);
    }
    for (int32_t n = turn; n < BINEP_LAYERS; n += BINEP_TURNS) {
        const struct binep_layer *l = &binep_layers[n];
        for (int32_t j = l->first; j < l->first + l->count; j++) {
            float drive = n < BINEP_LAYERS - 1 ? up[j] + down[j] : up[j];
            binep_states[j] = rule_step(binep_states[j], drive);
        }
    }
}

void binep_step(void) {
    for (int32_t turn = 0; turn < BINEP_TURNS; turn++)
        move(turn);
}

int32_t binep_predict(const uint8_t *image) {
    binep_start(image);
    for (int32_t t = 0; t < BINEP_STEPS; t++)
        binep_step();
    return binep_read_out();
}

int32_t binep_read_out(void) {
    const float *s = binep_states + binep_layers[BINEP_LAYERS - 1].first;
    int32_t best = 0;
    double most = 0.0;
    if (BINEP_COUPLINGS > BINEP_LAYERS) { /* a softmax reads the top layer out */
        for (int32_t j = 0; j < binep_layers[BINEP_LAYERS - 1].count; j++)
            sent[j] = rule_activity(s[j]);
        drive_up(BINEP_COUPLINGS - 1, sent, logits, unused);
        s = logits;
    }
    for (int32_t c = 0; c < BINEP_CLASSES; c++) {
        double sum = 0.0;
        for (int32_t k = 0; k < BINEP_READ; k++)
            sum += (double)s[c * BINEP_PER_CLASS + k];
        if (RULE_WINS(c == 0, sum, most)) {
            most = sum;
            best = c;
        }
    }
    return best;
}
