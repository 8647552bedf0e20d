// The order in which synapses are visited: for each block of N neurons below, the rows above that a
// mask asks for, one a cycle. A word of a synapse memory is one row of one block.
//
//   FETCH  block and group 0 are addressed
//   LOAD   what memories hold of the block is here (load); skip ends it at once
//   ROWS   a row a cycle (visit); a group's mask is taken (take) when the one before is done
//   DRAIN  the last row passes through the owner's second stage
//   STORE  the owner writes back what it has summed for the block (store)
module binep_scan #(
    parameter int N = 32,
    parameter int BLOCKS = 2,
    parameter int GROUPS = 1,
    parameter int ABOVE = 10,
    parameter int BLOCK_BITS = 1,
    parameter int GROUP_BITS = 1,
    parameter int ROW_BITS = 4,
    parameter int WORD_BITS = 5
) (
    input  logic                  clk,
    input  logic                  reset,
    input  logic                  start,
    output logic                  busy,
    output logic [BLOCK_BITS-1:0] block,
    output logic                  load,
    input  logic                  skip,
    output logic [GROUP_BITS-1:0] group,
    output logic                  take,
    input  logic [N-1:0]          mask,   // of the group addressed a cycle ago
    output logic                  visit,
    output logic [N-1:0]          pick,   // the row within its group, one-hot
    output logic [ROW_BITS-1:0]   row,
    output logic [WORD_BITS-1:0]  word,   // its address in a synapse memory
    output logic                  store
);
    localparam logic [2:0] IDLE = 0, FETCH = 1, LOAD = 2, ROWS = 3, DRAIN = 4, STORE = 5;
    localparam int LAST_ROWS = ABOVE - (GROUPS - 1) * N;
    localparam logic [N-1:0] ALL = {N{1'b1}};

    logic [2:0]           state;
    logic [N-1:0]         rest, left, rows;
    logic [GROUP_BITS:0]  taken;
    logic                 ready, more, last_block;
    logic [ROW_BITS-1:0]  first_row, index;
    logic [WORD_BITS-1:0] first_word;

    assign busy = state != IDLE;
    assign load = state == LOAD;
    assign store = state == STORE;
    assign pick = rest & (~rest + 1'b1);
    assign left = rest & ~pick;
    assign visit = state == ROWS && rest != 0;
    assign more = taken != (GROUP_BITS + 1)'(GROUPS);
    assign take = (load && !skip) || (state == ROWS && left == 0 && more && ready);
    assign rows = ((load && GROUPS == 1) || (!load && taken == (GROUP_BITS + 1)'(GROUPS - 1)))
                  ? ALL >> (N - LAST_ROWS) : ALL;
    assign row = first_row + index;
    assign word = first_word + WORD_BITS'(row);
    assign last_block = block == BLOCK_BITS'(BLOCKS - 1);

    always_comb begin
        index = '0;
        for (int k = 0; k < N; k++)
            if (pick[k]) index = index | ROW_BITS'(k);
    end

    always_ff @(posedge clk) begin
        if (reset) state <= IDLE;
        else case (state)
            IDLE: begin
                block <= '0;
                first_word <= '0;
                group <= '0;
                if (start) state <= FETCH;
            end
            FETCH: state <= LOAD;
            LOAD: begin
                rest <= mask & rows;
                first_row <= '0;
                taken <= 1;
                group <= 1;
                ready <= 1'b0;
                if (!skip) state <= ROWS;
            end
            ROWS: begin
                ready <= 1'b1;
                rest <= left;
                if (take) begin
                    rest <= mask & rows;
                    first_row <= first_row + ROW_BITS'(N);
                    taken <= taken + 1'b1;
                    group <= group + 1'b1;
                    ready <= 1'b0;
                end else if (left == 0 && !more) state <= DRAIN;
            end
            DRAIN: state <= STORE;
            default: ;
        endcase
        if (!reset && ((load && skip) || store)) begin
            group <= '0;
            block <= block + 1'b1;
            first_word <= first_word + WORD_BITS'(ABOVE);
            state <= last_block ? IDLE : FETCH;
        end
    end
endmodule
