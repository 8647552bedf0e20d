/* What relaxation in integers and learning share. */
#ifndef BINEP_FIXED_H
#define BINEP_FIXED_H

#include "binep.h"

/* What neurons send, and the bits that the sums belong to. */
extern uint32_t binep_bits[BINEP_WORDS], binep_before[BINEP_WORDS];
extern int32_t binep_switches[BINEP_NEURONS];

extern struct binep_sums {
    int64_t up[BINEP_NEURONS];      /* drives from below, with bias */
    int64_t down[BINEP_NEURONS];    /* drives from a convolution above */
    int32_t held[32 * BINEP_WORDS]; /* positive synapses from active neurons above */
} binep_sums;

/* All neurons off, or on; sums of these, but for the image's. */
void binep_start_sums(int32_t on);
void binep_clamp(const uint8_t *image);
/* Bring all sums up to date with the bits; says which layers are driven otherwise. */
void binep_update_sums(int32_t stale[BINEP_LAYERS]);

/* Up + down of the neurons of a layer: `binep_drive` of each. */
struct binep_drives {
    const int64_t *up, *down;
    const int32_t *positive;
    int64_t gain;
    int32_t active;
};
struct binep_drives binep_drives_of(int32_t layer);
static inline int64_t binep_drive(const struct binep_drives *d, int32_t j) {
    if (d->down)
        return d->up[j] + d->down[j];
    return d->positive ? d->up[j] + d->gain * (2 * d->positive[j] - d->active) : d->up[j];
}

/* A step with `nudge` added to the drives of the top layer; whether another one can differ. */
int32_t binep_step_nudged(const int64_t *nudge);
/* Go on from where a phase has ended. */
#if BINEP_HOPFIELD
void binep_resume(const uint32_t *bits);
#else
void binep_resume(const uint32_t *bits, const binep_state *states);
#endif
/* The class whose outputs have the largest sum. */
int32_t binep_winner(const binep_state *outputs);
/* Weights or biases were changed: nothing that was kept of them holds. */
void binep_forget(void);

static inline int32_t binep_bit(const uint32_t *bits, int32_t n) {
    return (int32_t)(bits[n >> 5] >> (n & 31) & 1u);
}

/* How many bits of a word are 1: by the compiler's builtin where it is an instruction, by adding
   bits up side by side elsewhere, which vectorises; or by a table. */
#if defined(BINEP_POPCOUNT_TABLE)
#define BINEP_TWO(n) n, n + 1, n + 1, n + 2
#define BINEP_FOUR(n) BINEP_TWO(n), BINEP_TWO(n + 1), BINEP_TWO(n + 1), BINEP_TWO(n + 2)
#define BINEP_SIX(n) BINEP_FOUR(n), BINEP_FOUR(n + 1), BINEP_FOUR(n + 1), BINEP_FOUR(n + 2)
static const uint8_t binep_counts[256]
    = {BINEP_SIX(0), BINEP_SIX(1), BINEP_SIX(1), BINEP_SIX(2)};
static inline int32_t binep_popcount(uint32_t word) {
    return binep_counts[word & 255u] + binep_counts[word >> 8 & 255u]
           + binep_counts[word >> 16 & 255u] + binep_counts[word >> 24];
}
#elif defined(__POPCNT__) || defined(__aarch64__)
static inline int32_t binep_popcount(uint32_t word) {
    return (int32_t)__builtin_popcount(word);
}
#else
static inline int32_t binep_popcount(uint32_t word) {
    word -= word >> 1 & 0x55555555u;
    word = (word & 0x33333333u) + (word >> 2 & 0x33333333u);
    word = (word + (word >> 4)) & 0x0f0f0f0fu;
    word += word >> 8;
    return (int32_t)((word + (word >> 16)) & 63u);
}
#endif

/* The position of the lowest bit that is set. */
static inline int32_t binep_lowest(uint32_t word) {
    return binep_popcount((word & (0u - word)) - 1u);
}

#endif
