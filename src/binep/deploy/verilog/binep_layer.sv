// A layer: states of its neurons, their biases, and the bits that they send. UNITS neurons move a
// cycle, in three stages: read, multiply, add and write.
//
//   drive = GAIN_UP up + bias + GAIN_DOWN down       in units of 2^-PARAMETER_BITS
//   D     = floor(drive / 2^(PARAMETER_BITS - STATE_BITS)) + nudge, kept in [-1, 2]
//   s     = floor((s + D) / 2), kept in [0, 1]       in units of 2^-STATE_BITS
//   bit   = s >= 1/2
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
    parameter logic [STATE_BITS:0] INITIAL = 0,
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
    output logic                           moved,      // whether a bit changed in the last step
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
    input  logic                           nudge_anew, // else as at the beginning of the phase
    input  logic [15:0]                    first_target,
    input  logic [15:0]                    last_target,
    // the readout
    output logic                           shown_valid,
    output logic [STATE_BITS:0]            shown,
    // learning
    input  logic                           reverse,
    input  logic [31:0]                    bias_step
);
    `include "binep_commands.svh"
    localparam int SUBS = N / UNITS;     // words of a block
    localparam int SUB_BITS = $clog2(SUBS);
    localparam int WORDS = BLOCKS * SUBS;
    localparam int S = STATE_BITS + 1;   // bits of a state
    localparam int NUDGE_BITS = BETA_WIDTH + STATE_BITS + 2 - BETA_BITS;
    localparam int FORCE_BITS =
        (DRIVE_BITS - PARAMETER_BITS + STATE_BITS > NUDGE_BITS
         ? DRIVE_BITS - PARAMETER_BITS + STATE_BITS : NUDGE_BITS) + 1;
    localparam logic [S-1:0] ONE = {1'b1, {STATE_BITS{1'b0}}};
    localparam logic [S-1:0] HALF = ONE >> 1;
    localparam logic signed [FORCE_BITS-1:0] LARGEST = 1 << STATE_BITS;

    // --- the pass over all words: addressed (0), multiplied (1), written (2) ----------------------
    logic                 running, valid_1, valid_2, shows;
    logic [WORD_BITS-1:0] word, word_1, word_2;
    logic [BLOCK_BITS-1:0] block;

    assign shows = command == SHOW;
    assign busy = running || valid_1 || valid_2;
    assign block = BLOCK_BITS'(word >> SUB_BITS);
    assign up_at = word;
    assign down_at = block;

    logic begins;
    assign begins = start && (command == BEGIN_IMAGE || command == STEP
                              || (RETURNS != 0 && command == RESTORE)
                              || (TOP != 0 && shows)
                              || (LEARNING != 0 && command == MOVE_BIASES));

    // While it is shown, a word is read for as many cycles as it has neurons.
    localparam int UNIT_BITS = UNITS > 1 ? $clog2(UNITS) : 1;
    logic [UNIT_BITS-1:0] unit, unit_1;
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
        end

    // --- memories ---------------------------------------------------------------------------------
    logic [UNITS*S-1:0]          states, states_2, next_states, saved;
    logic [UNITS*DRIVE_BITS-1:0] biases, next_biases;
    logic                        write_states;

    assign write_states = valid_2 && (command == BEGIN_IMAGE || command == STEP
                                      || command == RESTORE);

    binep_ram #(.WIDTH(UNITS * S), .DEPTH(WORDS), .ADDRESS(WORD_BITS)) state_memory (
        .clk, .write(write_states), .write_at(word_2), .written(next_states),
        .read_at(word), .value(states)
    );
    binep_ram #(
        .WIDTH(UNITS * DRIVE_BITS), .DEPTH(WORDS), .ADDRESS(WORD_BITS), .FILE(BIASES)
    ) bias_memory (
        .clk, .write(LEARNING != 0 && valid_2 && command == MOVE_BIASES), .write_at(word_2),
        .written(next_biases), .read_at(word), .value(biases)
    );
    generate
        if (RETURNS != 0) begin : returning
            binep_ram #(.WIDTH(UNITS * S), .DEPTH(WORDS), .ADDRESS(WORD_BITS)) saved_memory (
                .clk, .write(write_states && command == STEP && keep_state), .write_at(word_2),
                .written(next_states), .read_at(word), .value(saved)
            );
        end else begin : going_on
            assign saved = '0;
        end
    endgenerate

    // --- UNITS neurons ----------------------------------------------------------------------------
    logic [UNITS-1:0]            bits, plus_2, minus_2;
    logic [UNITS*NUDGE_BITS-1:0] nudges, kept_nudges;

    generate
        for (genvar u = 0; u < UNITS; u++) begin : neuron
            logic signed [UP_SUM_BITS-1:0]   up;
            logic signed [DOWN_SUM_BITS-1:0] down;
            logic signed [DRIVE_BITS-1:0]    up_2, down_2, bias_2, drive, moving;
            logic signed [FORCE_BITS-1:0]    rounded, pressed, kept, sum;
            logic signed [NUDGE_BITS-1:0]    nudge;
            logic [S-1:0]                    s, next;
            logic                            exists;

            assign up = up_sums[u*UP_SUM_BITS +: UP_SUM_BITS];
            assign down = down_sums[((32'(word_1) % SUBS) * UNITS + u) * DOWN_SUM_BITS
                                    +: DOWN_SUM_BITS];
            always_ff @(posedge clk) begin
                up_2 <= GAIN_UP * up;
                down_2 <= GAIN_DOWN * down;
                bias_2 <= biases[u*DRIVE_BITS +: DRIVE_BITS];
            end
            assign s = states_2[u*S +: S];
            assign drive = up_2 + bias_2 + down_2;
            assign nudge = nudges[u*NUDGE_BITS +: NUDGE_BITS];
            // Beyond -1 or 2 a drive takes any state to 0 or 1 at once: keeping it there is exact.
            assign rounded = FORCE_BITS'(drive >>> (PARAMETER_BITS - STATE_BITS));
            assign pressed = rounded + FORCE_BITS'(nudge);
            assign kept = pressed < -LARGEST ? -LARGEST
                        : pressed > 2 * LARGEST ? 2 * LARGEST : pressed;
            assign sum = (FORCE_BITS'($signed({1'b0, s})) + kept) >>> 1;
            assign next = command == BEGIN_IMAGE ? INITIAL
                        : command == RESTORE ? s
                        : sum < 0 ? '0 : sum > LARGEST ? ONE : sum[S-1:0];
            assign next_states[u*S +: S] = next;
            assign exists = 32'(word_2) * UNITS + u < COUNT;
            assign bits[u] = exists && next >= HALF;
            assign moving = plus_2[u] == minus_2[u] ? '0
                          : DRIVE_BITS'($signed({1'b0, bias_step}));
            assign next_biases[u*DRIVE_BITS +: DRIVE_BITS] =
                plus_2[u] != reverse ? bias_2 - moving : bias_2 + moving;
        end
    endgenerate

    always_ff @(posedge clk) states_2 <= command == RESTORE ? saved : states;

    // --- the nudge of the top layer: floor(beta (target - s) / 2^BETA_BITS) ------------------------
    generate
        if (TOP != 0 && LEARNING != 0) begin : nudged
            for (genvar u = 0; u < UNITS; u++) begin : neuron
                logic [31:0]                             index;
                logic [S-1:0]                            s;
                logic signed [S:0]                       gap;
                logic signed [NUDGE_BITS+BETA_BITS-1:0]  pull;
                assign index = 32'(word_1) * UNITS + u;
                assign s = states[u*S +: S];
                assign gap = (index >= 32'(first_target) && index <= 32'(last_target)
                              ? $signed({1'b0, ONE}) : '0) - $signed({1'b0, s});
                always_ff @(posedge clk) pull <= beta * gap;
                assign nudges[u*NUDGE_BITS +: NUDGE_BITS] = CONSTANT == 0 || nudge_anew
                    ? pull[BETA_BITS +: NUDGE_BITS] : kept_nudges[u*NUDGE_BITS +: NUDGE_BITS];
            end
            if (CONSTANT != 0) begin : keeping
                logic [UNITS*NUDGE_BITS-1:0] read;
                binep_ram #(
                    .WIDTH(UNITS * NUDGE_BITS), .DEPTH(WORDS), .ADDRESS(WORD_BITS)
                ) nudge_memory (
                    .clk, .write(valid_2 && command == STEP && nudge_anew), .write_at(word_2),
                    .written(nudges), .read_at(word), .value(read)
                );
                always_ff @(posedge clk) kept_nudges <= read;
            end else begin : live
                assign kept_nudges = '0;
            end
        end else begin : free
            assign nudges = '0;
            assign kept_nudges = '0;
        end
        if (TOP != 0) begin : output_
            assign shown_valid = shows && valid_1 && 32'(word_1) * UNITS + 32'(unit_1) < COUNT;
            assign shown = states[unit_1*S +: S];
        end else begin : hidden
            assign shown_valid = 1'b0;
            assign shown = '0;
        end
    endgenerate

    // --- bits: gathered word by word, written block by block --------------------------------------
    logic [N-1:0]          gathered, now_2;
    logic [BLOCK_BITS-1:0] read_a, block_2;
    logic                  block_ends;

    assign read_a = busy ? block : block_a;
    assign block_2 = BLOCK_BITS'(word_2 >> SUB_BITS);
    assign block_ends = write_states && (32'(word_2) % SUBS == SUBS - 1);

    logic [N-1:0] next_bits;
    assign next_bits = {bits, gathered[N-1:UNITS]};

    always_ff @(posedge clk) begin
        if (valid_2) gathered <= next_bits;
        now_2 <= command == BEGIN_IMAGE ? '0 : now_a;
    end

    binep_ram #(.WIDTH(2 * N), .DEPTH(BLOCKS), .ADDRESS(BLOCK_BITS)) bits_a (
        .clk, .write(block_ends), .write_at(block_2), .written({now_2, next_bits}),
        .read_at(read_a), .value({sent_a, now_a})
    );
    binep_ram #(.WIDTH(2 * N), .DEPTH(BLOCKS), .ADDRESS(BLOCK_BITS)) bits_b (
        .clk, .write(block_ends), .write_at(block_2), .written({now_2, next_bits}),
        .read_at(block_b), .value({sent_b, now_b})
    );

    logic [31:0] changes;
    assign changes = 32'($countones(next_bits ^ now_2));

    always_ff @(posedge clk) begin
        if (begins && (command != SHOW && command != MOVE_BIASES)) moved <= 1'b0;
        if (begins && command == BEGIN_IMAGE) events <= '0;
        if (block_ends) begin
            moved <= moved || changes != 0;
            if (command == STEP) events <= events + changes;
        end
    end

    // --- bits at the end of the two phases that learning contrasts --------------------------------
    generate
        if (LEARNING != 0) begin : contrast
            logic [UNITS-1:0] plus_lanes, minus_lanes;
            binep_ram #(.WIDTH(N), .DEPTH(BLOCKS), .ADDRESS(BLOCK_BITS)) plus_memory_a (
                .clk, .write(block_ends && command == STEP && keep_plus), .write_at(block_2),
                .written(next_bits), .read_at(read_a), .value(plus_a)
            );
            binep_ram #(.WIDTH(N), .DEPTH(BLOCKS), .ADDRESS(BLOCK_BITS)) plus_memory_b (
                .clk, .write(block_ends && command == STEP && keep_plus), .write_at(block_2),
                .written(next_bits), .read_at(block_b), .value(plus_b)
            );
            binep_ram #(.WIDTH(N), .DEPTH(BLOCKS), .ADDRESS(BLOCK_BITS)) minus_memory_a (
                .clk, .write(block_ends && command == STEP && keep_minus), .write_at(block_2),
                .written(next_bits), .read_at(read_a), .value(minus_a)
            );
            binep_ram #(.WIDTH(N), .DEPTH(BLOCKS), .ADDRESS(BLOCK_BITS)) minus_memory_b (
                .clk, .write(block_ends && command == STEP && keep_minus), .write_at(block_2),
                .written(next_bits), .read_at(block_b), .value(minus_b)
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
