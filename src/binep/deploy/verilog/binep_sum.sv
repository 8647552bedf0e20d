// The sum of N numbers of WIDTH bits, N a power of two, as a tree.
// Numbers come sign-extended, so that WIDTH has room for the sum.
module binep_sum #(
    parameter int N = 32,
    parameter int WIDTH = 6
) (
    input  logic [N*WIDTH-1:0] numbers,
    output logic [WIDTH-1:0]   sum
);
    function automatic logic [WIDTH-1:0] total(input logic [N*WIDTH-1:0] given);
        logic [N*WIDTH-1:0] level;
        level = given;
        for (int half = N / 2; half > 0; half = half / 2)
            for (int k = 0; k < half; k++)
                level[k*WIDTH +: WIDTH] = level[k*WIDTH +: WIDTH] + level[(k+half)*WIDTH +: WIDTH];
        total = level[WIDTH-1:0];
    endfunction

    assign sum = total(numbers);
endmodule
