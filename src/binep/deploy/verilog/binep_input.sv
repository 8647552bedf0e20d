// From the pixels to the first layer: N synapses a cycle, each +pixel or -pixel. Nothing goes down.
module binep_input #(
    parameter int N = 32,
    parameter int UNITS = 4,            // neurons of a layer that are updated at once
    parameter int BELOW = 64,
    parameter int ABOVE = 10,
    parameter int SUM_BITS = 17,
    parameter int BLOCKS = 2,
    parameter int GROUPS = 1,
    parameter int BLOCK_BITS = 1,
    parameter int GROUP_BITS = 1,
    parameter int ROW_BITS = 4,
    parameter int WORD_BITS = 5,
    parameter int UP_BITS = 2,          // address of UNITS sums
    parameter int LEARNING = 0,
    parameter int MOMENTUM_BITS = 16,
    parameter int PIXEL_SHIFT = 0,      // low bits of a pixel that gradients do without
    parameter WEIGHTS = ""
) (
    input  logic                      clk,
    input  logic                      reset,
    input  logic                      start,
    input  logic [3:0]                command,
    output logic                      busy,
    // pixels, in order; first restarts
    input  logic                      pixel_valid,
    input  logic                      pixel_last,
    input  logic [7:0]                pixel,
    // the layer above
    output logic [GROUP_BITS-1:0]     above_group,
    input  logic [N-1:0]              above_plus,
    input  logic [N-1:0]              above_minus,
    input  logic [UP_BITS-1:0]        up_at,
    output logic [UNITS*SUM_BITS-1:0] up_sums,
    // learning
    input  logic                      reverse,
    input  logic [MOMENTUM_BITS-1:0]  threshold,
    output logic [31:0]               flips
);
    `include "binep_commands.svh"
    localparam int UNIT_SHIFT = $clog2(UNITS);
    localparam int UNIT_BITS = UNITS > 1 ? UNIT_SHIFT : 1;
    localparam int LANE_BITS = $clog2(N);

    logic                  begins, load, take, visit, store;
    logic [BLOCK_BITS-1:0] block;
    logic [GROUP_BITS-1:0] group;
    logic [N-1:0]          mask, pick, kept;
    logic [ROW_BITS-1:0]   row, row_q;
    logic [UNIT_BITS-1:0]  unit_q;
    logic [WORD_BITS-1:0]  word, word_q;
    logic                  visit_q, first_q, raised_q;

    assign begins = start && (command == BEGIN_IMAGE
                              || (LEARNING != 0
                                  && (command == LEARN || command == LEAK || command == FORGET)));
    assign mask = command == LEARN ? above_plus ^ above_minus : {N{1'b1}};
    assign above_group = group;

    binep_scan #(
        .N(N), .BLOCKS(BLOCKS), .GROUPS(GROUPS), .ABOVE(ABOVE), .BLOCK_BITS(BLOCK_BITS),
        .GROUP_BITS(GROUP_BITS), .ROW_BITS(ROW_BITS), .WORD_BITS(WORD_BITS)
    ) scan (
        .clk, .reset, .start(begins), .busy, .block, .load, .skip(1'b0), .group, .take, .mask,
        .visit, .pick, .row, .word, .store
    );

    // --- the image --------------------------------------------------------------------------------
    logic [N*8-1:0]        gathered, gathered_next, image;
    logic [LANE_BITS-1:0]  lane;
    logic [BLOCK_BITS-1:0] filling;

    always_comb begin
        gathered_next = lane == 0 ? '0 : gathered;
        gathered_next[{lane, 3'b000} +: 8] = pixel;
    end

    always_ff @(posedge clk)
        if (reset) begin
            lane <= '0;
            filling <= '0;
        end else if (pixel_valid) begin
            gathered <= gathered_next;
            lane <= pixel_last ? '0 : lane + 1'b1;
            if (pixel_last) filling <= '0;
            else if (lane == LANE_BITS'(N - 1)) filling <= filling + 1'b1;
        end

    binep_ram #(.WIDTH(N * 8), .DEPTH(BLOCKS), .ADDRESS(BLOCK_BITS)) pixels (
        .clk, .write(pixel_valid && (pixel_last || lane == LANE_BITS'(N - 1))),
        .write_at(filling), .written(gathered_next), .read_at(block), .value(image)
    );

    // --- synapses: addressed while a row is visited, used in the next cycle -----------------------
    logic [N-1:0] weights, next_weights;
    logic         learns;

    assign learns = visit_q && command != BEGIN_IMAGE;

    binep_ram #(.WIDTH(N), .DEPTH(BLOCKS * ABOVE), .ADDRESS(WORD_BITS), .FILE(WEIGHTS)) synapses (
        .clk, .write(LEARNING != 0 && learns && command == LEARN), .write_at(word_q),
        .written(next_weights), .read_at(word), .value(weights)
    );

    always_ff @(posedge clk) begin
        visit_q <= visit && !reset;
        row_q <= row;
        unit_q <= UNITS > 1 ? UNIT_BITS'(row) : '0;
        word_q <= word;
        first_q <= block == 0;
        raised_q <= |(pick & kept);
        if (take) kept <= above_plus;
    end

    // --- sums, one for each neuron above, in UNITS memories ---------------------------------------
    logic [N*SUM_BITS-1:0]     terms;
    logic [SUM_BITS-1:0]       sum, old;
    logic [UNITS*SUM_BITS-1:0] sums;
    logic [UP_BITS-1:0]        read_at;

    generate
        for (genvar k = 0; k < N; k++) begin : product
            logic [SUM_BITS-1:0] value;
            assign value = {{(SUM_BITS - 8){1'b0}}, image[8*k +: 8]};
            assign terms[k*SUM_BITS +: SUM_BITS] = weights[k] ? value : -value;
        end
        for (genvar u = 0; u < UNITS; u++) begin : bank
            logic                write;
            logic [SUM_BITS-1:0] value;
            assign write = visit_q && command == BEGIN_IMAGE && unit_q == UNIT_BITS'(u);
            assign sums[u*SUM_BITS +: SUM_BITS] = value;
            binep_ram #(.WIDTH(SUM_BITS), .DEPTH(1 << UP_BITS), .ADDRESS(UP_BITS)) memory (
                .clk, .write, .write_at(UP_BITS'(row_q >> UNIT_SHIFT)), .written(old + sum), .read_at,
                .value
            );
        end
    endgenerate

    binep_sum #(.N(N), .WIDTH(SUM_BITS)) adder (.numbers(terms), .sum);

    assign read_at = busy ? UP_BITS'(row >> UNIT_SHIFT) : up_at;
    assign old = first_q ? '0 : sums[unit_q * SUM_BITS +: SUM_BITS];
    assign up_sums = sums;

    // --- learning: pixels, signed by the change of the neuron above -------------------------------
    generate
        if (LEARNING != 0) begin : learning
            localparam int GRADIENT_BITS = 10 - PIXEL_SHIFT;
            logic [N*MOMENTUM_BITS-1:0] momenta, next_momenta;
            logic [N*GRADIENT_BITS-1:0] gradients;
            for (genvar k = 0; k < N; k++) begin : contrast
                logic [GRADIENT_BITS-1:0] value;
                assign value = {2'b00, image[8*k+PIXEL_SHIFT +: 8-PIXEL_SHIFT]};
                assign gradients[k*GRADIENT_BITS +: GRADIENT_BITS] =
                    raised_q != reverse ? value : -value;
            end
            binep_ram #(
                .WIDTH(N * MOMENTUM_BITS), .DEPTH(BLOCKS * ABOVE), .ADDRESS(WORD_BITS)
            ) memory (
                .clk, .write(learns), .write_at(word_q), .written(next_momenta),
                .read_at(word), .value(momenta)
            );
            binep_bop #(
                .N(N), .MOMENTUM_BITS(MOMENTUM_BITS), .GRADIENT_BITS(GRADIENT_BITS)
            ) bop (
                .command, .threshold, .weights, .momenta, .gradients, .next_weights, .next_momenta
            );
            binep_flips #(.N(N)) counter (
                .clk, .reset, .valid(learns), .old(weights), .after(next_weights), .flips
            );
        end else begin : fixed
            assign next_weights = weights;
            assign flips = '0;
        end
    endgenerate
endmodule
