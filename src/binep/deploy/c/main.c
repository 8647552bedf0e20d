/* Reads test vectors and prints predictions; can also print states, measure time, and learn.

   usage: binep VECTORS [states | time N | learn OUT]; anything else ends with exit code 2

   VECTORS: "BEPV", then numbers of 32 bits, lowest byte first: how many vectors, and how many pixels
   each; then for each vector its label and the expected class, 16 bits each, and its pixels.

   (none)     one line a vector: index, prediction, expected class; the last line counts those
              that differ, and if any do the exit code is 1
   states     one line a vector and a time step: index, t, and the states (or bits) of all neurons
   time N     predicts all vectors N times over; nanoseconds an image
   learn OUT  learns from all vectors, then writes weights, biases and momenta to OUT */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "binep.h"

struct vector {
    int32_t label, expected;
    uint8_t pixels[BINEP_INPUTS];
};

static struct vector vector;

#if BINEP_LEARNING
#define BINEP_USAGE_LEARN " | learn OUT"
#else
#define BINEP_USAGE_LEARN ""
#endif

static int fail(const char *message) {
    fprintf(stderr, "binep: %s\n", message);
    return 2;
}

static uint32_t read_number(FILE *file, int bytes) {
    uint32_t number = 0;
    for (int n = 0; n < bytes; n++)
        number |= (uint32_t)(fgetc(file) & 255) << (8 * n);
    return number;
}

static int read_vector(FILE *file) {
    vector.label = (int32_t)read_number(file, 2);
    vector.expected = (int32_t)read_number(file, 2);
    return fread(vector.pixels, 1, BINEP_INPUTS, file) == BINEP_INPUTS;
}

static void print_states(uint32_t n) {
    binep_start(vector.pixels);
    for (int32_t t = 0; t <= BINEP_STEPS; t++) {
        printf("%lu %ld", (unsigned long)n, (long)t);
#if BINEP_INTEGERS && BINEP_HOPFIELD
        for (int32_t layer = 0; layer < BINEP_LAYERS; layer++)
            for (int32_t j = 0; j < binep_layers[layer].count; j++)
                printf(" %ld", (long)binep_sends(layer, j));
#else
        for (int32_t j = 0; j < BINEP_NEURONS; j++)
            printf(" " BINEP_PRINT_STATE, BINEP_AS_PRINTED(binep_states[j]));
#endif
        printf("\n");
        if (t < BINEP_STEPS)
            binep_step();
    }
}

#if BINEP_LEARNING
static void write_number(FILE *file, int64_t number, int bytes) {
    for (int n = 0; n < bytes; n++)
        fputc((int)((uint64_t)number >> (8 * n) & 255u), file);
}

/* For each coupling: weights (4 bytes a word), biases (8 bytes each), momenta (4 bytes each). */
static int write_learnt(const char *path) {
    FILE *file = fopen(path, "wb");
    if (!file)
        return fail("cannot write what was learnt");
    for (int32_t n = 0; n < BINEP_COUPLINGS; n++) {
        const struct binep_coupling *c = &binep_couplings[n];
        for (int32_t w = 0; w < c->above * c->words; w++)
            write_number(file, c->weights[w], 4);
        for (int32_t i = 0; i < c->above; i++)
            write_number(file, c->bias[i], 8);
        for (int32_t j = 0; j < c->above * c->synapses; j++)
            write_number(file, binep_rates[n].momenta[j], 4);
    }
    printf("%ld flips\n", (long)binep_flips());
    return fclose(file) ? fail("cannot write what was learnt") : 0;
}
#endif

enum mode { PREDICT, STATES, TIME, LEARN, UNKNOWN };

static enum mode mode_of(int words, char **word) {
    if (words == 2)
        return PREDICT;
    if (words == 3 && strcmp(word[2], "states") == 0)
        return STATES;
    if (words == 4 && strcmp(word[2], "time") == 0)
        return TIME;
#if BINEP_LEARNING
    if (words == 4 && strcmp(word[2], "learn") == 0)
        return LEARN;
#endif
    return UNKNOWN;
}

/* A whole number from 1 to a million, or 0. */
static long rounds_of(const char *text) {
    char *end;
    long rounds = strtol(text, &end, 10);
    return end == text || *end || rounds < 1 || rounds > 1000000 ? 0 : rounds;
}

static int measure(FILE *file, uint32_t count, long rounds) {
    double seconds = 0;
    int32_t sum = 0;
    for (long r = 0; r < rounds; r++) {
        fseek(file, 12, SEEK_SET);
        for (uint32_t n = 0; n < count; n++) {
            if (!read_vector(file))
                return fail("the vectors end early");
            clock_t begin = clock();
            sum += binep_predict(vector.pixels);
            seconds += (double)(clock() - begin) / CLOCKS_PER_SEC;
        }
    }
    printf("%.0f ns an image (%ld predictions, sum of classes %ld)\n",
           1e9 * seconds / ((double)count * (double)rounds), rounds * (long)count, (long)sum);
    return 0;
}

int main(int argc, char **argv) {
    const enum mode mode = mode_of(argc, argv);
    char magic[4];
    uint32_t count, differ = 0;
    long rounds = mode == TIME ? rounds_of(argv[3]) : 1;
    FILE *file;
    if (mode == UNKNOWN)
        return fail("usage: binep VECTORS [states | time N" BINEP_USAGE_LEARN "]");
    if (!rounds)
        return fail("time: allowed are 1 to 1000000 rounds");
    file = fopen(argv[1], "rb");
    if (!file)
        return fail("cannot read the vectors");
    if (fread(magic, 1, 4, file) != 4 || memcmp(magic, "BEPV", 4) != 0)
        return fail("not a file of test vectors");
    count = read_number(file, 4);
    if (read_number(file, 4) != BINEP_INPUTS)
        return fail("these vectors are for another network");
    if (mode == TIME)
        return count ? measure(file, count, rounds) : fail("no vectors to measure");
    for (uint32_t n = 0; n < count; n++) {
        if (!read_vector(file))
            return fail("the vectors end early");
        if (mode == STATES) {
            print_states(n);
#if BINEP_LEARNING
        } else if (mode == LEARN) {
            if (vector.label >= BINEP_CLASSES)
                return fail("a label is none of the classes");
            binep_learn(vector.pixels, vector.label);
#endif
        } else {
            int32_t class = binep_predict(vector.pixels);
            printf("%lu %ld %ld\n", (unsigned long)n, (long)class, (long)vector.expected);
            differ += class != vector.expected;
        }
    }
    fclose(file);
#if BINEP_LEARNING
    if (mode == LEARN)
        return write_learnt(argv[3]);
#endif
    if (mode == PREDICT)
        printf("%lu vectors, %lu differ\n", (unsigned long)count, (unsigned long)differ);
    return differ != 0;
}
