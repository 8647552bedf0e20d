/* What learning shares with the relaxation in integers. */
#ifndef BINEP_FIXED_H
#define BINEP_FIXED_H

#include "binep.h"

extern uint32_t binep_bits[BINEP_WORDS];
extern int32_t binep_switches[BINEP_NEURONS];

/* A step with `nudge` added to the drives of the top layer. */
void binep_step_nudged(const int64_t *nudge);
/* Bring all drives up to date with the bits. */
void binep_update_drives(void);
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
