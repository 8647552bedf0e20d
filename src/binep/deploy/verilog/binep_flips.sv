// Counts the weights of a memory that have flipped since reset.
module binep_flips #(
    parameter int N = 32
) (
    input  logic         clk,
    input  logic         reset,
    input  logic         valid,
    input  logic [N-1:0] old,
    input  logic [N-1:0] after,
    output logic [31:0]  flips
);
    always_ff @(posedge clk)
        if (reset) flips <= '0;
        else if (valid) flips <= flips + 32'($countones(old ^ after));
endmodule
