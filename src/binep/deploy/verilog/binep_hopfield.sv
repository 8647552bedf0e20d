// UNITS neurons that are bits alone: nothing is kept of them but the bits that they send.
//
//   bit = drive + nudge >= 1/2                       in units of 2^-PARAMETER_BITS
//   nudge = beta (target - 1/2) + margin (1 - 2 target)
module binep_hopfield #(
    parameter int UNITS = 4,
    parameter int WORDS = 8,
    parameter int WORD_BITS = 3,
    parameter int PARAMETER_BITS = 40,
    parameter int DRIVE_BITS = 48,
    parameter logic INITIAL = 0,
    parameter int NUDGED = 0,            // whether these are outputs that learn
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
    output logic [UNITS*DRIVE_BITS-1:0]  shown,
    // the step
    input  logic                         keep_state,
    input  logic signed [BETA_WIDTH-1:0] beta,
    input  logic signed [BETA_WIDTH-1:0] margin
);
    `include "binep_commands.svh"
    localparam int HALF_SHIFT = PARAMETER_BITS - 1;
    localparam int PULL_BITS = BETA_WIDTH + 2 + HALF_SHIFT - BETA_BITS;
    localparam int SUM_BITS = (DRIVE_BITS > PULL_BITS ? DRIVE_BITS : PULL_BITS) + 1;
    localparam logic signed [SUM_BITS-1:0] HALF = SUM_BITS'(1) << HALF_SHIFT;

    logic signed [PULL_BITS-1:0] pull;   // of a neuron whose target is 1; of others it is -pull
    logic [UNITS-1:0]            targets_2, saved_2;

    always_ff @(posedge clk) begin
        pull <= (PULL_BITS'(beta) - 2 * PULL_BITS'(margin)) <<< (HALF_SHIFT - BETA_BITS);
        targets_2 <= targets_1;
    end

    assign shown = drives_2;

    generate
        for (genvar u = 0; u < UNITS; u++) begin : neuron
            logic signed [SUM_BITS-1:0] drive, nudged;
            assign drive = SUM_BITS'($signed(drives_2[u*DRIVE_BITS +: DRIVE_BITS]));
            assign nudged = NUDGED == 0 ? drive : targets_2[u] ? drive + pull : drive - pull;
            assign bits[u] = command == BEGIN_IMAGE ? INITIAL
                           : command == RESTORE ? saved_2[u] : nudged >= HALF;
        end
        if (RETURNS != 0) begin : returning
            logic [UNITS-1:0] saved;
            binep_ram #(.WIDTH(UNITS), .DEPTH(WORDS), .ADDRESS(WORD_BITS)) saved_memory (
                .clk, .write(write && command == STEP && keep_state), .write_at(word_2),
                .written(bits), .read_at(word), .value(saved)
            );
            always_ff @(posedge clk) saved_2 <= saved;
        end else begin : going_on
            assign saved_2 = '0;
        end
    endgenerate
endmodule
