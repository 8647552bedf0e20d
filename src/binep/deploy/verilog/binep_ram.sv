// A memory with one write port and one read port, read a cycle after its address.
module binep_ram #(
    parameter int WIDTH = 8,
    parameter int DEPTH = 2,
    parameter int ADDRESS = 1,
    parameter FILE = ""  // initial content for $readmemh; none: undefined
) (
    input  logic               clk,
    input  logic               write,
    input  logic [ADDRESS-1:0] write_at,
    input  logic [WIDTH-1:0]   written,
    input  logic [ADDRESS-1:0] read_at,
    output logic [WIDTH-1:0]   value
);
    logic [WIDTH-1:0] content [0:DEPTH-1];

    generate
        if (FILE != "") begin : filled
            initial $readmemh(FILE, content);
        end
    endgenerate

    always_ff @(posedge clk) begin
        if (write) content[write_at] <= written;
        value <= content[read_at];
    end
endmodule
