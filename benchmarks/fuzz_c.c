/* Hands what libFuzzer makes up to an exported program, as the file of test vectors, in memory.

   The first byte says which other words the program is called with, the rest is the file. */
#define _POSIX_C_SOURCE 200809L /* fmemopen */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static const uint8_t *content;
static size_t length;
static FILE *opened;

static void close_opened(void) {
    if (opened)
        fclose(opened);
    opened = NULL;
}

static FILE *open_file(const char *path, const char *how) {
    (void)path;
    close_opened();
    opened = *how == 'w' ? fopen("/dev/null", how) : fmemopen((void *)content, length, how);
    return opened;
}

/* As the end of a program does, `close_opened` closes what was left open. */
static int close_file(FILE *file) {
    return ferror(file);
}

#define fopen open_file
#define fclose close_file
#define main binep_main
#include "main.c"

#define WORDS(...) {"binep", "vectors.bin", __VA_ARGS__}

static const char *const calls[][4] = {
    WORDS(NULL, NULL),      WORDS("states", NULL), WORDS("learn", "learnt.bin"),
    WORDS("time", "1"),     WORDS("time", "2"),    WORDS("time", "0"),
    WORDS("time", "1e400"), WORDS("time", NULL),   WORDS("odd", NULL),
};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size == 0)
        return 0;
    const char *const *words = calls[data[0] % (sizeof calls / sizeof *calls)];
    int count = 0;
    while (count < 4 && words[count])
        count++;
    content = data + 1, length = size - 1;
    int code = binep_main(count, (char **)words);
    close_opened();
    if (code < 0 || code > 2)
        abort();
    return 0;
}
