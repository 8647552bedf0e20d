// A layer: its neurons, their biases, and the bits that they send. UNITS neurons move a cycle, in
// three stages: read, multiply, add and write.
//
//   drive = GAIN_UP up + bias + GAIN_DOWN down       in units of 2^-PARAMETER_BITS
//
// What a drive makes of a neuron is told by binep_energy, or by binep_hopfield: bits alone, of which
// odd and even layers move in turn.
module binep_layer #(
    parameter int COUNT = 10,
    parameter int N = 32,                // bits of a block
    parameter int UNITS = 4,             // neurons that are updated at once; divides N
    parameter int BLOCKS = 1,
    parameter int BLOCK_BITS = 1,
    parameter int WORD_BITS = 2,         // address of UNITS neurons
    parameter int PARAMETER_BITS = 40,
    parameter int STATE_BITS = 24,
    parameter int DRIVE_BITS = 48,
    parameter int UP_SUM_BITS = 12,
    parameter int DOWN_SUM_BITS = 5,
    parameter logic signed [DRIVE_BITS-1:0] GAIN_UP = 1,
    parameter logic signed [DRIVE_BITS-1:0] GAIN_DOWN = 0,
    parameter int HOPFIELD = 0,          // whether its neurons are bits alone
    parameter int TURN = 0,              // if so, the turn in which they move
    parameter logic [STATE_BITS:0] INITIAL = 0,      // a state, or a bit
    parameter int SHOWN_BITS = 26,       // of a state or, of bits alone, of a drive; signed
    parameter int TOP = 0,               // whether it is nudged and read out
    parameter int CONSTANT = 0,          // whether some phase has a constant nudge
    parameter int RETURNS = 0,           // whether some phase goes back to the end of the free one
    parameter int BETA_BITS = 16,
    parameter int BETA_WIDTH = 24,
    parameter int LEARNING = 0,
    parameter BIASES = ""
) (
    input  logic                           clk,
    input  logic                           reset,
    input  logic                           start,
    input  logic [3:0]                     command,
    output logic                           busy,
    input  logic                           turn,
    output logic                           changed,    // whether a bit has, when it moved last
    output logic                           moved,      // the same, if sums do not know it yet
    output logic [31:0]                    events,     // bits that changed, since an image began
    // sums
    output logic [WORD_BITS-1:0]           up_at,
    input  logic [UNITS*UP_SUM_BITS-1:0]   up_sums,
    output logic [BLOCK_BITS-1:0]          down_at,
    input  logic [N*DOWN_SUM_BITS-1:0]     down_sums,
    // bits, for the coupling above and the coupling below
    input  logic [BLOCK_BITS-1:0]          block_a,
    output logic [N-1:0]                   now_a, sent_a, plus_a, minus_a,
    input  logic [BLOCK_BITS-1:0]          block_b,
    output logic [N-1:0]                   now_b, sent_b, plus_b, minus_b,
    // what this step is: whether its bits are kept, and its states
    input  logic                           keep_plus,
    input  logic                           keep_minus,
    input  logic                           keep_state,
    // the nudge, of the neurons from first_target to last_target towards 1, of others towards 0
    input  logic signed [BETA_WIDTH-1:0]   beta,
    input  logic signed [BETA_WIDTH-1:0]   margin,
    input  logic                           nudge_anew, // else as at the beginning of the phase
    input  logic [15:0]                    first_target,
    input  logic [15:0]                    last_target,
    // the readout
    output logic                           shown_valid,
    output logic [SHOWN_BITS-1:0]          shown,
    // learning
    input  logic                           reverse,
    input  logic [31:0]                    bias_step
);
    `include "binep_commands.svh"
    localparam int SUBS = N / UNITS;     // words of a block
    localparam int SUB_BITS = $clog2(SUBS);
    localparam int WORDS = BLOCKS * SUBS;
    localparam int NUDGED = TOP != 0 && LEARNING != 0 ? 1 : 0;

    // --- the pass over all words: addressed (0), multiplied (1), written (2) ----------------------
    logic                 running, valid_1, valid_2, shows, moves;
    logic [WORD_BITS-1:0] word, word_1, word_2;
    logic [BLOCK_BITS-1:0] block;

    assign shows = command == SHOW;
    assign moves = command == STEP && (HOPFIELD == 0 || turn == 1'(TURN));
    assign busy = running || valid_1 || valid_2;
    assign block = BLOCK_BITS'(word >> SUB_BITS);
    assign up_at = word;
    assign down_at = block;

    logic begins;
    assign begins = start && (command == BEGIN_IMAGE || moves
                              || (RETURNS != 0 && command == RESTORE)
                              || (TOP != 0 && shows)
                              || (LEARNING != 0 && command == MOVE_BIASES));

    // While it is shown, a word is read for as many cycles as it has neurons.
    localparam int UNIT_BITS = UNITS > 1 ? $clog2(UNITS) : 1;
    logic [UNIT_BITS-1:0] unit, unit_1, unit_2;
    logic                 word_ends;
    assign word_ends = !shows || unit == UNIT_BITS'(UNITS - 1);

    always_ff @(posedge clk)
        if (reset) begin
            running <= 1'b0;
            valid_1 <= 1'b0;
            valid_2 <= 1'b0;
        end else begin
            if (begins) begin
                running <= 1'b1;
                word <= '0;
                unit <= '0;
            end else if (running) begin
                unit <= unit + 1'b1;
                if (word_ends) begin
                    unit <= '0;
                    word <= word + 1'b1;
                    if (word == WORD_BITS'(WORDS - 1)) running <= 1'b0;
                end
            end
            valid_1 <= running;
            valid_2 <= valid_1;
            word_1 <= word;
            word_2 <= word_1;
            unit_1 <= unit;
            unit_2 <= unit_1;
        end

    // --- biases and drives of UNITS neurons -------------------------------------------------------
    logic [UNITS*DRIVE_BITS-1:0] biases, next_biases, drives_2;
    logic [UNITS-1:0]            targets_1, bits, plus_2, minus_2;

    binep_ram #(
        .WIDTH(UNITS * DRIVE_BITS), .DEPTH(WORDS), .ADDRESS(WORD_BITS), .FILE(BIASES)
    ) bias_memory (
        .clk, .write(LEARNING != 0 && valid_2 && command == MOVE_BIASES), .write_at(word_2),
        .written(next_biases), .read_at(word), .value(biases)
    );

    generate
        for (genvar u = 0; u < UNITS; u++) begin : neuron
            logic [31:0]                     index;
            logic signed [UP_SUM_BITS-1:0]   up;
            logic signed [DOWN_SUM_BITS-1:0] down;
            logic signed [DRIVE_BITS-1:0]    up_2, down_2, bias_2, moving;

            assign index = 32'(word_1) * UNITS + u;
            assign targets_1[u] = TOP != 0 && index >= 32'(first_target)
                                           && index <= 32'(last_target);
            assign up = up_sums[u*UP_SUM_BITS +: UP_SUM_BITS];
            assign down = down_sums[((32'(word_1) % SUBS) * UNITS + u) * DOWN_SUM_BITS
                                    +: DOWN_SUM_BITS];
            always_ff @(posedge clk) begin
                up_2 <= GAIN_UP * up;
                down_2 <= GAIN_DOWN * down;
                bias_2 <= biases[u*DRIVE_BITS +: DRIVE_BITS];
            end
            assign drives_2[u*DRIVE_BITS +: DRIVE_BITS] = up_2 + bias_2 + down_2;
            assign moving = plus_2[u] == minus_2[u] ? '0
                          : DRIVE_BITS'($signed({1'b0, bias_step}));
            assign next_biases[u*DRIVE_BITS +: DRIVE_BITS] =
                plus_2[u] != reverse ? bias_2 - moving : bias_2 + moving;
        end
    endgenerate

    // --- the neurons ------------------------------------------------------------------------------
    logic                         write_bits;
    logic [UNITS-1:0]             next_bits;
    logic [UNITS*SHOWN_BITS-1:0]  shown_2;

    assign write_bits = valid_2 && (command == BEGIN_IMAGE || command == STEP
                                    || command == RESTORE);

    generate
        if (HOPFIELD != 0) begin : hopfield
            binep_hopfield #(
                .UNITS(UNITS), .WORDS(WORDS), .WORD_BITS(WORD_BITS),
                .PARAMETER_BITS(PARAMETER_BITS), .DRIVE_BITS(DRIVE_BITS),
                .INITIAL(INITIAL[0]), .NUDGED(NUDGED), .RETURNS(RETURNS),
                .BETA_BITS(BETA_BITS), .BETA_WIDTH(BETA_WIDTH)
            ) neurons (
                .clk, .command, .word, .word_2, .targets_1, .drives_2, .write(write_bits),
                .bits(next_bits), .shown(shown_2), .keep_state, .beta, .margin
            );
        end else begin : energy
            binep_energy #(
                .UNITS(UNITS), .WORDS(WORDS), .WORD_BITS(WORD_BITS),
                .PARAMETER_BITS(PARAMETER_BITS), .STATE_BITS(STATE_BITS), .DRIVE_BITS(DRIVE_BITS),
                .INITIAL(INITIAL), .NUDGED(NUDGED), .CONSTANT(CONSTANT),
                .RETURNS(RETURNS), .BETA_BITS(BETA_BITS), .BETA_WIDTH(BETA_WIDTH)
            ) neurons (
                .clk, .command, .word, .word_2, .targets_1, .drives_2, .write(write_bits),
                .bits(next_bits), .shown(shown_2), .keep_state, .beta, .margin, .nudge_anew
            );
        end
        for (genvar u = 0; u < UNITS; u++) begin : existing
            assign bits[u] = next_bits[u] && 32'(word_2) * UNITS + u < COUNT;
        end
        if (TOP != 0) begin : output_
            assign shown_valid = shows && valid_2 && 32'(word_2) * UNITS + 32'(unit_2) < COUNT;
            assign shown = shown_2[unit_2*SHOWN_BITS +: SHOWN_BITS];
        end else begin : hidden
            assign shown_valid = 1'b0;
            assign shown = '0;
        end
    endgenerate

    // --- bits: gathered word by word, written block by block, beside what sums know of them --------
    logic [N-1:0]          gathered, known_2, block_bits, read_sent_a, read_sent_b;
    logic [BLOCK_BITS-1:0] read_a, block_2;
    logic                  block_ends, fresh;
    logic [31:0]           changes;

    assign read_a = busy ? block : block_a;
    assign block_2 = BLOCK_BITS'(word_2 >> SUB_BITS);
    assign block_ends = write_bits && (32'(word_2) % SUBS == SUBS - 1);
    assign block_bits = {bits, gathered[N-1:UNITS]};
    assign changes = 32'($countones(block_bits ^ known_2));

    always_ff @(posedge clk) begin
        if (valid_2) gathered <= block_bits;
        // A step follows a scan, after which sums know the bits as they are; a way back does not.
        known_2 <= command == BEGIN_IMAGE ? '0 : command == RESTORE ? sent_a : now_a;
    end

    binep_ram #(.WIDTH(2 * N), .DEPTH(BLOCKS), .ADDRESS(BLOCK_BITS)) bits_a (
        .clk, .write(block_ends), .write_at(block_2), .written({known_2, block_bits}),
        .read_at(read_a), .value({read_sent_a, now_a})
    );
    binep_ram #(.WIDTH(2 * N), .DEPTH(BLOCKS), .ADDRESS(BLOCK_BITS)) bits_b (
        .clk, .write(block_ends), .write_at(block_2), .written({known_2, block_bits}),
        .read_at(block_b), .value({read_sent_b, now_b})
    );

    // In turn: where other layers have moved since, sums know the bits as they are.
    assign sent_a = HOPFIELD != 0 && !fresh ? now_a : read_sent_a;
    assign sent_b = HOPFIELD != 0 && !fresh ? now_b : read_sent_b;
    assign moved = changed && (HOPFIELD == 0 || fresh);

    always_ff @(posedge clk) begin
        if (begins && (command != SHOW && command != MOVE_BIASES)) changed <= 1'b0;
        if (begins && command == BEGIN_IMAGE) events <= '0;
        if (start && command == STEP && !moves) fresh <= 1'b0;
        if (block_ends) begin
            changed <= changed || changes != 0;
            fresh <= fresh || word_2 == WORD_BITS'(WORDS - 1);
            if (command == STEP) events <= events + changes;
        end
    end

    // --- bits at the end of the two phases that learning contrasts --------------------------------
    generate
        if (LEARNING != 0) begin : contrast
            logic [UNITS-1:0] plus_lanes, minus_lanes;
            binep_ram #(.WIDTH(N), .DEPTH(BLOCKS), .ADDRESS(BLOCK_BITS)) plus_memory_a (
                .clk, .write(block_ends && command == STEP && keep_plus), .write_at(block_2),
                .written(block_bits), .read_at(read_a), .value(plus_a)
            );
            binep_ram #(.WIDTH(N), .DEPTH(BLOCKS), .ADDRESS(BLOCK_BITS)) plus_memory_b (
                .clk, .write(block_ends && command == STEP && keep_plus), .write_at(block_2),
                .written(block_bits), .read_at(block_b), .value(plus_b)
            );
            binep_ram #(.WIDTH(N), .DEPTH(BLOCKS), .ADDRESS(BLOCK_BITS)) minus_memory_a (
                .clk, .write(block_ends && command == STEP && keep_minus), .write_at(block_2),
                .written(block_bits), .read_at(read_a), .value(minus_a)
            );
            binep_ram #(.WIDTH(N), .DEPTH(BLOCKS), .ADDRESS(BLOCK_BITS)) minus_memory_b (
                .clk, .write(block_ends && command == STEP && keep_minus), .write_at(block_2),
                .written(block_bits), .read_at(block_b), .value(minus_b)
            );
            assign plus_lanes = plus_a[(32'(word_1) % SUBS) * UNITS +: UNITS];
            assign minus_lanes = minus_a[(32'(word_1) % SUBS) * UNITS +: UNITS];
            always_ff @(posedge clk) begin
                plus_2 <= plus_lanes;
                minus_2 <= minus_lanes;
            end
        end else begin : fixed
            assign {plus_a, minus_a, plus_b, minus_b} = '0;
            assign {plus_2, minus_2} = '0;
        end
    endgenerate
endmodule
