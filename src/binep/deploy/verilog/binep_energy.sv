// UNITS neurons with a state, as energy-based dynamics move it.
//
//   D     = floor(drive / 2^(PARAMETER_BITS - STATE_BITS)) + nudge, kept in [-1, 2]
//   s     = floor((s + D) / 2), kept in [0, 1]       in units of 2^-STATE_BITS
//   bit   = s >= 1/2
//   nudge = floor(beta (target - s) / 2^BETA_BITS) + margin (1 - 2 target)
module binep_energy #(
    parameter int UNITS = 4,
    parameter int WORDS = 8,
    parameter int WORD_BITS = 3,
    parameter int PARAMETER_BITS = 40,
    parameter int STATE_BITS = 24,
    parameter int DRIVE_BITS = 48,
    parameter logic [STATE_BITS:0] INITIAL = 0,
    parameter int NUDGED = 0,            // whether these are outputs that learn
    parameter int CONSTANT = 0,          // whether some phase has a constant nudge
    parameter int RETURNS = 0,           // whether some phase goes back to the end of the free one
    parameter int BETA_BITS = 16,
    parameter int BETA_WIDTH = 24
) (
    input  logic                         clk,
    input  logic [3:0]                   command,
    // a word of neurons: addressed (0), its target known (1), its drives known and written (2)
    input  logic [WORD_BITS-1:0]         word,
    input  logic [WORD_BITS-1:0]         word_2,
    input  logic [UNITS-1:0]             targets_1,
    input  logic [UNITS*DRIVE_BITS-1:0]  drives_2,
    input  logic                         write,
    output logic [UNITS-1:0]             bits,
    output logic [UNITS*(STATE_BITS+2)-1:0] shown,
    // the step
    input  logic                         keep_state,
    input  logic signed [BETA_WIDTH-1:0] beta,
    input  logic signed [BETA_WIDTH-1:0] margin,
    input  logic                         nudge_anew    // else as at the beginning of the phase
);
    `include "binep_commands.svh"
    localparam int S = STATE_BITS + 1;   // bits of a state
    localparam int NUDGE_BITS = BETA_WIDTH + STATE_BITS + 2 - BETA_BITS;
    localparam int FORCE_BITS =
        (DRIVE_BITS - PARAMETER_BITS + STATE_BITS > NUDGE_BITS
         ? DRIVE_BITS - PARAMETER_BITS + STATE_BITS : NUDGE_BITS) + 1;
    localparam logic [S-1:0] ONE = {1'b1, {STATE_BITS{1'b0}}};
    localparam logic [S-1:0] HALF = ONE >> 1;
    localparam logic signed [FORCE_BITS-1:0] LARGEST = 1 << STATE_BITS;

    // --- states -----------------------------------------------------------------------------------
    logic [UNITS*S-1:0]          states, states_2, next_states, saved;
    logic [UNITS*NUDGE_BITS-1:0] nudges;

    binep_ram #(.WIDTH(UNITS * S), .DEPTH(WORDS), .ADDRESS(WORD_BITS)) state_memory (
        .clk, .write, .write_at(word_2), .written(next_states), .read_at(word), .value(states)
    );
    generate
        if (RETURNS != 0) begin : returning
            binep_ram #(.WIDTH(UNITS * S), .DEPTH(WORDS), .ADDRESS(WORD_BITS)) saved_memory (
                .clk, .write(write && command == STEP && keep_state), .write_at(word_2),
                .written(next_states), .read_at(word), .value(saved)
            );
        end else begin : going_on
            assign saved = '0;
        end
    endgenerate

    always_ff @(posedge clk) states_2 <= command == RESTORE ? saved : states;

    generate
        for (genvar u = 0; u < UNITS; u++) begin : neuron
            logic signed [DRIVE_BITS-1:0] drive;
            logic signed [NUDGE_BITS-1:0] nudge;
            logic signed [FORCE_BITS-1:0] rounded, pressed, kept, sum;
            logic [S-1:0]                 s, next;

            assign s = states_2[u*S +: S];
            assign drive = drives_2[u*DRIVE_BITS +: DRIVE_BITS];
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
            assign bits[u] = next >= HALF;
            assign shown[u*(S+1) +: S+1] = {1'b0, s};
        end
    endgenerate

    // --- the nudge --------------------------------------------------------------------------------
    generate
        if (NUDGED != 0) begin : nudged
            logic [UNITS*NUDGE_BITS-1:0] kept_nudges;
            for (genvar u = 0; u < UNITS; u++) begin : neuron
                logic signed [S:0]                      gap;
                logic signed [NUDGE_BITS+BETA_BITS-1:0] pull, raised, handicap;
                logic [NUDGE_BITS-1:0]                  nudge;
                assign gap = (targets_1[u] ? $signed({1'b0, ONE}) : '0)
                           - $signed({1'b0, states[u*S +: S]});
                assign raised = (NUDGE_BITS+BETA_BITS)'(margin) <<< STATE_BITS;
                always_ff @(posedge clk) begin
                    pull <= beta * gap;
                    handicap <= targets_1[u] ? -raised : raised;
                end
                assign nudge = pull[BETA_BITS +: NUDGE_BITS] + handicap[BETA_BITS +: NUDGE_BITS];
                assign nudges[u*NUDGE_BITS +: NUDGE_BITS] = CONSTANT == 0 || nudge_anew
                    ? nudge : kept_nudges[u*NUDGE_BITS +: NUDGE_BITS];
            end
            if (CONSTANT != 0) begin : keeping
                logic [UNITS*NUDGE_BITS-1:0] read;
                binep_ram #(
                    .WIDTH(UNITS * NUDGE_BITS), .DEPTH(WORDS), .ADDRESS(WORD_BITS)
                ) nudge_memory (
                    .clk, .write(write && command == STEP && nudge_anew), .write_at(word_2),
                    .written(nudges), .read_at(word), .value(read)
                );
                always_ff @(posedge clk) kept_nudges <= read;
            end else begin : live
                assign kept_nudges = '0;
            end
        end else begin : free
            assign nudges = '0;
        end
    endgenerate
endmodule
