// Bop, on the N synapses of a word: add a gradient to each momentum, kept in +-MOST, and flip the
// weight whose momentum is beyond the threshold and has its sign. Or leak, or forget.
module binep_bop #(
    parameter int N = 32,
    parameter int MOMENTUM_BITS = 16,
    parameter int GRADIENT_BITS = 2
) (
    input  logic [3:0]                 command,
    input  logic [MOMENTUM_BITS-1:0]   threshold,
    input  logic [N-1:0]               weights,
    input  logic [N*MOMENTUM_BITS-1:0] momenta,
    input  logic [N*GRADIENT_BITS-1:0] gradients,
    output logic [N-1:0]               next_weights,
    output logic [N*MOMENTUM_BITS-1:0] next_momenta
);
    `include "binep_commands.svh"
    localparam logic signed [MOMENTUM_BITS+1:0] MOST = (1 << (MOMENTUM_BITS - 1)) - 1;

    generate
        for (genvar k = 0; k < N; k++) begin : synapse
            logic signed [MOMENTUM_BITS-1:0] old, halved, after;
            logic signed [GRADIENT_BITS-1:0] gradient;
            logic signed [MOMENTUM_BITS+1:0] sum;
            logic [MOMENTUM_BITS-1:0] size;
            assign old = momenta[k*MOMENTUM_BITS +: MOMENTUM_BITS];
            assign gradient = gradients[k*GRADIENT_BITS +: GRADIENT_BITS];
            assign sum = (MOMENTUM_BITS + 2)'(old) + (MOMENTUM_BITS + 2)'(gradient);
            // Towards zero.
            assign halved = (old + $signed(MOMENTUM_BITS'(old[MOMENTUM_BITS-1]))) >>> 1;
            assign after = command == LEAK ? halved
                         : command != LEARN ? '0
                         : sum > MOST ? MOST[MOMENTUM_BITS-1:0]
                         : sum < -MOST ? -MOST[MOMENTUM_BITS-1:0] : sum[MOMENTUM_BITS-1:0];
            assign size = after[MOMENTUM_BITS-1] ? -after : after;
            // A momentum of zero is beyond no threshold: its sign does not matter.
            assign next_weights[k] = weights[k]
                ^ (command == LEARN && size > threshold && after[MOMENTUM_BITS-1] != weights[k]);
            assign next_momenta[k*MOMENTUM_BITS +: MOMENTUM_BITS] = after;
        end
    endgenerate
endmodule
