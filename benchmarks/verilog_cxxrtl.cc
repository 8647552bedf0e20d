// Drives a core that Yosys has turned into C++ (CXXRTL) with the vectors of an export, and writes
// what it did, as text in the form of those vectors.
//
//   cxxrtl IMAGES INPUTS TRACED STATES MEMORIES...
//
//   classes.out   what each image was read as
//   outputs.out   the outputs that each was read by
//   cycles.out    cycles that each took
//   states.out    after every step of the first TRACED images: the words of the memory STATES of
//                 every layer
//   NAME.out      in the end: the words of each memory NAME=PATH
#include "core.cc"

#include <cstdio>
#include <fstream>
#include <iostream>
#include <string>
#include <vector>

static std::vector<unsigned> read(const std::string &name) {
    std::ifstream file(name);
    std::vector<unsigned> numbers;
    for (unsigned number; file >> std::hex >> number;)
        numbers.push_back(number);
    return numbers;
}

static void write(FILE *to, const cxxrtl::debug_item &memory) {
    size_t chunks = (memory.width + 31) / 32;
    if (memory.outline)
        memory.outline->eval();
    for (size_t word = 0; word < memory.depth; word++) {
        for (size_t k = chunks; k-- > 0;)
            fprintf(to, "%08x", memory.curr[word * chunks + k]);
        fputc('\n', to);
    }
}

int main(int argc, char **argv) {
    unsigned images = std::stoul(argv[1]), inputs = std::stoul(argv[2]);
    unsigned traced = std::stoul(argv[3]);
    auto pixels = read("vectors_pixels.mem"), labels = read("vectors_labels.mem");
    auto lessons = read("vectors_lessons.mem");
    std::string kept = argv[4];

    cxxrtl_design::p_binep__core core;
    cxxrtl::debug_items items;
    core.debug_info(&items, nullptr, "");
    FILE *classes = fopen("classes.out", "w"), *states = fopen("states.out", "w");
    FILE *cycles = fopen("cycles.out", "w"), *outputs = fopen("outputs.out", "w");
    const auto &shown_valid = items.at("shown_valid").front(), &shown = items.at("shown").front();

    auto clock = [&] {
        core.p_clk.set(true);
        core.step();
        core.p_clk.set(false);
        core.step();
    };
    core.p_clk.set(false);
    core.p_reset.set(true);
    core.p_result__ready.set(true);
    for (int k = 0; k < 3; k++)
        clock();
    core.p_reset.set(false);

    for (unsigned image = 0; image < images; image++) {
        core.p_register__write.set(true);
        core.p_register__at.set(1u);
        core.p_register__written.set(lessons[image]);
        clock();
        core.p_register__write.set(false);
        core.p_label__class.set(labels[image]);
        bool labelled = !lessons[image];
        for (unsigned sent = 0;;) {
            core.p_pixel__valid.set(sent < inputs);
            core.p_pixel.set(sent < inputs ? pixels[image * inputs + sent] : 0u);
            core.p_label__valid.set(!labelled);
            core.step();
            // What is seen before the rising edge is what happens at it.
            sent += sent < inputs && core.p_pixel__ready.get<bool>();
            labelled |= core.p_label__ready.get<bool>();
            if (core.p_stepped.get<bool>() && image < traced)
                for (int layer = 1;; layer++) {
                    auto name = "layer" + std::to_string(layer) + " " + kept;
                    if (!items.count(name))
                        break;
                    write(states, items.at(name).front());
                }
            if (shown_valid.outline)
                shown_valid.outline->eval();
            if (*shown_valid.curr & 1)
                write(outputs, shown);
            if (core.p_result__valid.get<bool>())
                break;
            clock();
        }
        core.p_register__at.set(4u);
        core.step();
        fprintf(classes, "%04x\n", core.p_result__class.get<unsigned>());
        fprintf(cycles, "%x\n", core.p_register__value.get<unsigned>());
        clock();
    }
    for (int k = 5; k < argc; k++) {
        std::string argument = argv[k];
        size_t split = argument.find('=');
        FILE *to = fopen((argument.substr(0, split) + ".out").c_str(), "w");
        write(to, items.at(argument.substr(split + 1)).front());
        fclose(to);
    }
    fclose(classes);
    fclose(cycles);
    fclose(outputs);
    fclose(states);
}
