// Between two layers of bits: sums up and down of the same synapses, N synapses a cycle, and only
// where something has changed.
//
// With c the lanes whose bit changed and f those where it fell, a sum over a row of weights w moves
// by 2 popcount((w ^ f) & c) - popcount(c). At the beginning of an image all bits count as 0.
module binep_coupling #(
    parameter int N = 32,
    parameter int UNITS = 4,              // neurons of a layer that are updated at once
    parameter int ABOVE = 10,
    parameter int UP_SUM_BITS = 12,
    parameter int DOWN_SUM_BITS = 5,
    parameter int BLOCKS = 2,
    parameter int GROUPS = 1,
    parameter int BLOCK_BITS = 1,
    parameter int GROUP_BITS = 1,
    parameter int ROW_BITS = 4,
    parameter int WORD_BITS = 5,
    parameter int UP_BITS = 2,            // address of UNITS sums
    parameter int LEARNING = 0,
    parameter int MOMENTUM_BITS = 16,
    parameter WEIGHTS = ""
) (
    input  logic                         clk,
    input  logic                         reset,
    input  logic                         start,
    input  logic [3:0]                   command,
    output logic                         busy,
    // the layer below: bits, as they are, as last sent, and at the end of two phases
    output logic [BLOCK_BITS-1:0]        below_block,
    input  logic [N-1:0]                 below_now,
    input  logic [N-1:0]                 below_sent,
    input  logic [N-1:0]                 below_plus,
    input  logic [N-1:0]                 below_minus,
    input  logic [BLOCK_BITS-1:0]        down_at,
    output logic [N*DOWN_SUM_BITS-1:0]   down_sums,
    // the layer above
    output logic [GROUP_BITS-1:0]        above_group,
    input  logic [N-1:0]                 above_now,
    input  logic [N-1:0]                 above_sent,
    input  logic [N-1:0]                 above_plus,
    input  logic [N-1:0]                 above_minus,
    input  logic                         above_moved,
    input  logic [UP_BITS-1:0]           up_at,
    output logic [UNITS*UP_SUM_BITS-1:0] up_sums,
    // learning
    input  logic                         reverse,
    input  logic [MOMENTUM_BITS-1:0]     threshold,
    output logic [31:0]                  flips
);
    `include "binep_commands.svh"
    localparam int UNIT_SHIFT = $clog2(UNITS);
    localparam int UNIT_BITS = UNITS > 1 ? UNIT_SHIFT : 1;
    localparam int CLEAR_BITS = UP_BITS > BLOCK_BITS ? UP_BITS : BLOCK_BITS;

    logic                  begins, scanning, load, skip, take, visit, store, scans;
    logic [BLOCK_BITS-1:0] block;
    logic [GROUP_BITS-1:0] group;
    logic [N-1:0]          mask, pick;
    logic [ROW_BITS-1:0]   row, row_q;
    logic [UNIT_BITS-1:0]  unit_q;
    logic [WORD_BITS-1:0]  word, word_q;

    assign scans = command == SCAN;
    assign begins = start && (scans
                              || (LEARNING != 0
                                  && (command == LEARN || command == LEAK || command == FORGET)));
    assign below_block = block;
    assign above_group = group;

    binep_scan #(
        .N(N), .BLOCKS(BLOCKS), .GROUPS(GROUPS), .ABOVE(ABOVE), .BLOCK_BITS(BLOCK_BITS),
        .GROUP_BITS(GROUP_BITS), .ROW_BITS(ROW_BITS), .WORD_BITS(WORD_BITS)
    ) scan (
        .clk, .reset, .start(begins), .busy(scanning), .block, .load, .skip, .group, .take, .mask,
        .visit, .pick, .row, .word, .store
    );

    // --- an image begins: all sums are zero -------------------------------------------------------
    logic                  clearing;
    logic [CLEAR_BITS-1:0] cleared;

    assign busy = scanning || clearing;

    always_ff @(posedge clk)
        if (reset) clearing <= 1'b0;
        else if (start && command == BEGIN_IMAGE) begin
            clearing <= 1'b1;
            cleared <= '0;
        end else begin
            if (&cleared) clearing <= 1'b0;
            cleared <= cleared + 1'b1;
        end

    // --- what has changed below (kept for a block) and above (kept for a group) -------------------
    logic [N-1:0] block_changed, block_fell, block_plus, block_minus;
    logic [N-1:0] group_one, group_two;
    logic         one_q, two_q, visit_q, active, rises;

    assign active = |(scans ? below_now ^ below_sent : below_plus | below_minus);

    always_comb begin
        skip = 1'b0;
        mask = {N{1'b1}};
        if (scans) begin
            skip = !active && !above_moved;
            // Where nothing changed below, only rows that changed have to be visited.
            if (load ? !active : block_changed == 0) mask = above_now ^ above_sent;
        end else if (command == LEARN) begin
            skip = !active;
            mask = above_plus | above_minus;
        end
    end

    always_ff @(posedge clk) begin
        if (load) begin
            block_changed <= below_now ^ below_sent;
            block_fell <= below_sent & ~below_now;
            block_plus <= below_plus;
            block_minus <= below_minus;
        end
        if (take) begin
            group_one <= scans ? above_now ^ above_sent : above_plus;
            group_two <= scans ? above_sent & ~above_now : above_minus;
        end
        one_q <= |(pick & group_one);
        two_q <= |(pick & group_two);
        visit_q <= visit && !reset;
        row_q <= row;
        unit_q <= UNITS > 1 ? UNIT_BITS'(row) : '0;
        word_q <= word;
    end

    // --- synapses: addressed while a row is visited, used in the next cycle -----------------------
    logic [N-1:0] weights, next_weights;
    logic         learns;

    assign learns = visit_q && !scans;

    binep_ram #(.WIDTH(N), .DEPTH(BLOCKS * ABOVE), .ADDRESS(WORD_BITS), .FILE(WEIGHTS)) synapses (
        .clk, .write(LEARNING != 0 && learns && command == LEARN), .write_at(word_q),
        .written(next_weights), .read_at(word), .value(weights)
    );

    // --- sums up: one for each neuron above, in UNITS memories ------------------------------------
    localparam int COUNT_BITS = $clog2(N) + 1;
    logic [COUNT_BITS-1:0]        agree, changed;
    logic [UP_SUM_BITS-1:0]       up_before, up_after;
    logic [UNITS*UP_SUM_BITS-1:0] sums;
    logic [UP_BITS-1:0]           up_read_at;
    logic                         up_write;

    generate
        for (genvar u = 0; u < UNITS; u++) begin : bank
            logic                   write;
            logic [UP_SUM_BITS-1:0] value;
            assign write = clearing || (up_write && unit_q == UNIT_BITS'(u));
            assign sums[u*UP_SUM_BITS +: UP_SUM_BITS] = value;
            binep_ram #(.WIDTH(UP_SUM_BITS), .DEPTH(1 << UP_BITS), .ADDRESS(UP_BITS)) memory (
                .clk, .write,
                .write_at(clearing ? UP_BITS'(cleared) : UP_BITS'(row_q >> UNIT_SHIFT)),
                .written(clearing ? '0 : up_after), .read_at(up_read_at), .value
            );
        end
    endgenerate

    assign agree = COUNT_BITS'($countones((weights ^ block_fell) & block_changed));
    assign changed = COUNT_BITS'($countones(block_changed));
    assign up_write = visit_q && scans && block_changed != 0;
    assign up_read_at = busy ? UP_BITS'(row >> UNIT_SHIFT) : up_at;
    assign up_before = sums[unit_q * UP_SUM_BITS +: UP_SUM_BITS];
    assign up_after = up_before + UP_SUM_BITS'({agree, 1'b0}) - UP_SUM_BITS'(changed);
    assign up_sums = sums;

    // --- sums down: one for each neuron below, N in registers while their block is visited --------
    logic [N*DOWN_SUM_BITS-1:0] counters, next_counters, stored;

    generate
        for (genvar k = 0; k < N; k++) begin : lane
            assign next_counters[k*DOWN_SUM_BITS +: DOWN_SUM_BITS] =
                counters[k*DOWN_SUM_BITS +: DOWN_SUM_BITS]
                + (weights[k] != two_q ? DOWN_SUM_BITS'(1) : {DOWN_SUM_BITS{1'b1}});
        end
    endgenerate

    always_ff @(posedge clk)
        if (load) counters <= stored;
        else if (visit_q && one_q) counters <= next_counters;

    binep_ram #(
        .WIDTH(N * DOWN_SUM_BITS), .DEPTH(1 << BLOCK_BITS), .ADDRESS(BLOCK_BITS)
    ) down_memory (
        .clk, .write(clearing || (store && scans)),
        .write_at(clearing ? BLOCK_BITS'(cleared) : block), .written(clearing ? '0 : counters),
        .read_at(busy ? block : down_at), .value(stored)
    );
    assign down_sums = stored;

    // --- learning: (a_i & a_j) of one phase less (a_i & a_j) of the other --------------------------
    generate
        if (LEARNING != 0) begin : learning
            logic [N*MOMENTUM_BITS-1:0] momenta, next_momenta;
            logic [N*2-1:0]             gradients;
            for (genvar k = 0; k < N; k++) begin : contrast
                logic plus, minus;
                assign plus = one_q & block_plus[k];
                assign minus = two_q & block_minus[k];
                assign gradients[2*k +: 2] = {(plus ^ minus) & (minus ^ reverse), plus ^ minus};
            end
            binep_ram #(
                .WIDTH(N * MOMENTUM_BITS), .DEPTH(BLOCKS * ABOVE), .ADDRESS(WORD_BITS)
            ) memory (
                .clk, .write(learns), .write_at(word_q), .written(next_momenta),
                .read_at(word), .value(momenta)
            );
            binep_bop #(.N(N), .MOMENTUM_BITS(MOMENTUM_BITS), .GRADIENT_BITS(2)) bop (
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
