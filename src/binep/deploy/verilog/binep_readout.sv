// The class whose output neurons, adjacent, have the largest sum of states or, of bits alone, of
// drives; of equals the first.
module binep_readout #(
    parameter int PER_CLASS = 10,
    parameter int READ = 10,       // neurons of a class that count: all, or the first
    parameter int WIDTH = 26
) (
    input  logic                    clk,
    input  logic                    clear,
    input  logic                    valid,
    input  logic signed [WIDTH-1:0] value,
    output logic [15:0]             best
);
    localparam int SUM_BITS = WIDTH + $clog2(PER_CLASS + 1);
    logic [15:0]                neuron, class_;
    logic signed [SUM_BITS-1:0] sum, next, most;
    logic                       ends;

    assign next = (neuron == 0 ? '0 : sum) + (neuron < 16'(READ) ? SUM_BITS'(value) : '0);
    assign ends = neuron == 16'(PER_CLASS - 1);

    always_ff @(posedge clk)
        if (clear) begin
            neuron <= '0;
            class_ <= '0;
        end else if (valid) begin
            sum <= next;
            neuron <= ends ? '0 : neuron + 1'b1;
            if (ends) begin
                class_ <= class_ + 1'b1;
                if (class_ == 0 || next > most) begin
                    most <= next;
                    best <= class_;
                end
            end
        end
endmodule
