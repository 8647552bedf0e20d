/* The rules: what a neuron sends, how its state moves, how a nudge pulls, when a weight flips.

   Each stands here once; whatever relaxes or learns calls them. Numbers are of the network's own
   arithmetic: integers in units of 1 / BINEP_ONE, or real ones with BINEP_ONE = 1. */
#ifndef BINEP_RULES_H
#define BINEP_RULES_H

#include <stdint.h>

#include "network.h"

/* Whether a value beats the best so far: of equals, in a pool or among classes, the first wins. */
#define RULE_WINS(is_first, value, best) ((is_first) || (value) > (best))

/* [s >= threshold]; of a drive, whether a neuron at rest is on. */
static inline int32_t rule_fires(binep_state s) {
    return s >= BINEP_THRESHOLD;
}

/* s, kept in [0, 1]. */
#if !BINEP_HOPFIELD
static inline binep_state rule_clamp(binep_state s) {
    return s < 0 ? 0 : s > BINEP_ONE ? BINEP_ONE : s;
}
#endif

#if BINEP_INTEGERS

/* x / 2^n rounded down; C leaves >> of negative numbers to the compiler. */
static inline int64_t rule_shift(int64_t x, int n) {
    return x >= 0 ? x >> n : ~(~x >> n);
}

#if !BINEP_HOPFIELD

/* A drive on a state. Beyond -1 or 2 it takes any state to 0 or 1 at once: it is kept there. */
static inline int32_t rule_drive(int64_t force, int64_t nudge) {
    int64_t value = rule_shift(force, BINEP_PARAMETER_BITS - BINEP_STATE_BITS) + nudge;
    int64_t one = BINEP_ONE;
    return (int32_t)(value < -one ? -one : value > 2 * one ? 2 * one : value);
}

/* s <- clamp(floor((s + drive) / 2), 0, 1) */
static inline binep_state rule_step(binep_state s, int32_t drive) {
    int32_t next = s + drive;
    return rule_clamp(next < 0 ? 0 : next >> 1);
}

#endif
#else

static inline binep_state rule_activity(binep_state s) {
#if BINEP_BINARY
    return (binep_state)rule_fires(s);
#else
    return rule_clamp(s);
#endif
}

/* rho'(s): 1 / (2 sigma) within sigma of the threshold; of a real activation, 1 on [0, 1]. */
static inline binep_state rule_slope(binep_state s) {
#if BINEP_BINARY
    binep_state distance = s - BINEP_THRESHOLD;
    return (distance < 0 ? -distance : distance) <= BINEP_SIGMA ? BINEP_SLOPE : 0;
#else
    return s >= 0 && s <= 1 ? 1 : 0;
#endif
}

/* s <- clamp((1 - dt) s + dt rho'(s) drive, 0, 1), or clamp(drive, 0, 1); of bits alone, drive */
static inline binep_state rule_step(binep_state s, binep_state drive) {
#if BINEP_ENERGY
    binep_state force = rule_slope(s) * drive;
    binep_state kept = BINEP_KEEP * s;
    binep_state taken = BINEP_TAKE * force;
    return rule_clamp(kept + taken);
#elif BINEP_HOPFIELD
    (void)s;
    return drive;
#else
    (void)s;
    return rule_clamp(drive);
#endif
}

#endif

#if BINEP_LEARNING

/* beta (target - s), with a signed beta of BINEP_BETA_BITS fractional bits; of bits alone, s is
   1/2. */
static inline int64_t rule_nudge(int64_t beta, binep_state target, binep_state s) {
    return rule_shift(beta * (target - s), BINEP_BETA_BITS);
}

/* margin (1 - 2 target): what drives an output against its target; margin as beta. */
static inline int64_t rule_handicap(int64_t margin, binep_state target) {
    return rule_shift(margin * (BINEP_ONE - 2 * (int64_t)target), BINEP_BETA_BITS);
}

/* m <- m + gradient, kept in +-most */
static inline int32_t rule_momentum(int32_t m, int32_t gradient, int32_t most) {
    int32_t next = m + gradient;
    return next > most ? most : next < -most ? -most : next;
}

/* |m| > tau and sign(m) = sign(w) */
static inline int32_t rule_flip(int32_t m, int32_t positive, int32_t tau) {
    return positive ? m > tau : m < -tau;
}

#endif

#endif
