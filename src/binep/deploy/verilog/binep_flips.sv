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
    localparam int WIDTH = $clog2(N) + 1;
    logic [N*WIDTH-1:0] terms;
    logic [WIDTH-1:0]   count;

    generate
        for (genvar k = 0; k < N; k++) begin : synapse
            assign terms[k*WIDTH +: WIDTH] = {{(WIDTH - 1){1'b0}}, old[k] ^ after[k]};
        end
    endgenerate

    binep_sum #(.N(N), .WIDTH(WIDTH)) adder (.numbers(terms), .sum(count));

    always_ff @(posedge clk)
        if (reset) flips <= '0;
        else if (valid) flips <= flips + {{(32 - WIDTH){1'b0}}, count};
endmodule
